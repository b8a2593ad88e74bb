"""From the flat table of settings to a typed recipe, and where each of its values came from."""

import os
import re
from collections.abc import Callable, Iterator
from collections.abc import Mapping as Table
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from attnkit.recipe import corpus_cards
from attnkit.recipe.issues import (
    COMMAND_LINE,
    Issues,
    Key,
    Position,
    ValidationIssue,
    ValidationIssues,
    dotted,
)
from attnkit.recipe.reading import RECIPE, read
from attnkit.recipe.schema import (
    AttentionConfig,
    Layers,
    Recipe,
    Task,
    places_of,
)
from attnkit.recipe.settings import Setting, Settings
from attnkit.recipe.values import written
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar, Sequence

PATHS: tuple[Key, ...] = (
    *(("data", split) for split in ("train", "valid", "test")),
    *(("tokenizer", "model"), ("eval", "vectors"), ("train", "init")),
)
"""Keys whose values are names of files; of `INIT` that may be a folder, or a shipped recipe."""
INIT: Key = ("train", "init")
ATTENTION: Key = ("model", "attention")
SEEDS: Key = ("train", "seeds")
MISSING: dict[Key, str] = {
    ("task",): f"is missing; it is one of {', '.join(get_args(Task))}",
    ("data",): "is missing; name a corpus, such as `data: {corpus: toy-translation}`, or files",
}
DERIVED = Position("derived")
TOKENIZER_OF = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
"""sacrebleu's own choice of a tokenizer for a target language; 13a for all others."""
STACKS = {name: tuple(name.split("-")) for name in ("encoder-decoder", "decoder", "encoder")}
"""The stacks of layers that each shape of model has; models that are counted have none."""
METRICS_OF = {
    "language-modeling": ("perplexity",),
    "question-answering": ("answer-match", "answer-f1", "context-found"),
    "classification": ("label-accuracy",),
    "recall": ("accuracy",),
    "tagging": ("accuracy",),
}
SHAPE_OF = {"span-corruption": "encoder-decoder", "masked": "encoder"}
"""The shapes of language models whose objective is not causal."""
POSITIONS = {"recurrent": ("none",), "convolutional": ("learned", "none")}
POSITIONS |= dict.fromkeys(("n-gram", "naive-bayes", "naive-bayes-attention"), ("none",))
"""Positions that models other than transformers can have; the first is the default."""


class Built(NamedTuple):
    """A typed recipe, and what was set in it; the rest follows from that, or is the default."""

    recipe: Recipe
    given: Table[Key, Setting]
    derived: frozenset[Key]

    def origins(self) -> dict[str, str]:
        """Dotted key -> default, derived, command line or file:line:column."""
        places = {key: str(setting.node.place) for key, setting in self.given.items()}
        places |= dict.fromkeys(self.derived, str(DERIVED))
        return {dotted(key): places.get(key, "default") for key, _ in flatten(self.recipe)}

    def blame(self, issue: ValidationIssue, start: Position) -> tuple[Position, Key]:
        """Where an issue is told: at the first of its keys or sections that was set, else `start`.

        The key is as the user wrote it.
        """
        for key in issue.keys:
            for given, setting in self.given.items():
                if given[: len(key)] == key:
                    return setting.node.place, _as_written(key, self.given)
        return start, issue.key


def flatten(recipe: Recipe) -> Iterator[tuple[Key, Any]]:
    """Every value of a recipe by its key.

    An attention place is the word, followed by its options one level below.
    """

    def walk(key: Key, value: Any) -> Iterator[tuple[Key, Any]]:
        if isinstance(value, AttentionConfig):
            yield key, value.name
            yield from (((*key, name), option) for name, option in value.options().items())
        elif isinstance(value, BaseModel):
            for name in type(value).model_fields:
                yield from walk((*key, name), getattr(value, name))
        else:
            yield key, value

    return walk((), recipe)


def build(settings: Settings, issues: Issues, start: Position) -> Built | None:
    """The recipe that some settings describe, or None where issues were noted.

    `start` is the place of issues that have none of their own, such as a missing key.
    """
    given = dict(settings.values)
    seeds = given.get(SEEDS)
    if seeds and isinstance(seeds.node, Scalar) and "," not in seeds.node.text:
        issues.add(seeds.node.place, SEEDS, _no_list_of_seeds(seeds.node))
        del given[SEEDS]
    try:
        recipe: Recipe = read(_nested(given, start), RECIPE)
    except ValidationIssues as refused:
        for one in refused.found:
            text = MISSING.get(one.key, one.text) if one.text == "is missing" else one.text
            issues.add(one.place or start, _as_written(one.key, given), text)
        return None
    if seeds and SEEDS not in given:
        return None
    if derived := _derive(recipe, given):
        given = {key: setting for key, setting in given.items() if key not in derived}
        values = {key: _node(value) for key, value in derived.items() if value is not None}
        table = given | {key: Setting(node, DERIVED) for key, node in values.items()}
        recipe = read(_nested(table, start), RECIPE)

    def absolute(key: Key, value: Any) -> Any:
        return found(value, given[key].node.place, key == INIT) if key in given else value

    return Built(with_paths(recipe, absolute), given, frozenset(derived))


