"""`attnkit probe noise`: how much noise on attention scores a model bears."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from attnkit.cli import options, output
from attnkit.cli.options import choice, value
from attnkit.cli.probes import common
from attnkit.cli.progress_bar import progress_bar

if TYPE_CHECKING:
    from attnkit.analysis.score_noise import NoiseEffects, NoiseLaw, NoisyPart
    from attnkit.runs.curves import Curves
    from attnkit.show.table import Cell, Table

BY = ("model", "kind", "layer")
SIGMA = "standard deviation of the noise"


def noise(
    run: Annotated[
        Path | None,
        Argument(metavar="RUN", help="Folder of a finished run. [default: made-up scores]"),
    ] = None,
    *,
    sigma: Annotated[
        str, value("S,...", "Standard deviations of the noise, up to 20.")
    ] = "0.25,0.5,1,2,4",
    by: Annotated[
        str | None,
        choice("--by", BY, "Parts that get noise together: model, kind or layer. [default: model]"),
    ] = None,
    seeds: Annotated[int | None, value("N", "Number of noise draws. [default: 3]", min=1)] = None,
    split: common.Split = None,
    rows: common.Rows = None,
    metrics: common.Metrics = None,
    kind: common.Kinds = None,
    layer: options.Layers = None,
    lengths: Annotated[
        str | None, value("N,...", "For made-up scores: numbers of keys. [default: 16,256,4096]")
    ] = None,
    sharpness: Annotated[
        str | None,
        value("S,...", "For made-up scores: their standard deviations. [default: 1,2,4]"),
    ] = None,
    format: options.Format = "table",
    save: common.Save = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    plugins: options.Plugins = None,
) -> None:
    """Add noise to the attention scores of a trained model and measure the loss.

    Gaussian noise is added before the softmax, after the mask, in evaluation only. The run itself
    is not changed. Without RUN, scores and values are made up, and the output noise is compared
    with the prediction of the first-order law.

      attnkit probe noise RUN
      attnkit probe noise RUN --by layer --kind encoder --metrics bleu --rows 200
      attnkit probe noise --lengths 16,256,4096 --sigma 0.5 --save law.svg
    """
    if save is not None:
        output.check_save(save, output.PICTURES)
    sigmas = common.numbers("--sigma", sigma)
    if run is None:
        of_run = {"by": by, "seeds": seeds, "split": split, "rows": rows, "metrics": metrics,
                  "kind": kind, "layer": layer}  # fmt: skip
        common.refuse(of_run, "is for a trained model: name a RUN")
        table, plots = _law(
            options.lengths(lengths or "16,256,4096") or [],
            common.numbers("--sharpness", sharpness or "1,2,4"),
            sigmas,
        )
    else:
        of_scores = {"lengths": lengths, "sharpness": sharpness}
        common.refuse(of_scores, "is for made-up scores: leave RUN out")
        settings = {"by": by or "model", "seeds": seeds or 3, "kinds": common.kinds_of(kind)}
        given = {
            "layers": options.all_of(layer),
            "device": device,
            "metrics": common.metrics_of(metrics),
        }
        corpus = split or common.VALID, rows, data_dir, offline
        table, plots = _effects(run, corpus, sigmas, settings | given)
    common.show(table, plots, format, save)


def _effects(
    run: Path, corpus: tuple[Any, ...], sigmas: Sequence[float], settings: dict[str, Any]
) -> "tuple[Table, list[Curves]]":
    """Table and charts of a trained model."""
    from attnkit.analysis.score_noise import check_sigmas, probe_noise
    from attnkit.runs import Run

    check_sigmas(sigmas)
    trained = Run.open(run)
    rows = common.rows_of(trained, *corpus)
    with progress_bar("scorings") as progress:
        effects = probe_noise(
            trained, rows, sigmas=sigmas, **settings,
            progress=lambda done, total: progress("", done, total),
        )  # fmt: skip
    title = f"{common.title_of(trained)}: {corpus[0]}, noise on attention scores"
    together = "chosen layers" if settings["kinds"] or settings["layers"] else "all layers"
    return effects_table(title, effects, together), effects_plots(effects, together)


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


def _law(
    lengths: Sequence[int], sharpness: Sequence[float], sigmas: Sequence[float]
) -> "tuple[Table, list[Curves]]":
    """Table and charts of made-up scores."""
    from attnkit.analysis.score_noise import check_law, noise_law

    check_law(lengths, sharpness, sigmas)
    found: list[NoiseLaw] = []
    total = len(lengths) * len(sharpness)
    with progress_bar("settings") as progress:
        for length in lengths:
            for spread in sharpness:
                found += noise_law(length, spread, sigmas)
                progress("", len(found) // len(sigmas), total)
    return law_table(found), law_plots(found)


def law_table(found: "Sequence[NoiseLaw]") -> "Table":
    """A row for each length, sharpness and sigma."""
    from attnkit.analysis.score_noise import DRAWS, SETS
    from attnkit.show.table import Cell, Column, Table

    titles = ("length", "sharpness", "sigma", "keys", "measured", "law", "ratio")
    rows = []
    for one in found:
        ratio = one.measured / one.predicted if one.predicted else None
        shown = {
            "length": f"{one.length:,}", "sharpness": f"{one.sharpness:g}",
            "sigma": f"{one.sigma:g}", "keys": f"{one.keys:,.1f}",
            "measured": f"{one.measured:.4f}", "predicted": f"{one.predicted:.4g}",
        }  # fmt: skip
        cells = [Cell(text, {name: getattr(one, name)}) for name, text in shown.items()]
        text = "-" if ratio is None else f"{ratio:.3f}" if ratio >= 0.1 else f"{ratio:.1g}"
        rows.append((*cells, Cell(text, {"ratio": ratio})))
    notes = (
        "measured: standard deviation of the output of one query under noise of standard deviation "
        "sigma on its scores, which are drawn from N(0, sharpness squared), values from N(0, 1)",
        "law: sqrt((e^(sigma^2) - 1) sum p^2 (v - o)^2), of first order",
        "keys: 1 / sum p^2, over how many keys the weight is spread",
        f"{SETS} sets of scores and values, {DRAWS:,} draws of the noise for each",
    )
    title = "Noise on made-up attention scores"
    return Table(title, tuple(Column(name) for name in titles), tuple(rows), notes)


def law_plots(found: "Sequence[NoiseLaw]") -> "list[Curves]":
    """Noise of the output, and its ratio to the law, against sigma."""
    from attnkit.runs.curves import Curves, Series

    measured: dict[str, list[tuple[float, float]]] = {}
    ratios: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        name = f"length {one.length:,}, sharpness {one.sharpness:g}"
        measured.setdefault(name, [(0.0, 0.0)]).append((one.sigma, one.measured))
        if one.predicted:
            ratio = one.measured / one.predicted
            ratios.setdefault(name, [(0.0, 1.0)]).append((one.sigma, ratio))
    return [
        Curves(
            title, SIGMA, tuple(Series(key, (tuple(line),)) for key, line in lines.items()), True
        )
        for title, lines in (("noise of the output", measured), ("measured / law", ratios))
        if lines
    ]
