"""The table of averages over several tasks."""

from collections.abc import Iterable

from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.results import AverageRow, Averages
from attnkit.show.comparison_notes import joined, not_comparable_note
from attnkit.show.comparison_tables import difference_cell, difference_fields
from attnkit.show.differences import NO_TESTS, interval_note, scope_note, significance_note
from attnkit.show.table import PLUS_MINUS, Cell, Column, Table


def average_table(averages: Averages) -> Table:
    """One row a variant, one column a task; then the average and its difference to the baseline."""
    tasks = list(averages.metrics)
    short = [task.rpartition("/")[2] for task in tasks]
    titles = short if len({*short}) == len(short) else tasks
    columns = (
        Column("variant", "left"),
        *map(Column, titles),
        Column("average"),
        Column("difference", under=True),
    )
    best = {task: _best(row.scores[task] for row in averages.rows) for task in tasks}
    top = _best(row.average for row in averages.rows)
    body = tuple(_row(row, best, top) for row in averages.rows)
    title = f"average over {len(tasks)} tasks: {averages.split}"
    return Table(title, columns, body, tuple(_notes(averages)))


def _best(values: Iterable[float]) -> str | None:
    """The highest value as it is shown; None where all are equal."""
    shown = {f"{value:.2f}" for value in values}
    return max(shown, key=float) if len(shown) > 1 else None


def _row(row: AverageRow, best: dict[str, str | None], top: str | None) -> tuple[Cell, ...]:
    spread = "" if row.sd is None else f" {PLUS_MINUS} {row.sd:.2f}"
    text = f"{row.average:.2f}"
    found = row.value, row.tested
    return (
        Cell(row.variant, {"variant": row.variant, "seeds": joined(row.seeds)}),
        *(
            Cell(f"{score:.2f}", {task: score}, f"{score:.2f}" == best[task])
            for task, score in row.scores.items()
        ),
        Cell(text + spread, {"average": row.average, "average_sd": row.sd}, text == top),
        difference_cell(*found, row.not_comparable, difference_fields(*found)),
    )


def _notes(averages: Averages) -> list[str]:
    rows, base = averages.rows, averages.baseline
    notes = ["average: the mean over tasks, each of which counts the same, as in GLUE; of a task "
             "with several metrics their mean counts"]  # fmt: skip
    named: dict[str, list[str]] = {}
    for task, metrics in averages.metrics.items():
        named.setdefault(joined(metric_facts(name).title for name in metrics), []).append(task)
    notes += [f"{titles}: {', '.join(tasks)}" for titles, tasks in named.items()]
    seeds = {joined(row.seeds): row.variant for row in reversed(rows)}
    listed = "; ".join(
        text if len(seeds) == 1 else f"{text} ({variant}, ...)" for text, variant in seeds.items()
    )
    spread = f" (mean {PLUS_MINUS} standard deviation over seeds)" if "," in listed else ""
    notes += [f"seeds: {listed}{spread}"] if rows else []
    notes += not_comparable_note(
        (row.variant, str(base), row.not_comparable) for row in rows if base
    )
    notes += [f"{name} is left out: {why}" for name, why in averages.left_out.items()]
    if base is None or len(rows) < 2:
        return notes
    tested = [(row.variant, row.tested) for row in rows if row.tested]
    text = f"difference: to {base}"
    if not tested:
        return [*notes, text] if averages.resamples else [*notes, text, NO_TESTS]
    over = "the sentences of each task"
    about = significance_note(over, averages.resamples, len(tested), "variants")
    notes += [f"{text}; {about}", interval_note(test for _, test in tested)]
    return [*notes, scope_note(tested, "sentences", True)]
