"""`attnkit probe rank`: the rank of attention maps, of runs and of mechanisms."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument

from attnkit.cli import completion, console, options, output
from attnkit.cli.options import flag, value
from attnkit.cli.probes import common
from attnkit.cli.progress_bar import progress_bar
from attnkit.errors import UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.analysis.map_rank import Ranks
    from attnkit.runs.curves import Curves
    from attnkit.show.table import Table, Value


class RankRow(NamedTuple):
    """The maps of one layer, or of a mechanism at one length."""

    places: "Mapping[str, Value]"
    """What the row is about, by the title of its column."""
    heads: "Sequence[Ranks]"


def rank(
    targets: Annotated[
        list[str],
        Argument(
            metavar="RUNS|WORD[:OPTION=VALUE,...]",
            help="Folders of finished runs; or mechanisms, with options as in local:window=128.",
            autocompletion=completion.mechanisms,
        ),
    ],
    *,
    threshold: Annotated[
        float,
        value("T", "Numerical rank: singular values above this share of the largest one."),
    ] = 1e-3,
    split: common.Split = None,
    rows: common.Rows = None,
    kind: common.Kinds = None,
    layer: options.Layers = None,
    head: options.Heads = None,
    lengths: Annotated[
        str | None, value("N,...", "For mechanisms: numbers of tokens. [default: 64,128,256,512]")
    ] = None,
    head_width: Annotated[
        int | None, value("N", "For mechanisms: width of each head. [default: 64]", min=1)
    ] = None,
    seeds: Annotated[
        int | None, value("N", "For mechanisms: draws of weights and tokens. [default: 3]", min=1)
    ] = None,
    causal: Annotated[bool, flag("--causal", "For mechanisms: causal masking.")] = False,
    format: options.Format = "table",
    save: common.Save = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    plugins: options.Plugins = None,
) -> None:
    """Measure the rank of attention maps, of trained runs or of mechanisms before training.

    The effective rank is exp of the entropy of the normalised singular values (Roy and Vetterli
    2007): the number of tokens if each attends to a different one, 1 if all attend alike.

      attnkit probe rank runs/quickstart
      attnkit probe rank scaled-dot linear synthesizer-random --lengths 64..512 --save rank.svg
    """
    if save is not None:
        output.check_save(save, output.PICTURES)
    from attnkit.analysis.map_rank import check_threshold

    check_threshold(threshold)
    of_runs: dict[str, Any] = {"split": split, "rows": rows, "kind": kind, "layer": layer,
                               "head": head}  # fmt: skip
    of_words: dict[str, Any] = {
        "lengths": lengths, "head-width": head_width, "seeds": seeds, "causal": causal or None,
    }  # fmt: skip
    # options of a mechanism may hold a slash, its word never does
    folders = [Path(one).exists() or "/" in one.partition(":")[0] for one in targets]
    if any(folders) and not all(folders):
        word, folder = targets[folders.index(False)], targets[folders.index(True)]
        raise UsageError(f"{quoted(word)} is no folder, but {folder} is: give runs or mechanisms")
    given, what = (of_words, "mechanisms") if any(folders) else (of_runs, "runs")
    common.refuse(given, f"is for {what}, and {targets[0]} is not one of them")
    if any(folders):
        chosen = {
            "kinds": common.kinds_of(kind), "layers": options.all_of(layer),
            "heads": options.all_of(head), "device": device, "threshold": threshold,
        }  # fmt: skip
        found = _runs(targets, (split, rows, data_dir, offline), chosen)
        title, plots = f"Rank of attention maps: {split or common.VALID}", run_plots(found)
    else:
        settings = {"causal": causal, "head_width": head_width or 64, "threshold": threshold,
                    "device": device}  # fmt: skip
        numbers = options.lengths(lengths or "64,128,256,512") or []
        found = _words(targets, numbers, seeds or 3, settings)
        title, plots = "Rank of attention maps before training", word_plots(found)
    common.show(rank_table(title, found, threshold), plots, format, save)


def _runs(folders: Sequence[str], corpus: tuple[Any, ...], chosen: dict[str, Any]) -> list[RankRow]:
    """The layers of finished runs, run by run."""
    from attnkit.analysis.map_rank import probe_rank
    from attnkit.runs import find_runs

    runs = find_runs(folders, note=console.warn)
    names = [run.variant for run in runs]
    if len(set(names)) < len(names):
        names = [common.title_of(run) for run in runs]
    found = []
    for name, run in zip(names, runs, strict=True):
        rows = common.rows_of(run, *corpus)
        with progress_bar("rows") as progress:
            layers = probe_rank(run, rows, **chosen, progress=partial(progress, name))
        for one in layers:
            places: dict[str, Value] = {"run": name} if runs[1:] else {}
            places |= {"attention": one.kind, "layer": one.layer.number,
                       "mechanism": one.layer.mechanism}  # fmt: skip
            found.append(RankRow(places, list(one.heads.values())))
    return found


def _words(
    words: Sequence[str], lengths: Sequence[int], seeds: int, settings: dict[str, Any]
) -> list[RankRow]:
    """Mechanisms at each length, all checked before the first is measured."""
    from attnkit.analysis.map_rank import check_lengths, mechanism_ranks
    from attnkit.bench.plan import candidate
    from attnkit.mechanisms import capable

    check_lengths(lengths)
    candidates = [candidate(word) for word in dict.fromkeys(words)]
    for one in candidates:
        able = capable(one.word, one.options)
        if settings["causal"] and not able.causal:
            raise UsageError(f"--causal: {one.word} cannot hide the future: {able.why}")
    found, total = [], len(candidates) * len(lengths)
    with progress_bar("settings") as progress:
        for one in candidates:
            for length in lengths:
                heads = [
                    head
                    for seed in range(1, seeds + 1)
                    for head in mechanism_ranks(
                        one.word, one.options, length, seed=seed, **settings
                    )
                ]
                found.append(RankRow({"mechanism": one.label, "length": length}, heads))
                progress("", len(found), total)
    return found


def rank_table(title: str, found: Sequence[RankRow], threshold: float) -> "Table":
    """A row for each layer of a run, or each mechanism and length."""
    from attnkit.show.table import Cell, Column, Table

    priorities = {"mechanism": 3, "lowest": 2, "highest": 2, "of maximum": 1}
    texts = [*found[0].places]
    numbers = ["effective rank", "lowest", "highest", "of maximum", "numerical rank"]
    columns = [
        Column(
            name,
            "left" if name in texts and name != "length" else "right",
            priority=0 if name == texts[0] else priorities.get(name, 0),
        )
        for name in (*texts, *numbers)
    ]
    rows = []
    for one in found:
        each = [head.effective for head in one.heads]
        values = {
            "effective_rank": mean(each), "lowest": min(each), "highest": max(each),
            "share": mean(head.share for head in one.heads),
            "numerical_rank": mean(head.numerical for head in one.heads),
        }  # fmt: skip
        cells = [Cell(f"{text:,}" if isinstance(text, int) else str(text), {name: text})
                 for name, text in one.places.items()]  # fmt: skip
        cells += [
            Cell(f"{number:.2f}" if name == "share" else f"{number:,.1f}", {name: number})
            for name, number in values.items()
        ]
        rows.append(tuple(cells))
    trained = "length" not in found[0].places
    notes = (
        "effective rank: exp of the entropy of the normalised singular values; of maximum: as a "
        f"share of the tokens; numerical rank: singular values above {threshold:g} of the largest",
        "averaged over rows and heads; lowest and highest: of the heads"
        if trained
        else "averaged over heads and draws of weights and tokens, N(0, 1); lowest and highest: of "
        "these",
    )
    return Table(title, tuple(columns), tuple(rows), notes)


def run_plots(found: Sequence[RankRow]) -> "list[Curves]":
    """The effective rank by layer, a plot a kind of attention."""
    plots: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for one in found:
        lines = plots.setdefault(f"effective rank, {one.places['attention']}", {})
        point = (float(str(one.places["layer"])), mean(head.effective for head in one.heads))
        lines.setdefault(str(one.places.get("run", "all heads")), []).append(point)
    return [_plot(title, "layer", lines) for title, lines in plots.items()]


def word_plots(found: Sequence[RankRow]) -> "list[Curves]":
    """Both ranks by length, a line a mechanism."""
    plots = []
    for title, field in (("effective rank", "effective"), ("numerical rank", "numerical")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for one in found:
            y = mean(getattr(head, field) for head in one.heads)
            point = (float(str(one.places["length"])), y)
            lines.setdefault(str(one.places["mechanism"]), []).append(point)
        plots.append(_plot(title, "length", lines))
    return plots


def _plot(title: str, x: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> "Curves":
    from attnkit.runs.curves import Curves, Series

    series = (Series(name, (tuple(line),)) for name, line in lines.items())
    return Curves(title, x, tuple(series), False)
