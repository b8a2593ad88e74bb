"""`attnkit probe noise`: how much noise on attention scores a model bears."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated

from attnkit.cli import options, output
from attnkit.cli.options import choice, value
from attnkit.cli.probes import common
from attnkit.cli.progress_bar import progress_bar

if TYPE_CHECKING:
    from attnkit.analysis.score_noise import NoiseEffects, NoisyPart
    from attnkit.runs.curves import Curves
    from attnkit.show.table import Cell, Table

BY = ("model", "kind", "layer")
SIGMA = "standard deviation of the noise"


def noise(
    run: options.RunFolder,
    *,
    sigma: Annotated[
        str, value("S,...", "Standard deviations of the noise, up to 20.")
    ] = "0.25,0.5,1,2,4",
    by: Annotated[
        str,
        choice("--by", BY, "Parts that get noise together: model, kind or layer."),
    ] = "model",
    seeds: Annotated[int, value("N", "Number of noise draws.", min=1)] = 3,
    split: common.Split = None,
    rows: common.Rows = None,
    metrics: common.Metrics = None,
    kind: common.Kinds = None,
    layer: options.Layers = None,
    format: options.Format = "table",
    save: common.Save = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    plugins: options.Plugins = None,
) -> None:
    """Add noise to the attention scores of a trained model and measure the loss.

    Gaussian noise is added before the softmax, after the mask, in evaluation only. The run itself
    is not changed.

      attnkit probe noise RUN
      attnkit probe noise RUN --by layer --kind encoder --metrics bleu --rows 200
    """
    if save is not None:
        output.check_save(save, output.PICTURES)
    sigmas = common.numbers("--sigma", sigma)
    from attnkit.analysis.score_noise import check_sigmas, probe_noise
    from attnkit.runs import Run

    check_sigmas(sigmas)
    names, kinds, layers = common.metrics_of(metrics), common.kinds_of(kind), options.all_of(layer)
    trained = Run.open(run)
    with progress_bar("scorings") as progress:
        effects = probe_noise(
            trained,
            common.rows_of(trained, split, rows, data_dir, offline),
            sigmas=sigmas,
            by=by,
            seeds=seeds,
            metrics=names,
            kinds=kinds,
            layers=layers,
            device=device,
            progress=lambda done, total: progress("", done, total),
        )
    title = f"{common.title_of(trained)}: {split or common.VALID}, noise on attention scores"
    together = "chosen layers" if kinds or layers else "all layers"
    table = effects_table(title, effects, together)
    common.show(table, effects_plots(effects, together), format, save)


def effects_table(title: str, effects: "NoiseEffects", together: str = "all layers") -> "Table":
    """The model without noise, then a row for each part and sigma.

    `together` says which layers are noisy where they all are at once.
    """
    from attnkit.recipe.metrics import direction_note, metric_facts
    from attnkit.show.table import Cell, Column, Table

    columns = [Column("noise on", "left"), Column("sigma")]
    nowhere = {"kind": None, "layer": None}
    first = [Cell("nothing", nowhere), Cell("0", {"sigma": 0.0})]
    notes = []
    for name, score in effects.clean.items():
        columns += [Column(metric_facts(name).title), Column("loss", under=True)]
        fields = {name: score.value, f"{name}_sd": 0.0, f"{name}_loss": 0.0}
        first += [Cell(f"{score.value:.2f}", fields), Cell("")]
        notes.append(f"{metric_facts(name).title}{direction_note(name)}: {score.signature}")
    rows = [tuple(first)]
    for (part, sigma), values in effects.noisy.items():
        where = {"kind": part.kind, "layer": part.layer}
        row = [Cell(part_name(part, together), where), Cell(f"{sigma:g}", {"sigma": sigma})]
        for name in effects.clean:
            row += _cells(name, values[name], effects.clean[name].value)
        rows.append(tuple(row))
    notes += [
        f"rows: {effects.rows:,}",
        "sigma: standard deviation of the noise, which is added before the softmax and after the "
        "mask; loss: how much worse than without noise",
    ]
    if effects.seeds > 1:
        notes.append(f"mean and standard deviation over {effects.seeds} draws of the noise")
    return Table(title, tuple(columns), tuple(rows), tuple(notes))


def _cells(name: str, values: Sequence[float], clean: float) -> "list[Cell]":
    """Score and loss on one metric."""
    from attnkit.recipe.metrics import metric_facts
    from attnkit.show.differences import signed
    from attnkit.show.table import PLUS_MINUS, Cell

    center, spread = mean(values), stdev(values) if values[1:] else None
    text = f"{center:.2f}" + (f" {PLUS_MINUS} {spread:.2f}" if spread is not None else "")
    loss = (center - clean) * (1 if metric_facts(name).better == "lower" else -1)
    return [Cell(text, {name: center, f"{name}_sd": spread}),
            Cell(signed(loss), {f"{name}_loss": loss})]  # fmt: skip


def part_name(part: "NoisyPart", together: str) -> str:
    """The layers that are noisy, in words."""
    if part.kind is None:
        return together
    return part.kind if part.layer is None else f"{part.kind}, layer {part.layer}"


def effects_plots(effects: "NoiseEffects", together: str = "all layers") -> "list[Curves]":
    """Each metric against sigma, a line a draw of the noise."""
    from attnkit.recipe.metrics import metric_facts
    from attnkit.runs.curves import Curves, Series

    plots = []
    for name, clean in effects.clean.items():
        lines: dict[str, list[list[tuple[float, float]]]] = {}
        for (part, sigma), values in effects.noisy.items():
            drawn = lines.setdefault(
                part_name(part, together), [[(0, clean.value)] for _ in values[name]]
            )
            for line, found in zip(drawn, values[name], strict=True):
                line.append((sigma, found))
        series = (Series(key, tuple(map(tuple, drawn))) for key, drawn in lines.items())
        plots.append(Curves(metric_facts(name).title, SIGMA, tuple(series), True))
    return plots
