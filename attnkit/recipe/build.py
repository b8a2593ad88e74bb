"""Conversion of the flat table of settings to a typed recipe that records the origin of each value."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as Table
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from attnkit.errors import UsageError
from attnkit.recipe import corpus_cards, mechanism_registry
from attnkit.recipe.issues import COMMAND_LINE, Issues, Key, Position, dotted
from attnkit.recipe.reading import typed, written
from attnkit.recipe.schema import AttentionConfig, Layers, Recipe, Task, places_of
from attnkit.recipe.settings import Setting, Settings, type_of
from attnkit.recipe.yaml_nodes import Scalar

PATHS: tuple[Key, ...] = (
    *(("data", split) for split in ("train", "valid", "test")),
    *(("tokenizer", "model"), ("eval", "vectors"), ("train", "init")),
)
"""Keys whose values are file names; the value of `INIT` may also be a folder or a shipped recipe."""
INIT: Key = ("train", "init")
ATTENTION: Key = ("model", "attention")
SEEDS: Key = ("train", "seeds")
MISSING = {
    "task": f"is missing; choose from {', '.join(get_args(Task))}",
    "data": "is missing; name a corpus, such as `data: {corpus: toy-translation}`, or files",
}
DERIVED = Position("derived")
TOKENIZER_OF = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
"""sacrebleu's default tokenizer for a target language; 13a for all others."""
STACKS = {name: tuple(name.split("-")) for name in ("encoder-decoder", "decoder", "encoder")}
"""Layer stacks of each model shape; count-based models have none."""
METRICS_OF = {
    "language-modeling": ("perplexity",),
    "question-answering": ("answer-match", "answer-f1", "context-found"),
    "classification": ("label-accuracy",),
    "recall": ("accuracy",),
    "tagging": ("accuracy",),
}
SHAPE_OF = {"span-corruption": "encoder-decoder", "masked": "encoder"}
"""Objective -> model shape, for language-modeling objectives that are not causal."""
POSITIONS = {"recurrent": ("none",), "convolutional": ("learned", "none")}
POSITIONS |= dict.fromkeys(("n-gram", "naive-bayes", "naive-bayes-attention"), ("none",))
"""Position encodings of model types other than transformers; the first one is the default."""


class Built(NamedTuple):
    """A typed recipe with the settings that were given; all other values are derived or defaults."""

    recipe: Recipe
    given: Table[Key, Setting]
    derived: frozenset[Key]

    def origins(self) -> dict[str, str]:
        """Return the origin of each dotted key: default, derived, command line or file:line:column."""
        places = {key: str(setting.node.place) for key, setting in self.given.items()}
        places |= dict.fromkeys(self.derived, str(DERIVED))
        return {dotted(key): places.get(key, "default") for key, _ in flatten(self.recipe)}

    def blame(self, keys: Sequence[str], start: Position) -> tuple[Position, Key]:
        """Return the position and key, as written by the user, of the first of `keys` (keys or sections) that was set.

        Returns `start` and the first key if none was set.
        """
        for key in (tuple(dotted_key.split(".")) for dotted_key in keys):
            for given, setting in self.given.items():
                if given[: len(key)] == key:
                    return setting.node.place, _as_written(key, self.given)
        return start, tuple(keys[0].split("."))


def flatten(recipe: Recipe) -> Iterator[tuple[Key, Any]]:
    """Yield the keys and values of a recipe; an attention role is its mechanism, followed by its options below it."""

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
    """Build the recipe, or return None after issues; `start` is the position of issues such as a missing key."""
    given, values, invalid = settings.values, dict[Key, Any](), False
    for name, text in MISSING.items():
        if not any(key[0] == name for key in given):
            issues.add(start, (name,), text)
            invalid = True
    for key, (node, *_) in given.items():
        try:
            values[key] = _typed(key, given)
        except UsageError as error:
            issues.add(node.place, _as_written(key, given), str(error))
            invalid = True
    if invalid:
        return None
    recipe = _recipe(values)
    if derived := _derive(recipe, given):
        given = {key: setting for key, setting in given.items() if key not in derived}
        values = {key: values[key] for key in given}
        recipe = _recipe(values | {k: value for k, value in derived.items() if value is not None})

    def absolute(key: Key, value: Any) -> Any:
        return absolute_paths(value, given[key].node.place, key == INIT) if key in given else value

    return Built(with_paths(recipe, absolute), given, frozenset(derived))


