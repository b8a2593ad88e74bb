"""`attnkit probe`: studies of attention, one per subcommand."""

from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from attnkit.cli import console, options, output
from attnkit.cli.options import argument, value
from attnkit.cli.progress_bar import progress_bar

if TYPE_CHECKING:
    from attnkit.data.rows import Row
    from attnkit.runs import Run

KINDS = ("encoder", "decoder", "cross")
Split = Annotated[str, Option(metavar="S", help="Split to read.")]
Rows = Annotated[int | None, Option(metavar="N", help="Only the first N rows. [default: all]", min=1)]
Kinds = Annotated[
    list[str] | None,
    Option(metavar="KIND", help="encoder, decoder or cross. Repeatable. [default: all]", **options.one_of(*KINDS)),
]
Metrics = Annotated[
    str, Option(metavar="M,...", help="perplexity and accuracy are fast; bleu, rouge and others decode again.")
]

app = typer.Typer(help="Study attention: which heads matter, noise, entropy, rank.", no_args_is_help=True)


def _chosen(kind: list[str] | None, layer: list[str] | None, head: list[str] | None, device: str) -> dict[str, Any]:
    """Return the arguments of a study that select maps and the device."""
    return {
        "kinds": [name for name in KINDS if name in kind] if kind else None,
        "layers": options.parse_numbers("--layer", layer),
        "heads": options.parse_numbers("--head", head),
        "device": device,
    }


def _metrics(names: str) -> tuple[str, ...]:
    from attnkit.scoring import expand

    return expand([name.strip() for name in names.split(",")])


def _title(run: "Run") -> str:
    return f"{run.name}/{run.variant}/seed-{run.seed}"


def _rows(run: "Run", split: str, rows: int | None, data_dir: Path | None, offline: bool) -> "list[Row]":
    """Return the first rows of a split of the run's corpus, or all if `rows` is None."""
    from attnkit.scoring.evaluation import corpus_of

    return list(islice(corpus_of(run, data_dir, offline).rows(split), rows))


@app.command()
def heads(
    run: options.RunFolder,
    *,
    split: Split = "valid",
    rows: Rows = None,
    metrics: Metrics = "perplexity",
    kind: Kinds = None,
    layer: options.Layers = None,
    head: options.Heads = None,
    format: options.Format = "table",
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
) -> None:
    """Ablate attention heads one by one and measure the loss.

    The output of each head is set to zero in turn (Michel et al. 2019), whatever its mechanism, and
    the ablated model is scored against the full one with a paired bootstrap test. The run itself
    is not changed.

      attnkit probe heads RUN
      attnkit probe heads RUN --metrics bleu --rows 200 --kind cross
    """
    from attnkit.analysis.head_ablation import probe_heads
    from attnkit.runs import Run

    names, chosen, trained = _metrics(metrics), _chosen(kind, layer, head, device), Run.open(run)
    read = _rows(trained, split, rows, data_dir, offline)
    with progress_bar("heads") as progress:
        importance = probe_heads(trained, read, metrics=names, progress=partial(progress, ""), **chosen)
    from attnkit.show.probe_tables import heads_table

    title = f"{_title(trained)}: {split}"
    output.write_tables([heads_table(title, importance)], format)


@app.command()
def noise(
    run: options.RunFolder,
    *,
    sigma: str = value("S,...", "Standard deviations of the noise, up to 20.", default="0.25,0.5,1,2,4"),
    by: Literal["model", "kind", "layer"] = value(
        "BY", "Parts that get noise together: model, kind or layer.", default="model"
    ),
    seeds: int = value("N", "Number of noise draws.", default=3, min=1),
    split: Split = "valid",
    rows: Rows = None,
    metrics: Metrics = "perplexity",
    kind: Kinds = None,
    layer: options.Layers = None,
    format: options.Format = "table",
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
) -> None:
    """Add noise to the attention scores of a trained model and measure the loss.

    Gaussian noise is added before the softmax, after the mask, in evaluation only. The run itself
    is not changed.

      attnkit probe noise RUN
      attnkit probe noise RUN --by layer --kind encoder --metrics bleu --rows 200
    """
    sigmas = sorted({*options.parse_decimals("--sigma", sigma)})
    from attnkit.analysis.score_noise import check_sigmas, probe_noise
    from attnkit.runs import Run

    check_sigmas(sigmas)
    names, chosen = _metrics(metrics), _chosen(kind, layer, None, device)
    del chosen["heads"]
    trained = Run.open(run)
    read = _rows(trained, split, rows, data_dir, offline)
    with progress_bar("scorings") as progress:
        effects = probe_noise(
            trained, read, sigmas=sigmas, by=by, seeds=seeds, metrics=names, progress=partial(progress, ""), **chosen
        )
    title = f"{_title(trained)}: {split}, noise on attention scores"
    together = "chosen layers" if kind or layer else "all layers"
    from attnkit.show.probe_tables import effects_table

    output.write_tables([effects_table(title, effects, together)], format)


@app.command()
def entropy(
    run: options.RunFolder,
    *,
    split: Split = "valid",
    rows: Rows = None,
    kind: Kinds = None,
    layer: options.Layers = None,
    head: options.Heads = None,
    format: options.Format = "table",
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
) -> None:
    """Measure the entropy of attention maps over training, and the gradient they pass.

    Each head is measured at the start of training, at the stored checkpoints and at the end, on the
    rows of a split with teacher forcing. The gradient is half the L1 norm of the derivative of the
    weights with respect to the scores: 0 if all weight is on one key.

      attnkit probe entropy RUN
      attnkit probe entropy RUN --kind cross
    """
    from attnkit.analysis.map_entropy import probe_entropy
    from attnkit.runs import Run

    chosen, trained = _chosen(kind, layer, head, device), Run.open(run)
    read = _rows(trained, split, rows, data_dir, offline)
    with progress_bar("rows") as progress:
        entropies = probe_entropy(trained, read, progress=progress, **chosen)
    title = f"{_title(trained)}: {split}, entropy of attention"
    from attnkit.show.probe_tables import entropy_table

    output.write_tables([entropy_table(title, entropies)], format)


@app.command()
def rank(
    folders: list[Path] = argument("RUNS", "Folders of one or more finished runs."),
    *,
    split: Split = "valid",
    rows: Rows = None,
    kind: Kinds = None,
    layer: options.Layers = None,
    head: options.Heads = None,
    format: options.Format = "table",
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
) -> None:
    """Measure the rank of the attention maps of trained runs.

    The effective rank is exp of the entropy of the normalized singular values (Roy and Vetterli
    2007): the number of tokens if each attends to a different token, 1 if all attend alike.

      attnkit probe rank runs/quickstart
    """
    from attnkit.analysis.map_rank import probe_rank
    from attnkit.runs import find_runs
    from attnkit.show.probe_tables import RankRow, rank_table

    runs, chosen = find_runs(folders, note=console.warn), _chosen(kind, layer, head, device)
    names = [run.variant for run in runs]
    if len(set(names)) < len(names):
        names = [_title(run) for run in runs]
    ranks = []
    with progress_bar("rows") as progress:
        for name, run in zip(names, runs, strict=True):
            read = _rows(run, split, rows, data_dir, offline)
            layers = probe_rank(run, read, progress=partial(progress, name), **chosen)
            ranks += [RankRow(name, layer_rank) for layer_rank in layers]
    title = f"Rank of attention maps: {split}"
    output.write_tables([rank_table(title, ranks)], format)
