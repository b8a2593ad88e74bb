"""What a recipe sets, as one flat table: dotted key -> node.

Files, variants and overrides write into it one after the other.  Sections (train, model, ...)
merge; the value of a key replaces what was there.  Shorthands are spelled out here: one number of
layers for both stacks, one attention word for every place.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from pydantic.fields import FieldInfo

from attnkit.recipe.problems import COMMAND_LINE, Key, Position, Problems, dotted
from attnkit.recipe.schema import AttentionConfig, Layers, Recipe, Roles, Section
from attnkit.recipe.values import written
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar
from attnkit.text import nearest

ROLES = tuple(Roles.model_fields)
FILE_KEYS = ("extends", "variants", "baseline")
"""Keys of a recipe file that are not part of a resolved recipe."""


class Setting(NamedTuple):
    """A value, the place of its key, and whether a shorthand for several keys put it here."""

    node: Node
    place: Position
    spread: bool = False


class Settings:
    """The flat table of everything that a recipe sets."""

    def __init__(self, problems: Problems, values: dict[Key, Setting] | None = None) -> None:
        self.values: dict[Key, Setting] = dict(values or {})
        self._problems = problems
        self._claimed: dict[Key, Position] = {}

    def copy(self) -> "Settings":
        """A table that starts from this one; what it sets may replace everything."""
        return Settings(self._problems, self.values)

    def put(self, key: Key, place: Position, node: Node) -> None:
        """Set one key, or every key of a section.  Problems are noted, never raised."""
        known = known_part(key)
        section = section_at(known)
        if known != key and section is not AttentionConfig:
            self._problems.add(place, key, lambda: unknown(key, known))
        elif section is None:
            self._claim(key, place)
            self.values[key] = Setting(node, place)
        elif section is AttentionConfig:
            self._attention(key, known, place, node)
        elif section is Layers or section is Roles:
            self._claim(key, place)
            self._clear(key)
            (self._layers if section is Layers else self._roles)(key, place, node)
        elif isinstance(node, Mapping):
            for name, (name_place, value) in node.fields.items():
                self.put((*key, *name.split(".")), name_place, value)
        elif not (isinstance(node, Scalar) and node.null):
            first = next(iter(section.model_fields))
            text = f"must hold keys, such as `{first}: ...`, got {written(node)}"
            self._problems.add(node.place, key, text)

    def _attention(self, key: Key, role: Key, place: Position, node: Node) -> None:
        """Set the mechanism of one place, or one of its options by a longer key."""
        options = key[len(role) :]
        if len(options) > 1:
            text = f"an option has no keys below it; set {dotted((*role, options[0]))} as a whole"
            self._problems.add(place, key, text)
            return
        self._claim(key, place)
        if options and options != ("name",):
            self.values[key] = Setting(node, place)
        else:
            self._clear(role)
            self._role(role, place, node, spread=False)

    def _layers(self, key: Key, place: Position, node: Node) -> None:
        if not isinstance(node, Mapping):
            for name in Layers.model_fields:
                self.values[(*key, name)] = Setting(node, place, spread=True)
            return
        for name, (name_place, value) in node.fields.items():
            if name in Layers.model_fields:
                self.values[(*key, name)] = Setting(value, name_place)
            else:
                self._unknown_part((*key, name), key, name_place)

    def _roles(self, key: Key, place: Position, node: Node) -> None:
        if not isinstance(node, Mapping) or "name" in node.fields:
            for role in ROLES:
                self._role((*key, role), place, node, spread=True)
            return
        for name, (name_place, value) in node.fields.items():
            if name in ROLES:
                self._role((*key, name), name_place, value, spread=False)
            else:
                self._unknown_part((*key, name), key, name_place)

    def _role(self, key: Key, place: Position, node: Node, spread: bool) -> None:
        told = key[:-1] if spread else key
        name = node.fields.get("name", (place, None))[1] if isinstance(node, Mapping) else node
        if not isinstance(name, Scalar) or name.null:
            text = "must be the word of a mechanism, or {name: word} with its options"
            self._problems.add(node.place, told, f"{text}, got {written(node)}")
            return
        self.values[key] = Setting(name, place, spread)
        for option, (option_place, value) in (
            node.fields.items() if isinstance(node, Mapping) else ()
        ):
            if spread and option in ROLES:
                text = "`name` beside a place: give one word for all places, or a word for each"
                self._problems.add(option_place, (*told, option), text)
            elif option != "name":
                self.values[(*key, option)] = Setting(value, option_place, spread)

    def _unknown_part(self, key: Key, known: Key, place: Position) -> None:
        self._problems.add(place, key, lambda: unknown(key, known))

    def _claim(self, key: Key, place: Position) -> None:
        """Refuse a key that the same file or variant has set before, by any spelling."""
        if place == COMMAND_LINE:
            return
        before = [key[:size] for size in range(1, len(key) + 1)]
        if section_at(key) is not None:
            before += [other for other in self._claimed if other[: len(key)] == key]
        first = next((self._claimed[other] for other in before if other in self._claimed), None)
        if first is not None:
            self._problems.add(place, key, f"is set twice, first at {first}; keep one of them")
        self._claimed.setdefault(key, place)

    def _clear(self, key: Key) -> None:
        for other in [other for other in self.values if other[: len(key)] == key]:
            del self.values[other]


def known_part(key: Key) -> Key:
    """The longest beginning of a key that the schema knows."""
    section: type[Section] | None = Recipe
    for depth, part in enumerate(key):
        if section is None or section is AttentionConfig or part not in section.model_fields:
            return key[:depth]
        section = _section(section.model_fields[part])
    return key


def section_at(key: Key) -> type[Section] | None:
    """The section that a known key names, or None where it is a single value."""
    section: type[Section] | None = Recipe
    for part in key:
        if section is None or section is AttentionConfig:
            return None
        section = _section(section.model_fields[part])
    return section


def field_at(key: Key) -> FieldInfo:
    """The schema's field of a known key."""
    section = section_at(key[:-1])
    assert section is not None
    return section.model_fields[key[-1]]


