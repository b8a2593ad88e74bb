"""One row of a corpus, and the counts of what happened to rows on their way in."""

from dataclasses import dataclass
from typing import NamedTuple


class Row(NamedTuple):
    """One example; `source` is empty in language modelling, no `references` means (target,)."""

    source: str
    target: str
    references: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    """Passages given with a question."""
    gold: int | None = None
    """Index of the passage that has the answer; None where no single one is known to."""


@dataclass
class Counts:
    """What was read, dropped and repaired; readers and the encoder add to the same object.

    Readers count rows and repairs of text.  The encoder counts kept, empty, too_long and truncated rows and unknown
    tokens: a reader never drops a row, so that aligned files stay aligned.  `COUNTED` says what the other numbers are.
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
        """Add the numbers of another count to these."""
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)

    def lines(self) -> list[str]:
        """The counts for people, one kind a line; only what happened is listed."""
        encoded = self.kept or self.empty or self.too_long
        rows = f"{self.rows:,} row{'' if self.rows == 1 else 's'} read"
        lines = [rows + (f", {self.kept:,} kept" if encoded else "")]
        for name, what in COUNTED.items():
            if number := getattr(self, name):
                lines.append(f"{number:,} {what.format(s='' if number == 1 else 's')}")
        return lines


COUNTED = {
    "empty": "row{s} dropped: the source or the target is empty",
    "too_long": "row{s} dropped: too many tokens",
    "truncated": "row{s} truncated to the maximum length",
    "unknown": "unknown token{s}: characters or words without a piece",
    "replaced": "malformed character{s} replaced by U+FFFD",
    "breaks": "line break{s} inside fields turned into spaces",
    "normalized": "row{s} changed to the normal form of data.normalize",
}
"""What each number counts, for people; `{s}` is the plural."""
