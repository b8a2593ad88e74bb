"""What the words of `attnkit eval` lead to: runs, in folders or of a recipe, or questions for models.

The search of runs is that of the command line, else of the recipe that is named, else their own.
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

Baselines = dict[str | None, str]  # recipe -> its baseline variant, system or run
QUESTIONS = "question-answering"  # the task of recipes whose questions --model is asked
QUESTION_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
QUESTIONS_RECIPE = """
task: question-answering
data: {{test: {}, source: question, target: answers}}
model: {{shape: decoder}}
search: {{method: greedy, max_length: 16}}
contexts: {{counts: [1, 2, 4, 8], methods: [entropy, mean, max, concat, retrieval, none]}}
eval: {{metrics: [answer-match, answer-f1, answer-contained, context-found]}}
"""  # of a file of questions, for --model


class RunToScore(NamedTuple):
    """A run, the recipe by which it is searched and scored, and whose recipe that is."""

    run: "Run"
    recipe: "Recipe"
    search_from: str  # command line; recipe: the one that is named; run: its own


class FoundRuns(NamedTuple):
    """What the words of the command line lead to."""

    runs: list[RunToScore]
    baselines: Baselines
    published: "list[PublishedFigures]"


def sort_words(words: Sequence[str], *, data: bool = False) -> tuple[list[str], list[str]]:
    """Recipes and runs, and KEY=VALUE words apart; `data`: keys of data, too, may be set."""
    from attnkit.recipe.settings import AFTER_TRAINING
    from attnkit.recipe.sweep import is_sweep

    settings = [word for word in words if "=" in word and "/" not in word.partition("=")[0]]
    settings = [word for word in settings if not Path(word).exists()]
    for word in settings:
        allowed = (*AFTER_TRAINING, "data.") if data else AFTER_TRAINING
        if not word.startswith(allowed) and not is_sweep(word):
            raise UsageError(
                f"{quoted(word, 200)}: eval changes search.KEY, contexts.KEY and eval.KEY only; "
                "what concerns training needs `attnkit train`"
            )
    return [word for word in words if word not in settings], settings


def names_runs(target: str) -> bool:
    """Whether a word of the command line is a folder of runs or a results file; else a recipe."""
    from attnkit.runs.demo import located
    from attnkit.runs.layout import is_results_file

    path = located(target)
    return path.is_dir() or is_results_file(path)


def runs_to_score(targets: Sequence[str], overrides: Sequence[str], out: Path) -> FoundRuns:
    """The runs in folders, or of recipes under `out`, each once.

    They are searched and scored as their own recipe says, or as the file does that is named.
    """
    from attnkit.recipe import load
    from attnkit.runs import find_runs
    from attnkit.runs.find import baselines
    from attnkit.scoring.results import PublishedFigures

    searched = any(word.startswith(("search.", "contexts.")) for word in overrides)
    found, named, published = dict[Path, RunToScore](), Baselines(), list[PublishedFigures]()
    for target in targets:
        if names_runs(target):
            runs = find_runs([target], note=console.warn)
            recipes = [run.changed_recipe(overrides) if overrides else run.recipe for run in runs]
            tasks = [RunToScore(*pair, "run") for pair in zip(runs, recipes, strict=True)]
            figures = PublishedFigures.of_runs(runs)
        else:
            try:
                file = load(target, overrides)
            except MissingInputError as error:
                close = nearest_folder(Path(target))
                near = f"did you mean {close}?" if close else "and there is no folder of runs of that name"
                raise MissingInputError(f"{error}; {near}") from error
            tasks = _runs_of(file, target, overrides, out)
            if file.baseline is not None:
                named.setdefault(file.name, file.baseline)
            figures = PublishedFigures.of_file(file)
        for task in tasks:
            whose = "command line" if searched else task.search_from
            found.setdefault(task.run.path.resolve(), task._replace(search_from=whose))
        published += [one for one in figures if one not in published]
    decided = baselines((task.run for task in found.values()), named)
    return FoundRuns(list(found.values()), decided, published)


def _runs_of(file: "RecipeFile", target: str, overrides: Sequence[str], out: Path) -> list[RunToScore]:
    """The finished runs of a recipe; a variant without any is told of."""
    from attnkit.recipe.settings import AFTER_TRAINING
    from attnkit.runs import Run, find_runs, run_path

    tasks, skipped = list[RunToScore](), list[str]()
    for variant, recipe in file.variants.items():
        folder = run_path(out, file.name, variant, 0).parent
        runs = list[Run]()
        with suppress(MissingInputError):  # nothing there, or nothing finished
            runs = find_runs([folder], note=console.warn)
        tasks += [RunToScore(run, recipe, "recipe") for run in runs]
        if not runs:
            skipped.append(f"{folder}: variant {variant} skipped: it has no finished run")
    if not tasks:
        sweep = [word for word in overrides if not word.startswith(AFTER_TRAINING)]
        command = shlex.join(["attnkit", "train", target, *sweep])
        raise MissingInputError(f"{file.name}: no finished run in {out / file.name}; train one: {command}")
    for text in skipped:
        console.warn(text)
    return tasks


def is_questions(target: str) -> bool:
    """Whether a word of the command line is a file of questions."""
    return Path(target).suffix.lower() in QUESTION_FILES and not names_runs(target)


def question_recipe(targets: Sequence[str], models: Sequence[str], overrides: Sequence[str]) -> "tuple[str, Recipe]":
    """The recipe whose questions models are asked, with its name."""
    from attnkit.recipe import load
    from attnkit.recipe.loading import load_resolved

    if twice := next((name for i, name in enumerate(models) if name in models[:i]), None):
        raise UsageError(f"--model {quoted(twice, 200)} is given twice; name each model once")
    if len(targets) != 1 or names_runs(targets[0]):
        raise UsageError("--model needs exactly one recipe or file with questions: RECIPE|FILE --model NAME")
    if is_questions(targets[0]):
        content = QUESTIONS_RECIPE.format(json.dumps(targets[0])).encode()
        return Path(targets[0]).stem, load_resolved(Path(targets[0]), overrides, content)
    file = load(targets[0], overrides)
    recipe = file.variants[file.baseline or next(iter(file.variants))]
    if recipe.task != QUESTIONS:
        raise UsageError(f"{file.name}: --model needs a recipe of task {QUESTIONS}; this one is for {recipe.task}")
    return file.name, recipe