def _section(field: FieldInfo) -> type[Section] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


@cache
def all_keys() -> tuple[Key, ...]:
    """Every key of the schema that holds a value, attention places included."""

    def walk(key: Key) -> Iterator[Key]:
        section = section_at(key)
        if section is None or section is AttentionConfig:
            yield key
        else:
            for name in section.model_fields:
                yield from walk((*key, name))

    return tuple(walk(()))


def unknown(key: Key, known: Key) -> str:
    """Why a key is refused, and what was probably meant; `known` is the part that exists."""
    word = key[len(known)]
    section = section_at(known)
    if section is None:
        return f"unknown key: {dotted(known)} is a single value and has no keys below it"
    if not known and word in FILE_KEYS and len(key) > 1:
        return f"is not understood in a file with dots; write it nested, under `{word}:`"
    if not known and word in FILE_KEYS:
        return "stands only at the top of a recipe file, not in a variant or an override"
    homes = sorted({key[:-1] for key in all_keys() if key[-1] == word and len(key) < 3})
    if homes:
        where = " or ".join(dotted(home) or "the top level" for home in homes)
        return f"unknown key: this key belongs under {where}"
    here = list(section.model_fields) + ([] if known else list(FILE_KEYS))
    if close := nearest(word, here):
        return f"unknown key; did you mean {dotted((*known, close))}?"
    others = {key[-1]: key for key in all_keys()}
    if close := nearest(word, others, cutoff=0.75):
        return f"unknown key; did you mean {dotted(others[close])}?"
    place = f"under {dotted(known)}" if known else "at the top"
    known_keys = ", ".join(here[:10] + ["..."] * (len(here) > 10))
    return f"unknown key; {place} there are {known_keys}"
