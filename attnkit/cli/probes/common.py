"""What the studies share: options, the rows that are read, and how a result is shown."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnkit.cli import console, output
from attnkit.cli.options import choice, value
from attnkit.errors import UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.analysis.maps import Kind
    from attnkit.data.rows import Row
    from attnkit.runs import Run
    from attnkit.runs.curves import Curves
    from attnkit.show.table import Table

KINDS: "tuple[Kind, ...]" = ("encoder", "decoder", "cross")
VALID = "valid"
"""The split that is read by default."""

Split = Annotated[str | None, value("S", "Split to read. [default: valid]")]
Rows = Annotated[int | None, value("N", "Only the first N rows. [default: all]", min=1)]
Kinds = Annotated[
    list[str] | None,
    choice("--kind", KINDS, "encoder, decoder or cross. Repeatable. [default: all]"),
]
Metrics = Annotated[
    str | None,
    value(
        "M,...",
        "perplexity and accuracy are fast; bleu, rouge and others decode again. "
        "[default: perplexity]",
    ),
]
Save = Annotated[Path | None, value("FILE", "Plot to a .png, .svg or .pdf file.")]


def kinds_of(given: Sequence[str] | None) -> "list[Kind] | None":
    """The chosen kinds in their order; None where none is chosen."""
    return [kind for kind in KINDS if kind in given] if given else None


def metrics_of(given: str | None) -> tuple[str, ...]:
    """The metrics by name; raises UsageError for an unknown one."""
    from attnkit.scoring import expand

    return expand([name.strip() for name in (given or "perplexity").split(",")])


def numbers(option: str, text: str) -> list[float]:
    """The numbers of an option, such as 0.5,1; each once, in ascending order."""
    try:
        return sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"{option} {quoted(text)}: must be numbers such as 0.5,1,2") from None


def title_of(run: "Run") -> str:
    """Recipe, variant and seed."""
    return f"{run.name}/{run.variant}/seed-{run.seed}"


def rows_of(
    run: "Run", split: str | None, rows: int | None, data_dir: Path | None, offline: bool
) -> "list[Row]":
    """The first rows of a split of the run's corpus."""
    from attnkit.scoring.evaluation import corpus_of

    return list(islice(corpus_of(run, data_dir, offline).rows(split or VALID), rows))


def show(table: "Table", plots: "Sequence[Curves]", format: str, save: Path | None) -> None:
    """Print a table, with its charts where people read it, and save the charts as a picture."""
    output.write_tables([table], format)
    if not plots:
        if save is not None:
            console.warn(f"{save} was not written: there are no numbers to draw")
        return
    if format == "table":
        from attnkit.show.curves_chart import CurvesChart

        console.stdout().print()
        console.stdout().print(CurvesChart(plots))
    if save is not None:
        from attnkit.show.curves_figure import picture

        output.save_picture(save, picture(plots, save.suffix[1:].lower()))
