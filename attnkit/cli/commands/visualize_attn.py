"""`attnkit visualize-attn`: attention maps of a model on the terminal, as a picture or as a web page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attnkit.cli import console, options, output
from attnkit.cli.input import open_lines
from attnkit.cli.options import argument, flag, search_settings, value
from attnkit.cli.progress_bar import say_loading
from attnkit.errors import UsageError
from attnkit.text import safe_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnkit.analysis.maps import AttentionMaps, Capture, Kind

KindWord = Literal["encoder", "decoder", "cross"]
ScaleWord = Literal["linear", "log", "row"]
NUMBERS = (".npz", ".csv")
PAGES = (".html", ".htm")
PREFERRED: tuple[KindWord, ...] = ("cross", "decoder", "encoder")
"""Kinds in order of preference; without --kind, the first kind that the model has is shown."""
MOST_MAPS, FEWEST_MAPS = 48, 8
"""Maximum number of maps in a grid or picture over all models, but at least the second number for each model."""


def visualize_attn(
    model: options.ModelName,
    text: str = argument("TEXT", "Input of the model; - reads a line of standard input."),
    *,
    target: str | None = value("TEXT", "Use this output instead of the model's output."),
    kind: KindWord | None = value("KIND", "cross, decoder or encoder. [default: the first of these the model has]"),
    layer: options.Layers = None,
    head: options.Heads = None,
    step: Literal["output", "input"] = value(
        "STEP",
        "Name the rows of cross-attention by the token that the step predicts (output) or by "
        "the token that it reads (input).",
        default="output",
    ),
    other: list[str] | None = value("MODEL", "Compare with this model. Repeatable.", "--with"),
    reader: str | None = value("WORD", "Rank heads by the attention of this word to --to.", "--from"),
    read: str | None = value("WORD", "The word that --from attends to.", "--to"),
    reference: bool = flag("--reference", "Compare with exact softmax on the same queries and keys."),
    save: list[Path] | None = value(
        "FILE", "Write a .png, .svg, .pdf, .html, .npz or .csv file instead of drawing on the terminal. Repeatable."
    ),
    view: Literal["full", "grid"] | None = value("VIEW", "full (the mean) or grid (each head). [default: both]"),
    scale: ScaleWord = value(
        "SCALE", "Color scale: linear, log, or row (each row relative to its maximum).", default="linear"
    ),
    words: bool = flag("--words", "Merge subwords: sum the weights over keys, average them over queries."),
    hide_special: bool = flag("--hide-special", "Hide begin and end tokens."),
    hide_first: bool = flag(
        "--hide-first", "Hide the first column, the attention sink of many decoders, and scale colors to the others."
    ),
    max_length: options.MaxLength = None,
    offline: options.Offline = False,
    device: options.Device = "auto",
) -> None:
    """Show attention maps: in the terminal, or as a picture, a web page or numbers.

    The model generates an output (or takes --target) and reads it again. Rows are queries, which
    attend; columns are keys, which are attended to. Layers and heads are numbered from 0. A Hugging
    Face decoder reads TEXT as it is, and continues it with --max-length.

      attnkit visualize-attn RUN "A man rides a horse."
      attnkit visualize-attn RUN "A man rides a horse." --layer 1 --head 3 --words
      attnkit visualize-attn RUN "A man rides a horse." --with OTHER_RUN --save maps.html
      attnkit visualize-attn RUN "The aunt who sang saw me." --from who --to aunt
    """
    if (reader is None) != (read is None):
        given, missing = ("--from", "--to") if read is None else ("--to", "--from")
        raise UsageError(f"{given} needs {missing} WORD too")
    files = save or []
    for path in files:
        output.check_save(path, (*output.PICTURES, *PAGES, *NUMBERS))
        if other and path.suffix.lower() not in PAGES:
            raise UsageError(f"--save {path}: {path.suffix} holds one model; remove --with, or save .html")
        if reference and path.suffix.lower() in output.PICTURES:
            raise UsageError(f"--save {path}: {path.suffix} does not support --reference; save .html, .npz or .csv")
    if target is not None and max_length is not None:
        raise UsageError("--target sets the output; remove --max-length")
    if text == "-":
        with open_lines("-") as lines:
            text = next(iter(lines), "")
    all_kinds = bool(reader) or any(path.suffix.lower() in (*PAGES, *NUMBERS) for path in files)
    kinds = [kind] if kind else list(PREFERRED) if all_kinds else []
    layers, heads = options.parse_numbers("--layer", layer), options.parse_numbers("--head", head)
    settings: Any = {"target": target, "layers": layers, "heads": heads, "step": step}
    captures: list[Capture] = []
    for name in (model, *(other or ())):
        captures += _captures(name, text, kinds, settings, max_length, reference, device, offline)
    for captured in captures:
        if note := captured.facts.get("note"):
            console.warn(f"{captured.model}: {note}")
    # the preferred kind that all models have, otherwise that the first model has
    common = (k for group in (captures, captures[:1]) for k in PREFERRED if all(k in c.maps for c in group))
    first = kind if kind else next(common)
    look = Look(scale, words, hide_special, hide_first)
    adapted = [look.adapt(captured) for captured in captures]
    drawn = _select_maps(adapted, first, all_layers=bool(layer), all_heads=bool(head))
    for path in files:
        if path.suffix.lower() in output.PICTURES:
            from attnkit.show.map_picture import picture

            output.save_picture(path, picture(drawn[0], first, path.suffix[1:].lower(), scale=scale))
        else:
            _write(path, captures, adapted, kind, look)
    if reader and read:
        _rank(captures, kind, reader, read)
    elif not files:
        for part in _views(captures, adapted, drawn, first, scale, view):
            console.stdout().print(part)
    pictures = any(path.suffix.lower() in output.PICTURES for path in files)
    if not reader and (pictures or not files):
        grids = drawn if pictures or view != "full" else []
        _suggest([captured.maps[first] for captured in captures], grids, first, look)


class Look(NamedTuple):
    """Settings for drawing maps."""

    scale: ScaleWord
    words: bool
    hide_special: bool
    hide_first: bool

    def adapt(self, capture: "Capture") -> "Capture":
        """Return the capture with words merged and hidden tokens removed."""
        maps = {kind: maps.by_word() if self.words else maps for kind, maps in capture.maps.items()}
        hidden = {"special": self.hide_special, "first": self.hide_first}
        return replace(capture, maps={kind: kind_maps.without(**hidden) for kind, kind_maps in maps.items()})


def _captures(
    name: str,
    text: str,
    kinds: "Sequence[Kind]",
    settings: dict[str, Any],
    max_length: int | None,
    reference: bool,
    device: str,
    offline: bool,
) -> "list[Capture]":
    """Return the maps of one model and, with `reference`, the maps of exact softmax.

    Without `kinds`, only the preferred kind that the model has is captured; with several, all kinds that it has.
    """
    from attnkit.recipe.schema import SearchConfig
    from attnkit.runs import Run, is_run

    def select(present: "Sequence[Kind]") -> "Sequence[Kind]":
        return kinds if len(kinds) == 1 else present if kinds else present[:1]

    if not is_run(name):
        if reference:
            raise UsageError(f"--reference: the attention of {name} already is softmax")
        from attnkit.analysis import huggingface_capture
        from attnkit.huggingface import open_model

        say_loading(name)
        opened = open_model(name, device=device, offline=offline)
        shapes: dict[str, Sequence[Kind]] = {"decoder": ("decoder",), "encoder": ("encoder",)}
        selected = select(shapes.get(opened.shape, PREFERRED))
        greedy = search_settings(SearchConfig(method="greedy"), {"max_length": max_length}, sample=False)
        search = None if max_length is None else greedy
        return [huggingface_capture.capture(opened, text, **settings, kinds=selected, search=search)]
    from attnkit.analysis.capture import capture
    from attnkit.recipe import places

    run = Run.open(name)
    selected = select([kind for kind in PREFERRED if kind in places(run.recipe)])
    search = search_settings(run.recipe.search, {"max_length": max_length}, sample=False)
    captured = capture(run, text, **settings, search=search, kinds=selected, reference=reference, device=device)
    if not reference:
        return [captured]
    if captured.reference is None or not captured.reference.maps:
        raise UsageError(
            f"--reference: {captured.model} has no queries and keys; remove "
            "--reference, or choose another --kind or --layer"
        )
    return [replace(captured, reference=None), captured.reference]


def _rank(captures: "Sequence[Capture]", kind: KindWord | None, reader: str, read: str) -> None:
    """Print each model's heads ranked by the attention of `reader` to `read`, in the first kind with both words."""
    from attnkit.analysis.word_attention import has_word
    from attnkit.show.probe_tables import reading_table

    for captured in captures:
        kinds = [kind] if kind else [name for name in reversed(PREFERRED) if name in captured.maps]
        candidates = [captured.maps[name] for name in kinds]
        both = (maps for maps in candidates if has_word(maps.queries, reader) and has_word(maps.keys, read))
        table = reading_table(next(both, candidates[0]), reader, read)
        if len(captures) > 1:
            table = replace(table, title=f"{captured.model}: {table.title}")
        output.write_tables([table], "table")


