"""Rows of a corpus, and counts of rows and of repairs."""

from dataclasses import dataclass
from typing import NamedTuple


class Row(NamedTuple):
    """Example; `source` is empty in language modeling, empty `references` mean (target,)."""

    source: str
    target: str
    references: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    """Passages given with a question."""
    gold: int | None = None
    """Index of the passage with the answer; None if unknown."""


@dataclass
class Counts:
    """Numbers of rows and repairs; readers and the encoder add to the same object.

    Readers count rows and repairs of text. The encoder counts kept, empty, too_long and truncated rows and unknown
    tokens: a reader never drops a row, so that aligned files stay aligned. `DESCRIPTIONS` describes the other numbers.
    """

    rows: int = 0
    """Rows read."""
    kept: int = 0
    """Rows encoded."""
    empty: int = 0
    too_long: int = 0
    truncated: int = 0
    unknown: int = 0
    replaced: int = 0
    breaks: int = 0
    normalized: int = 0

    def add(self, other: "Counts") -> None:
        """Add the numbers of other counts."""
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)

    def lines(self) -> list[str]:
        """Return the counts that are not zero as lines for the user."""
        encoded = self.kept or self.empty or self.too_long
        rows = f"{self.rows:,} row{'' if self.rows == 1 else 's'} read"
        lines = [rows + (f", {self.kept:,} kept" if encoded else "")]
        for name, what in DESCRIPTIONS.items():
            if number := getattr(self, name):
                lines.append(f"{number:,} {what.format(s='' if number == 1 else 's')}")
        return lines


DESCRIPTIONS = {
    "empty": "row{s} dropped: the source or the target is empty",
    "too_long": "row{s} dropped: too many tokens",
    "truncated": "row{s} truncated to the maximum length",
    "unknown": "unknown token{s}: characters or words without a piece",
    "replaced": "malformed character{s} replaced by U+FFFD",
    "breaks": "line break{s} inside fields turned into spaces",
    "normalized": "row{s} changed to the normal form of data.normalize",
}
"""Description of each number for the user; `{s}` is the plural ending."""
