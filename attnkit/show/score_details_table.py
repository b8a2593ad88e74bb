"""The table of `attnkit eval --details`: a row a run, split and metric."""

from collections.abc import Mapping, Sequence

from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.results import ScoreRow
from attnkit.show.table import NONE, Cell, Column, Table

NOTE = (
    "interval: 95 %, by bootstrap over the sentences of one run; whether two runs differ is told "
    "by the paired test above, not by whether their intervals overlap"
)


def details_table(rows: Sequence[ScoreRow]) -> Table:
    """The confidence interval of each score, and what it is made of."""
    columns = (
        Column("run", "left"), Column("metric", "left"), Column("score"), Column("interval"),
        Column("made of", "left", wrap=True),
    )  # fmt: skip
    told = [key for key in ("split", "seed") if len({getattr(row, key) for row in rows}) > 1]
    cells = []
    for row in rows:
        more = {"method": row.method, "contexts": row.contexts, "length": row.length}
        more = {key: value for key, value in more.items() if value is not None}
        identity = {
            "recipe": row.recipe, "variant": row.variant, "system": row.name, "seed": row.seed,
            "split": row.split, "run": row.run, **more,
        }  # fmt: skip
        words = [row.name, *(f"{key} {identity[key]}" for key in (*told, *more))]
        for metric, (interval, parts) in row.details.items():
            value = row.scores[metric].json()["score"]
            low, high = interval or (None, None)
            cells.append((
                Cell(", ".join(words), identity),
                Cell(metric_facts(metric).title, {"metric": metric}),
                Cell(NONE if value is None else f"{value:.2f}", {"score": value}),
                Cell(NONE if low is None else f"{low:.2f} to {high:.2f}",
                     {"low": low, "high": high}),
                Cell(_words(parts), dict(parts)),
            ))  # fmt: skip
    same = [f"{key} {getattr(rows[0], key)}" for key in ("split", "seed")
            if key not in told and getattr(rows[0], key) is not None]  # fmt: skip
    return Table(", ".join(["details", *same]), columns, tuple(cells), (NOTE,))


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
