"""Runs to score, or the recipe with questions for models, from the arguments of `attnkit eval`.

Search and eval settings come from the command line, otherwise from the recipe named there, otherwise from the run.
"""

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attnkit.cli import console
from attnkit.errors import MissingInputError, UsageError
from attnkit.storage.files import nearest_folder
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe import Recipe, RecipeFile
    from attnkit.runs import Run
    from attnkit.scoring.results import PublishedFigures

Baselines = dict[str | None, str]
"""Baseline of each recipe: a variant, system or run."""
QUESTIONS = "question-answering"
"""Task of recipes with questions for --model."""
QUESTION_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
QUESTIONS_RECIPE = """
task: question-answering
data: {{test: {}, source: question, target: answers}}
model: {{shape: decoder}}
search: {{method: greedy, max_length: 16}}
contexts: {{counts: [1, 2, 4, 8], methods: [entropy, mean, max, concat, retrieval, none]}}
eval: {{metrics: [answer-match, answer-f1, answer-contained, context-found]}}
"""
"""Recipe for a file of questions with --model."""


class RunToScore(NamedTuple):
    """A run and the recipe whose search and eval sections are used."""

    run: "Run"
    recipe: "Recipe"
    search_from: str
    """Source of the search settings: command line, recipe (named on the command line) or run."""


class FoundRuns(NamedTuple):
    """Runs that the command line names, with the baselines and published figures of their recipes."""

    runs: list[RunToScore]
    baselines: Baselines
    published: "list[PublishedFigures]"


def split_overrides(words: Sequence[str], *, data: bool = False) -> tuple[list[str], list[str]]:
    """Return the recipes and runs, and the KEY=VALUE overrides.

    Raises UsageError for a key that cannot change after training; with `data`, data.KEY can.
    """
    from attnkit.recipe.settings import AFTER_TRAINING
    from attnkit.recipe.sweep import is_sweep

    overrides = [word for word in words if "=" in word and "/" not in word.partition("=")[0]]
    overrides = [word for word in overrides if not Path(word).exists()]
    allowed = (*AFTER_TRAINING, "data.") if data else AFTER_TRAINING
    for word in overrides:
        if not word.startswith(allowed) and not is_sweep(word):
            sections = f"search.KEY, contexts.KEY{', data.KEY' if data else ''} and eval.KEY"
            raise UsageError(f"{quoted(word, 200)}: eval changes only {sections}; other keys need `attnkit train`")
    return [word for word in words if word not in overrides], overrides


def names_runs(target: str) -> bool:
    """Return whether an argument is a folder of runs or a results file, not a recipe."""
    from attnkit.runs.demo import located
    from attnkit.runs.layout import is_results_file

    path = located(target)
    return path.is_dir() or is_results_file(path)


def runs_to_score(targets: Sequence[str], overrides: Sequence[str], out: Path) -> FoundRuns:
    """Return the distinct finished runs in folders, and of recipes under `out`."""
    from attnkit.recipe import load
    from attnkit.runs import find_runs
    from attnkit.runs.find import baselines
    from attnkit.scoring.results import PublishedFigures

    search_overridden = any(word.startswith(("search.", "contexts.")) for word in overrides)
    found, recipe_baselines, published = dict[Path, RunToScore](), Baselines(), list[PublishedFigures]()
    for target in targets:
        if names_runs(target):
            runs = find_runs([target], note=console.warn)
            new = [RunToScore(run, run.changed_recipe(overrides) if overrides else run.recipe, "run") for run in runs]
            figures = PublishedFigures.of_runs(runs)
        else:
            try:
                file = load(target, overrides)
            except MissingInputError as error:
                close = nearest_folder(Path(target))
                near = f"did you mean {close}?" if close else "and there is no folder of runs with this name"
                raise MissingInputError(f"{error}; {near}") from error
            new = _runs_of(file, target, overrides, out)
            if file.baseline is not None:
                recipe_baselines.setdefault(file.name, file.baseline)
            figures = PublishedFigures.of_file(file)
        for item in new:
            search_from = "command line" if search_overridden else item.search_from
            found.setdefault(item.run.path.resolve(), item._replace(search_from=search_from))
        published += [row for row in figures if row not in published]
    items = list(found.values())
    return FoundRuns(items, baselines((item.run for item in items), recipe_baselines), published)


def _runs_of(file: "RecipeFile", target: str, overrides: Sequence[str], out: Path) -> list[RunToScore]:
    """Return the finished runs of a recipe; warn of variants without a finished run."""
    from attnkit.recipe.settings import AFTER_TRAINING
    from attnkit.runs import Run, find_runs, run_path

    found, warnings = list[RunToScore](), list[str]()
    for variant, recipe in file.variants.items():
        folder = run_path(out, file.name, variant, 0).parent
        runs = list[Run]()
        with suppress(MissingInputError):  # no folder, or no finished run in it
            runs = find_runs([folder], note=console.warn)
        found += [RunToScore(run, recipe, "recipe") for run in runs]
        if not runs:
            warnings.append(f"{folder}: variant {variant} skipped: no finished run")
    if not found:
        sweep = [word for word in overrides if not word.startswith(AFTER_TRAINING)]
        command = shlex.join(["attnkit", "train", target, *sweep])
        raise MissingInputError(f"{file.name}: no finished run in {out / file.name}; train one: {command}")
    for warning in warnings:
        console.warn(warning)
    return found


def is_questions(target: str) -> bool:
    """Return whether an argument is a file of questions."""
    return Path(target).suffix.lower() in QUESTION_FILES and not names_runs(target)


def question_recipe(targets: Sequence[str], models: Sequence[str], overrides: Sequence[str]) -> "tuple[str, Recipe]":
    """Return the name and the recipe of the questions for models.

    Raises UsageError if a model is named twice, or there is not exactly one recipe or file of questions.
    """
    from attnkit.recipe import load
    from attnkit.recipe.loading import load_resolved

    if duplicate := next((name for i, name in enumerate(models) if name in models[:i]), None):
        raise UsageError(f"--model {quoted(duplicate, 200)} is given twice; name each model once")
    if len(targets) != 1 or names_runs(targets[0]):
        raise UsageError("--model needs exactly one recipe or file with questions: RECIPE|FILE --model NAME")
    (target,) = targets
    if is_questions(target):
        content = QUESTIONS_RECIPE.format(json.dumps(target)).encode()
        return Path(target).stem, load_resolved(Path(target), overrides, content)
    file = load(target, overrides)
    recipe = file.variants[file.baseline or next(iter(file.variants))]
    if recipe.task != QUESTIONS:
        raise UsageError(f"{file.name}: --model needs a recipe of task {QUESTIONS}; this one is for {recipe.task}")
    return file.name, recipe
