"""The runs that `attnkit eval` scores, found in folders or by their recipe, and their search.

The search is that of the command line, else of the recipe that is named, else of the run's own.
"""

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.cli import console
from attnkit.errors import MissingInputError, UsageError
from attnkit.storage.files import nearest_folder
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe import Recipe
    from attnkit.runs import Run
    from attnkit.scoring.results import PublishedFigures

Baselines = dict[str | None, str]  # recipe -> its baseline variant, system or run


class RunToScore(NamedTuple):
    """A run, the recipe by which it is searched and scored, and whose recipe that is."""

    run: "Run"
    recipe: "Recipe"
    search_from: str  # command line; recipe: the one that is named; run: its own


class FoundRuns(NamedTuple):
    """What one word of the command line leads to."""

    runs: list[RunToScore]
    baselines: Baselines
    """Those that a recipe named here decides."""
    published: "list[PublishedFigures]"


class EvalRequest(NamedTuple):
    """What the command line says of the evaluation of models."""

    changes: dict[str, Any]  # of the recipes' eval sections
    splits: Sequence[str]
    baseline: str | None
    out: Path
    corpus: dict[str, Any]  # where corpora come from: data_dir, offline
    fresh: bool
    overrides: Sequence[str] = ()  # KEY=VALUE of what may change after training; sweeps

    @classmethod
    def stored(cls) -> "EvalRequest":
        """Nothing is changed: what was scored is read."""
        return cls({}, [], None, Path("runs"), {}, False)

    def search_from(self, otherwise: str) -> str:
        """Who decides on the search."""
        searched = any(word.startswith(("search.", "contexts.")) for word in self.overrides)
        return "command line" if searched else otherwise


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


def runs_in_folder(target: str, request: EvalRequest) -> FoundRuns:
    """The runs in a folder, to be scored and searched as their own recipes say."""
    from attnkit.runs import find_runs
    from attnkit.scoring.results import PublishedFigures

    runs = find_runs([target], note=console.warn)
    words, decides = request.overrides, request.search_from("run")
    tasks = [
        RunToScore(run, run.changed_recipe(words) if words else run.recipe, decides) for run in runs
    ]
    return FoundRuns(tasks, {}, PublishedFigures.of_runs(runs))


def runs_of_recipe(target: str, request: EvalRequest) -> FoundRuns:
    """The runs of a recipe under --out, to be scored and searched as the file says now."""
    from attnkit.recipe import load
    from attnkit.recipe.settings import AFTER_TRAINING
    from attnkit.runs import Run, find_runs, run_path
    from attnkit.scoring.results import PublishedFigures

    try:
        file = load(target, request.overrides)
    except MissingInputError as error:
        if close := nearest_folder(Path(target)):
            raise MissingInputError(
                f"{target}: no such folder of runs and no such recipe; did you mean {close}?"
            ) from error
        raise MissingInputError(f"{error}; and there is no folder of runs of that name") from error
    out, tasks, skipped = request.out, list[RunToScore](), list[str]()
    for variant, recipe in file.variants.items():
        folder = run_path(out, file.name, variant, 0).parent
        runs = list[Run]()
        with suppress(MissingInputError):  # nothing there, or nothing finished
            runs = find_runs([folder], note=console.warn)
        tasks += [RunToScore(run, recipe, request.search_from("recipe")) for run in runs]
        if not runs:
            skipped.append(f"{folder}: variant {variant} skipped: it has no finished run")
    if not tasks:
        sweep = [word for word in request.overrides if not word.startswith(AFTER_TRAINING)]
        command = shlex.join(["attnkit", "train", target, *sweep])
        what = "finished run of this sweep" if sweep else "finished run"
        raise MissingInputError(
            f"{file.name}: no {what} in {out / file.name}; train one: {command}"
        )
    for text in skipped:
        console.warn(text)
    if request.search_from("recipe") == "recipe":
        _warn_of_search(tasks)
    decided: Baselines = {} if file.baseline is None else {file.name: file.baseline}
    return FoundRuns(tasks, decided, PublishedFigures.of_file(file))


def together(found: Iterable[FoundRuns]) -> FoundRuns:
    """All of it, each run once."""
    from attnkit.runs.find import baselines

    tasks: dict[Path, RunToScore] = {}
    named: Baselines = {}
    published: list[PublishedFigures] = []
    for some in found:
        for task in some.runs:
            tasks.setdefault(task.run.path.resolve(), task)
        named = some.baselines | named
        published += [figures for figures in some.published if figures not in published]
    decided = baselines((task.run for task in tasks.values()), named)
    return FoundRuns(list(tasks.values()), decided, published)


def _warn_of_search(tasks: Sequence[RunToScore]) -> None:
    """Say where a recipe's search is not the one that its runs were trained and scored with."""
    from attnkit.recipe.search_text import search_text

    texts = [
        [search_text(recipe.search.model_dump()) for recipe in (task.recipe, task.run.recipe)]
        for task in tasks
    ]
    other = [(task.run.path, *pair) for task, pair in zip(tasks, texts, strict=True)
             if pair[0] != pair[1]]  # fmt: skip
    if other:
        path, file, own = other[0]
        more = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
        console.warn(
            f"{path}{more}: decoded as the recipe file says ({file}); its own recipe says {own}: "
            "name the run instead of the recipe for that"
        )
