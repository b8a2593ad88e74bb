"""Which attention mechanisms there are and what each can do, read from their files as text.

Nothing is imported, so a recipe is checked without torch.  A word is the file's name with hyphens.
Mechanisms from outside come by the entry-point group `attnkit.mechanisms` of an installed package
(name = word, value = module) or by `plug_in`.
"""

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from attnkit.errors import MissingInputError, RecipeError, UsageError
from attnkit.recipe import mechanism_file, yaml_nodes
from attnkit.recipe.issues import COMMAND_LINE, Issues, Position, ValidationIssue
from attnkit.recipe.mechanism_file import MechanismSpec
from attnkit.recipe.score_options import OF_ONE_SEQUENCE, LayerOptions, ScoreOptions
from attnkit.recipe.values import read, split_words, written
from attnkit.recipe.yaml_nodes import Node, Scalar, read_value
from attnkit.text import nearest, quoted

WHOLE_LAYER = (*LayerOptions._fields, *ScoreOptions._fields, "key_heads")
"""Options of a layer as a whole, which a part of a composite cannot have of its own."""
LARGEST_OPTION = 2**20
"""No option needs a larger whole number: a layer of that size would fill any memory."""
GROUP = "attnkit.mechanisms"
"""The entry-point group of packages that bring mechanisms."""
_FOLDER = Path(__file__).parents[1] / "mechanisms"
_WORD = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_plugged: dict[str, Path] = {}


def names() -> list[str]:
    """All recipe words, sorted."""
    return sorted({*shipped(), *_plugged, *(installed().keys() - faults().keys())})


def facts(word: str) -> MechanismSpec:
    """What a mechanism can do, read from its file without importing it.

    Raises UsageError for an unknown word, naming the nearest.
    """
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
    """Why a word is refused, and what was probably meant."""
    text = f"no attention mechanism is called {quoted(word)}"
    if close := nearest(word, names()):
        return f"{text}; did you mean {close}?"
    return f"{text}; `attnkit mechanisms` lists them, and one of your own comes by --plugin FILE"


class Part(NamedTuple):
    """One part of a composite mechanism."""

    word: str
    options: Mapping[str, Any]


def part(word: str, inside: str) -> MechanismSpec:
    """The facts of a mechanism as a part of the composite `inside`.

    A part that is mixed has its own options only, one that has a layer for itself all of them.
    Raises UsageError for an unknown word and for one that cannot be a part.
    """
    known, layered = facts(word), facts(inside).layered
    if not _fits(known, layered):
        fits = ", ".join(name for name in names() if _fits(facts(name), layered))
        raise UsageError(f"{word} cannot be a part of {inside}; its parts can be {fits}")
    if layered:
        return known
    own = {name: o for name, o in known.options.items() if name not in WHOLE_LAYER}
    return replace(known, options=own)


def _fits(known: MechanismSpec, layered: bool) -> bool:
    """Whether a mechanism can be a part: of a mixture by its scores, of layers unless composite."""
    return not known.composite if layered else known.mixable


def layer_schedule(word: str, options: Mapping[str, Any]) -> list[Part]:
    """What the layers of a place are built of, from the first on and then again.

    That is the mechanism itself unless its parts have layers for themselves.  Raises UsageError as
    `resolve_capabilities`.
    """
    known = facts(word)
    if not known.layered:
        return [Part(word, options)]
    resolve_capabilities(word, options)
    return parts(known, options[known.composite])


def parts(known: MechanismSpec, given: object) -> list[Part]:
    """The parts of a composite: a list of words and of mappings {name: word, option: value}.

    Raises UsageError for anything else, for fewer than two, and for an option that a part lacks.
    """
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) < 2:
        raise UsageError(
            f"{known.word}: {known.composite} must be a list of two mechanisms or more, each a word"
            f" or {{name: word}} with its options, got {given!r}"
        )
    chosen = []
    for item in given:
        if isinstance(item, str):
            item = {"name": item}
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            raise UsageError(
                f"{known.word}: a part must be a word or {{name: word}} with its options, got "
                f"{item!r}"
            )
        word, options = item["name"], {name: item[name] for name in item if name != "name"}
        known_part = part(word, known.word)
        for name in options:
            if name not in known_part.options:
                raise UsageError(no_option(known_part, name, known.word))
        chosen.append(Part(word, options))
    return chosen


