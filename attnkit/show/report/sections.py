"""Sections of a report, from the scores, outputs and logs stored in the runs."""

import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from attnkit import __version__
from attnkit.errors import AttnkitError, DataError, MissingInputError, UnavailableError, UsageError
from attnkit.recipe import flat
from attnkit.recipe.metrics import direction_note, metric_facts
from attnkit.runs import Run, one_task
from attnkit.runs.curves import Curves, learning_curves
from attnkit.runs.status import SEEDS, differences
from attnkit.scoring.comparison import side_by_side
from attnkit.scoring.output_comparison import QUESTIONS, compare_outputs
from attnkit.scoring.overview import overview_of
from attnkit.scoring.results import Comparison, PublishedFigures, ScoreRow
from attnkit.scoring.saved_scores import saved_rows
from attnkit.show import comparison_tables, curves_figure
from attnkit.show.comparison_notes import changes_of
from attnkit.show.output_comparison_tables import MARKS_NOTE, example_tables
from attnkit.show.overview import forest_picture, overview_picture
from attnkit.show.recipe_tables import read_values
from attnkit.show.report.writers import Block, Figure, Fold, Report
from attnkit.show.table import NONE, Table

EXAMPLES, OPEN, MOST_EXAMPLES = 3, 3, 30
"""Numbers of examples of gains, and of losses, per system; of systems with open examples; of systems with examples."""
LANGUAGE = "language-modeling"
DIGITS = 12
"""Number of digits of a hash that are shown."""


def report_of(
    runs: Sequence[Run],
    baselines: dict[str | None, str],
    published: Sequence[PublishedFigures],
    command: str,
    warn: Callable[[str], object],
    *,
    data_dir: Path | None = None,
    offline: bool = False,
) -> Report:
    """Return the report of finished runs.

    Args:
        runs: the baseline of each recipe first.
        baselines: baseline of each recipe.
        published: figures to show beside the scores.
        command: command line of the report.
        warn: called with each warning about the outputs.
        data_dir, offline: source of the test lines, if the runs do not contain them.

    Raises:
        UsageError: If the runs are of different tasks.
        MissingInputError: If a run is not scored, or lacks a file.
        DataError: If a file of a run is damaged.
    """
    one_task(runs, "make a report for each task")
    settings, task = runs[0].recipe.eval, runs[0].recipe.task
    rows = [row for run in runs for row in saved_rows(run)]
    result = side_by_side(rows, baselines, settings, published=published)
    for text in comparison_tables.warning_lines(result):
        warn(text)
    paths = {run.path.as_posix(): run for run in runs}
    several = len({run.name for run in runs}) > 1
    systems: dict[str, Run] = {}  # first run of each system, by name (with the recipe, if there are several)
    for row in result.rows:
        systems.setdefault(f"{row.recipe} {row.name}" if several else row.name, paths[str(row.run)])
    sections = {
        "Results": [*comparison_tables.tables(result), *_differences(result)],
        "Learning curves": _curves(runs),
    }
    if task != LANGUAGE:
        sections["Examples"] = _examples(systems, data_dir, offline)
    sections["Recipes"] = _recipes(systems, baselines)
    sections["Environment"] = _environment(runs, result.rows)
    names = ", ".join(dict.fromkeys(run.name for run in runs))
    counts = {"system": len(systems), "run": len(runs)}
    said = (f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items())
    made_by = f"attnkit {__version__}: {command}"
    return Report(f"attnkit report: {names}", f"{task}: {', '.join(said)}", sections, made_by)


def _differences(result: Comparison) -> list[Block]:
    """Return the overview, if it has several columns, and the differences with their intervals."""
    try:
        found = overview_of([result])
        drawn = [("differences with 95 % intervals", forest_picture(found, "svg"))]
        if len(found.columns) > 1:
            drawn.insert(0, ("overview", overview_picture(found, "svg")))
    except (MissingInputError, UnavailableError):  # one system, or no matplotlib
        return []
    return [Figure(f"differences-{n}", title, one.data) for n, (title, one) in enumerate(drawn, 1)]


