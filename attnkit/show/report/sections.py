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

EXAMPLES, OPEN_SYSTEMS, MAX_SYSTEMS = 3, 3, 30
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
    task = runs[0].recipe.task
    rows = [row for run in runs for row in saved_rows(run)]
    comparison = side_by_side(rows, baselines, runs[0].recipe.eval, published=published)
    for text in comparison_tables.warning_lines(comparison):
        warn(text)
    paths = {run.path.as_posix(): run for run in runs}
    several_recipes = len({run.name for run in runs}) > 1
    systems: dict[str, Run] = {}  # first run of each system, by name (with the recipe, if there are several)
    for row in comparison.rows:
        systems.setdefault(f"{row.recipe} {row.name}" if several_recipes else row.name, paths[str(row.run)])
    sections = {
        "Results": [*comparison_tables.tables(comparison), *_differences(comparison)],
        "Learning curves": _curves(runs),
    }
    if task != LANGUAGE:
        sections["Examples"] = _examples(systems, data_dir, offline)
    sections["Recipes"] = _recipes(systems, baselines)
    sections["Environment"] = _environment(runs, comparison.rows)
    names = ", ".join(dict.fromkeys(run.name for run in runs))
    counts = {"system": len(systems), "run": len(runs)}
    facts = ", ".join(f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items())
    return Report(f"attnkit report: {names}", f"{task}: {facts}", sections, f"attnkit {__version__}: {command}")


def _differences(comparison: Comparison) -> list[Block]:
    """Return the overview, if it has several columns, and the differences with their intervals."""
    try:
        overview = overview_of([comparison])
        pictures = [("differences with 95 % intervals", forest_picture(overview, "svg"))]
        if len(overview.columns) > 1:
            pictures.insert(0, ("overview", overview_picture(overview, "svg")))
    except (MissingInputError, UnavailableError):  # one system, or no matplotlib
        return []
    return [Figure(f"differences-{n}", title, picture.data) for n, (title, picture) in enumerate(pictures, 1)]


def _curves(runs: Sequence[Run]) -> list[Block]:
    """Return the figures of `attnkit plot`, and scores against training time."""
    notes: list[str] = []
    plots: list[Curves] = []
    requests: list[tuple[list[str], str | None]] = [([], None)]
    if runs[0].recipe.task != QUESTIONS:  # question answering has many scores
        requests.append((["score"], "time"))
    for metrics, x in requests:
        try:
            plots += learning_curves(runs, metrics, x, note=notes.append)
        except AttnkitError as error:
            notes.append(f"not drawn: {error}")
    names = list(dict.fromkeys(series.name for curves in plots for series in curves.series))
    figures: list[Block] = []
    try:
        for number, curves in enumerate(plots, 1):
            picture = curves_figure.picture([curves], "svg", names)
            figures.append(Figure(f"curves-{number}", curves.title, picture.data))
            notes += picture.warnings
    except UnavailableError as error:
        notes.append(f"not drawn: {error}")
    return [*figures, *dict.fromkeys(notes)]


def _examples(systems: dict[str, Run], data_dir: Path | None, offline: bool) -> list[Block]:
    """Return the largest gains and losses of each system compared with the first system."""
    runs = list(systems.values())
    if len(runs) == 1 and runs[0].recipe.task != QUESTIONS:
        return ["No examples: there is only one system."]
    try:
        comparison = compare_outputs(runs, data_dir=data_dir, offline=offline)
    except (UsageError, MissingInputError, DataError) as error:
        return [f"No examples: {error}"]
    metric = metric_facts(comparison.metric).title + direction_note(comparison.metric)
    blocks: list[Block] = [
        f"{comparison.part.split}: each line is scored separately by {metric}; of several seeds, the first is shown",
        *comparison.notes,
        MARKS_NOTE,
    ]
    for index, name in list(enumerate(comparison.names))[1 : MAX_SYSTEMS + 1]:
        tables = example_tables(comparison.pair(index), "difference", EXAMPLES)
        title = f"{name} against {comparison.names[0]}"
        blocks.append(Fold(title, tables or ["All lines have equal scores."], index <= OPEN_SYSTEMS))
    if left_out := comparison.names[MAX_SYSTEMS + 1 :]:
        blocks.append(f"omitted: {', '.join(left_out)} (see attnkit compare)")
    return blocks


def _recipes(systems: dict[str, Run], baselines: dict[str | None, str]) -> list[Block]:
    """Return the keys in which systems differ from the baseline, and all values of the baseline, for each recipe."""
    values = {name: flat(run.recipe) for name, run in systems.items()}
    blocks: list[Block] = []
    for recipe in dict.fromkeys(run.name for run in systems.values()):
        names = [name for name, run in systems.items() if run.name == recipe]
        base = next((n for n in names if systems[n].variant == baselines.get(recipe)), names[0])
        if len(names) > 1:
            differing_keys = differences([values[name] for name in names], [values[base]])
            rows = [(name, "; ".join(keys) or NONE) for name, keys in zip(names, differing_keys, strict=True)]
            title = f"Keys whose value differs from {base}"
            blocks.append(Table.of_texts(title, ("system", "differs in"), rows))
        unused = () if systems[base].recipe.task == QUESTIONS else ("contexts.",)
        settings = [
            (key, value)
            for key, value in read_values(systems[base].recipe).items()
            if key != SEEDS and value != "null" and not key.startswith(unused)
        ]
        blocks.append(Fold(f"All values of {base}", [Table.of_texts("", ("key", "value"), settings)]))
    return blocks


def _environment(runs: Sequence[Run], rows: Sequence[ScoreRow]) -> list[Block]:
    """Return the versions, machines and hashes of all runs, and changes during training."""
    names = ("attnkit", "python", "torch", "device", "threads", "precision")
    hashed = ("weights", "recipe", "data", "tokenizer")
    training, hashes = [], []
    for run in runs:
        path, known = run.path.as_posix(), {**run.manifest.hashes, "weights": run.weights_sha256}
        facts = {name: getattr(run.manifest, name) for name in names}
        training.append({"run": path, **facts, "updates": run.outcome.updates, "seconds": run.outcome.seconds})
        hashes.append({"run": path, **{name: (known.get(name) or NONE)[:DIGITS] for name in hashed}})
    changes = {row.run: changes_of(row.system) for row in rows}
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "sacrebleu"))
    versions = f"attnkit {__version__}, Python {platform.python_version()}, {packages}"
    return [
        _facts_table("Training", training),
        _facts_table(f"SHA-256, first {DIGITS} digits", hashes),
        *(f"{run}: changed after training began: {change}" for run, change in changes.items() if change),
        f"Report written by {versions}",
    ]


def _facts_table(title: str, rows: Sequence[Mapping[str, object]]) -> Table:
    texts = [[NONE if value is None else str(value) for value in row.values()] for row in rows]
    return Table.of_texts(title, list(rows[0]), texts)
