"""`attnkit probe entropy`: how spread the attention of each head is, over training and scale."""

from collections.abc import Sequence
from math import log2
from statistics import mean
from typing import TYPE_CHECKING, Annotated

from attnkit.cli import options, output
from attnkit.cli.options import value
from attnkit.cli.probes import common
from attnkit.cli.progress_bar import progress_bar

if TYPE_CHECKING:
    from attnkit.analysis.map_entropy import HeadEntropy, Spread
    from attnkit.runs.curves import Curves, Series
    from attnkit.show.table import Cell, Table


def entropy(
    run: options.RunFolder,
    *,
    step: Annotated[
        list[int] | None,
        value("N", "Only the checkpoint of this step, besides start and end. Repeatable."),
    ] = None,
    scale: Annotated[
        str, value("A,...", "Factors on the scores to try, besides 1.")
    ] = "0.25,0.5,1,2,4,8,16",
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
    """Measure the entropy of attention maps over training, and the gradient they pass.

    Each head is measured at the start of training, at the stored checkpoints and at the end, on the
    rows of a split with teacher forcing. The gradient is half the L1 norm of the derivative of the
    weights with respect to the scores: 0 if all weight is on one key. The charts plot both against
    a factor on the scores (JSON and CSV have them per head).

      attnkit probe entropy RUN
      attnkit probe entropy RUN --kind cross --save entropy.svg
    """
    if save is not None:
        output.check_save(save, output.PICTURES)
    scales = common.numbers("--scale", scale)
    from attnkit.analysis.map_entropy import probe_entropy
    from attnkit.runs import Run

    trained = Run.open(run)
    with progress_bar("rows") as progress:
        found = probe_entropy(
            trained,
            common.rows_of(trained, split, rows, data_dir, offline),
            scales=scales,
            steps=step,
            kinds=common.kinds_of(kind),
            layers=options.all_of(layer),
            heads=options.all_of(head),
            device=device,
            progress=progress,
        )
    title = f"{common.title_of(trained)}: {split or common.VALID}, entropy of attention"
    common.show(entropy_table(title, found), entropy_plots(found), format, save)


def entropy_table(title: str, found: "Sequence[HeadEntropy]") -> "Table":
    """A row for each head and stage, the stages of a head below each other."""
    from attnkit.show.table import Cell, Column, Table

    several = len({one.layer.mechanism for one in found}) > 1
    columns = [Column(name, "left", key=True) for name in ("attention", "layer", "head")]
    columns += [Column("mechanism", "left", priority=1)] if several else []
    columns += [Column("stage", "left"), Column("entropy bits"), Column("of maximum"),
                Column("gradient")]  # fmt: skip
    heads = dict.fromkeys((one.kind, one.layer.number, one.head) for one in found)
    order = {head: at for at, head in enumerate(heads)}
    rows = []
    for one in sorted(found, key=lambda one: order[one.kind, one.layer.number, one.head]):
        mechanism = Cell(one.layer.mechanism, {"mechanism": one.layer.mechanism})
        rows.append((
            Cell(one.kind, {"kind": one.kind}),
            Cell(str(one.layer.number), {"layer": one.layer.number}),
            Cell(str(one.head), {"head": one.head}),
            *([mechanism] if several else []),
            Cell(one.stage.name, {"stage": one.stage.name, "step": one.stage.step}),
            *_cells(one.spreads),
        ))  # fmt: skip
    notes = [
        "entropy: of each query's weights, in bits, averaged over queries; of maximum: as a share "
        "of the largest, log2 of the keys that the query sees",
        "gradient: half the L1 norm of the derivative of the weights by the scores, 1 - sum p^2",
    ]
    if any(one.spreads[1.0].entropy is None for one in found):
        notes.append("-: rows are no distributions (negative weights, or sums other than 1)")
    if any(one.spreads[1.0].gradient is None for one in found):
        notes.append("a map that is no softmax of scores has no gradient by them")
    return Table(title, tuple(columns), tuple(rows), tuple(notes))


def _cells(spreads: "dict[float, Spread]") -> "list[Cell]":
    """The numbers at scale 1; for programs also those at other scales."""
    from attnkit.show.table import NONE, Cell

    cells = []
    for name, number in spreads[1.0]._asdict().items():
        others = {
            f"{name}_at_{scale:g}": spread._asdict()[name]
            for scale, spread in spreads.items()
            if scale != 1
        }
        cells.append(Cell(NONE if number is None else f"{number:.2f}", {name: number, **others}))
    return cells


def entropy_plots(found: "Sequence[HeadEntropy]") -> "list[Curves]":
    """Entropy over training; entropy and gradient against the scale, at the first and last stage.

    Means over the heads of each layer.
    """
    from attnkit.runs.curves import Curves

    names = list(dict.fromkeys(one.stage for one in found))
    ends = dict.fromkeys((names[0], names[-1]))
    over = _series([(one, float(one.stage.step), one.spreads[1.0].share) for one in found])
    plots = [Curves("share of the largest entropy", "updates", over, True)]
    for title, field in (("share of the largest entropy", "share"), ("gradient", "gradient")):
        for stage in ends:
            points = [
                (one, log2(scale), getattr(spread, field))
                for one in found
                if one.stage == stage and one.spreads[1.0].gradient is not None
                for scale, spread in one.spreads.items()
            ]
            x = "log2 of the scale of the scores"
            plots.append(Curves(f"{title}, {stage.name}", x, _series(points), False))
    return [plot for plot in plots if plot.series]


def _series(
    points: "Sequence[tuple[HeadEntropy, float, float | None]]",
) -> "tuple[Series, ...]":
    """A line a layer, through the means over its heads of what is defined."""
    from attnkit.runs.curves import Series

    values: dict[str, dict[float, list[float]]] = {}
    for one, x, y in points:
        if y is not None:
            layer = values.setdefault(f"{one.kind}, layer {one.layer.number}", {})
            layer.setdefault(x, []).append(y)
    return tuple(
        Series(name, (tuple((x, mean(ys)) for x, ys in sorted(layer.items())),))
        for name, layer in values.items()
    )
