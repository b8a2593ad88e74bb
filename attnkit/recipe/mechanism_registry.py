"""Registry of the attention mechanisms and their facts, which are read from their files as text.

Nothing is imported, so a recipe is checked without torch.  The word of a mechanism in recipes is its file's name with
hyphens.  External mechanisms are registered by the entry-point group `attnkit.mechanisms` of an installed package
(name = word, value = module) or by `plug_in`.
"""

import importlib.util
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, TypeAdapter, WithJsonSchema

from attnkit.errors import MissingInputError, UsageError
from attnkit.recipe import common_names, mechanism_file
from attnkit.recipe.mechanism_file import MechanismSpec
from attnkit.recipe.metrics import is_metric, metric_files, plug_in_metric
from attnkit.recipe.reading import as_json, typed_value
from attnkit.recipe.score_options import OF_ONE_SEQUENCE, LayerOptions, ScoreOptions
from attnkit.recipe.values import shown
from attnkit.recipe.yaml_nodes import read_value
from attnkit.text import hint, quoted

WHOLE_LAYER = (*LayerOptions._fields, *ScoreOptions._fields, "key_heads")
"""Options of a whole layer, which a part of a composite cannot have."""
LARGEST_OPTION = 2**20
"""Maximum of integer options: a layer of that size would fill any memory."""
PARTS_TEXT = "a list of at least two mechanisms, such as [scaled-dot, synthesizer-random]"
"""Description of the parts of a composite, for messages."""
GROUP = "attnkit.mechanisms"
_FOLDER = Path(__file__).parents[1] / "mechanisms"
_WORD = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_plugged: dict[str, Path] = {}


def names() -> list[str]:
    """Return the words of all mechanisms, sorted."""
    return sorted({*shipped(), *_plugged, *(installed().keys() - faults().keys())})


def facts(word: str) -> MechanismSpec:
    """Return the facts of a mechanism without importing it.  Raises UsageError, with the nearest word, if unknown."""
    if word in shipped():
        return _read(shipped()[word], word, "attnkit")
    if word in _plugged:
        return _read(_plugged[word], word, str(_plugged[word]))
    if word in faults():
        raise UsageError(faults()[word])
    if word in installed():
        return _read_installed(installed()[word])
    raise UsageError(unknown(word))


def unknown(word: str) -> str:
    """Return why a word is refused, and which one was probably meant."""
    text = f"no attention mechanism is called {quoted(word)}"
    if name := common_names.mechanism(word):
        return f"{text}; write {name}"
    file = Path(f"{word.replace('-', '_')}.py")
    if _WORD.fullmatch(word) and file.is_file():
        return f"{text}; add --plugin {file}"
    suggestion = hint(word, names(), "`attnkit mechanisms` lists them")
    return f"{text}; {suggestion} (load your own with --plugin FILE)"


class Part(NamedTuple):
    """A part of a composite mechanism."""

    word: str
    options: Mapping[str, Any]


def part(word: str, composite: str) -> MechanismSpec:
    """Return the facts of a mechanism as a part of a composite.

    A mixed part has only the options of the mechanism itself; a part with a layer of its own has all options.  Raises
    UsageError if the word is unknown or the mechanism cannot be a part.
    """
    spec, layered = facts(word), facts(composite).layered

    def fits(candidate: MechanismSpec) -> bool:
        return not candidate.composite if layered else candidate.mixable

    if not fits(spec):
        allowed = ", ".join(name for name in names() if fits(facts(name)))
        raise UsageError(f"{word} cannot be a part of {composite}; choose from {allowed}")
    if layered:
        return spec
    options = {name: option for name, option in spec.options.items() if name not in WHOLE_LAYER}
    return replace(spec, options=options)


def layer_schedule(word: str, options: Mapping[str, Any]) -> list[Part]:
    """Return the mechanisms of the layers of a role in order; further layers repeat the list.

    The list has one element unless the mechanism is layered.  Raises UsageError as `resolve_capabilities` does.
    """
    spec = facts(word)
    if not spec.layered:
        return [Part(word, options)]
    resolve_capabilities(word, options)
    return parts(spec, options[spec.composite])


def parts(spec: MechanismSpec, given: object) -> list[Part]:
    """Return the parts of a composite, given a list of words and of mappings {name: word, option: value}.

    Raises UsageError for any other value, for fewer than two parts, and for options that a part does not have.
    """
    typed = checked_options(spec.word, {spec.composite: given})[spec.composite]
    mappings = ({"name": item} if isinstance(item, str) else item for item in typed)
    return [Part(item["name"], {n: v for n, v in item.items() if n != "name"}) for item in mappings]