def resolve_capabilities(word: str, options: Mapping[str, Any]) -> MechanismSpec:
    """What a mechanism can do with these options; a composite can do what all its parts can.

    Nothing is imported.  Raises UsageError where the options fit no mechanism: an unknown part, a
    missing list of parts, a number of parts that an option does not take.
    """
    known = facts(word)
    for name, values in known.facts_with.items():
        known = replace(known, **values.get(str(options.get(name)), {}))
    for name, changed in known.given.items():
        if options.get(name) is not None:
            known = replace(known, **changed)
    for name, ahead in known.ahead.items():
        found = next((value for value in options.get(name) or () if value in ahead), None)
        if found is not None:
            why = f"{known.why}, and {name}: {found} looks ahead"
            known = replace(known, causal=False, why=why)
    known = _resolved(known, options) if known.composite else known
    for name, why in OF_ONE_SEQUENCE.items():
        if options.get(name):
            why = f"{known.why}; {name}: {why}" if known.why else f"{name}: {why}"
            known = replace(known, cross=False, why=why)
    if options.get("short_conv"):  # which looks at neighbours, found by sorting
        known = replace(known, by_distance=True, onnx=())
    return known


def no_option(known: MechanismSpec, name: str, inside: str = "") -> str:
    """Why an option of a mechanism, or of a part of `inside`, is refused; with the nearest one."""
    word = known.word
    if inside and name in facts(word).options and name in WHOLE_LAYER:
        reason = f"{name} belongs to the layer as a whole"
        if name in facts(inside).options:
            return f"{reason}: set it on {inside} instead of on {word}"
        return f"{reason}, and {inside} does not have it"
    close = nearest(name, known.options)
    hint = f"did you mean {close}?" if close else f"it has {', '.join(known.options) or 'none'}"
    as_part = f" as a part of {inside}" if inside else ""
    return f"{word}{as_part} has no option {quoted(name)}; {hint}"


def _resolved(known: MechanismSpec, options: Mapping[str, Any]) -> MechanismSpec:
    """The facts of a composite with these options."""
    if known.composite not in options:
        example = f"{{name: {known.word}, {known.composite}: [scaled-dot, synthesizer-random]}}"
        raise UsageError(f"{known.word} needs {known.composite}; write {example}")
    given = parts(known, options[known.composite])
    for name, value in known.pairs.items():
        if options.get(name) == value and len(given) != 2:
            raise UsageError(
                f"{known.word}: {name}: {value} takes exactly two parts, got {len(given)}"
            )
    if known.layered and len({bool(chosen.get("residual_scores")) for _, chosen in given}) > 1:
        raise UsageError(
            f"{known.word}: residual_scores adds the scores of the layer before: set it on all "
            "parts, or on none"
        )
    all_of = [resolve_capabilities(word, chosen) for word, chosen in given]
    limits = [f.limit for f in all_of if f.limit is not None]
    numbers = [limit for limit in limits if isinstance(limit, int)]
    positions = [{*f.positions} for f in all_of]
    reasons = dict.fromkeys(f"its part {f.word}: {f.why}" for f in all_of if f.why)
    if known.layered:
        for f, able in zip(all_of, positions, strict=True):
            able |= set() if {*"qk"} <= {*f.uses} else {"rope"}  # which turns nothing there
    return replace(
        known,
        uses="".join(letter for letter in "qxkvg" if any(letter in f.uses for f in all_of)),
        causal=all(f.causal for f in all_of),
        encoder=all(f.encoder for f in all_of),
        cross=all(f.cross for f in all_of),
        limit=min(numbers) if numbers else next(iter(limits), None),
        positions=tuple(s for s in known.positions if all(s in able for able in positions)),
        map="effective" if any(f.map == "effective" for f in all_of) else "exact",
        state="growing" if any(f.state == "growing" for f in all_of) else "constant",
        quadratic=any(f.quadratic for f in all_of),
        by_distance=any(f.by_distance for f in all_of),
        cost=(", " if known.layered else " + ").join(dict.fromkeys(f.cost for f in all_of)),
        why="; ".join([*reasons][:2]),  # more would make messages that nobody reads
    )


def option_value(known: MechanismSpec, name: str, place: Position, node: Node) -> Any:
    """The value of one option; `place` is that of its key.

    Raises ValidationIssue: there is no such option, or it does not take this value.
    """
    option = known.options.get(name)
    if option is None:
        raise ValidationIssue(lambda: no_option(known, name), place=place)
    if name == known.composite:
        items = node.items if isinstance(node, yaml_nodes.Sequence) else split_words(node)
        if len(items) < 2:
            text = "must be a list of two mechanisms or more, such as"
            example = "[scaled-dot, synthesizer-random]"
            raise ValidationIssue(f"{text} {example}, got {written(node)}", place=node.place)
        return tuple(_part(known.word, item) for item in items)
    value = read(node, option.type, option.default)
    if type(value) is int and value > LARGEST_OPTION:
        raise ValidationIssue(f"must be at most {LARGEST_OPTION}, got {value}", place=node.place)
    return value


