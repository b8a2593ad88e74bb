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
SWITCHES = ("sample", "chat", "fresh", "allow_change", "offline")
"""Options of the command line without a value."""


def in_python(message: str) -> str:
    """A message whose remedies are options of the command line, as keyword arguments."""
    message = message.replace("`attnkit train RECIPE`", "attnkit.train(RECIPE)")
    message = message.replace("--plugin", "--plugins")

    def keyword(found: re.Match[str]) -> str:
        name, value = found[1].replace("-", "_"), found[2]
        if value is None:
            return f"{name}=True" if name in SWITCHES else name
        number = re.fullmatch("[0-9.]*[0-9]", value)
        return f"{name}={value}" if number or value.isupper() else f"{name}={value!r}"

    return re.sub(r"--([a-z][a-z-]*)(?: ([A-Z]+\b|[0-9.]*[0-9]\b|\S+\.py\b))?", keyword, message)


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

    Raises UsageError: something is no text.
    """
    found = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else [texts]
    for one in found:
        if not isinstance(one, str):
            raise UsageError(f"{what} must be text, not {one!r}")
    return found
