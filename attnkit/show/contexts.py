"""Scores against the number of contexts, method by method, as a table."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from attnkit.show.table import TITLES, Cell, Column, Table, notes_of, stars

Object = Mapping[str, Any]


def contexts_table(comparison: Object) -> Table:
    """One row a split, metric and method, one column a number of contexts.

    Args:
        comparison: the object of `attnkit eval --format json`, whose rows have `contexts`.

    A star marks a difference to the baseline on the same questions; scores are means over seeds.
    """
    rows = comparison["rows"]
    counts = sorted({row["contexts"] for row in rows})
    splits = list(dict.fromkeys(row["split"] for row in rows))
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    methods = list(dict.fromkeys(row["variant"] for row in rows))
    several = len(splits) > 1
    columns = [Column(name, "left") for name in (*["split"] * several, "metric", "method")]
    columns += [Column(str(count)) for count in counts]
    body = []
    for split in splits:
        for metric in metrics:
            for method in methods:
                line = _Line(comparison, split, metric, method)
                cells = [line.cell(count) for count in counts]
                if any(cell.text != "-" for cell in cells):
                    body.append((*line.names(several), *cells))
    recipes = ", ".join(dict.fromkeys(str(row["recipe"]) for row in rows))
    title = f"{recipes}: {', '.join(splits)}, by number of contexts"
    return Table(title, tuple(columns), tuple(body), tuple(notes_of(comparison, metrics)))


class _Line:
    """One method on one split by one metric."""

    def __init__(self, comparison: Object, split: str, metric: str, method: str) -> None:
        self.split, self.metric, self.method = split, metric, method
        self.values: dict[str, dict[int, list[float]]] = {}
        for row in comparison["rows"]:
            score = row["metrics"].get(metric, {}).get("score")
            if row["split"] == split and score is not None:
                found = self.values.setdefault(row["variant"], {})
                found.setdefault(row["contexts"], []).append(score)
        key = (split, metric, method)
        self.compared = {
            one["contexts"]: one
            for one in comparison["comparisons"]
            if (one["split"], one["metric"], one["variant"]) == key
        }

    def names(self, several: bool) -> tuple[Cell, ...]:
        fields = {"split": self.split, "metric": self.metric, "method": self.method}
        texts = [TITLES.get(self.metric, self.metric), self.method]
        cells = [Cell(text) for text in ([self.split] if several else []) + texts]
        return (Cell(cells[0].text, fields), *cells[1:])

    def cell(self, count: int) -> Cell:
        values = self.values.get(self.method, {}).get(count)
        compared = self.compared.get(count, {})
        value = mean(values) if values else None
        fields = {
            f"contexts_{count}": value,
            f"contexts_{count}_p": compared.get("p"),
            f"contexts_{count}_p_corrected": compared.get("p_corrected"),
        }
        if value is None:
            return Cell("-", fields)
        rivals = [mean(some[count]) for some in self.values.values() if some.get(count)]
        best = len(rivals) > 1 and f"{value:.1f}" == f"{max(rivals):.1f}"
        return Cell(f"{value:.1f}{stars(compared.get('p_corrected'))}", fields, best)


def seen(comparison: Object) -> bool:
    """Whether a comparison is one by number of contexts."""
    rows: Sequence[Object] = comparison["rows"]
    return any("contexts" in row for row in rows)