def from_words(known: MechanismSpec, words: Sequence[str]) -> dict[str, Any]:
    """Options of a mechanism from KEY=VALUE words of a command line; a value may be YAML.

    Raises UsageError: one line for each word that is refused, or an option is missing.
    """
    nodes: dict[str, Node] = {}
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        if not equals:
            raise UsageError(f"{quoted(word)} must be KEY=VALUE, an option of {known.word}")
        if name in nodes:
            raise UsageError(f"{name} is given twice; give it once")
        nodes[name] = read_value(text)
    return from_nodes(known, nodes)


def from_nodes(known: MechanismSpec, nodes: dict[str, Node]) -> dict[str, Any]:
    """Options of a mechanism that were written on a command line; raises as `from_words`."""
    issues, options = Issues(), {}
    for name, node in nodes.items():
        try:
            options[name] = option_value(known, name, COMMAND_LINE, node)
        except ValidationIssue as issue:
            issues.add(COMMAND_LINE, (name, *issue.key), issue.text)
    try:
        issues.stop()
    except RecipeError as error:
        raise UsageError(str(error)) from error
    missing = [name for name, o in known.options.items() if o.required and name not in options]
    if missing:
        raise UsageError(f"{known.word} needs {', '.join(missing)}; write {missing[0]}=VALUE")
    return options


def _part(composite: str, node: Node) -> str | dict[str, Any]:
    """One part: its word, or its word and its options."""
    fields = node.fields if isinstance(node, yaml_nodes.Mapping) else {"name": (node.place, node)}
    _, name = fields.get("name", (node.place, None))
    if not isinstance(name, Scalar) or name.null:
        text = f"a part must be a word or {{name: word}} with its options, got {written(node)}"
        raise ValidationIssue(text, place=node.place)
    try:
        known = part(name.text, composite)
    except UsageError as error:
        raise ValidationIssue(str(error), place=name.place) from None
    options: dict[str, Any] = {}
    for option, (place, value) in fields.items():
        if option == "name":
            continue
        try:
            if option not in known.options:
                raise ValidationIssue(no_option(known, option, composite), place=place)
            options[option] = option_value(known, option, place, value)
        except ValidationIssue as issue:
            raise issue.below(option) from None
    return {"name": name.text, **options} if options else name.text


def plug_in(path: str | Path) -> str:
    """Add the mechanism of a file for the rest of this process; returns its word.

    The word is the file's name without suffix, with hyphens.  The file is read here, and run when
    the mechanism is first built.

    Raises:
        MissingInputError: there is no such file.
        UsageError: the word is taken or none, the file is no Python or has no mechanism.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingInputError(f"plug-in {path}: no such file; name a Python file")
    word = path.stem.replace("_", "-")
    if path.suffix != ".py" or not _WORD.fullmatch(word):
        raise UsageError(
            f"plug-in {path}: the file's name becomes the recipe word, so it must be small ASCII"
            " letters, digits and _, such as my_mechanism.py"
        )
    if word in shipped():
        raise UsageError(f"plug-in {path}: {word} is a mechanism of attnkit; rename the file")
    path = path.resolve()
    if _plugged.get(word, path) != path:
        raise UsageError(f"plug-in {path}: {word} is plugged in by {_plugged[word]}; rename one")
    mechanism_file.forget()
    _read.cache_clear()
    _read(path, word, str(path))
    _plugged[word] = path
    sys.modules.pop(module_name(word), None)
    return word


def plugged() -> dict[str, Path]:
    """Word -> file of what `plug_in` added."""
    return dict(_plugged)


@cache
def faults() -> dict[str, str]:
    """Words of installed packages that cannot be used -> the reason."""
    found = {}
    for word, entry in installed().items():
        who = f"package {_package(entry)}: mechanism {quoted(word)}"
        if word in shipped():
            found[word] = f"{who} has the name of a mechanism of attnkit, which is used instead"
        elif not _WORD.fullmatch(word):
            found[word] = f"{who} must be named by small ASCII letters, digits and hyphens"
        else:
            try:
                _read_installed(entry)
            except UsageError as error:
                found[word] = f"{who}: {error}"
    return found


_read = cache(mechanism_file.read)


@cache
def shipped() -> dict[str, Path]:
    return {
        path.stem.replace("_", "-"): path
        for path in _FOLDER.glob("*.py")
        if path.stem != "__init__"
    }


@cache
def installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"


def _read_installed(entry: EntryPoint) -> MechanismSpec:
    """The facts of a module; neither it nor its packages are imported.  Raises UsageError."""
    name, *inner = entry.module.split(".")
    try:
        spec = importlib.util.find_spec(name)
        for submodule in inner:
            name = f"{name}.{submodule}"
            spec = PathFinder.find_spec(name, spec.submodule_search_locations) if spec else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        raise UsageError(f"module {entry.module} is not there as a Python file")
    return _read(Path(str(spec.origin)), entry.name, _package(entry))


def module_name(word: str) -> str:
    return f"attnkit_plugin_{word.replace('-', '_')}"
