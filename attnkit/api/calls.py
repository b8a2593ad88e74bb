"""What all functions of the Python API share: plug-ins, and remedies in the caller's terms."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from attnkit import mechanisms
from attnkit.errors import AttnkitError, UsageError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Plugins = str | Path | Sequence[str | Path]

_FLAGS = ("allow-change", "chat", "fresh", "offline", "sample")
_PYTHON = (
    (r"--plugin (\S+?\.py)", r'plugins=["\1"]'),
    (r"--plugin FILE", 'plugins=["FILE.py"]'),
    (r"`attnkit train RECIPE` makes (one|runs)", r"attnkit.train(RECIPE) makes \1"),
    (r"run `attnkit train` again", "call attnkit.train again"),
    (r"run the same command again", "call it again"),
    (r"--([a-z](?:[a-z-]*[a-z])?)(?: ([A-Z0-9][\w.]*))?(?=\W|$)", None),
)
"""Wording of the command line, and of Python."""


def in_python(message: str) -> str:
    """A message whose remedies are options of the command line, with those of the functions."""
    for pattern, replacement in _PYTHON:
        message = re.sub(pattern, replacement or _keyword, message)
    return message


def _keyword(match: re.Match[str]) -> str:
    name, value = match[1].replace("-", "_"), match[2]
    if match[1] in _FLAGS:
        return f"{name}=True" + (f" {value}" if value else "")
    return f"{name}={value}" if value else name


def for_callers(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function with errors whose remedies can be typed in Python."""

    @wraps(function)
    def called(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return function(*arguments, **options)
        except AttnkitError as error:
            error.args = (in_python(str(error)),)
            raise

    return called


def plug_in(plugins: Plugins) -> None:
    """Register the mechanisms and metrics of some files."""
    for file in [plugins] if isinstance(plugins, str | Path) else plugins:
        mechanisms.plug_in(file)


def several(names: str | Sequence[str]) -> list[str]:
    """Names as a list; a text is one name."""
    return [names] if isinstance(names, str) else list(names)


def several_texts(texts: str | Sequence[str], what: str = "texts") -> list[str]:
    """Texts as a list; a text is one.

    Raises:
        UsageError: something is no text.
    """
    found = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else [texts]
    for one in found:
        if not isinstance(one, str):
            raise UsageError(f"{what} must be text, not {one!r}")
    return found
