"""`attnkit bench`: what attention mechanisms cost on this machine."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnkit.cli import completion, console, output, plugin
from attnkit.cli.options import Device, Format
from attnkit.errors import UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.bench.plan import Sweep, Workload
    from attnkit.bench.schedule import Point

app = typer.Typer(help="Measure attention mechanisms on this machine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Measure attention mechanisms on this machine."""


@app.command("attention")
def attention(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD[:OPTION=VALUE,...]",
            help="Mechanisms, with options: local:window=128. [default: all]",
            autocompletion=completion.mechanisms,
        ),
    ] = None,
    *,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Lengths; 128..16384 doubles. [default: 128..16384, and 65536 where it is linear]",
        ),
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Hide the future. Without it all keys are seen.")
    ] = False,
    layer: Annotated[
        bool, typer.Option("--layer", help="The whole layer with projections, not mixing alone.")
    ] = False,
    batch: Annotated[int, typer.Option(metavar="N", help="Sequences at once.")] = 1,
    heads: Annotated[int, typer.Option(metavar="N", help="Attention heads.")] = 8,
    head_width: Annotated[int, typer.Option(metavar="N", help="Width of each head.")] = 64,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="float32, float64, bfloat16 or float16.")
    ] = "float32",
    device: Device = "cpu",
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads of the CPU. [default: torch's]")
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", help="Rounds; the median counts.")] = 5,
    budget: Annotated[
        float, typer.Option(metavar="S", help="Seconds for a pass at a length; longer is skipped.")
    ] = 10.0,
    format: Format = "table",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it too: a .png, .svg or .pdf file.")
    ] = None,
    plugins: plugin.Plugins = None,
) -> None:
    """Time and peak memory of attention mechanisms over the length of the text.

    Forward as in evaluation, and forward with backward as in training, beside torch's fused
    scaled_dot_product_attention in the same rounds; then the exponents of growth.  Out of memory
    and out of time are results.

      attnkit bench attention linear performer:features=128 local:window=64 --causal
      attnkit bench attention --lengths 512..8192 --format markdown --plot attention.svg
      attnkit bench attention scaled-dot linear --layer --lengths 32 --batch 128
    """
    from attnkit.bench import plan

    output.check(format)
    given: dict[str, Any] = {
        "causal": causal, "layer": layer, "dtype": dtype, "batch": batch, "heads": heads,
        "head_width": head_width, "repeats": repeats, "budget": budget, "threads": threads,
    }  # fmt: skip
    workload = plan.Workload(**given, plugins=tuple(plugins or ()))
    workload.check()
    sweeps = plan.sweeps(
        [plan.candidate(word) for word in _words(words, causal)], _lengths(lengths)
    )
    if plot is not None:
        from attnkit.show.benchmark_plot import check

        check(plot)
    from attnkit.device import pick_device

    _measure(sweeps, workload._replace(device=pick_device(device)), format, plot)


def _words(words: Sequence[str] | None, causal: bool) -> list[str]:
    """What the command line names, or every mechanism that can be measured so."""
    if words:
        return list(dict.fromkeys(words))
    from attnkit.bench.plan import measurable
    from attnkit.mechanisms import facts, names

    known = [word for word in names() if not any(o.required for o in facts(word).options.values())]
    chosen = measurable(known, causal)
    if left := [word for word in known if word not in chosen]:
        console.say(f"not causal, left out: {', '.join(left)}")
    return chosen


def _lengths(text: str | None) -> list[int] | None:
    """The numbers of --lengths: 128,500 or 128..1024, which doubles."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        low, dots, high = part.strip().partition("..")
        if not re.fullmatch(r"[1-9]\d{0,8}", low) or not re.fullmatch(
            r"[1-9]\d{0,8}" if dots else "", high
        ):
            raise UsageError(
                f"--lengths {quoted(text)}: must be numbers such as 512,1000 or a range such as "
                "128..4096, which doubles"
            )
        number = int(low)
        while number <= int(high or low):
            found.append(number)
            number *= 2
    return found


def _measure(
    sweeps: Sequence["Sweep"], workload: "Workload", format: str, plot: Path | None
) -> None:
    from attnkit.bench.schedule import measure

    points: list[Point] = []
    try:
        points.extend(measure(sweeps, workload, console.say))
    except KeyboardInterrupt:
        if points:
            _print(points, workload, format)
        raise
    _print(points, workload, format)
    if plot is not None:
        from attnkit.show.benchmark_plot import draw

        draw(points, workload, plot)
        console.say(f"drawn: {plot}")


def _print(points: Sequence["Point"], workload: "Workload", format: str) -> None:
    """Both tables, or one text for programs."""
    from attnkit.show import benchmark_table, table_formats

    if format == "json":
        console.write(json.dumps(benchmark_table.record(points, workload), indent=2) + "\n")
        return
    table, growth = (
        benchmark_table.points_table(points, workload),
        benchmark_table.exponents_table(points),
    )
    if format == "csv":
        console.write(table_formats.csv_text(table))
    elif format == "table":
        console.stdout().print(table)
        console.stdout().print()
        console.stdout().print(growth)
    else:
        render = {"markdown": table_formats.markdown, "latex": table_formats.latex}[format]
        console.write(f"{render(table)}\n{render(growth)}")
