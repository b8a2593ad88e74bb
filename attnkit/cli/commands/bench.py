"""`attnkit bench`: what attention mechanisms cost on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from attnkit.cli import completion, console, options, output
from attnkit.cli.options import flag, value
from attnkit.errors import UsageError

if TYPE_CHECKING:
    from attnkit.bench.plan import Workload
    from attnkit.bench.schedule import Point

app = typer.Typer(help="Benchmark attention mechanisms on this machine.", no_args_is_help=True)

app.callback()(lambda: None)  # with one command typer would leave its name out


@app.command("attention")
def attention(
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="WORD[:OPTION=VALUE,...]",
            help="Mechanisms, with options as in local:window=128. [default: all]",
            autocompletion=completion.mechanisms,
        ),
    ] = None,
    *,
    lengths: Annotated[
        str | None,
        value(
            "N,N,...",
            "Sequence lengths; A..B doubles from A to B. [default: 128..16384, "
            "and 65536 for linear-time mechanisms]",
        ),
    ] = None,
    causal: Annotated[
        bool, flag("--causal", "Causal attention. [default: every key is visible]")
    ] = False,
    layer: Annotated[
        bool, flag("--layer", "Include the projections, not only the mechanism.")
    ] = False,
    batch: Annotated[int, value("N", "Batch size.")] = 1,
    heads: Annotated[int, value("N", "Attention heads.")] = 8,
    head_width: Annotated[int, value("N", "Width of each head.")] = 64,
    dtype: Annotated[str, value("TYPE", "float32, float64, bfloat16 or float16.")] = "float32",
    device: options.Device = "cpu",
    threads: Annotated[int | None, value("N", "CPU threads. [default: torch's]")] = None,
    repeats: Annotated[int, value("N", "Rounds; the median is reported.")] = 5,
    budget: Annotated[
        float, value("S", "Seconds per pass and length; slower ones are skipped.")
    ] = 10.0,
    format: options.Format = "table",
    columns: options.Columns = None,
    plot: Annotated[
        Path | None, value("FILE", "Plot to a .png, .svg or .pdf file as well.")
    ] = None,
    plugins: options.Plugins = None,
) -> None:
    """Measure time and peak memory of attention mechanisms over sequence length.

    Times the forward pass in evaluation mode and forward plus backward in training mode, next to
    torch's fused scaled_dot_product_attention in the same rounds, and fits the exponents of growth.
    Running out of memory or time is a result, not an error.

      attnkit bench attention linear performer:features=128 local:window=64 --causal
      attnkit bench attention --lengths 512..8192 --format markdown --plot attention.svg
      attnkit bench attention scaled-dot linear --layer --lengths 32 --batch 128
    """
    from attnkit.bench import plan
    from attnkit.bench.schedule import measure
    from attnkit.show import benchmark_table

    output.check_columns(columns, format)
    output.choose(benchmark_table.tables((), plan.Workload()), columns)  # a wrong name, said now

    settings: dict[str, Any] = {
        "causal": causal, "layer": layer, "dtype": dtype, "batch": batch, "heads": heads,
        "head_width": head_width, "repeats": repeats, "budget": budget, "threads": threads,
    }  # fmt: skip
    workload = plan.Workload(**settings, plugins=tuple(plugins or ()))
    workload.check()
    candidates = [plan.candidate(word) for word in _words(words, causal)]
    able = plan.measurable([one.word for one in candidates], causal)
    if unable := [one.word for one in candidates if one.word not in able]:
        raise UsageError(f"--causal: {', '.join(unable)} cannot hide the future; leave it out")
    sweeps = plan.sweeps(candidates, options.lengths(lengths))
    if plot is not None:
        from attnkit.show.benchmark_plot import check

        check(plot)
    from attnkit.device import pick_device

    workload = workload._replace(device=pick_device(device))
    points: list[Point] = []
    try:
        points.extend(measure(sweeps, workload, console.say))
    except KeyboardInterrupt:
        if points:
            _print(points, workload, format, columns)
        raise
    _print(points, workload, format, columns)
    if plot is not None:
        from attnkit.show.benchmark_plot import draw

        draw(points, workload, plot)
        console.say(f"wrote {plot}")


def _words(words: Sequence[str] | None, causal: bool) -> list[str]:
    """The mechanisms named on the command line, or every one that can be measured like this."""
    if words:
        return list(dict.fromkeys(words))
    from attnkit.bench.plan import measurable
    from attnkit.mechanisms import facts, names

    known = [word for word in names() if not any(o.required for o in facts(word).options.values())]
    chosen = measurable(known, causal)
    if skipped := [word for word in known if word not in chosen]:
        console.say(f"skipped, not causal: {', '.join(skipped)}")
    return chosen


def _print(
    points: Sequence["Point"], setting: "Workload", format: str, columns: str | None
) -> None:
    """Both tables, or what programs read."""
    from attnkit.show import benchmark_table

    if format == "json":
        output.write_json(benchmark_table.record(points, setting))
        return
    shown = output.choose(benchmark_table.tables(points, setting), columns)
    output.write_tables(shown[:1] if format == "csv" else shown, format)
