"""One row of a corpus, and the counts of what happened to rows on their way in."""

from dataclasses import dataclass
from typing import NamedTuple


class Row(NamedTuple):
    """One example; `source` is empty in language modelling, no `references` means (target,)."""

    source: str
    target: str
    references: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    """Passages that a question is asked with."""
    gold: int | None = None
    """The passage that has the answer, from 0; None where no single one is known to."""


@dataclass
class Counts:
    """What was read, dropped and repaired; readers and the encoder add to the same object.

    Readers count rows and repairs of text.  The encoder counts kept, empty, too_long and truncated
    rows and unknown tokens: a reader never drops a row, so that aligned files stay aligned.
    """

    rows: int = 0
    """Rows read."""
    kept: int = 0
    """Rows encoded."""
    empty: int = 0
    """Rows dropped because a side has no text."""
    too_long: int = 0
    """Rows dropped because a side has too many tokens."""
    truncated: int = 0
    """Rows of which a side was cut to the longest length."""
    unknown: int = 0
    """Tokens of kept rows that stand for characters or words without a piece."""
    replaced: int = 0
    """Malformed UTF-8 sequences and lone surrogates that became U+FFFD."""
    bom: int = 0
    """Byte order marks removed from the start of files."""
    crlf: int = 0
    """CRLF line ends read as LF."""
    breaks: int = 0
    """Line breaks inside JSON strings that became spaces."""
    control: int = 0
    """Control characters (NUL included) left in the text as they are."""

    def lines(self) -> list[str]:
        """The counts for people, one kind a line; only what happened is listed."""
        encoded = self.kept or self.empty or self.too_long
        lines = [f"{self.rows:,} rows read" + (f", {self.kept:,} kept" if encoded else "")]
        return lines + [
            f"{number:,} {what}"
            for name, what in MESSAGES.items()
            if (number := getattr(self, name))
        ]


MESSAGES = {
    "empty": "dropped: empty, or one side is",
    "too_long": "dropped: too many tokens",
    "truncated": "truncated to the longest length",
    "unknown": "unknown tokens: characters or words without a piece",
    "replaced": "malformed characters replaced by U+FFFD",
    "bom": "byte order marks removed",
    "crlf": "CRLF line ends read as LF",
    "breaks": "line breaks inside JSON strings turned into spaces",
    "control": "control characters left in the text",
}
"""What is said of each number of `Counts`."""
