"""The sections of a report, from what training and evaluation left in the runs.

A model is loaded for attention maps only; all else reads numbers and texts.
"""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attnkit import __version__
from attnkit.errors import AttnkitError, DataError, MissingInputError, UnavailableError, UsageError
from attnkit.recipe import flat
from attnkit.recipe.metrics import direction_note, metric_facts
from attnkit.runs import Run, one_task
from attnkit.runs.curves import Curves, learning_curves
from attnkit.runs.layout import MODEL
from attnkit.runs.run_corpus import RunCorpus
from attnkit.runs.status import SEEDS, differences
from attnkit.scoring.comparison import side_by_side
from attnkit.scoring.evaluated_lines import QUESTIONS, CorpusLine, read_lines
from attnkit.scoring.output_comparison import compare_outputs
from attnkit.scoring.overview import overview_of
from attnkit.scoring.results import Comparison, PublishedFigures, ScoreRow
from attnkit.scoring.saved_scores import saved_rows
from attnkit.scoring.significance import Margins
from attnkit.show import axis_tables, comparison_tables, curves_figure
from attnkit.show.comparison_notes import changes_of
from attnkit.show.output_examples import example_rows, groups
from attnkit.show.overview import pictures
from attnkit.show.recipe_tables import read_values
from attnkit.show.report.blocks import (
    Block,
    Drawing,
    Examples,
    Figure,
    Fold,
    Marks,
    Note,
    Report,
    ReportSection,
)
from attnkit.show.report.map_section import map_section
from attnkit.show.table import NONE, Cell, Column, Table

EXAMPLES = 3
"""Largest gains, and largest losses, that are shown of each system."""
LARGEST = 2_000_000
"""Characters of all examples together, at most; those of further systems are left out."""
OPEN = 3
"""Systems whose examples are open at first, at most."""
PROMPT = 12
"""Words of a language model's test text whose maps are drawn, at most."""
LANGUAGE = "language-modeling"
DIGITS = 12
"""Of a hash that are shown."""
Warn = Callable[[str], object]


@dataclass(frozen=True)
class ReportRequest:
    """The runs of a report, and what is to be shown of them."""

    runs: Sequence[Run]
    """Finished ones, the baseline of each recipe first."""
    baselines: dict[str | None, str]
    """Recipe -> the variant that others are compared with."""
    published: Sequence[PublishedFigures]
    command: str
    maps: bool = True
    sentence: str | None = None
    """What is read for the maps instead of a test sentence."""
    data_dir: Path | None = None
    offline: bool = False


def report_of(request: ReportRequest, warn: Warn) -> Report:
    """The whole report; `warn` is called with what looks wrong about the outputs.

    Raises:
        UsageError: runs of different tasks; a sentence that a model cannot read.
        MissingInputError: a run is not scored, or lacks a file.
        DataError: a file of a run is damaged.
    """
    runs = request.runs
    one_task(runs, "make a report for each task")
    settings = runs[0].recipe.eval
    result = side_by_side(
        _rows(runs),
        request.baselines,
        published=request.published,
        resamples=settings.bootstrap,
        margins=Margins.of(settings),
    )
    for text in comparison_tables.warning_lines(result):
        warn(text)
    systems = _systems(result.rows, runs)
    sections = [
        ReportSection("Results", [*axis_tables.tables(result), *_differences_drawn(result)]),
        ReportSection("Learning curves", _curves(runs)),
    ]
    lines: Sequence[CorpusLine] = ()
    if runs[0].recipe.task != LANGUAGE:
        examples, lines = _examples(request, systems)
        sections.append(ReportSection("Examples", examples))
    if request.maps:
        sections.append(_maps(request, systems, lines))
    sections += [
        ReportSection("Recipes", _recipes(systems, request.baselines)),
        ReportSection("Environment", _environment(runs, result.rows)),
    ]
    names = ", ".join(dict.fromkeys(run.name for run in runs))
    counts = {"system": len(systems), "run": len(runs)}
    said = (f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items())
    facts = f"{runs[0].recipe.task}: {', '.join(said)}"
    return Report(
        f"attnkit report: {names}", facts, sections, f"attnkit {__version__}: {request.command}"
    )


def _differences_drawn(result: Comparison) -> list[Block]:
    """Systems by tasks where there are several columns, and differences with their intervals."""
    try:
        view = overview_of([result])
        drawn = pictures(view, "svg")
    except (MissingInputError, UnavailableError):  # one system, or no matplotlib
        return []
    drawings = [Drawing(title, picture.data) for title, picture in drawn]
    return [Figure("differences", drawings)]


