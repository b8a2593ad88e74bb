"""The table of `attnkit eval --details`: a row a run, split and metric."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnkit.recipe.metrics import metric_facts
from attnkit.show.table import NONE, Cell, Column, Table

NOTE = (
    "interval: 95 %, by bootstrap over the sentences of one run; whether two runs differ is told "
    "by the paired test above, not by whether their intervals overlap"
)

IDENTITY = ("recipe", "variant", "system", "seed", "split", "run")


def details_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The confidence interval of each score, and what it is made of."""
    columns = (
        Column("run", "left"), Column("metric", "left"), Column("score"), Column("interval"),
        Column("made of", "left", wrap=True),
    )  # fmt: skip
    told = [key for key in ("split", "seed") if len({row.get(key) for row in rows}) > 1]
    cells = []
    for row in rows:
        identity = {key: row.get(key) for key in IDENTITY}
        more = {
            key: row[key] for key in ("method", "contexts", "length") if row.get(key) is not None
        }
        words = [str(row["system"]), *(f"{key} {row[key]}" for key in (*told, *more))]
        for metric, found in row["metrics"].items():
            cells.append(_cells(", ".join(words), {**identity, **more}, metric, found))
    same = [f"{key} {rows[0][key]}" for key in ("split", "seed")
            if key not in told and rows[0].get(key) is not None]  # fmt: skip
    return Table(", ".join(["details", *same]), columns, tuple(cells), (NOTE,))


def _cells(
    name: str, identity: Mapping[str, Any], metric: str, found: Mapping[str, Any]
) -> tuple[Cell, ...]:
    value, (low, high) = found["score"], found["interval"] or (None, None)
    score = NONE if value is None else f"{value:.2f}"
    between = NONE if low is None else f"{low:.2f} to {high:.2f}"
    return (
        Cell(name, dict(identity)),
        Cell(metric_facts(metric).title, {"metric": metric}),
        Cell(score, {"score": value}),
        Cell(between, {"low": low, "high": high}),
        Cell(_words(found["parts"]), dict(found["parts"])),
    )


def _words(parts: Mapping[str, float]) -> str:
    """What a score is made of, in a line."""
    precisions = [f"{value:.1f}" for key, value in parts.items() if key.startswith("precision_")]
    words = [f"precisions {'/'.join(precisions)}"] if precisions else []
    words += [
        f"{key.replace('_', ' ')} {value:.3f}" if key == "brevity_penalty" else
        f"{key.replace('_', ' ')} {value:,.2f}" if key in ("precision", "recall") else
        f"{key.replace('_', ' ')} {value:,.0f}"
        for key, value in parts.items() if not key.startswith("precision_")
    ]  # fmt: skip
    return ", ".join(words) or NONE
