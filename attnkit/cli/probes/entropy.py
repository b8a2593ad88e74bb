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
    from attnkit.analysis.map_entropy import HeadEntropy
    from attnkit.runs.curves import Curves, Series
    from attnkit.show.table import Table, Value


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
    from attnkit.show.table import Field, Table

    several = len({one.layer.mechanism for one in found}) > 1
    fields = [
        Field("attention", lambda one: one.kind, align="left", key=True),
        Field("layer", lambda one: one.layer.number, align="left", key=True),
        Field("head", lambda one: one.head, align="left", key=True),
        Field("stage", lambda one: one.stage.name, align="left"),
        Field("entropy bits", lambda one: one.spreads[1.0].entropy, "{:.2f}"),
        Field("of maximum", lambda one: one.spreads[1.0].share, "{:.2f}"),
        Field("gradient", lambda one: one.spreads[1.0].gradient, "{:.2f}"),
    ]
    if several:
        field = Field("mechanism", lambda one: one.layer.mechanism, align="left", priority=1)
        fields.insert(3, field)

    def record(one: "HeadEntropy") -> "dict[str, Value]":
        """With the numbers at the other scales."""
        named: dict[str, Value] = {"kind": one.kind, "layer": one.layer.number, "head": one.head}
        named |= {"mechanism": one.layer.mechanism} if several else {}
        named |= {"stage": one.stage.name, "step": one.stage.step}
        for name in ("entropy", "share", "gradient"):
            named[name] = getattr(one.spreads[1.0], name)
            for scale, spread in one.spreads.items():
                if scale != 1:
                    named[f"{name}_at_{scale:g}"] = getattr(spread, name)
        return named

    heads = dict.fromkeys((one.kind, one.layer.number, one.head) for one in found)
    order = {head: at for at, head in enumerate(heads)}
    rows = sorted(found, key=lambda one: order[one.kind, one.layer.number, one.head])
    notes = [
        "entropy: of each query's weights, in bits, averaged over queries; of maximum: as a share "
        "of the largest, log2 of the keys that the query sees",
        "gradient: half the L1 norm of the derivative of the weights by the scores, 1 - sum p^2",
    ]
    if any(one.spreads[1.0].entropy is None for one in found):
        notes.append("-: rows are no distributions (negative weights, or sums other than 1)")
    if any(one.spreads[1.0].gradient is None for one in found):
        notes.append("a map that is no softmax of scores has no gradient by them")
    return Table.of(title, rows, fields, notes, record=record)


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
