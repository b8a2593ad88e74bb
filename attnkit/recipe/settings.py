"""Settings of a recipe, as a flat table from keys to nodes.

Files, variants and overrides write into the table one after the other.  Sections (train, model, ...) are merged; the
value of a key replaces the previous value.  Shorthands are expanded here: one number of layers for both stacks, one
mechanism for every attention role.
"""

from collections.abc import Iterator
from functools import cache, partial
from typing import Annotated, Any, NamedTuple

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from attnkit.recipe.common_names import KEYS
from attnkit.recipe.issues import COMMAND_LINE, Issues, Key, Position, dotted
from attnkit.recipe.reading import FINITE, written
from attnkit.recipe.schema import AttentionConfig, Layers, Recipe, Roles
from attnkit.recipe.values import OnlyWith, Section
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar, Sequence, is_null
from attnkit.text import nearest

ROLES = tuple(Roles.model_fields)
SUPERSEDED: dict[Key, tuple[Key, ...]] = {
    ("data", "corpus"): (("data", "train"), ("data", "valid"), ("data", "test")),
    ("data", "train"): (("data", "corpus"), ("data", "size")),
}
"""Keys of data -> keys of other data that they replace."""
TENSORBOARD: Key = ("train", "tensorboard")
"""Key with true or false in recipes of earlier versions; now a value of train.log_to."""
FILE_KEYS = ("extends", "variants", "baseline", "published")
"""Keys of a recipe file that are not part of a resolved recipe."""
AFTER_TRAINING = ("eval.", "search.", "contexts.")
"""Prefixes of keys that may change after training: runs are scored again, not trained again."""


class Setting(NamedTuple):
    """A value, the position of its key, and whether it was set by a shorthand for several keys."""

    node: Node
    place: Position
    from_shorthand: bool = False


class Settings:
    """Flat table of everything that a recipe sets."""

    def __init__(self, issues: Issues, values: dict[Key, Setting] | None = None) -> None:
        self.values: dict[Key, Setting] = dict(values or {})
        self._issues = issues
        self._places: dict[Key, Position] = {}

    def copy(self) -> "Settings":
        """Return a copy, in which new settings may replace all previous ones."""
        return Settings(self._issues, self.values)

    def put(self, key: Key, place: Position, node: Node) -> None:
        """Set a key, or every key of a section; conflicts are added to the issues, not raised."""
        if key == TENSORBOARD and isinstance(node, Scalar) and node.text in ("true", "false"):
            log = [Scalar(node.place, key[-1])] if node.text == "true" else []
            key, node = ("train", "log_to"), Sequence(node.place, [*log])
        prefix = next(key[:size] for size in (3, 2, 1, 0) if key[:size] in SCHEMA)
        kind, rest = SCHEMA[prefix], key[len(prefix) :]
        if rest and (kind is not AttentionConfig or len(rest) > 1):
            self._issues.add(place, key, partial(unknown, key, prefix))
        elif isinstance(kind, FieldInfo) or (rest and rest != ("name",)):
            self._check_duplicate(key, place)
            # Training files replace a corpus set earlier (in an extended file, above the variants, or earlier on the
            # command line), and a corpus replaces files.  Set in one file or variant, both stay and are refused.
            for other in SUPERSEDED.get(key, ()) if not is_null(node) else ():
                setting, overriding = self.values.get(other), place == COMMAND_LINE
                if setting and (setting.place != place if overriding else other not in self._places):
                    del self.values[other]
            self.values[key] = Setting(node, place)
        elif kind in (Layers, Roles, AttentionConfig):
            self._check_duplicate(key, place)
            for other in [other for other in self.values if other[: len(prefix)] == prefix]:
                del self.values[other]
            self._expand(prefix, place, node)
        elif isinstance(node, Mapping):
            for name, (name_place, value) in node.fields.items():
                self.put((*key, *name.split(".")), name_place, value)
        elif not is_null(node) or place == COMMAND_LINE:  # in a file, a section may be empty
            text = f"must be a mapping of keys, such as `{next(iter(kind.model_fields))}: ...`"
            self._issues.add(node.place, key, f"{text}, got {written(node)}")

    def _expand(self, key: Key, place: Position, node: Node, from_shorthand: bool = False) -> None:
        """Expand a shorthand for layers, for attention, or for the mechanism of one role."""
        kind = SCHEMA[key]
        if kind is AttentionConfig:
            self._set_mechanism(key, place, node, from_shorthand)
        elif isinstance(kind, FieldInfo):
            self.values[key] = Setting(node, place, from_shorthand)
        elif not isinstance(node, Mapping) or (kind is Roles and "name" in node.fields):
            for name in kind.model_fields:
                self._expand((*key, name), place, node, from_shorthand=True)
        else:
            for name, (name_place, value) in node.fields.items():
                if name in kind.model_fields:
                    self._expand((*key, name), name_place, value)
                else:
                    text = partial(unknown, (*key, name), key)
                    self._issues.add(name_place, (*key, name), text)

    def _set_mechanism(self, key: Key, place: Position, node: Node, from_shorthand: bool) -> None:
        fields = node.fields if isinstance(node, Mapping) else {"name": (place, node)}
        _, name = fields.get("name", (place, None))
        if not isinstance(name, Scalar) or name.null:
            text = "must be the name of a mechanism, or {name: NAME} with options"
            text += f", got {written(node)}"
            self._issues.add(node.place, key[:-1] if from_shorthand else key, text)
            return
        self.values[key] = Setting(name, place, from_shorthand)
        for option, (option_place, value) in fields.items():
            if option != "name":
                self.values[(*key, option)] = Setting(value, option_place, from_shorthand)

    def _check_duplicate(self, key: Key, place: Position) -> None:
        """Add an issue if the same file or variant has already set the key, by any spelling."""
        if place == COMMAND_LINE:
            return
        before = [key[:size] for size in range(1, len(key) + 1)]
        if isinstance(SCHEMA.get(key), type):
            before += [other for other in self._places if other[: len(key)] == key]
        first = next((self._places[other] for other in before if other in self._places), None)
        if first is not None:
            self._issues.add(place, key, f"is set twice, first at {first}; keep one of them")
        self._places.setdefault(key, place)


