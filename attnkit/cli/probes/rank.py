"""`attnkit probe rank`: the rank of the attention maps of runs."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument

from attnkit.cli import completion, console, options, output
from attnkit.cli.options import value
from attnkit.cli.probes import common
from attnkit.cli.progress_bar import progress_bar

if TYPE_CHECKING:
    from attnkit.analysis.map_rank import LayerRanks
    from attnkit.runs.curves import Curves
    from attnkit.show.table import Table


class RankRow(NamedTuple):
    """The maps of one layer."""

    run: str
    layer: "LayerRanks"


def rank(
    folders: Annotated[
        list[Path],
        Argument(
            metavar="RUNS",
            help="Folders of one or more finished runs.",
            autocompletion=completion.folders,
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
    format: options.Format = "table",
    save: common.Save = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    plugins: options.Plugins = None,
) -> None:
    """Measure the rank of the attention maps of trained runs.

    The effective rank is exp of the entropy of the normalised singular values (Roy and Vetterli
    2007): the number of tokens if each attends to a different one, 1 if all attend alike.

      attnkit probe rank runs/quickstart
    """
    if save is not None:
        output.check_save(save, output.PICTURES)
    from attnkit.analysis.map_rank import check_threshold, probe_rank
    from attnkit.runs import find_runs

    check_threshold(threshold)
    runs = find_runs(folders, note=console.warn)
    names = [run.variant for run in runs]
    if len(set(names)) < len(names):
        names = [common.title_of(run) for run in runs]
    found = []
    for name, run in zip(names, runs, strict=True):
        with progress_bar("rows") as progress:
            layers = probe_rank(
                run,
                common.rows_of(run, split, rows, data_dir, offline),
                threshold=threshold,
                kinds=common.kinds_of(kind),
                layers=options.all_of(layer),
                heads=options.all_of(head),
                device=device,
                progress=partial(progress, name),
            )
        found += [RankRow(name, one) for one in layers]
    title = f"Rank of attention maps: {split or common.VALID}"
    common.show(rank_table(title, found, threshold), rank_curves(found), format, save)


def rank_table(title: str, found: Sequence[RankRow], threshold: float) -> "Table":
    """A row for each layer of a run."""
    from attnkit.show.table import Field, Table

    def over_heads(
        title: str, name: str, ranks: str, form: str = "{:,.1f}", how: Any = mean, priority: int = 0
    ) -> Field:
        def value(one: RankRow) -> float:
            return float(how([getattr(head, ranks) for head in one.layer.heads.values()]))

        return Field(title, value, form, name, priority=priority)

    fields = [
        Field("attention", lambda one: one.layer.kind, align="left"),
        Field("layer", lambda one: one.layer.layer.number, align="left"),
        Field("mechanism", lambda one: one.layer.layer.mechanism, align="left", priority=3),
        over_heads("effective rank", "effective_rank", "effective"),
        over_heads("lowest", "lowest", "effective", how=min, priority=2),
        over_heads("highest", "highest", "effective", how=max, priority=2),
        over_heads("of maximum", "share", "share", "{:.2f}", priority=1),
        over_heads("numerical rank", "numerical_rank", "numerical"),
    ]
    if len({one.run for one in found}) > 1:
        fields.insert(0, Field("run", lambda one: one.run, align="left"))
    notes = (
        "effective rank: exp of the entropy of the normalised singular values; of maximum: as a "
        f"share of the tokens; numerical rank: singular values above {threshold:g} of the largest",
        "averaged over rows and heads; lowest and highest: of the heads",
    )
    return Table.of(title, found, fields, notes)


def rank_curves(found: Sequence[RankRow]) -> "list[Curves]":
    """The effective rank by layer for each kind of attention, a line a run."""
    from attnkit.runs.curves import Curves, Series

    several = len({one.run for one in found}) > 1
    kinds: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for one in found:
        lines = kinds.setdefault(one.layer.kind, {})
        y = mean(head.effective for head in one.layer.heads.values())
        name = one.run if several else "all heads"
        lines.setdefault(name, []).append((float(one.layer.layer.number), y))
    return [
        Curves(
            f"effective rank, {kind}",
            "layer",
            tuple(Series(name, (tuple(line),)) for name, line in lines.items()),
        )
        for kind, lines in kinds.items()
    ]
