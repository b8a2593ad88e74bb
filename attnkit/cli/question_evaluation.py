"""What `attnkit eval` does with question sets: models that no recipe here trained, baselines."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.cli import output
from attnkit.errors import UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe.schema import ContextsConfig, DataConfig, EvalConfig, SearchConfig
    from attnkit.scoring import Entry

ASKED = "question-answering"
Progress = Callable[[str, int, int], object]


class Base(NamedTuple):
    """What the others are compared with."""

    variants: Mapping[str | None, str]
    """Of each recipe."""
    method: str | None = None
    """Of asking; the first when None."""


class Opening(NamedTuple):
    """How a model is opened and reads."""

    device: str
    dtype: str
    offline: bool
    chat: bool
    template: str


class QuestionTask(NamedTuple):
    """The questions of a recipe, and how they are asked and scored."""

    name: str
    data: "DataConfig"
    contexts: "ContextsConfig"
    search: "SearchConfig"
    eval: "EvalConfig"


def chosen(
    name: str | None,
    usual: Mapping[str | None, str],
    variants: Sequence[str],
    methods: Sequence[str],
) -> Base:
    """The baseline that --baseline names, for all recipes: a variant, or a method of questions.

    Raises:
        UsageError: it is neither.
    """
    if name is None:
        return Base(usual)
    if name in variants:
        return Base(dict.fromkeys(usual, name))
    if name in methods:
        return Base(usual, name)
    known = [*variants, *methods]
    raise UsageError(f"--baseline {quoted(name)}: {output.choices(name, known)}")


def task(targets: Sequence[str], models: Sequence[str], changes: Mapping[str, Any]) -> QuestionTask:
    """The questions that the command line names for models.

    Raises:
        UsageError: it names no recipe, several, runs, or a recipe of another task.
        MissingInputError, RecipeError: as `attnkit.recipe.load`.
    """
    from attnkit.recipe import load

    if twice := next((name for i, name in enumerate(models) if name in models[:i]), None):
        raise UsageError(f"--model {quoted(twice, 200)} is given twice; name each model once")
    if len(targets) != 1:
        raise UsageError("--model is asked the questions of one recipe: name it, RECIPE --model")
    if Path(targets[0]).is_dir():
        raise UsageError(
            f"{quoted(targets[0], 200)} is a folder of runs, which answer themselves: name the "
            "recipe for --model, or leave --model out"
        )
    file = load(targets[0])
    recipe = file.variants[file.baseline or next(iter(file.variants))]
    if recipe.task != ASKED:
        raise UsageError(
            f"{file.name}: --model is asked questions, and this recipe is for {recipe.task}: name "
            f"one of task {ASKED}"
        )
    eval = recipe.eval.model_copy(update=dict(changes))
    return QuestionTask(file.name, recipe.data, recipe.contexts, recipe.search, eval)


def entries(
    task: QuestionTask,
    models: Sequence[str],
    how: Opening,
    out: Path,
    splits: Sequence[str],
    data_dir: Path | None,
    fresh: bool,
    progress: Progress,
) -> list["Entry"]:
    """Ask all models, one after the other."""
    from attnkit.data.corpus import Corpus
    from attnkit.nbce import open_model, question_sets
    from attnkit.runs import Run, is_run

    corpus = Corpus.open(task.data, ASKED, data_dir=data_dir, offline=how.offline)
    found = []
    mixed = not all(is_run(name) for name in models)
    for name in models:
        own = is_run(name)
        # what is asked of the Hugging Face models is not for the runs beside them
        how_this = how._replace(dtype="float32", chat=False, template="") if own and mixed else how
        reader = open_model(name, **how_this._asdict())
        limit = Run.open(name).recipe.data.max_length if own else None
        told = {"chat": how_this.chat, "template": how_this.template}
        found += question_sets.evaluate_model(
            question_sets.EvaluatedModel.of_reader(
                reader, name, task.name, out, limit=limit, settings=told
            ),
            corpus,
            splits or task.eval.splits,
            task.eval,
            task.contexts,
            task.search,
            force=fresh,
            progress=progress,
        )
    return found