def _typed(key: Key, given: Table[Key, Setting]) -> Any:
    """Return the typed value of a key or of a mechanism's option.  Raises UsageError if it is invalid."""
    node = given[key].node
    if key == SEEDS and isinstance(node, Scalar) and "," not in node.text:
        text = f"must be a list of seeds, got {written(node)}"
        raise UsageError(f"{text}; write [1] for one training, or [1, 2, 3] for three")
    if key[:2] != ATTENTION:
        return typed(node, type_of(key))
    role, option = key[:3], key[3:]
    mechanism = given[role].node if role in given else Scalar(DERIVED, AttentionConfig().name)
    assert isinstance(mechanism, Scalar)
    try:
        spec = mechanism_registry.facts(mechanism.text)
    except UsageError:
        if option:
            return None  # the issue is reported for the mechanism
        raise
    if option and option[0] not in spec.options:
        raise UsageError(mechanism_registry.unknown_option(spec, option[0]))
    if option:
        return typed(node, mechanism_registry.option_type(spec.word, option[0]))
    options = [other[3] for other in given if other[:3] == role and len(other) > 3]
    missing = mechanism_registry.missing_options(spec, options)
    if missing and {*options} <= spec.options.keys():  # otherwise, an unknown option may be a misspelt required one
        raise UsageError(missing)
    return spec.word


def _recipe(values: Table[Key, Any]) -> Recipe:
    root: dict[str, Any] = {}
    for key, value in values.items():
        inner = root
        for part in key[:-1]:
            inner = inner.setdefault(part, {})
        if key[:2] == ATTENTION and len(key) == 3:
            inner.setdefault(key[-1], {})["name"] = value
        else:
            inner[key[-1]] = value
    return Recipe.model_validate(root)


def _as_written(key: Key, given: Table[Key, Setting]) -> Key:
    """Return the key as the user wrote it: without the role or stack that a shorthand filled in."""
    sizes = (size for size in range(len(key), 0, -1) if key[:size] in given)
    size = next(sizes, 0)
    return (*key[:2], *key[3:]) if size > 2 and given[key[:size]].from_shorthand else key


def _derive(recipe: Recipe, given: Table[Key, Setting]) -> dict[Key, Any]:
    """Return values that follow from other keys, for keys that are not set; None removes a key.

    Values that a shorthand set for roles or stacks that the model lacks return to their defaults.
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
    available = {ATTENTION: places_of(model.type, shape), ("model", "layers"): stacks}
    unused = [key for key in given if given[key].from_shorthand and key[2] not in available[key[:2]]]
    derived |= dict.fromkeys(unused)
    for stack in Layers.model_fields:
        key = ("model", "layers", stack)
        if stack not in stacks and (key not in given or given[key].from_shorthand):
            derived[key] = 0
    return derived


def absolute_paths(value: Any, place: Position, folders: bool = False) -> Any:
    """Return the value of a key of `PATHS` with absolute paths of the files that exist.

    A name is relative to the folder of its recipe file (on the command line: the current folder) or, if that file does
    not exist, to the current folder, as in earlier versions.  A name found in neither stays unchanged, because the
    data folder may contain it.  `folders` says whether a name may be that of a folder.
    """
    if isinstance(value, tuple):
        return tuple(absolute_paths(name, place, folders) for name in value)
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
    """Return the recipe with `change` applied to the values of `PATHS`."""
    for key in PATHS:
        section, name = key
        old = getattr(recipe, section)
        new = old.model_copy(update={name: change(key, getattr(old, name))})
        recipe = recipe.model_copy(update={section: new})
    return recipe


def relative_to(recipe: Recipe, folder: str | os.PathLike[str]) -> Recipe:
    """Return the recipe with absolute paths made relative to a folder.

    `absolute_paths` resolves them from a recipe file in that folder, also after both have moved together.
    """
    start = os.path.realpath(folder)

    def relative(key: Key, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(relative(key, path) for path in value)
        if not value or not os.path.isabs(value):
            return value
        parent, name = os.path.split(value)
        return os.path.relpath(os.path.join(os.path.realpath(parent), name), start)

    return with_paths(recipe, relative)
