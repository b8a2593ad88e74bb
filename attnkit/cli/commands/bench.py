"""`attnkit bench`: time and memory of mechanisms, training and decoding on this machine."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from attnkit.cli import console, options, output
from attnkit.cli.options import argument, flag, value
from attnkit.errors import DataError, UsageError

if TYPE_CHECKING:
    from attnkit.bench.schedule import Point
    from attnkit.bench.speed import Speed
    from attnkit.show.table import Table

app = typer.Typer(help="Benchmark attention, training and decoding on this machine.", no_args_is_help=True)

Variant = Annotated[str | None, Option(metavar="NAME", help="The variant to measure. [default: the first]")]


def _check_trace(path: Path | None) -> Path | None:
    if path is not None:
        output.check_save(path, (".json", ".gz"), "--profile")
    return path


Trace = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="Write a trace for Perfetto or chrome://tracing (.json or .json.gz).",
        callback=_check_trace,
    ),
]


@app.command("attention")
def attention(
    words: list[str] | None = argument(
        "WORD[:OPTION=VALUE,...]", "Mechanisms, with options as in local:window=128. [default: all]", default=None
    ),
    *,
    lengths: str | None = value(
        "N,N,...",
        "Sequence lengths; A..B doubles from A to B. [default: 128..16384, and 65536 for linear-time mechanisms]",
    ),
    causal: bool = flag("--causal", "Causal attention. [default: every key is visible]"),
    layer: bool = flag("--layer", "Include the projections, not only the mechanism."),
    batch: int = value("N", "Batch size.", default=1, min=1),
    heads: int = value("N", "Attention heads.", default=8, min=1),
    head_width: int = value("N", "Width of each head.", default=64, min=1),
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = value(
        "TYPE", "float32, float64, bfloat16 or float16.", default="float32"
    ),
    device: options.Device = "cpu",
    threads: int | None = value("N", "CPU threads. [default: torch's]", min=1),
    repeats: int = value("N", "Rounds; the median is reported.", default=5, min=1),
    budget: float = value("S", "Seconds per pass and length; slower mechanisms are skipped.", default=10.0),
    format: options.Format = "table",
    columns: options.Columns = None,
) -> None:
    """Measure time and peak memory of attention mechanisms over sequence length.

    Times the forward pass in evaluation mode and forward plus backward in training mode,
    interleaved with torch's fused scaled_dot_product_attention, and fits growth exponents. Running
    out of memory or time is a result, not an error.

      attnkit bench attention linear performer:features=128 local:window=64 --causal
      attnkit bench attention --lengths 512..8192 --format markdown
      attnkit bench attention scaled-dot linear --layer --lengths 32 --batch 128
    """
    from attnkit import mechanisms
    from attnkit.bench import plan
    from attnkit.bench.schedule import measure
    from attnkit.device import pick_device
    from attnkit.show import bench_tables

    output.check_columns(columns, format)
    output.choose_columns(bench_tables.tables((), plan.Workload()), columns)  # raises before measuring
    if not budget > 0:  # NaN as well
        raise UsageError(f"--budget {budget:g}: must be more than 0 seconds")
    if not words:
        specs = [mechanisms.facts(name) for name in mechanisms.names()]
        without_required = [spec.word for spec in specs if not any(o.required for o in spec.options.values())]
        words = plan.measurable(without_required, causal)
    candidates = [plan.candidate(word) for word in dict.fromkeys(words)]
    names = [candidate.mechanism for candidate in candidates]
    measurable = plan.measurable(names, causal)
    if refused := [name for name in names if name not in measurable]:
        why = "cannot hide the future: remove --causal" if causal else "needs --causal"
        raise UsageError(f"{', '.join(refused)} {why}")
    sweeps = plan.sweeps(candidates, options.parse_lengths(lengths))
    workload = plan.Workload(
        causal,
        layer,
        pick_device(device),
        dtype,
        batch,
        heads,
        head_width,
        repeats,
        budget,
        threads,
        tuple(dict.fromkeys(mechanisms.plugged().values())),
    )
    points: list[Point] = []
    try:
        points.extend(measure(sweeps, workload, console.say))
    finally:  # after Ctrl-C, too, print the measurements so far
        if points and format == "json":
            output.write_json(bench_tables.record(points, workload))
        elif points:
            tables = output.choose_columns(bench_tables.tables(points, workload), columns)
            output.write_tables(tables[:1] if format == "csv" else tables, format)


@app.command("train")
def train(
    recipe: options.RecipeName,
    overrides: options.Overrides = None,
    *,
    variant: Variant = None,
    updates: int = value("N", "Updates to time, after a warm-up.", default=20, min=1),
    format: options.Format = "table",
    profile: Trace = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
) -> None:
    """Measure the speed of training.

    Trains from random weights and keeps nothing. Matrix products are compared with the fastest ones
    that this machine reaches in the same benchmark; --profile shows where the time of an update goes.

      attnkit bench train quickstart
      attnkit bench train translation/multi30k --variant random train.precision=bf16
      attnkit bench train quickstart --profile trace.json
    """
    from attnkit.recipe import load

    file = load(recipe, overrides or [], option_check=options.check_options)
    (name,) = file.chosen([variant] if variant else [next(iter(file.variants))])
    title, config = " ".join([file.name, name, *(overrides or [])]), file.variants[name]
    if config.model.count_based:
        raise UsageError(f"{title}: {config.model.type} is counted, not trained")
    from attnkit.bench.training_speed import training_speed
    from attnkit.data.preparation import prepare
    from attnkit.device import pick_device
    from attnkit.experiment.cost import choose_precision
    from attnkit.show.bench_tables import training_table

    device = pick_device(device)
    prepared = prepare(config, data_dir=data_dir, offline=offline)
    precision: str = config.train.precision
    if precision == "auto":
        precision, _ = choose_precision(config, prepared, device)
    speed = training_speed(config, prepared, precision, device, updates, profile, console.say)
    _print(title, speed, training_table(title, speed), format, profile)


@app.command("decode")
def decode(
    folder: options.RunFolder,
    *,
    split: str = value("S", "Split whose sources are decoded.", default="test"),
    rows: int = value("N", "Decode the first N rows.", default=1000, min=1),
    beam: int | None = value("N", "Beam size; 1 is greedy search. [default: the recipe's]"),
    format: options.Format = "table",
    profile: Trace = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
) -> None:
    """Measure the speed of decoding.

    Decoding one line at a time is measured too.

      attnkit bench decode runs/quickstart/scaled-dot/seed-1
      attnkit bench decode RUN --beam 1
    """
    from attnkit.bench.decoding_speed import measure
    from attnkit.device import pick_device
    from attnkit.runs import Run
    from attnkit.scoring.evaluation import corpus_of
    from attnkit.show.bench_tables import decoding_table

    run = Run.open(folder)
    title = f"{run.name}/{run.variant}/seed-{run.seed}"
    if run.recipe.task in ("classification", "language-modeling"):
        raise UsageError(f"{title}: {run.recipe.task} decodes no text; use `attnkit bench train`")
    spec = options.search_settings(run.recipe.search, {"beam": beam}, sample=False)
    sources = [row.source for row in islice(corpus_of(run, data_dir, offline).rows(split), rows)]
    if not any(sources):
        raise DataError(f"{title}: the rows of {split} have no source to decode")
    speed = measure(run, spec, sources, pick_device(device), profile, console.say)
    _print(title, speed, decoding_table(title, speed), format, profile)


def _print(title: str, speed: "Speed", table: "Table", format: str, profile: Path | None) -> None:
    """Print the table or, with --format json, the record of a measurement."""
    if format == "json":
        output.write_json({"measured": title} | speed.record())
    else:
        output.write_tables([table], format)
    if profile is not None:
        console.say(f"wrote {profile}; open it at https://ui.perfetto.dev")