def _no_list_of_seeds(node: Scalar) -> str:
    """What is said of one number where a list is wanted: it may be a seed or how many."""
    example = "[1] for one training, or [1, 2, 3] for three"
    if node.text.isdecimal() and len(node.text) < 10:
        number = int(node.text)
        several = ", ".join(map(str, range(1, min(max(number, 2), 4) + 1)))
        example = f"[{number}] for the seed {number}, or [{several}] for several seeds"
    return f"must be a list of seeds, got {written(node)}; write {example}"


def _nested(table: Table[Key, Setting], start: Position) -> Mapping:
    """The flat table as nested mappings, as pydantic reads them."""
    root = Mapping(start, {})
    for key, (node, place, _) in table.items():
        path = (*key, "name") if key[:2] == ATTENTION and len(key) == 3 else key
        inner = root
        for part in path[:-1]:
            _, below = inner.fields.setdefault(part, (place, Mapping(node.place, {})))
            assert isinstance(below, Mapping)
            inner = below
        inner.fields[path[-1]] = place, node
    return root


def _node(value: Any) -> Node:
    """A derived value as it would be written."""
    if isinstance(value, tuple):
        return Sequence(DERIVED, [_node(item) for item in value])
    return Scalar(DERIVED, str(value), plain=not isinstance(value, str))


def _as_written(key: Key, given: Table[Key, Setting]) -> Key:
    """The key as the user wrote it: without the place or stack that a shorthand filled in."""
    sizes = (size for size in range(len(key), 0, -1) if key[:size] in given)
    size = next(sizes, 0)
    return (*key[:2], *key[3:]) if size > 2 and given[key[:size]].spread else key


def _derive(recipe: Recipe, given: Table[Key, Setting]) -> dict[Key, Any]:
    """Values that follow from others where the recipe is silent; None takes one away.

    What a shorthand set in places that the model does not have is back at its default.
    """
    derived: dict[Key, Any] = {}
    shape_key, objective_key = ("model", "shape"), ("train", "objective")
    task, model, data = recipe.task, recipe.model, recipe.data
    shape = model.shape
    if task == "language-modeling":
        objective = recipe.train.objective if objective_key in given else ""
        derived[shape_key] = SHAPE_OF.get(objective, "decoder")
        shape = model.shape if shape_key in given else derived[shape_key]
        masked = shape_key in given and shape == "encoder"
        derived[objective_key] = "masked" if masked else "causal"
    if task in METRICS_OF:
        derived["eval", "metrics"] = METRICS_OF[task]
    if model.type in POSITIONS:
        derived["model", "heads"] = 1
        derived["model", "positions"] = POSITIONS[model.type][0]
    if model.type == "naive-bayes-attention":
        derived["model", "tie"] = "none"
        derived["model", "layers", "decoder"] = 1
    if not recipe.tokenizer.shared and shape == "encoder-decoder":
        derived["model", "tie"] = "decoder"
    if data.train is not None and data.test is None and not data.split.test:
        derived["eval", "splits"] = ("valid",)
    card = corpus_cards.load(str(data.corpus)) if data.corpus in corpus_cards.names() else None
    if card and card.task == task == "classification":
        derived["data", "labels"] = card.labels
    language = re.split("[-_]", (data.target or "").lower())[0]
    if card and card.tokenized:
        derived["eval", "tokenize"] = "none"
    elif language in TOKENIZER_OF:
        derived["eval", "tokenize"] = TOKENIZER_OF[language]
    derived = {key: value for key, value in derived.items() if key not in given}
    stacks = () if model.count_based else STACKS[shape]
    has = {ATTENTION: places_of(model.type, shape), ("model", "layers"): stacks}
    unused = [key for key in given if given[key].spread and key[2] not in has[key[:2]]]
    derived |= dict.fromkeys(unused)
    for stack in Layers.model_fields:
        key = ("model", "layers", stack)
        if stack not in stacks and (key not in given or given[key].spread):
            derived[key] = 0
    return derived


def found(value: Any, place: Position, folders: bool = False) -> Any:
    """The value of a key of `PATHS` with absolute paths, where the files are.

    A name is relative to the folder of the recipe file where it stands, on the command line to the
    current folder; where there is no such file, to the current folder too, as in earlier versions.
    One that is in neither stays as it is: the data folder may have it.  `folders` are found too.
    """
    if isinstance(value, tuple):
        return tuple(found(name, place, folders) for name in value)
    if not value:
        return value
    name, here = os.path.expanduser(value), os.getcwd()
    beside = here if place == COMMAND_LINE else os.path.realpath(os.path.dirname(place.source))
    for folder in (beside, here):
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.lexists(path) and (folders or not os.path.isdir(path)):
            return path
    return value


def with_paths(recipe: Recipe, change: Callable[[Key, Any], Any]) -> Recipe:
    """The recipe with the values of `PATHS` changed."""
    for key in PATHS:
        section, name = key
        old = getattr(recipe, section)
        new = old.model_copy(update={name: change(key, getattr(old, name))})
        recipe = recipe.model_copy(update={section: new})
    return recipe


def relative_to(recipe: Recipe, folder: str | os.PathLike[str]) -> Recipe:
    """The recipe with absolute paths written relative to a folder.

    `found` reads them back from a recipe file there, also after both have moved together.
    """
    start = os.path.realpath(folder)

    def relative(key: Key, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(relative(key, one) for one in value)
        if not value or not os.path.isabs(value):
            return value
        parent, name = os.path.split(value)
        return os.path.relpath(os.path.join(os.path.realpath(parent), name), start)

    return with_paths(recipe, relative)
