"""What a recipe sets, as one flat table: dotted key -> node.

Files, variants and overrides write into it one after the other.  Sections (train, model, ...)
merge; the value of a key replaces what was there.  Shorthands are spelled out here: one number of
layers for both stacks, one attention word for every place.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from pydantic.fields import FieldInfo

from attnkit.recipe.common_names import KEYS
from attnkit.recipe.issues import COMMAND_LINE, Issues, Key, Position, dotted
from attnkit.recipe.schema import AttentionConfig, Layers, Recipe, Roles
from attnkit.recipe.values import OnlyWith, Section, written
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar, Sequence, is_null
from attnkit.text import nearest

ROLES = tuple(Roles.model_fields)
SUPERSEDED: dict[Key, tuple[Key, ...]] = {
    ("data", "corpus"): (("data", "train"), ("data", "valid"), ("data", "test")),
    ("data", "train"): (("data", "corpus"), ("data", "size")),
}
"""Keys that name the data, and those of other data that they replace."""
TENSORBOARD: Key = ("train", "tensorboard")
"""true or false in recipes of earlier versions; now one of train.log_to."""
FILE_KEYS = ("extends", "variants", "baseline", "published")
"""Keys of a recipe file that are not part of a resolved recipe."""
AFTER_TRAINING = ("eval.", "search.", "contexts.")
"""Keys that may change after training: runs are scored again, not trained again."""


class Setting(NamedTuple):
    """A value, the place of its key, and whether a shorthand for several keys put it here."""

    node: Node
    place: Position
    spread: bool = False


class Settings:
    """The flat table of everything that a recipe sets."""

    def __init__(self, issues: Issues, values: dict[Key, Setting] | None = None) -> None:
        self.values: dict[Key, Setting] = dict(values or {})
        self._issues = issues
        self._claimed: dict[Key, Position] = {}

    def copy(self) -> "Settings":
        """A table that starts from this one; what it sets may replace everything."""
        return Settings(self._issues, self.values)

    def put(self, key: Key, place: Position, node: Node) -> None:
        """Set one key, or every key of a section.  Issues are noted, never raised."""
        if key == TENSORBOARD and isinstance(node, Scalar) and node.text in ("true", "false"):
            log = [Scalar(node.place, key[-1])] if node.text == "true" else []
            key, node = ("train", "log_to"), Sequence(node.place, [*log])
        known = next(key[:size] for size in (3, 2, 1, 0) if key[:size] in SCHEMA)
        section = SCHEMA[known]
        if section is AttentionConfig:
            self._option(key, known, place, node)
        elif known != key:
            self._issues.add(place, key, lambda: unknown(key, known))
        elif isinstance(section, FieldInfo):
            self._claim(key, place)
            self._supersede(key, place, node)
            self.values[key] = Setting(node, place)
        elif section is Layers or section is Roles:
            self._claim(key, place)
            self._clear(key)
            self._shorthand(key, section, place, node)
        elif isinstance(node, Mapping):
            for name, (name_place, value) in node.fields.items():
                self.put((*key, *name.split(".")), name_place, value)
        elif not is_null(node):
            first = next(iter(section.model_fields))
            text = f"must hold keys, such as `{first}: ...`, got {written(node)}"
            self._issues.add(node.place, key, text)

    def _option(self, key: Key, role: Key, place: Position, node: Node) -> None:
        """Set the mechanism of one place, or one of its options by a longer key."""
        options = key[len(role) :]
        if len(options) > 1:
            text = f"an option has no keys below it; set {dotted((*role, options[0]))} as a whole"
            self._issues.add(place, key, text)
            return
        self._claim(key, place)
        if options and options != ("name",):
            self.values[key] = Setting(node, place)
        else:
            self._clear(role)
            self._set(role, place, node)

    def _shorthand(self, key: Key, section: type[Section], place: Position, node: Node) -> None:
        """Set each key of a section, by a mapping or by one value for all."""
        if not isinstance(node, Mapping) or (section is Roles and "name" in node.fields):
            for name in section.model_fields:
                self._set((*key, name), place, node, spread=True)
            return
        for name, (name_place, value) in node.fields.items():
            if name in section.model_fields:
                self._set((*key, name), name_place, value)
            else:
                self._issues.add(name_place, (*key, name), partial(unknown, (*key, name), key))

    def _set(self, key: Key, place: Position, node: Node, spread: bool = False) -> None:
        """Set a known key; the mechanism of a place is its word and its options."""
        if SCHEMA[key] is not AttentionConfig:
            self.values[key] = Setting(node, place, spread)
            return
        written_key = key[:-1] if spread else key
        fields = node.fields if isinstance(node, Mapping) else {"name": (place, node)}
        _, name = fields.get("name", (place, None))
        if not isinstance(name, Scalar) or name.null:
            text = "must be the word of a mechanism, or {name: word} with its options"
            self._issues.add(node.place, written_key, f"{text}, got {written(node)}")
            return
        self.values[key] = Setting(name, place, spread)
        for option, (option_place, value) in fields.items():
            if spread and option in ROLES:
                text = "`name` beside a place: give one word for all places, or a word for each"
                self._issues.add(option_place, (*written_key, option), text)
            elif option != "name":
                self.values[(*key, option)] = Setting(value, option_place, spread)

    def _claim(self, key: Key, place: Position) -> None:
        """Refuse a key that the same file or variant has set before, by any spelling."""
        if place == COMMAND_LINE:
            return
        before = [key[:size] for size in range(1, len(key) + 1)]
        if isinstance(SCHEMA.get(key), type):
            before += [other for other in self._claimed if other[: len(key)] == key]
        first = next((self._claimed[other] for other in before if other in self._claimed), None)
        if first is not None:
            self._issues.add(place, key, f"is set twice, first at {first}; keep one of them")
        self._claimed.setdefault(key, place)

    def _supersede(self, key: Key, place: Position, node: Node) -> None:
        """Training files take the place of a corpus that was set earlier, and a corpus of files.

        Earlier is in an extended file, above the variants, or before the command line; in one place
        both stay, and are refused.
        """
        if is_null(node):
            return
        for other in SUPERSEDED.get(key, ()):
            setting = self.values.get(other)
            here = place == COMMAND_LINE
            if setting and (setting.place != place if here else other not in self._claimed):
                del self.values[other]

    def _clear(self, key: Key) -> None:
        for other in [other for other in self.values if other[: len(key)] == key]:
            del self.values[other]


def _walk(
    key: Key, section: type[Section], above: tuple[OnlyWith, ...] = ()
) -> Iterator[tuple[Key, FieldInfo | type[Section], tuple[OnlyWith, ...]]]:
    """Sections and fields, each with what its type and those around it say of when it is read."""
    yield key, section, above
    for name, field in section.model_fields.items() if section is not AttentionConfig else ():
        kind, tags = field.annotation, tuple(t for t in field.metadata if isinstance(t, OnlyWith))
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _walk((*key, name), kind, tags + above)
        else:
            yield (*key, name), field, tags + above


_ALL = [*_walk((), Recipe)]
SCHEMA = {key: kind for key, kind, _ in _ALL}
"""Every section and every field of the schema by its key; an attention place is a section."""
DEFAULTS = {dotted(key): kind.default for key, kind, _ in _ALL if isinstance(kind, FieldInfo)}
ONLY_WITH = {dotted(key): tags for key, _, tags in _ALL if tags and dotted(key) in DEFAULTS}
"""Keys that are read only where others have one of some values."""


def all_keys() -> tuple[Key, ...]:
    """Every key of the schema that holds a value, attention places included."""
    return tuple(
        key for key, kind in SCHEMA.items() if kind is AttentionConfig or not isinstance(kind, type)
    )


def unknown(key: Key, known: Key) -> str:
    """Why a key is refused, and what was probably meant; `known` is the part that exists."""
    word = key[len(known)]
    section = SCHEMA[known]
    if isinstance(section, FieldInfo):
        return f"unknown key: {dotted(known)} is a single value and has no keys below it"
    name, colon, value = word.partition(":")
    if colon and value:
        return f"unknown key; a space must follow the colon: {name}: {value}"
    if not known and word in FILE_KEYS and len(key) > 1:
        return f"is not understood with dots; write it nested in the recipe file, under `{word}:`"
    if not known and word in FILE_KEYS:
        return "stands only at the top of a recipe file, not in a variant or an override"
    if ours := KEYS.get(".".join(key)) or KEYS.get(word):
        return f"unknown key; write {ours}"
    homes = sorted({key[:-1] for key in all_keys() if key[-1] == word and len(key) < 3})
    if homes:
        where = " or ".join(dotted(home) or "the top level" for home in homes)
        return f"unknown key: this key belongs under {where}"
    here = list(section.model_fields) + ([] if known else list(FILE_KEYS))
    if close := nearest(word, here):
        meant = (*known, close, *key[len(known) + 1 :])
        meant = meant if meant in all_keys() else (*known, close)
        return f"unknown key; did you mean {dotted(meant)}?"
    others = {key[-1]: key for key in all_keys()}
    if close := nearest(word, others, cutoff=0.8):
        return f"unknown key; did you mean {dotted(others[close])}?"
    place = f"under {dotted(known)}" if known else "at the top"
    known_keys = ", ".join(here[:10] + ["..."] * (len(here) > 10))
    return f"unknown key; {place} there are {known_keys}"
