"""From the flat table of settings to a typed recipe, and where each of its values came from."""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, get_args

from pydantic import BaseModel, TypeAdapter

from attnkit.recipe import corpus_cards, mechanism_registry
from attnkit.recipe.issues import COMMAND_LINE, Issues, Key, Position, ValidationIssue, dotted
from attnkit.recipe.mechanism_registry import option_value
from attnkit.recipe.schema import (
    COUNTED,
    AttentionConfig,
    Layers,
    ModelConfig,
    Recipe,
    Task,
    places_of,
)
from attnkit.recipe.settings import Setting, Settings, field_at
from attnkit.recipe.values import read, written
from attnkit.recipe.yaml_nodes import Scalar

PATHS: tuple[Key, ...] = (
    *(("data", split) for split in ("train", "valid", "test")),
    *(("tokenizer", "model"), ("eval", "vectors"), ("train", "init")),
)
"""Keys whose values are names of files; of `INIT` that may be a folder, or a shipped recipe."""
INIT: Key = ("train", "init")
ATTENTION: Key = ("model", "attention")
SHAPE: Key = ("model", "shape")
SEEDS: Key = ("train", "seeds")
MISSING: dict[Key, str] = {
    ("task",): f"is missing; it is one of {', '.join(get_args(Task))}",
    ("data",): "is missing; name a corpus, such as `data: {corpus: toy-translation}`, or files",
}
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
    """A typed recipe; `given` has what was set (not the defaults), `derived` what followed."""

    recipe: Recipe
    given: Mapping[Key, Setting]
    derived: frozenset[Key]

    def origins(self) -> dict[str, str]:
        """Dotted key -> default, derived, command line or file:line:column."""
        places = {key: str(setting.node.place) for key, setting in self.given.items()}
        places |= dict.fromkeys(self.derived, "derived")
        return {dotted(key): places.get(key, "default") for key, _ in flatten(self.recipe)}

    def blame(self, issue: ValidationIssue, start: Position) -> tuple[Position, Key]:
        """Where an issue is told: at the first of its keys or sections that was set, else `start`.

        The key is as the user wrote it.
        """
        for key in issue.keys:
            for given, setting in self.given.items():
                if given[: len(key)] == key:
                    written_key = key_as_written(key, setting) if given == key else key
                    return setting.node.place, written_key
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
    values: dict[Key, Any] = {}
    for key, setting in settings.values.items():
        try:
            values[key] = _value(key, setting, settings.values)
        except ValidationIssue as issue:
            whole = (*key_as_written(key, setting), *issue.key)
            issues.add(issue.place or setting.place, whole, issue.text)
    missing = [key for key in MISSING if not any(given[:1] == key for given in settings.values)]
    for key in missing:
        issues.add(start, key, MISSING[key])
    if missing or len(values) < len(settings.values):
        return None
    derived = _derive(values, settings.values)
    given = {key: setting for key, setting in settings.values.items() if key not in derived}
    unset = {key for key, value in derived.items() if value is None}
    values = {key: value for key, value in (values | derived).items() if key not in unset}
    root: dict[str, Any] = {}  # the flat table as nested mappings, as pydantic reads them
    for key, value in values.items():
        path = (*key, "name") if key[:2] == ATTENTION and len(key) == 3 else key
        inner = root
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
    return Built(Recipe.model_validate(root), given, frozenset(derived))


def _value(key: Key, setting: Setting, settings: Mapping[Key, Setting]) -> Any:
    """One typed value: of a key of the schema, a mechanism's word or one of its options.

    Raises ValidationIssue.
    """
    node = setting.node
    if key[:2] != ATTENTION:
        if key == SEEDS and isinstance(node, Scalar) and "," not in node.text:
            example = "[1] for one training, or [1, 2, 3] for three"
            if node.text.isdecimal() and len(node.text) < 10:
                number = int(node.text)
                several = ", ".join(map(str, range(1, min(max(number, 2), 4) + 1)))
                example = f"[{number}] for the seed {number}, or [{several}] for several seeds"
            text = f"must be a list of seeds, got {written(node)}; write {example}"
            raise ValidationIssue(text, place=node.place)
        field = field_at(key)
        value = read(node, field_type(key), None if field.is_required() else field.default)
        return found(value, node.place, key == INIT) if key in PATHS else value
    role = settings.get(key[:3])
    word = role.node.text if role and isinstance(role.node, Scalar) else AttentionConfig().name
    known = word in mechanism_registry.names()
    if len(key) == 3:
        if not known:
            raise ValidationIssue(lambda: mechanism_registry.unknown(word), place=node.place)
        return word
    if not known:
        return None  # the word is refused
    return option_value(mechanism_registry.facts(word), key[3], setting.place, node)


