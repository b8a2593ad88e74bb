"""`attnkit probe heads`: what a model loses without each head."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnkit.cli import options, output
from attnkit.cli.options import value
from attnkit.cli.probes import common
from attnkit.cli.progress_bar import progress_bar

if TYPE_CHECKING:
    from attnkit.analysis.head_ablation import HeadPlace, Importance
    from attnkit.show.map_picture import Panels
    from attnkit.show.table import Cell, Table


def heads(
    run: options.RunFolder,
    *,
    split: common.Split = None,
    rows: common.Rows = None,
    metrics: common.Metrics = None,
    kind: common.Kinds = None,
    layer: options.Layers = None,
    head: options.Heads = None,
    format: options.Format = "table",
    save: Annotated[
        Path | None, value("FILE", "Plot the first metric to a .png, .svg or .pdf file.")
    ] = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    plugins: options.Plugins = None,
) -> None:
    """Ablate attention heads one by one and measure the loss.

    The output of each head is set to zero in turn (Michel et al. 2019), whatever its mechanism, and
    the ablated model is scored against the full one with a paired bootstrap test. The run itself
    is not changed.

      attnkit probe heads RUN
      attnkit probe heads RUN --metrics bleu --rows 200 --kind cross --save heads.svg
    """
    if save is not None:
        output.check_save(save, output.PICTURES)
    from attnkit.analysis.head_ablation import probe_heads
    from attnkit.recipe.metrics import metric_facts
    from attnkit.runs import Run

    names = common.metrics_of(metrics)
    trained = Run.open(run)
    title = common.title_of(trained)
    with progress_bar("heads") as progress:
        importance = probe_heads(
            trained,
            common.rows_of(trained, split, rows, data_dir, offline),
            metrics=names,
            kinds=common.kinds_of(kind),
            layers=options.all_of(layer),
            heads=options.all_of(head),
            device=device,
            progress=lambda done, total: progress("", done, total),
        )
    output.write_tables([table(f"{title}: {split or common.VALID}", importance)], format)
    if save is not None:
        from attnkit.show.map_picture import draw_panels

        what = f"loss of {metric_facts(names[0]).title}"
        blocks = panels(importance, title, what)
        picture = draw_panels(blocks, f"{title}: {what}", save.suffix[1:].lower())
        output.save_picture(save, picture, f" ({what})")


def table(title: str, importance: "Importance") -> "Table":
    """The whole model, then a row per head."""
    from attnkit.recipe.metrics import direction_note, metric_facts
    from attnkit.show.differences import significance_note
    from attnkit.show.table import Cell, Column, Table

    names = list(importance.whole)
    columns = [Column("without", "left"), Column("layer", key=True), Column("head", key=True)]
    first = [Cell("nothing", {"kind": None}), Cell("", {"layer": None}), Cell("", {"head": None})]
    for name in names:
        columns += [Column(metric_facts(name).title), Column("loss", under=True)]
        fields = {name: importance.whole[name].value, f"{name}_loss": 0.0}
        first += [Cell(f"{importance.whole[name].value:.2f}", fields), Cell("")]
    rows = [tuple(first)]
    for place in importance.effects:
        cells = [
            Cell(place.kind, {"kind": place.kind}),
            Cell(str(place.layer), {"layer": place.layer}),
            Cell(str(place.head), {"head": place.head}),
        ]
        rows.append((*cells, *(cell for name in names for cell in _cells(importance, place, name))))
    notes = []
    for name in names:
        notes.append(
            f"{metric_facts(name).title}{direction_note(name)}: {importance.whole[name].signature}"
        )
    notes += [
        f"rows: {importance.rows:,}",
        "loss: how much worse than the full model; "
        + significance_note("rows", importance.resamples, len(importance.effects), "heads"),
        "a head without loss is not necessarily idle: other heads may compensate for it",
    ]
    return Table(f"{title}, one head ablated", tuple(columns), tuple(rows), tuple(notes))


def _cells(importance: "Importance", place: "HeadPlace", name: str) -> "list[Cell]":
    """Score and loss of one head on one metric."""
    from attnkit.show.differences import signed, significance
    from attnkit.show.table import Cell

    effect = importance.effects[place][name]
    most = max(effects[name].loss for effects in importance.effects.values())
    fields = {
        f"{name}_loss": effect.loss,
        f"{name}_p": effect.p,
        f"{name}_p_corrected": effect.p_corrected,
    }
    loss = signed(effect.loss) + significance(effect.p_corrected)
    return [
        Cell(f"{effect.score:.2f}", {name: effect.score}),
        Cell(loss, fields, best=effect.loss == most),
    ]


def panels(importance: "Importance", title: str, what: str) -> "list[Panels]":
    """The losses by the first metric as a picture: for each kind of attention layers by heads."""
    import numpy as np

    from attnkit.show.attention_matrix import NAMES
    from attnkit.show.map_picture import Panels
    from attnkit.show.token_labels import one_line

    metric = next(iter(importance.whole))
    blocks: list[Panels] = []
    for kind in dict.fromkeys(place.kind for place in importance.effects):
        places = [place for place in importance.effects if place.kind == kind]
        layers = list(dict.fromkeys(str(place.layer) for place in places))
        heads = list(dict.fromkeys(str(place.head) for place in places))
        losses = [importance.effects[place][metric].loss for place in places]
        matrix = np.array(losses, np.float32).reshape(len(layers), len(heads))
        heading = f"{'' if blocks else one_line(title)}\n{NAMES[kind]}"
        blocks.append(
            Panels(
                heading, [[matrix]], layers, heads, ("layer", "head"), signed=True, meaning=what,
                numbers=True,
            )
        )  # fmt: skip
    return blocks
