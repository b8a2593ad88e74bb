"""Scores against the number of contexts, method by method, as a table."""

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any

from attnkit.recipe.schema import LOWER_IS_BETTER
from attnkit.show.table import (
    TITLES,
    Cell,
    Column,
    Table,
    comparison_table,
    run_notes,
    signature_notes,
    stars,
)

Object = Mapping[str, Any]
NAMES = ("split", "recipe", "variant", "method")
"""What rows are told apart by; a name that all of them share has no column."""


def contexts_table(comparison: Object) -> Table:
    """One row a split, a metric and a way of asking, one column a number of contexts.

    Args:
        comparison: the object of `attnkit eval --format json`, whose rows have `contexts`.

    Scores are means over seeds.  A star marks a difference to the baseline on the same questions.
    """
    rows = comparison["rows"]
    counts = sorted({row["contexts"] for row in rows})
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    ways = sorted(dict.fromkeys(map(_way, rows)), key=_order(rows))
    shown = [place for place, name in enumerate(NAMES) if _told(name, rows)]
    titles = [_title_of(NAMES[place], rows) for place in shown]
    place = titles.index("split") + 1 if "split" in titles else 0
    titles.insert(place, "metric")
    columns = [Column(title, "left") for title in titles]
    columns += [Column(str(count)) for count in counts]
    body = []
    for split, metric in product(dict.fromkeys(way[0] for way in ways), metrics):
        for way in (way for way in ways if way[0] == split):
            cells = [_cell(comparison, metric, way, count) for count in counts]
            if any(cell.text != "-" for cell in cells):
                names = [str(way[place]) for place in shown]
                names.insert(place, TITLES.get(metric, metric))
                body.append((*map(Cell, names), *cells))
    recipes, splits = (", ".join(dict.fromkeys(str(row[n]) for row in rows))
                       for n in ("recipe", "split"))  # fmt: skip
    title = f"{recipes}: {splits}, by number of contexts"
    return Table(title, tuple(columns), tuple(body), tuple(_notes(comparison, metrics)))


def tables(comparison: Object) -> list[Table]:
    """Any comparison as a screen shows it: of questions a table for each split, else one.

    The notes are below the last.
    """
    if not seen(comparison):
        return [comparison_table(comparison)]
    whole = contexts_table(comparison)
    if whole.columns[0].title != "split":
        return [whole]
    names = list(dict.fromkeys(row[0].text for row in whole.rows))
    recipes = whole.title.partition(":")[0]
    return [
        Table(
            f"{recipes}: {name}, by number of contexts",
            whole.columns[1:],
            tuple(row[1:] for row in whole.rows if row[0].text == name),
            whole.notes if name == names[-1] else (),
        )
        for name in names
    ]


def seen(comparison: Object) -> bool:
    """Whether a comparison is one by number of contexts."""
    rows: Sequence[Object] = comparison["rows"]
    return any("contexts" in row for row in rows)


def _way(row: Object) -> tuple[Any, ...]:
    """How a row's questions were asked, its number of contexts aside."""
    return tuple(row[name] for name in NAMES)


def _order(rows: Sequence[Object]) -> Any:
    """Splits, recipes, variants and methods in the order in which they first come."""
    first = [list(dict.fromkeys(row[name] for row in rows)) for name in NAMES]
    return lambda way: tuple(known.index(name) for known, name in zip(first, way, strict=True))


def _told(name: str, rows: Sequence[Object]) -> bool:
    """Whether rows need this name: methods always, and models that the recipe did not train."""
    elsewhere = name == "variant" and _title_of(name, rows) == "model"
    return name == "method" or elsewhere or len({row[name] for row in rows}) > 1


def _title_of(name: str, rows: Sequence[Object]) -> str:
    """A column's title: what no recipe trained has no seed, and is a model instead of a variant."""
    return "model" if name == "variant" and all(row["seed"] is None for row in rows) else name