@cache
def field_type(key: Key) -> TypeAdapter[Any]:
    """What reads the values of a key of the schema."""
    field = field_at(key)
    return TypeAdapter(Annotated[field.annotation, field])  # type: ignore[arg-type]


def key_as_written(key: Key, setting: Setting) -> Key:
    """The key as the user wrote it: without the place or stack that a shorthand filled in."""
    return (*key[:2], *key[3:]) if setting.spread else key


def _derive(values: Mapping[Key, Any], settings: Mapping[Key, Setting]) -> dict[Key, Any]:
    """Values that follow from others where the recipe is silent.

    What a shorthand set in places that the model does not have is back at its default.
    """
    derived: dict[Key, Any] = {}
    if values["task",] == "language-modeling":
        objective = str(values.get(("train", "objective")))
        derived[SHAPE] = SHAPE_OF.get(objective, "decoder")
        derived["train", "objective"] = "masked" if values.get(SHAPE) == "encoder" else "causal"
    if values["task",] in METRICS_OF:
        derived["eval", "metrics"] = METRICS_OF[values["task",]]
    shape = values.get(SHAPE, derived.get(SHAPE, ModelConfig().shape))
    family = values.get(("model", "type"), ModelConfig().type)
    if family != "transformer":
        derived["model", "heads"] = 1
        derived["model", "positions"] = POSITIONS[family][0]
    if family == "naive-bayes-attention":
        derived["model", "tie"] = "none"
        derived["model", "layers", "decoder"] = 1
    if values.get(("tokenizer", "shared")) is False and shape == "encoder-decoder":
        derived["model", "tie"] = "decoder"
    if values.get(("data", "train")) is not None and values.get(("data", "test")) is None:
        derived["eval", "splits"] = ("valid",)
    corpus, target = (str(values.get(("data", key))) for key in ("corpus", "target"))
    card = corpus_cards.load(corpus) if corpus in corpus_cards.names() else None
    if card and card.task == values["task",] == "classification":
        derived["data", "labels"] = card.labels
    if card and card.tokenized:
        derived["eval", "tokenize"] = "none"
    elif (language := re.split("[-_]", target.lower())[0]) in TOKENIZER_OF:
        derived["eval", "tokenize"] = TOKENIZER_OF[language]
    derived = {key: value for key, value in derived.items() if key not in settings}
    stacks = () if family in COUNTED else STACKS[shape]
    has = {ATTENTION: places_of(family, shape), ("model", "layers"): stacks}
    unused = [key for key in settings if settings[key].spread and key[2] not in has[key[:2]]]
    derived |= dict.fromkeys(unused)
    for stack in Layers.model_fields:
        key = ("model", "layers", stack)
        if stack not in stacks and (key not in settings or settings[key].spread):
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


def relative_to(recipe: Recipe, folder: str | os.PathLike[str]) -> Recipe:
    """The recipe with absolute paths written relative to a folder.

    `found` reads them back from a recipe file there, also after both have moved together.
    """
    start = os.path.realpath(folder)

    def relative(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(relative, value))
        if not value or not os.path.isabs(value):
            return value
        parent, name = os.path.split(value)
        return os.path.relpath(os.path.join(os.path.realpath(parent), name), start)

    for section, name in PATHS:
        old = getattr(recipe, section)
        new = old.model_copy(update={name: relative(getattr(old, name))})
        recipe = recipe.model_copy(update={section: new})
    return recipe