def _rows(runs: Sequence[Run]) -> list[ScoreRow]:
    """What was scored of all runs; an error names the first that was not."""
    unscored = [run for run in runs if not run.scores()]
    if unscored:
        more = f" (and {len(unscored) - 1} more)" if len(unscored) > 1 else ""
        path = unscored[0].path
        raise MissingInputError(f"{path}{more}: not scored yet: run `attnkit eval {path}` first")
    return [row for run in runs for row in saved_rows(run)]


def _systems(rows: Sequence[ScoreRow], runs: Sequence[Run]) -> dict[str, Run]:
    """The first run of each system by its name, which has the recipe's where there are several."""
    paths = {run.path.as_posix(): run for run in runs}
    several = len({run.name for run in runs}) > 1
    systems: dict[str, Run] = {}
    for row in rows:
        name = f"{row.recipe} {row.name}" if several else row.name
        systems.setdefault(name, paths[str(row.run)])
    return systems


def _curves(runs: Sequence[Run]) -> list[Block]:
    """The figures of `attnkit plot`, and scores against the time of training."""
    notes: list[str] = []
    drawn: list[Curves] = []
    drawings: list[Drawing] = []
    wanted: list[tuple[list[str], str | None]] = [([], None)]
    if runs[0].recipe.task != QUESTIONS:  # theirs are many
        wanted.append((["score"], "time"))
    for words, x in wanted:
        try:
            drawn += learning_curves(runs, words, x, note=notes.append)
        except AttnkitError as error:
            notes.append(f"not drawn: {error}")
    names = list(dict.fromkeys(one.name for curves in drawn for one in curves.series))
    try:
        for curves in drawn:
            picture = curves_figure.picture([curves], "svg", names)
            drawings.append(Drawing(curves.title, picture.data))
            notes += picture.warnings
    except UnavailableError as error:
        notes.append(f"not drawn: {error}")
    figures = [Figure("curves", drawings)] if drawings else []
    return [*figures, *map(Note, dict.fromkeys(notes))]


def _examples(
    request: ReportRequest, systems: dict[str, Run]
) -> tuple[list[Block], Sequence[CorpusLine]]:
    """Largest gains and losses of every system against the first, and the lines of the test set."""
    runs = list(systems.values())
    if len(runs) == 1 and runs[0].recipe.task != QUESTIONS:
        return [Note("No examples: there is one system only.")], ()
    try:
        evaluated = read_lines(
            runs, data_dir=request.data_dir, offline=request.offline, training=False
        )
        comparison = compare_outputs(evaluated)
    except (UsageError, MissingInputError, DataError) as error:
        return [Note(f"No examples: {error}")], ()
    blocks: list[Block] = []
    room, left_out = LARGEST, []
    for place, name in enumerate(comparison.names[1:], 1):
        pair = comparison.pair(place)
        some = [Examples(g.title, pair, g.lines) for g in groups(pair, "difference", EXAMPLES)]
        rows = (row for block in some for line in block.lines
                for row in example_rows(pair, line, "reference"))  # fmt: skip
        room -= sum(len(span.text) for row in rows for span in row.spans)
        if room < 0:
            left_out.append(name)
            continue
        inside: list[Block] = [*some] or [Note("Every line scores alike.")]
        title = f"{name} against {comparison.names[0]}"
        blocks.append(Fold(title, inside, place <= OPEN))
    title = metric_facts(comparison.metric).title
    notes = [
        f"{evaluated.split}: each line is scored by itself, by {title}"
        f"{direction_note(comparison.metric)}; of several seeds the first is shown",
        *evaluated.notes,
    ]
    if left_out:
        notes.append(f"left out, since texts are long: {', '.join(left_out)} (attnkit compare)")
    return [*map(Note, notes), Marks(), *blocks], evaluated.lines


def _maps(
    request: ReportRequest, systems: dict[str, Run], lines: Sequence[CorpusLine]
) -> ReportSection:
    """Attention maps of the sentence that is asked for, else of a line of the test set."""
    run = next(iter(systems.values()))
    task, split = run.recipe.task, run.recipe.eval.splits[0]
    if request.sentence is None and all(one.left_out for one in systems.values()):
        return ReportSection("Attention maps", [Note("No maps: the results have no weights.")])
    if request.sentence is None and task == QUESTIONS:  # their contexts belong to them
        return map_section(systems, (), None)
    if request.sentence is None and not lines:
        try:
            rows = list(RunCorpus(run, request.data_dir, request.offline).rows(split))
        except AttnkitError as error:
            return ReportSection("Attention maps", [Note(f"No maps: {error}")])
        lines = [CorpusLine(at, row.source, (row.target,)) for at, row in enumerate(rows, 1)]
    if request.sentence is None and task == LANGUAGE:  # a prompt of one word, and what follows
        texts = [one.references[0].split() for one in lines]
        words = min(texts, key=lambda text: abs(len(text) - PROMPT), default=[])
        first = PROMPT if run.recipe.masks else 1
        parts = [" ".join(some) for some in (words[:first], words[first:PROMPT])]
        lines = [CorpusLine(1, parts[0], (parts[1],))] if words[1:] else []
    return map_section(systems, lines, request.sentence)