def resolve_capabilities(word: str, options: Mapping[str, Any]) -> MechanismSpec:
    """Return the facts of a mechanism with these options; a composite supports what all of its parts support.

    Nothing is imported.  Raises UsageError for an unknown part, missing parts, or a wrong number of parts.
    """
    spec = facts(word)
    for name, values in spec.facts_with.items():
        spec = replace(spec, **values.get(str(options.get(name)), {}))
    for name, facts_if_set in spec.given.items():
        spec = replace(spec, **(facts_if_set if options.get(name) is not None else {}))
    for name, ahead in spec.ahead.items():
        if non_causal := [value for value in options.get(name) or () if value in ahead]:
            why = f"{spec.why}, and {name}: {non_causal[0]} looks ahead"
            spec = replace(spec, causal=False, why=why)
    spec = _composite_spec(spec, options) if spec.composite else spec
    for name, why in OF_ONE_SEQUENCE.items():
        if options.get(name):
            why = f"{spec.why}; {name}: {why}" if spec.why else f"{name}: {why}"
            spec = replace(spec, cross=False, why=why)
    if options.get("short_conv"):  # finds neighboring tokens by sorting them
        spec = replace(spec, by_distance=True, onnx=())
    return spec


def _composite_spec(spec: MechanismSpec, options: Mapping[str, Any]) -> MechanismSpec:
    if text := missing_options(spec, options):
        raise UsageError(text)
    components = parts(spec, options[spec.composite])
    for name, value in spec.pairs.items():
        if options.get(name) == value and len(components) != 2:
            text = f"{spec.word}: {name}: {value} takes exactly two parts, got {len(components)}"
            raise UsageError(text)
    if spec.layered and len({bool(part_options.get("residual_scores")) for _, part_options in components}) > 1:
        raise UsageError(
            f"{spec.word}: residual_scores adds the scores of the previous layer: set it on all parts, or on none"
        )
    specs = [resolve_capabilities(*component) for component in components]
    limits = [f.limit for f in specs if f.limit is not None]
    numbers = [limit for limit in limits if isinstance(limit, int)]
    positions = [{*f.positions} for f in specs]
    reasons = dict.fromkeys(f"its part {f.word}: {f.why}" for f in specs if f.why)
    if spec.layered:
        for f, schemes in zip(specs, positions, strict=True):
            schemes |= set() if {*"qk"} <= {*f.uses} else {"rope"}  # no queries or keys to rotate
    return replace(
        spec,
        uses="".join(letter for letter in "qxkvg" if any(letter in f.uses for f in specs)),
        causal=all(f.causal for f in specs),
        encoder=all(f.encoder for f in specs),
        cross=all(f.cross for f in specs),
        limit=min(numbers) if numbers else next(iter(limits), None),
        positions=tuple(s for s in spec.positions if all(s in schemes for schemes in positions)),
        map="effective" if any(f.map == "effective" for f in specs) else "exact",
        state="growing" if any(f.state == "growing" for f in specs) else "constant",
        quadratic=any(f.quadratic for f in specs),
        by_distance=any(f.by_distance for f in specs),
        remembers_queries=any(f.remembers_queries for f in specs),
        cost=(", " if spec.layered else " + ").join(dict.fromkeys(f.cost for f in specs)),
        why="; ".join([*reasons][:2]),  # more would make messages too long to read
    )


def unknown_option(spec: MechanismSpec, name: str, composite: str = "") -> str:
    """Return why an option of a mechanism, or of a part of `composite`, is refused, with the nearest option."""
    word = spec.word
    if composite and name in WHOLE_LAYER:
        return f"{name} is an option of the whole layer: set it on {composite}, not on {word}"
    suggestion = hint(name, spec.options, f"it has {', '.join(spec.options) or 'none'}")
    as_part = f" as a part of {composite}" if composite else ""
    return f"{word}{as_part} has no option {quoted(name)}; {suggestion}"


def missing_options(spec: MechanismSpec, given: Collection[str]) -> str:
    """Return why a mechanism with only these options is refused, or "" if no required option is missing."""
    missing = [name for name, option in spec.options.items() if option.required and name not in given]
    if not missing:
        return ""
    value = "[scaled-dot, synthesizer-random]" if missing[0] == spec.composite else "..."
    example = f"{{name: {spec.word}, {missing[0]}: {value}}}"
    return f"{spec.word} needs {', '.join(missing)}; write {example}"


@cache
def option_type(word: str, name: str) -> TypeAdapter[Any]:
    """Return the type with which pydantic validates an option of a mechanism."""
    spec = facts(word)
    option = spec.options[name]
    kind: Any = Annotated[option.type, AfterValidator(_not_huge)]
    if name == spec.composite:
        item = Annotated[Any, AfterValidator(partial(_typed_part, word))]
        wanted = {"type": "array", "items": {}, "minItems": 2, "wanted": PARTS_TEXT}
        kind = Annotated[tuple[item, ...], Field(min_length=2), WithJsonSchema(wanted)]
    return TypeAdapter(kind if option.required else Annotated[kind, Field(default=option.default)])


