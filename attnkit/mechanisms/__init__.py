"""The attention mechanisms: one file = one mechanism = one recipe word.

This module reads the files without importing them, so what a mechanism can do is known without
torch.  A word is the file's name with hyphens.  Mechanisms from outside come by the entry-point
group `attnkit.mechanisms` of an installed package (name = word, value = module) or by `plug_in`.
"""

import importlib
import importlib.util
import re
import sys
import traceback
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from attnkit import mechanism_file
from attnkit.errors import MissingInputError, UsageError
from attnkit.mechanism_file import Facts as Facts
from attnkit.mechanism_file import Option as Option
from attnkit.text import nearest, quoted

if TYPE_CHECKING:
    from attnkit.attention import Attention

GROUP = "attnkit.mechanisms"
"""The entry-point group of packages that bring mechanisms."""
_FOLDER = Path(__file__).parent
_WORD = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_plugged: dict[str, Path] = {}


def names() -> list[str]:
    """All recipe words, sorted."""
    return sorted({*_shipped(), *_plugged, *(_installed().keys() - faults().keys())})


def facts(word: str) -> Facts:
    """What a mechanism can do, read from its file without importing it.

    Raises UsageError for an unknown word, naming the nearest.
    """
    if word in _shipped():
        return _read(_shipped()[word], word, "attnkit")
    if word in _plugged:
        return _read(_plugged[word], word, str(_plugged[word]))
    if word in faults():
        raise UsageError(faults()[word])
    if word in _installed():
        return _read_installed(_installed()[word])
    close = nearest(word, names())
    hint = f"did you mean {close!r}?" if close else f"known: {', '.join(names())}"
    raise UsageError(f"attention mechanism {word!r} is not known; {hint}")


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
        raise MissingInputError(f"plug-in {path} is not there; name a Python file")
    word = path.stem.replace("_", "-")
    if path.suffix != ".py" or not _WORD.fullmatch(word):
        raise UsageError(
            f"plug-in {path}: the file's name becomes the recipe word, so it must be small letters,"
            " digits and _, such as my_mechanism.py"
        )
    if word in _shipped():
        raise UsageError(f"plug-in {path}: {word} is a mechanism of attnkit; rename the file")
    path = path.resolve()
    if _plugged.get(word, path) != path:
        raise UsageError(f"plug-in {path}: {word} is plugged in by {_plugged[word]}; rename one")
    mechanism_file.forget()
    _read.cache_clear()
    _read(path, word, str(path))
    _plugged[word] = path
    sys.modules.pop(_module_name(word), None)
    return word


def plugged() -> dict[str, Path]:
    """Word -> file of what `plug_in` added."""
    return dict(_plugged)


@cache
def faults() -> dict[str, str]:
    """Words of installed packages that cannot be used -> the reason."""
    found = {}
    for word, entry in _installed().items():
        who = f"package {_package(entry)}: mechanism {quoted(word)}"
        if word in _shipped():
            found[word] = f"{who} has the name of a mechanism of attnkit, which is used instead"
        elif not _WORD.fullmatch(word):
            found[word] = f"{who} must be named by small letters, digits and hyphens"
        else:
            try:
                _read_installed(entry)
            except UsageError as error:
                found[word] = f"{who}: {error}"
    return found


def load(word: str) -> "type[Attention]":
    """Import the class of a mechanism.

    Raises UsageError for an unknown word, or where the file of a plug-in fails.
    """
    path = facts(word).path
    if word in _shipped():
        module = importlib.import_module(f"{__name__}.{path.stem}")
    elif word in _plugged:
        module = _run(word, path)
    else:
        module = importlib.import_module(_installed()[word].module)
    found: type[Attention] = getattr(module, mechanism_file.mechanism_class(path))
    return found


_read = cache(mechanism_file.read)


@cache
def _shipped() -> dict[str, Path]:
    return {
        path.stem.replace("_", "-"): path
        for path in _FOLDER.glob("*.py")
        if path.stem != "__init__"
    }


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"


def _read_installed(entry: EntryPoint) -> Facts:
    return _read(_file_of(entry.module), entry.name, _package(entry))


def _file_of(module: str) -> Path:
    """The file of a module; neither it nor its packages are imported.  Raises UsageError."""
    name, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(name)
        for part in inner:
            name = f"{name}.{part}"
            spec = PathFinder.find_spec(name, spec.submodule_search_locations) if spec else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        raise UsageError(f"module {module} is not there as a Python file")
    return Path(str(spec.origin))


def _module_name(word: str) -> str:
    return f"attnkit_plugin_{word.replace('-', '_')}"


def _run(word: str, path: Path) -> ModuleType:
    """Import the file of a plug-in, once."""
    name = _module_name(word)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{_where(error, path)}: {type(error).__name__}: {error}") from error
    return module


def _where(error: Exception, path: Path) -> str:
    """The last line of a plug-in's file that an error passed through."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    return f"{path}:{lines[-1] if lines else 1}"