def _cell(comparison: Object, metric: str, way: tuple[Any, ...], count: int) -> Cell:
    """The score of one way of asking with so many contexts; bold where none on the split beats it.

    The numbers for programs are those of `attnkit.show.table.comparison_table`.
    """
    means: dict[tuple[Any, ...], list[float]] = {}
    for row in comparison["rows"]:
        score = row["metrics"].get(metric, {}).get("score")
        if (row["split"], row["contexts"]) == (way[0], count) and score is not None:
            means.setdefault(_way(row), []).append(score)
    if way not in means:
        return Cell("-")
    shown = {other: f"{mean(scores):.1f}" for other, scores in means.items()}
    choose = min if metric in LOWER_IS_BETTER else max
    best = len({*shown.values()}) > 1 and shown[way] == choose(shown.values(), key=float)
    key = (*way, count, metric)
    compared: Object = next(
        (one for one in comparison["comparisons"]
         if (*_way(one), one["contexts"], one["metric"]) == key),
        {},
    )  # fmt: skip
    mark = stars(compared.get("p_corrected")).strip()  # as narrow as it can be: columns are many
    return Cell(f"{shown[way]}{mark}", {}, best)


def _notes(comparison: Object, metrics: Sequence[str]) -> list[str]:
    """What a reader needs to reproduce and to trust the numbers."""
    rows = comparison["rows"]
    notes = signature_notes(rows, metrics)
    notes += [_questions(split, rows) for split in dict.fromkeys(row["split"] for row in rows)]
    if any(row["contexts"] == 1 for row in rows):
        notes.append("1 context: what the question needs, alone")
    notes += _cut(rows)
    seeds = list(dict.fromkeys(str(row["seed"]) for row in rows if row["seed"] is not None))
    if seeds:
        notes.append(f"seeds: {', '.join(seeds)}{' (means over seeds)' if seeds[1:] else ''}")
    return notes + _significance(comparison) + run_notes(rows)


def _questions(split: str, rows: Sequence[Object]) -> str:
    """How many questions were asked: those that need more contexts are left out of fewer."""
    asked: dict[int, list[int]] = {}
    for row in rows:
        if row["split"] == split and row["contexts"] not in asked.setdefault(row["sentences"], []):
            asked[row["sentences"]].append(row["contexts"])
    if len(asked) == 1:
        return f"questions: {next(iter(asked)):,} of {split}"
    parts = [f"{many:,} with {_list(counts)}" for many, counts in asked.items()]
    return f"questions of {split}: {', '.join(parts)}"


def _cut(rows: Sequence[Object]) -> list[str]:
    """Where the one row of all contexts was longer than it may be."""
    cut: dict[str, dict[int, list[str]]] = {}
    for row in rows:
        if row.get("cut"):
            found = cut.setdefault(row["method"], {}).setdefault(row["contexts"], [])
            found.append(f"{row['cut']:,} of {row['sentences']:,}")
    notes = []
    for method, counts in cut.items():
        by_share: dict[str, list[int]] = {}
        for count, shares in counts.items():
            by_share.setdefault(" or ".join(dict.fromkeys(shares)), []).append(count)
        parts = [f"{share} questions with {_list(some)}" for share, some in by_share.items()]
        notes.append(f"{method} lost contexts that did not fit one row: {', '.join(parts)}")
    return notes


def _list(counts: Sequence[int]) -> str:
    """1 context; 2, 4, 8 contexts."""
    return f"{', '.join(map(str, sorted(counts)))} context{'' if list(counts) == [1] else 's'}"


def _significance(comparison: Object) -> list[str]:
    """What the stars say."""
    tested = [one for one in comparison["comparisons"] if one["p"] is not None]
    if not tested:
        return []
    one = tested[0]
    several = len({(row["recipe"], row["variant"]) for row in comparison["rows"]}) > 1
    base = f"{one['baseline']} {one['baseline_method']}" if several else one["baseline_method"]
    others = max(
        sum((o["split"], o["contexts"], o["metric"]) == (t["split"], t["contexts"], t["metric"])
            for o in tested)
        for t in tested
    )  # fmt: skip
    return [
        f"* and **: other than {base} with as many contexts, by a paired bootstrap over questions "
        f"({comparison['resamples']} resamples, as sacrebleu's) below 0.05 and 0.01 after doubling "
        "(its p counts one tail of a clear difference)"
        + (f" and Holm's correction over {others} comparisons of a column" if others > 1 else "")
    ]