def _walk(
    key: Key, section: type[Section], above: tuple[OnlyWith, ...] = ()
) -> Iterator[tuple[Key, FieldInfo | type[Section], tuple[OnlyWith, ...]]]:
    """Yield sections and fields, each with the `OnlyWith` tags of its own type and of the sections around it."""
    yield key, section, above
    for name, field in section.model_fields.items() if section is not AttentionConfig else ():
        kind, tags = field.annotation, tuple(t for t in field.metadata if isinstance(t, OnlyWith))
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _walk((*key, name), kind, tags + above)
        else:
            yield (*key, name), field, tags + above


_ENTRIES = [*_walk((), Recipe)]
SCHEMA = {key: kind for key, kind, _ in _ENTRIES}
"""Every section and field of the schema by its key; an attention role is a section."""
DEFAULTS = {dotted(key): kind.default for key, kind, _ in _ENTRIES if isinstance(kind, FieldInfo)}
ONLY_WITH = {dotted(key): tags for key, _, tags in _ENTRIES if tags and dotted(key) in DEFAULTS}
"""Keys that are read only if other keys have certain values."""


@cache
def type_of(key: Key) -> TypeAdapter[Any]:
    """Return the type with which pydantic validates the value of a key."""
    field = SCHEMA[key]
    assert isinstance(field, FieldInfo)
    kind: Any = Annotated[field.annotation, field]
    return TypeAdapter(kind, config=FINITE)


def all_keys() -> tuple[Key, ...]:
    """Return every key of the schema that has a value, attention roles included."""
    return tuple(key for key, kind in SCHEMA.items() if kind is AttentionConfig or not isinstance(kind, type))


def unknown(key: Key, prefix: Key) -> str:
    """Return why a key is refused, and which one was probably meant; `prefix` is the part that exists."""
    word, section = key[len(prefix)], SCHEMA[prefix]
    name, colon, value = word.partition(":")
    if isinstance(section, FieldInfo) or section is AttentionConfig:
        return f"unknown key: {dotted(prefix)} has no keys below it; set {dotted(prefix)} itself"
    if colon and value:
        return f"unknown key; a space must follow the colon: {name}: {value}"
    if not prefix and word in FILE_KEYS:
        return "is allowed only at the top level of a recipe file, not in a variant, an override or a dotted key"
    if suggestion := KEYS.get(".".join(key)) or KEYS.get(word):
        return f"unknown key; write {suggestion}"
    sections = sorted({key[:-1] for key in all_keys() if key[-1] == word and len(key) < 3})
    if sections:
        where = " or ".join(dotted(home) or "the top level" for home in sections)
        return f"unknown key: this key belongs under {where}"
    names = [*section.model_fields, *(() if prefix else FILE_KEYS)]
    others = {key[-1]: key for key in all_keys()}
    if close := nearest(word, names):
        meant = (*prefix, close, *key[len(prefix) + 1 :])
        meant = meant if meant in all_keys() else (*prefix, close)
        return f"unknown key; did you mean {dotted(meant)}?"
    if close := nearest(word, others, cutoff=0.8):
        return f"unknown key; did you mean {dotted(others[close])}?"
    place = f"keys under {dotted(prefix)}" if prefix else "top-level keys"
    return f"unknown key; {place}: {', '.join(names[:10])}{', ...' * (len(names) > 10)}"
