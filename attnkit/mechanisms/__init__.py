"""The attention mechanisms: one file is one mechanism and one recipe word.

Facts that need no torch come from `attnkit.recipe.mechanism_registry` and are re-exported here; this module imports
the files of mechanisms and builds them.

Start with `load` (from a word to its class), and with `dot.Dot` as an example of a mechanism. Imports `attention`,
`ops` and the packages below them.
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
"""Class attributes that the options of a mechanism can change."""


def create(word: str, shape: "Shape", options: Mapping[str, Any]) -> "Attention":
    """Return a mechanism for a layer of this shape, with class attributes that follow its options.

    For parts that alternate between layers, pass a part from `layer_schedule`. Raises UsageError as
    `resolve_capabilities`, and for option values that the mechanism refuses.
    """
    spec, capabilities = facts(word), resolve_capabilities(word, options)
    mechanism_class = load(word)
    mechanism = mechanism_class(shape, **options)
    for name in CHANGING:
        if getattr(capabilities, name) != getattr(spec, name):
            setattr(mechanism, name, getattr(capabilities, name))
    return mechanism


def load(word: str) -> "type[Attention]":
    """Import the class of a mechanism. Raises UsageError if the word is unknown or the file of a plug-in fails."""
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
            # the innermost line of the file in the traceback
            line = ([f.lineno for f in frames if f.filename == str(path)] or [1])[-1]
            raise UsageError(f"{path}:{line}: {type(error).__name__}: {error}") from error
    else:
        module = importlib.import_module(installed()[word].module)
    mechanism: type[Attention] = getattr(module, mechanism_file.mechanism_class(path))
    return mechanism


def word_of(mechanism: "type[Attention]") -> str:
    """Return the recipe word of a class, or the name of the class if recipes have no word for it."""
    module = mechanism.__module__
    for word in (*shipped(), *plugged()):
        if module in (f"{__name__}.{word.replace('-', '_')}", module_name(word)):
            return word
    return next((word for word, entry in installed().items() if entry.module == module), mechanism.__name__)


def plugin_error(error: BaseException) -> str | None:
    """Return the message, with the file, of an error caused by a mechanism from outside attnkit; None otherwise."""
    files = {str(spec.path) for spec in map(facts, names()) if spec.origin != "attnkit"}
    if not files:
        return None
    message = f"{type(error).__name__}: {error}"
    frames = [*traceback.walk_tb(error.__traceback__)][::-1]
    for frame, line in frames:
        if frame.f_code.co_filename in files:
            return f"{frame.f_code.co_filename}:{line}: {message}"
    for frame, _ in frames:  # a wrong return value or wrong parameters
        instance = frame.f_locals.get("self")
        mechanism_class = frame.f_locals.get("mechanism_class") if frame.f_code is create.__code__ else None
        for candidate in (mechanism_class, type(instance), type(getattr(instance, "mechanism", None))):
            file = getattr(sys.modules.get(getattr(candidate, "__module__", "")), "__file__", None)
            if file in files:
                return f"{file}: not a valid mechanism: {message}"
    return None
