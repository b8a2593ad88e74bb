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
    from attnkit.show.table import Table, Value


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
    from attnkit.show.differences import signed, significance, significance_note
    from attnkit.show.table import Field, Table

    def of_metric(name: str) -> list[Field]:
        effects = {place: some[name] for place, some in importance.effects.items()}
        whole, most = importance.whole[name].value, max(one.loss for one in effects.values())

        def loss(place: "HeadPlace | None") -> str:
            if place is None:
                return ""
            return signed(effects[place].loss) + significance(effects[place].p_corrected)

        def score(place: "HeadPlace | None") -> float:
            return whole if place is None else effects[place].score

        def best(place: "HeadPlace | None") -> bool:
            return place is not None and effects[place].loss == most

        return [
            Field(metric_facts(name).title, score, "{:.2f}"),
            Field("loss", loss, under=True, best=best),
        ]

    def record(place: "HeadPlace | None") -> "dict[str, Value]":
        named: dict[str, Value] = dict.fromkeys(("kind", "layer", "head"))
        if place is None:
            for name, whole in importance.whole.items():
                named |= {name: whole.value, f"{name}_loss": 0.0}
            return named
        named |= place._asdict()
        for name, effect in importance.effects[place].items():
            named |= {
                name: effect.score, f"{name}_loss": effect.loss, f"{name}_p": effect.p,
                f"{name}_p_corrected": effect.p_corrected,
            }  # fmt: skip
        return named

    fields = [
        Field("without", lambda place: place.kind if place else "nothing", align="left"),
        Field("layer", lambda place: place.layer if place else "", key=True),
        Field("head", lambda place: place.head if place else "", key=True),
        *(field for name in importance.whole for field in of_metric(name)),
    ]
    notes = [
        f"{metric_facts(name).title}{direction_note(name)}: {whole.signature}"
        for name, whole in importance.whole.items()
    ]
    notes += [
        f"rows: {importance.rows:,}",
        "loss: how much worse than the full model; "
        + significance_note("rows", importance.resamples, len(importance.effects), "heads"),
        "a head without loss is not necessarily idle: other heads may compensate for it",
    ]
    rows = [None, *importance.effects]
    return Table.of(f"{title}, one head ablated", rows, fields, notes, record=record)


def panels(importance: "Importance", title: str, what: str) -> "list[Panels]":
    """The losses by the first metric as a picture: for each kind of attention layers by heads."""
    import numpy as np

    from attnkit.show.attention_matrix import NAMES
    from attnkit.show.map_picture import Panels
    from attnkit.text import one_line

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