def _select_maps(captures: "Sequence[Capture]", kind: "Kind", **keep: bool) -> "list[Capture]":
    """Return the captures with the layers and heads to draw."""
    limit = max(MOST_MAPS // len(captures), FEWEST_MAPS)
    return [
        replace(captured, maps={kind: captured.maps[kind].spread(limit, **keep)} if kind in captured.maps else {})
        for captured in captures
    ]


def _views(
    captures: "Sequence[Capture]",
    adapted: "Sequence[Capture]",
    drawn: "Sequence[Capture]",
    kind: "Kind",
    scale: ScaleWord,
    view: str | None,
) -> "Iterator[RenderableType]":
    """Yield the maps for the terminal, from top to bottom."""
    from rich.text import Text

    from attnkit.show.map_screens import MapComparison, MapGrid

    if view != "grid":
        yield MapComparison(adapted, kind, scale)
    for captured, selected in zip(captures, drawn, strict=True) if view != "full" else ():
        if len(captures) > 1:
            yield Text(f"\n{safe_text(captured.model)}", "bold")
        if captured.maps[kind].weights.shape[:2] != (1, 1):
            yield Text()
            yield MapGrid(selected.maps[kind], scale)


def _suggest(all_maps: "Sequence[AttentionMaps]", drawn: "Sequence[Capture]", kind: "Kind", look: Look) -> None:
    """Print which options show layers and heads that were left out, and which hide an attention sink."""
    from attnkit.analysis.map_statistics import attention_sink
    from attnkit.show.attention_matrix import selection_text, sink_text

    if text := next(filter(None, (selection_text(captured.maps[kind]) for captured in drawn)), ""):
        console.say(f"{text}; --layer and --head choose other maps, --save maps.html has all maps")
    for sink in filter(None, map(attention_sink, all_maps)):
        first = sink.position == 0 and not (sink.token.special and look.hide_special)
        hidden = look.hide_first if first else look.hide_special or not sink.token.special
        if not hidden:
            option = "--hide-first" if first else "--hide-special"
            console.say(f"{sink_text(sink)}: {option} shows the attention to the other tokens")
            break


def _write(
    path: Path, captures: "Sequence[Capture]", adapted: "Sequence[Capture]", kind: KindWord | None, look: Look
) -> None:
    """Write a page, which merges words and hides tokens itself, or a file of numbers."""
    if path.suffix.lower() in PAGES:
        from attnkit.show.map_page import page

        command = console.command_line(without=("--save", str(path)))
        output.save(path, page(captures, command=command, kind=kind, **look._asdict()))
        return
    from attnkit.analysis import map_files

    captured, *references = adapted
    map_files.save(path, replace(captured, reference=references[0]) if references else captured)
    console.say(f"wrote {path}")
