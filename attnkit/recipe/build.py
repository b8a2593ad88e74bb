"""From the flat table of settings to a typed recipe, and where each of its values came from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from attnkit.recipe import mechanism_registry, yaml_nodes
from attnkit.recipe.mechanism_options import option_value
from attnkit.recipe.problems import Key, Position, Problems, dotted
from attnkit.recipe.schema import AttentionConfig, Layers, ModelConfig, Recipe, Task
from attnkit.recipe.settings import ROLES, Setting, Settings, field_at
from attnkit.recipe.values import Mismatch, hint_of, refusal, split_words, typed, unwrap, written
from attnkit.recipe.yaml_nodes import Scalar
from attnkit.text import nearest, quoted

ATTENTION: Key = ("model", "attention")
SHAPE: Key = ("model", "shape")
SEEDS: Key = ("train", "seeds")
MISSING: dict[Key, str] = {
    ("task",): f"is missing; it is one of {', '.join(get_args(Task))}",
    ("data",): "is missing; name a corpus, such as `data: {corpus: toy-translation}`, or files",
}
USED = {
    "encoder-decoder": ROLES,
    "decoder": ("decoder",),
    "encoder": ("encoder",),
}
"""The attention places, and so the stacks, that each shape of model has."""


class Built(NamedTuple):
    """A typed recipe; `given` has what was set (not the defaults), `derived` what followed."""

    recipe: Recipe
    given: Mapping[Key, Setting]
    derived: frozenset[Key]

    def origins(self) -> dict[str, str]:
        """Dotted key -> default, derived, command line or file:line:column."""
        return {dotted(key): self.origin(key) for key, _ in flatten(self.recipe)}

    def origin(self, key: Key) -> str:
        """Where the value of one key came from."""
        if key in self.derived:
            return "derived"
        return str(self.given[key].node.place) if key in self.given else "default"

    def place(self, *keys: Key) -> tuple[Position, Key] | None:
        """The first of some keys or sections that was set, and where."""
        for key in keys:
            for given, setting in self.given.items():
                if given[: len(key)] == key:
                    return setting.node.place, key
        return None


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


def build(settings: Settings, problems: Problems, start: Position) -> Built | None:
    """The recipe that some settings describe, or None where problems were noted.

    `start` is the place of problems that have none of their own, such as a missing key.
    """
    values, failed = _values(settings.values, problems)
    derived = _derive(values, settings.values)
    given = {key: s for key, s in settings.values.items() if key not in derived}
    values = {k: v for k, v in (values | derived).items() if v is not None or k not in derived}
    try:
        recipe = Recipe.model_validate(_nest(values))
    except ValidationError as error:
        _translate(error, settings.values, failed, problems, start)
        return None
    return None if failed else Built(recipe, given, frozenset(derived))


def _values(settings: Mapping[Key, Setting], problems: Problems) -> tuple[dict[Key, Any], set[Key]]:
    """All values with their types, and the keys where that failed."""
    values: dict[Key, Any] = {}
    failed: set[Key] = set()
    words = mechanism_registry.names()
    for key, setting in settings.items():
        try:
            values[key] = _value(key, setting, settings, words, problems)
        except _Noted:
            failed.add(key)
    return values, failed


class _Noted(Exception):
    """A problem with one value has been noted."""


def _value(
    key: Key,
    setting: Setting,
    settings: Mapping[Key, Setting],
    words: Sequence[str],
    problems: Problems,
) -> Any:
    """One typed value; `words` are the known mechanisms.  Raises _Noted where there is none."""
    if key[:2] == ATTENTION:
        return _attention(key, setting, settings, words, problems)
    if key == SEEDS and isinstance(setting.node, Scalar) and "," not in setting.node.text:
        problems.add(setting.node.place, key, _seeds(setting.node))
        raise _Noted
    field = field_at(key)
    hint, default = hint_of(field), ... if field.is_required() else field.default
    try:
        return typed(setting.node, hint)
    except Mismatch:
        place, text = refusal(setting.node, hint, default)
        problems.add(place, told_key(key, setting), text)
        raise _Noted from None


def _attention(
    key: Key,
    setting: Setting,
    settings: Mapping[Key, Setting],
    words: Sequence[str],
    problems: Problems,
) -> Any:
    """The word of an attention place, or one option of its mechanism."""
    told = told_key(key, setting)
    role = settings.get(key[:3])
    word = role.node.text if role and isinstance(role.node, Scalar) else AttentionConfig().name
    if word not in words:
        if len(key) == 3:
            problems.add(setting.node.place, told, lambda: _unknown_word(word, words))
        raise _Noted
    if len(key) == 3:
        return word
    found = option_value(mechanism_registry.facts(word), key[-1], told, setting, problems)
    if found is None:
        raise _Noted
    return found.value


def told_key(key: Key, setting: Setting) -> Key:
    """The key as the user wrote it: without the place or stack that a shorthand filled in."""
    return (*key[:2], *key[3:]) if setting.spread else key


def _unknown_word(word: str, known: Sequence[str]) -> str:
    close = nearest(word, known)
    hint = f"did you mean {close}?" if close else f"known are {', '.join(known)}"
    hint += "" if close else "; one of your own comes by --plugin FILE"
    return f"no attention mechanism is called {quoted(word)}; {hint}"


def _seeds(node: Scalar) -> str:
    text = f"must be a list of seeds, got {written(node)}"
    if node.text.isdecimal() and len(node.text) < 10:
        number = int(node.text)
        several = ", ".join(map(str, range(1, min(max(number, 2), 4) + 1)))
        return f"{text}; write [{number}] for the seed {number}, or [{several}] for several seeds"
    return f"{text}; write [1] for one training, or [1, 2, 3] for three"


def _derive(values: Mapping[Key, Any], settings: Mapping[Key, Setting]) -> dict[Key, Any]:
    """Values that follow from others where the recipe is silent."""
    derived: dict[Key, Any] = {}
    language = values.get(("task",)) == "language-modeling"
    if language:
        derived[SHAPE] = "decoder"
        derived["train", "objective"] = "causal"
        derived["eval", "metrics"] = ("perplexity",)
    if values.get(("task",)) == "question-answering":
        derived["eval", "metrics"] = ("answer-match", "answer-f1", "context-found")
    shape = values.get(SHAPE, derived.get(SHAPE, ModelConfig().shape))
    if values.get(("tokenizer", "shared")) is False and shape == "encoder-decoder":
        derived["model", "tie"] = "decoder"
    paths = values.get(("data", "train")) is not None
    if paths and values.get(("data", "test")) is None:
        derived["eval", "splits"] = ("valid",)
    derived = {key: value for key, value in derived.items() if key not in settings}
    for key in [key for key in settings if settings[key].spread and not _used(key, shape)]:
        derived[key] = None
    for stack in Layers.model_fields:
        key = ("model", "layers", stack)
        if not _used(key, shape) and (key not in settings or settings[key].spread):
            derived[key] = 0
    return derived


def _used(key: Key, shape: str) -> bool:
    """Whether a shape has the attention place or the stack of a key."""
    return key[2] in USED.get(shape, ROLES)


def _nest(values: Mapping[Key, Any]) -> dict[str, Any]:
    """The flat table as nested mappings, as pydantic reads them."""
    root: dict[str, Any] = {}
    for key, value in values.items():
        path = (*key, "name") if key[:2] == ATTENTION and len(key) == 3 else key
        inner = root
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
    return root


def _translate(
    error: ValidationError,
    settings: Mapping[Key, Setting],
    failed: set[Key],
    problems: Problems,
    start: Position,
) -> None:
    """Note pydantic's errors as problems with a place and the nearest valid value."""
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        path = fault["loc"]
        key = next((k for k in _beginnings(path) if k in settings), None)
        if key is not None:
            _note_range(key, path[len(key) :], settings[key], problems)
        elif fault["type"] == "missing":
            if not any(failing[: len(path)] == path for failing in failed):
                problems.add(start, _texts(path), MISSING.get(_texts(path), "is missing"))
        else:
            problems.add(start, _texts(path), fault["msg"])


def _texts(path: tuple[str | int, ...]) -> Key:
    return tuple(str(part) for part in path)


def _beginnings(path: tuple[str | int, ...]) -> Iterator[Key]:
    """The beginnings of an error's path, longest first."""
    for size in range(len(path), 0, -1):
        yield _texts(path[:size])


def _note_range(
    key: Key, inside: tuple[str | int, ...], setting: Setting, problems: Problems
) -> None:
    """Note a value of the right type that is out of bounds, or an item of a list that is."""
    node, field = setting.node, field_at(key)
    hint, default = hint_of(field), ... if field.is_required() else field.default
    index = next((part for part in inside if isinstance(part, int)), None)
    if index is not None:
        items = node.items if isinstance(node, yaml_nodes.Sequence) else split_words(node) or []
        inner = get_args(unwrap(hint)[0])
        node, hint = items[index], inner[min(index, len(inner) - 1)]
        if hint is Ellipsis:
            hint = inner[0]
    place, text = refusal(node, hint, default)
    problems.add(place, told_key(key, setting), text)
