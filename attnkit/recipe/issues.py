"""Issues of a recipe, collected so that one error reports all of them."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn, TypeAlias

from attnkit.errors import RecipeError
from attnkit.text import quoted, safe_text

MAX_NAMED_VARIANTS = 3
"""Maximum number of variants that an issue names."""
MAX_ISSUES = 20
"""Maximum number of issues that are reported; the others are counted."""

Key = tuple[str, ...]
"""A key as its parts: ("train", "lr")."""
Issue: TypeAlias = tuple[str, ...]
"""A conflict between keys: the message, then the dotted keys involved, with the key to blame first."""


class Position(NamedTuple):
    """A position in a source; `line` 0 stands for the whole source (the command line)."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        name = safe_text(self.source).replace("\n", "\\n")
        return f"{name}:{self.line}:{self.column}" if self.line else name


COMMAND_LINE = Position("command line")


class Issues:
    """Collected issues of the current `variant`; an issue that several variants share is stored once."""

    def __init__(self) -> None:
        self._found: dict[tuple[Position, Key, str], tuple[str, list[str]]] = {}
        self._omitted = 0
        self.variant: str | None = None

    def add(self, place: Position, key: Key, text: str | Callable[[], str]) -> None:
        """Add an issue; `text` is a function if it is slow to compute."""
        entry = (place, key, text if isinstance(text, str) else "")
        if entry not in self._found:
            if len(self._found) >= MAX_ISSUES:
                self._omitted += 1
                return
            self._found[entry] = text if isinstance(text, str) else text(), []
        variants = self._found[entry][1]
        if self.variant is not None and self.variant not in variants:
            variants.append(self.variant)

    def __bool__(self) -> bool:
        return bool(self._found)

    def stop(self, variants: int = 1) -> None:
        """Raise RecipeError with one line per issue, in the order of the file, if there are any."""
        entries = sorted((place, key, *rest) for (place, key, _), rest in self._found.items())
        lines = []
        for place, key, text, names in entries:
            shown = ", ".join([*names[:MAX_NAMED_VARIANTS], *["..."] * (len(names) > MAX_NAMED_VARIANTS)])
            suffix = f" (variant {shown})" if 0 < len(names) < variants else ""
            lines.append(_line(place, key, text) + suffix)
        if self._omitted:
            lines.append(f"{entries[-1][0]}: and {self._omitted} more problems")
        if lines:
            raise RecipeError("\n".join(lines))


def refuse(place: Position, text: str, key: Key = ()) -> NoReturn:
    """Raise RecipeError for a single issue that stops the reading."""
    raise RecipeError(_line(place, key, text))


def _line(place: Position, key: Key, text: str) -> str:
    return ": ".join([str(place), *([dotted(key)] if key else []), text])


def dotted(key: Iterable[str]) -> str:
    """Return a key as users write it, made safe and short, and quoted if it starts or ends with white space."""
    text = safe_text(".".join(key)).replace("\n", "\\n").replace("\t", "\\t")
    if not text or text != text.strip():
        return quoted(text)
    return text if len(text) <= 96 else f"{text[:80]}...{text[-13:]}"