def _recipes(systems: dict[str, Run], baselines: dict[str | None, str]) -> list[Block]:
    """Keys in which systems differ from the baseline, and all values of the baseline."""
    values = {name: flat(run.recipe) for name, run in systems.items()}
    blocks: list[Block] = []
    for recipe in dict.fromkeys(run.name for run in systems.values()):
        names = [name for name, run in systems.items() if run.name == recipe]
        base = next((n for n in names if systems[n].variant == baselines.get(recipe)), names[0])
        if len(names) > 1:
            blocks.append(_differences(names, base, [values[name] for name in names]))
        unused = () if systems[base].recipe.task == QUESTIONS else ("contexts.",)
        settings = (
            (Cell(key), Cell(value))
            for key, value in read_values(systems[base].recipe).items()
            if key != SEEDS and value != "null" and not key.startswith(unused)
        )  # fmt: skip
        columns = (Column("key", "left"), Column("value", "left", wrap=True))
        blocks.append(Fold(f"All values of {base}", [Table("", columns, tuple(settings))]))
    return blocks


def _differences(names: Sequence[str], base: str, values: Sequence[Mapping[str, str]]) -> Table:
    """A row for each system of a recipe, the baseline included."""
    differ = differences(values, [values[names.index(base)]])
    rows = tuple(
        (Cell(name), Cell("; ".join(keys) or NONE))
        for name, keys in zip(names, differ, strict=True)
    )
    columns = (Column("system", "left"), Column("differs in", "left", wrap=True))
    return Table(f"Keys with another value than {base} has", columns, rows)


def _environment(runs: Sequence[Run], rows: Sequence[ScoreRow]) -> list[Block]:
    """Versions, machines and hashes of all runs, and what was changed on the way."""
    training, hashes = [], []
    for run in runs:
        manifest = run.manifest
        finished = manifest["finished"]
        known = {
            **(manifest.get("hashes") or {}),
            "weights": (manifest.get("files") or {}).get(MODEL),
        }
        names = ("attnkit", "python", "torch", "device", "threads", "precision")
        training.append({
            **{name: manifest.get(name) for name in names},
            **{name: finished.get(name) for name in ("updates", "seconds")},
        })  # fmt: skip
        hashes.append({
            name: str(known.get(name) or NONE)[:DIGITS]
            for name in ("weights", "recipe", "data", "tokenizer")
        })  # fmt: skip
    changed = {row.run: changes_of(row.system) for row in rows}
    notes = [f"{run}: changed after training began: {c}" for run, c in changed.items() if c]
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "sacrebleu"))
    here = f"attnkit {__version__}, Python {platform.python_version()}, {packages}"
    return [
        _facts_table("Training", runs, training),
        _facts_table(f"SHA-256, first {DIGITS} digits", runs, hashes),
        *map(Note, [*notes, f"This report was made by {here}"]),
    ]


def _facts_table(title: str, runs: Sequence[Run], facts: Sequence[Mapping[str, Any]]) -> Table:
    """One row a run, which is named by its place in the folder of all."""
    folder = Path()
    with suppress(ValueError):  # some paths are absolute
        folder = Path(os.path.commonpath([run.path.parent for run in runs]))
    inside = len(folder.parts) > 0
    names = [run.path.relative_to(folder) if inside else run.path for run in runs]
    rows = [
        (Cell(name.as_posix()), *map(_fact_cell, known.values()))
        for name, known in zip(names, facts, strict=True)
    ]
    columns = (
        Column(f"run in {folder.as_posix()}" if inside else "run", "left"),
        *(Column(name) for name in facts[0]),
    )
    return Table(title, columns, tuple(rows))


def _fact_cell(value: Any) -> Cell:
    if isinstance(value, float):
        return Cell(f"{value:,.1f}")
    if isinstance(value, int):
        return Cell(f"{value:,}")
    return Cell(NONE if value is None else str(value))
