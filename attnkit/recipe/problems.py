"""Where something in a recipe stands, and the list of what is wrong with it."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from attnkit.errors import RecipeError
from attnkit.text import safe_text

FEW = 3
"""Variants that a problem names."""
MOST = 20
"""Problems that are told one by one; the rest is counted."""

Key = tuple[str, ...]
"""A key as its parts: ("train", "lr")."""


class Position(NamedTuple):
    """A position; `line` 0 means the whole source (the command line)."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        name = safe_text(self.source).replace("\n", "\\n")
        return f"{name}:{self.line}:{self.column}" if self.line else name


COMMAND_LINE = Position("command line")


class Problem(NamedTuple):
    """One thing that is wrong, in the variants where it is."""

    place: Position
    key: Key
    text: str
    variants: list[str]

    def line(self, variants: int) -> str:
        """`place: key: text`, with the variants unless it is in all of them."""
        parts = [str(self.place), *([dotted(self.key)] if self.key else []), self.text]
        only = 0 < len(self.variants) < variants
        more = f" and {len(self.variants) - FEW} more" if len(self.variants) > FEW else ""
        named = f" (variant {', '.join(self.variants[:FEW])}{more})" if only else ""
        return ": ".join(parts) + named


class Problems:
    """Collects what is wrong, so that one error tells all of it in the order of the file."""

    def __init__(self) -> None:
        self._found: dict[tuple[Position, Key, str], Problem] = {}
        self._more = 0
        self.variant: str | None = None

    def add(self, place: Position, key: Key, text: str | Callable[[], str]) -> None:
        """Note a problem of the current variant; `text` may be made only where it is needed."""
        same = (place, key, text if isinstance(text, str) else "")
        known = self._found.get(same)
        if known is None and len(self._found) >= MOST:
            self._more += 1
            return
        if known is None:
            known = Problem(place, key, text if isinstance(text, str) else text(), [])
            self._found[same] = known
        if self.variant is not None and self.variant not in known.variants:
            known.variants.append(self.variant)

    def __bool__(self) -> bool:
        return bool(self._found)

    def stop(self, variants: int = 1) -> None:
        """Raise RecipeError with one line a problem, if there is any."""
        if not self._found:
            return
        found = sorted(self._found.values())
        lines = [problem.line(variants) for problem in found]
        if self._more:
            lines.append(f"{found[-1].place}: and {self._more} more problems")
        raise RecipeError("\n".join(lines))


def dotted(key: Iterable[str]) -> str:
    """A key as users write it, made safe and short."""
    text = safe_text(".".join(key)).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= 96 else f"{text[:80]}...{text[-13:]}"


def refuse(place: Position, text: str, key: Key = ()) -> NoReturn:
    """Raise RecipeError for the one problem that ends the reading."""
    raise RecipeError(Problem(place, key, text, []).line(1))