def checked_options(word: str, options: Mapping[str, Any], composite: str = "") -> dict[str, Any]:
    """Return options with the types that a mechanism declares; `composite` is given if it is a part.

    Raises UsageError for values of other types, unknown or missing options, and an unknown mechanism.
    """
    spec = part(word, composite) if composite else facts(word)
    typed = {}
    for name, value in options.items():
        if name not in spec.options:
            raise UsageError(unknown_option(spec, name, composite))
        try:
            typed[name] = typed_value(_frozen(value), option_type(word, name))
        except UsageError as error:
            text = str(error)
            raise UsageError(f"{word}: {name} {text}" if text.startswith("must") else text) from None
    if text := missing_options(spec, options):
        raise UsageError(text)
    return typed


def options_of_words(word: str, words: Sequence[str]) -> dict[str, Any]:
    """Return typed options from KEY=VALUE words, whose values may be YAML.  Raises UsageError."""
    given: dict[str, Any] = {}
    for text in words:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise UsageError(f"{quoted(text)} must be KEY=VALUE, an option of {word}")
        if name in given:
            raise UsageError(f"{name} is given twice; give it once")
        given[name] = as_json(read_value(value))
    return checked_options(word, given)


def _typed_part(composite: str, given: Any) -> str | dict[str, Any]:
    """Return the word of a part, or a mapping of its word and its options."""
    given = {"name": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise UsageError(f"a part must be the name of a mechanism, or {{name: NAME}} with options, got {shown(given)}")
    word: str = given["name"]
    options = {name: value for name, value in given.items() if name != "name"}
    typed = checked_options(word, options, composite)
    return {"name": word, **typed} if typed else word


def _not_huge(value: Any) -> Any:
    if type(value) is int and value > LARGEST_OPTION:
        raise ValueError(f"must be at most {LARGEST_OPTION}, got {value}")
    return value


def _frozen(value: Any) -> Any:
    """Convert lists to tuples, because everything in a recipe is frozen."""
    if isinstance(value, Mapping):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def plug_in(path: str | Path) -> str:
    """Register the mechanism or metric of a file for the rest of this process, and return its word.

    The word is the file's name without suffix, with hyphens.  The file is read here, and run when the mechanism is
    first built.

    Raises MissingInputError if there is no such file, UsageError if the word is taken or invalid, or if the file is
    not valid Python or contains no mechanism.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingInputError(f"plug-in {path}: no such file; name a Python file")
    word = path.stem.replace("_", "-")
    if path.suffix != ".py" or not _WORD.fullmatch(word):
        raise UsageError(
            f"plug-in {path}: the file name becomes the name in recipes: use lower-case "
            "ASCII letters, digits and _, such as my_mechanism.py"
        )
    path = path.resolve()
    if (taken := plugged().get(word, path)) != path:
        raise UsageError(f"plug-in {path}: {word} is already loaded from {taken}; rename one of the files")
    if is_metric(path):
        plug_in_metric(path, word)
        return word
    if word in shipped():
        raise UsageError(f"plug-in {path}: {word} is a mechanism of attnkit; rename the file")
    mechanism_file.clear_cache()
    _read.cache_clear()
    option_type.cache_clear()
    _read(path, word, str(path))
    _plugged[word] = path
    sys.modules.pop(module_name(word), None)
    return word


def plugged() -> dict[str, Path]:
    """Return the files that `plug_in` added, by word, metrics included."""
    return _plugged | metric_files()


@cache
def faults() -> dict[str, str]:
    """Return why mechanisms of installed packages cannot be used, by word."""
    reasons = {}
    for word, entry in installed().items():
        try:
            if word in shipped():
                raise UsageError("attnkit has a mechanism of this name, which is used instead")
            if not _WORD.fullmatch(word):
                raise UsageError("its name must consist of lower-case ASCII letters, digits and hyphens")
            _read_installed(entry)
        except UsageError as error:
            reasons[word] = f"package {_package(entry)}: mechanism {quoted(word)}: {error}"
    return reasons


_read = cache(mechanism_file.read)


@cache
def shipped() -> dict[str, Path]:
    return {path.stem.replace("_", "-"): path for path in _FOLDER.glob("*.py") if path.stem != "__init__"}


@cache
def installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"


def _read_installed(entry: EntryPoint) -> MechanismSpec:
    """Return the facts of a module without importing it or its packages.  Raises UsageError."""
    name, *inner = entry.module.split(".")
    try:
        spec = importlib.util.find_spec(name)
        for submodule in inner:
            name = f"{name}.{submodule}"
            spec = PathFinder.find_spec(name, spec.submodule_search_locations) if spec else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        raise UsageError(f"module {entry.module} has no Python file")
    return _read(Path(str(spec.origin)), entry.name, _package(entry))


def module_name(word: str) -> str:
    return f"attnkit_plugin_{word.replace('-', '_')}"
