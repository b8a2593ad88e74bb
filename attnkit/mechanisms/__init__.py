"""The attention mechanisms: one file = one mechanism = one recipe word.

What is known of them without importing torch comes from `attnkit.recipe.mechanism_registry` and is
handed on here; this module imports their files and builds them.

Start with `load` (a word becomes a class), and as an example of a file `dot.Dot`. Imports
`attention`, `ops` and what is below them.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnkit.errors import UsageError
from attnkit.recipe import mechanism_file
from attnkit.recipe.mechanism_file import MechanismSpec, Option
from attnkit.recipe.mechanism_registry import (
    checked_options,
    facts,
    faults,
    installed,
    layer_schedule,
    module_name,
    names,
    parts,
    plug_in,
    plugged,
    resolve_capabilities,
    shipped,
)

if TYPE_CHECKING:
    from attnkit.attention import Attention, Shape


__all__ = [
    "MechanismSpec",
    "Option",
    "checked_options",
    "resolve_capabilities",
    "create",
    "facts",
    "faults",
    "layer_schedule",
    "load",
    "names",
]
__all__ += ["parts", "plug_in", "plugged", "word_of"]

CHANGING = ["uses", "causal", "encoder", "cross", "positions", "cost", "quadratic", "by_distance", "why"]
"""Facts of a built mechanism that its options change."""


def create(word: str, shape: "Shape", options: Mapping[str, Any]) -> "Attention":
    """A mechanism for a layer of this shape, with what its options change in its facts.

    Where parts take turns it is given one of them, by `layer_schedule`.  Raises UsageError as
    `resolve_capabilities`, and for option values that the mechanism refuses.
    """
    known, able = facts(word), resolve_capabilities(word, options)
    built = load(word)
    mechanism = built(shape, **options)
    for name in CHANGING:
        if getattr(able, name) != getattr(known, name):
            setattr(mechanism, name, getattr(able, name))
    return mechanism


def load(word: str) -> "type[Attention]":
    """Import the class of a mechanism.

    Raises UsageError for an unknown word, or where the file of a plug-in fails.
    """
    path, name = facts(word).path, module_name(word)
    if word in shipped():
        module = importlib.import_module(f"{__name__}.{path.stem}")
    elif word in plugged() and name in sys.modules:
        module = sys.modules[name]
    elif word in plugged():
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            frames = traceback.extract_tb(error.__traceback__)
            # the last line of the file that the error passed through
            line = ([f.lineno for f in frames if f.filename == str(path)] or [1])[-1]
            raise UsageError(f"{path}:{line}: {type(error).__name__}: {error}") from error
    else:
        module = importlib.import_module(installed()[word].module)
    mechanism: type[Attention] = getattr(module, mechanism_file.mechanism_class(path))
    return mechanism


def word_of(mechanism: "type[Attention]") -> str:
    """The recipe word of a class, or its own name where recipes have no word for it."""
    module = mechanism.__module__
    for word in (*shipped(), *plugged()):
        if module in (f"{__name__}.{word.replace('-', '_')}", module_name(word)):
            return word
    found = (word for word, entry in installed().items() if entry.module == module)
    return next(found, mechanism.__name__)


def plugin_error(error: BaseException) -> str | None:
    """What a mechanism from outside did wrong, with its file; None where there was none."""
    files = {str(one.path) for one in map(facts, names()) if one.origin != "attnkit"}
    if not files:
        return None
    told = f"{type(error).__name__}: {error}"
    frames = [*traceback.walk_tb(error.__traceback__)][::-1]
    for frame, line in frames:
        if frame.f_code.co_filename in files:
            return f"{frame.f_code.co_filename}:{line}: {told}"
    for frame, _ in frames:  # it returned something else than it should, or takes other arguments
        own = frame.f_locals.get("self")
        built = frame.f_locals.get("built") if frame.f_code is create.__code__ else None
        for part in (built, type(own), type(getattr(own, "mechanism", None))):
            file = getattr(sys.modules.get(getattr(part, "__module__", "")), "__file__", None)
            if file in files:
                return f"{file}: does not do what a mechanism must: {told}"
    return None
