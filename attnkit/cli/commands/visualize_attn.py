"""`attnkit visualize-attn`: what a model attends to, on the terminal, as a picture, as a page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from attnkit.cli import console, output, plugin
from attnkit.cli.input import open_lines
from attnkit.cli.options import Beam, Device, MaxLength, OfflineModel, Temperature, TopP
from attnkit.errors import UsageError
from attnkit.text import quoted, safe_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnkit.analysis.maps import Capture, Kind

KindWord = Literal["encoder", "decoder", "cross"]
ScaleWord = Literal["linear", "log", "row"]
Colours = Literal["cividis", "viridis"]
SCREENS = ("full", "grid", "numbers")
PICTURES = (".png", ".svg", ".pdf")
NUMBERS = (".npz", ".safetensors", ".csv")
PAGES = (".html", ".htm")
PREFERRED: tuple[KindWord, ...] = ("cross", "decoder", "encoder")
"""What is shown where no kind is asked for: the first that the model has."""
HAS: dict[str, tuple[KindWord, ...]] = {
    "encoder-decoder": PREFERRED,
    "decoder": ("decoder",),
    "encoder": ("encoder",),
}
"""Shape of a model -> its kinds of attention, the one to show first."""


class Look(NamedTuple):
    """How maps are drawn."""

    scale: ScaleWord
    colours: Colours
    words: bool
    special: bool
    mean: bool
    plain: bool
    screens: tuple[str, ...]


def visualize_attn(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Folder of a finished run; or a Hugging Face model, by folder or name.",
        ),
    ],
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="What the model reads; - is standard input.")
    ],
    *,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The output to show, in place of what the model writes."),
    ] = None,
    kind: Annotated[
        KindWord | None,
        typer.Option(help="Which attention. [default: cross, else decoder, else encoder]"),
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option(metavar="L", help="Layer from 0; may be repeated.")
    ] = None,
    head: Annotated[
        list[int] | None, typer.Option(metavar="H", help="Head from 0; may be repeated.")
    ] = None,
    other: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="RUN", help="Compare with this one; may be repeated."),
    ] = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference", help="Compare with exact softmax on the same queries and keys."
        ),
    ] = False,
    save: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Write .png .svg .pdf .html .npz .safetensors .csv, not the screen.",
        ),
    ] = None,
    screen: Annotated[
        list[str] | None,
        typer.Option(
            "--view",
            metavar="WHAT",
            help="full, grid or numbers; may be repeated. [default: full and grid]",
        ),
    ] = None,
    scale: Annotated[
        ScaleWord, typer.Option(help="Of colours; row: each row to its own maximum.")
    ] = "linear",
    colours: Annotated[Colours, typer.Option(help="Colour map.")] = "cividis",
    words: Annotated[
        bool, typer.Option("--words", help="Merge subwords: to a word sums, from a word averages.")
    ] = False,
    hide_special: Annotated[
        bool, typer.Option("--hide-special", help="Leave begin and end tokens out of the axes.")
    ] = False,
    mean: Annotated[
        bool, typer.Option("--mean", help="In pictures: the mean over heads of each layer.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Digits in place of colours, for readers and grep.")
    ] = False,
    beam: Beam = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw the output from the model's distribution.")
    ] = False,
    top_p: TopP = None,
    temperature: Temperature = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of sampling.")] = None,
    max_length: MaxLength = None,
    offline: OfflineModel = False,
    device: Device = "auto",
    plugins: plugin.Plugins = None,
) -> None:
    """Show what a model attends to: on the terminal, as a picture, as a page, as numbers.

    The model writes its output (or takes --target) and reads it once more; rows are queries, what
    attends, and columns keys, what is attended to.  Layers and heads are counted from 0.  A Hugging
    Face decoder reads TEXT as it is, and continues it where an option of search is given.

      attnkit visualize-attn RUN "A man rides a horse."
      attnkit visualize-attn RUN "A man rides a horse." --layer 1 --head 3 --words
      attnkit visualize-attn RUN "A man rides a horse." --with OTHER_RUN --save maps.html
    """
    files = _checked(save or [], bool(other))
    for word in screen or ():
        if word not in SCREENS:
            raise UsageError(f"--view {quoted(word)}: {output.choices(word, SCREENS)}")
    asked = {"beam": beam, "top_p": top_p, "temperature": temperature, "seed": seed,
             "max_length": max_length}  # fmt: skip
    request = Request(
        _line(text), target, asked, sample, kind, tuple(layer or ()), tuple(head or ()), reference,
        device, offline,
    )  # fmt: skip
    if target is not None and request.searched:
        raise UsageError("--target is the output already: leave the options of search out")
    look = Look(
        scale, colours, words, not hide_special, mean, plain, tuple(screen or ("full", "grid"))
    )
    everything = any(path.suffix.lower() in (*PAGES, *NUMBERS) for path in files)
    found = [one for name in (model, *(other or ())) for one in request.captures(name, everything)]
    for one in found:
        if note := one.facts.get("note"):
            console.warn(f"{one.model}: {note}")
    if files:
        for path in files:
            _write(path, found, request, look)
            console.say(f"wrote {path}")
        return
    shown = kind or _first_kind(found)
    for part in _screens(_adapted(found, look), shown, look):
        console.stdout().print(part)


def _line(text: str) -> str:
    """The text, or the first line of standard input."""
    if text != "-":
        return text
    with open_lines("-", "strict") as lines:
        return next(iter(lines), "")


def _checked(files: Sequence[Path], several: bool) -> Sequence[Path]:
    """Refuse what could not be written of one model or several, before any work is done."""
    known = (*PICTURES, *PAGES, *NUMBERS)
    for path in files:
        output.check_saves(path, known)
        suffix = path.suffix.lower()
        if suffix in NUMBERS and several:
            raise UsageError(f"--save {path}: {suffix} holds one model: leave --with out")
        if suffix in PICTURES:
            from attnkit.show.figure import require

            require(suffix[1:])
    return files


class Request(NamedTuple):
    """What is asked of each model."""

    text: str
    target: str | None
    asked: dict[str, Any]
    sample: bool
    kind: KindWord | None
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    reference: bool
    device: str
    offline: bool

    @property
    def searched(self) -> bool:
        """Whether any option of search is given."""
        return self.sample or any(value is not None for value in self.asked.values())

    def captures(self, name: str, everything: bool) -> list["Capture"]:
        """The maps of one model, and those of exact softmax where these are asked for.

        `everything`: of all kinds of attention where none is asked for; else of the one shown.
        """
        from attnkit.runs import is_run

        one = self._run(name, everything) if is_run(name) else self._pretrained(name, everything)
        if not self.reference:
            return [one]
        if one.reference is None or not one.reference.maps:
            raise UsageError(
                f"--reference: {one.model} has no queries and keys to attend with: "
                "leave it out, or choose another --kind or --layer"
            )
        return [replace(one, reference=None), one.reference]

    def _run(self, name: str, everything: bool) -> "Capture":
        from attnkit.analysis.capture import capture
        from attnkit.cli.commands.generate import settings
        from attnkit.runs import Run

        run = Run.open(name)
        return capture(
            run,
            self.text,
            target=self.target,
            search=settings(run.recipe.search, self.asked, self.sample),
            kinds=self._kinds(run.recipe.model.shape, everything),
            layers=self.layers,
            heads=self.heads,
            reference=self.reference,
            device=self.device,
        )

    def _pretrained(self, name: str, everything: bool) -> "Capture":
        from attnkit.analysis.huggingface_capture import capture
        from attnkit.cli.commands.generate import settings
        from attnkit.huggingface import open_model
        from attnkit.recipe.schema import SearchConfig

        if self.reference:
            raise UsageError(f"--reference: {name} attends by softmax already")
        model = open_model(name, device=self.device, offline=self.offline)
        search = None
        if self.searched:
            search = settings(SearchConfig(method="greedy"), self.asked, self.sample)
        return capture(
            model,
            self.text,
            target=self.target,
            search=search,
            kinds=self._kinds(model.shape, everything),
            layers=self.layers,
            heads=self.heads,
        )

    def _kinds(self, shape: str, everything: bool) -> "Sequence[Kind]":
        if self.kind is not None:
            return [self.kind]
        return HAS[shape] if everything else HAS[shape][:1]


def _first_kind(found: "Sequence[Capture]") -> KindWord:
    """The kind to show first: one that all have, if there is one."""
    for kind in PREFERRED:
        if all(kind in one.maps for one in found):
            return kind
    return next(kind for kind in PREFERRED if kind in found[0].maps)


def _adapted(found: "Sequence[Capture]", look: Look) -> "list[Capture]":
    """With words merged and special tokens left out where that is asked for."""
    adapted = []
    for one in found:
        maps = dict(one.maps)
        for kind, some in maps.items():
            some = some.by_word() if look.words else some
            maps[kind] = some if look.special else some.without_special()
        adapted.append(replace(one, maps=maps))
    return adapted


def _screens(found: "Sequence[Capture]", kind: "Kind", look: Look) -> "Iterator[RenderableType]":
    """What the terminal shows, from top to bottom."""
    from rich.text import Text

    from attnkit.show.map_comparison import MapComparison
    from attnkit.show.map_grid import MapGrid
    from attnkit.show.map_statistics_table import statistics_table

    drawn: dict[str, Any] = {
        "scale": look.scale, "palette": look.colours, "plain": look.plain
    }  # fmt: skip
    if "full" in look.screens:
        yield MapComparison(found, kind, **drawn)
    for one in found:
        maps = one.maps[kind]
        if len(found) > 1 and look.screens != ("full",):
            yield Text(f"\n{safe_text(one.model)}", "bold")
        if "grid" in look.screens and maps.weights.shape[:2] != (1, 1):
            yield Text()
            yield MapGrid(maps, **drawn)
        if "numbers" in look.screens:
            yield Text()
            yield statistics_table(maps)


def _write(path: Path, found: "Sequence[Capture]", request: Request, look: Look) -> None:
    """One file, of the kind that its suffix names, whole or not at all."""
    from attnkit.analysis import map_files
    from attnkit.storage.files import atomic_write

    suffix = path.suffix.lower()
    if suffix in NUMBERS:
        one, *references = _adapted(found, look)
        map_files.save(path, replace(one, reference=references[0]) if references else one)
    elif suffix in PAGES:
        from attnkit.show.map_page import page

        command = console.again(without=("--save", str(path)))
        made = page(
            found, command=command, kind=request.kind, scale=look.scale, words=look.words,
            special=look.special, colours=look.colours,
        )  # fmt: skip
        atomic_write(path, made)
    else:
        from attnkit.show.map_picture import picture

        kind = request.kind or _first_kind(found)
        drawn = picture(
            _adapted(found, look), kind, suffix[1:], mean=look.mean, scale=look.scale,
            palette=look.colours,
        )  # fmt: skip
        for line in drawn.warnings:
            console.warn(line)
        atomic_write(path, drawn.data)