def _curves(runs: Sequence[Run]) -> list[Block]:
    """Return the figures of `attnkit plot`, and scores against training time."""
    said: list[str] = []
    drawn: list[Curves] = []
    wanted: list[tuple[list[str], str | None]] = [([], None)]
    if runs[0].recipe.task != QUESTIONS:  # question answering has many scores
        wanted.append((["score"], "time"))
    for words, x in wanted:
        try:
            drawn += learning_curves(runs, words, x, note=said.append)
        except AttnkitError as error:
            said.append(f"not drawn: {error}")
    names = list(dict.fromkeys(one.name for curves in drawn for one in curves.series))
    figures: list[Block] = []
    try:
        for number, curves in enumerate(drawn, 1):
            made = curves_figure.picture([curves], "svg", names)
            figures.append(Figure(f"curves-{number}", curves.title, made.data))
            said += made.warnings
    except UnavailableError as error:
        said.append(f"not drawn: {error}")
    return [*figures, *dict.fromkeys(said)]


def _examples(systems: dict[str, Run], data_dir: Path | None, offline: bool) -> list[Block]:
    """Return the largest gains and losses of each system compared with the first system."""
    runs = list(systems.values())
    if len(runs) == 1 and runs[0].recipe.task != QUESTIONS:
        return ["No examples: there is one system only."]
    try:
        comparison = compare_outputs(runs, data_dir=data_dir, offline=offline)
    except (UsageError, MissingInputError, DataError) as error:
        return [f"No examples: {error}"]
    title = metric_facts(comparison.metric).title + direction_note(comparison.metric)
    blocks: list[Block] = [
        f"{comparison.part.split}: each line is scored by itself, by {title}; of several seeds the first is shown",
        *comparison.notes,
        MARKS_NOTE,
    ]
    for place, name in list(enumerate(comparison.names))[1 : MOST_EXAMPLES + 1]:
        pair = comparison.pair(place)
        some = example_tables(pair, "difference", EXAMPLES)
        title = f"{name} against {comparison.names[0]}"
        blocks.append(Fold(title, some or ["Every line scores alike."], place <= OPEN))
    if left_out := comparison.names[MOST_EXAMPLES + 1 :]:
        blocks.append(f"left out: {', '.join(left_out)} (attnkit compare)")
    return blocks


def _recipes(systems: dict[str, Run], baselines: dict[str | None, str]) -> list[Block]:
    """Return the keys in which systems differ from the baseline, and all values of the baseline, for each recipe."""
    values = {name: flat(run.recipe) for name, run in systems.items()}
    blocks: list[Block] = []
    for recipe in dict.fromkeys(run.name for run in systems.values()):
        names = [name for name, run in systems.items() if run.name == recipe]
        base = next((n for n in names if systems[n].variant == baselines.get(recipe)), names[0])
        if len(names) > 1:
            differ = differences([values[name] for name in names], [values[base]])
            rows = [(name, "; ".join(keys) or NONE) for name, keys in zip(names, differ, strict=True)]
            title = f"Keys with another value than {base} has"
            blocks.append(Table.of_texts(title, ("system", "differs in"), rows))
        unused = () if systems[base].recipe.task == QUESTIONS else ("contexts.",)
        settings = [
            pair
            for pair in read_values(systems[base].recipe).items()
            if pair[0] != SEEDS and pair[1] != "null" and not pair[0].startswith(unused)
        ]
        table = Table.of_texts("", ("key", "value"), settings)
        blocks.append(Fold(f"All values of {base}", [table]))
    return blocks


def _environment(runs: Sequence[Run], rows: Sequence[ScoreRow]) -> list[Block]:
    """Return the versions, machines and hashes of all runs, and changes during training."""
    names = ("attnkit", "python", "torch", "device", "threads", "precision")
    training, hashes = [], []
    for run in runs:
        told = {"run": run.path.as_posix()}
        known = {**run.manifest.hashes, "weights": run.weights_sha256}
        training.append(
            told
            | {name: getattr(run.manifest, name) for name in names}
            | {"updates": run.outcome.updates, "seconds": run.outcome.seconds}
        )
        hashes.append(
            told | {name: (known.get(name) or NONE)[:DIGITS] for name in ("weights", "recipe", "data", "tokenizer")}
        )

    changed = {row.run: changes_of(row.system) for row in rows}
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "sacrebleu"))
    here = f"attnkit {__version__}, Python {platform.python_version()}, {packages}"
    return [
        _facts_table("Training", training),
        _facts_table(f"SHA-256, first {DIGITS} digits", hashes),
        *(f"{run}: changed after training began: {what}" for run, what in changed.items() if what),
        f"This report was made by {here}",
    ]


def _facts_table(title: str, rows: Sequence[Mapping[str, object]]) -> Table:
    texts = [[NONE if value is None else str(value) for value in row.values()] for row in rows]
    return Table.of_texts(title, list(rows[0]), texts)
