"""Tokens as labels: sanitized, with visible white space, and aligned by their width on a terminal."""

from collections.abc import Sequence
from unicodedata import category

import regex
from rich.cells import cell_len

from attnkit.analysis.maps import Token
from attnkit.text import safe_text

SPACE = "▁"  # U+2581: the space before a piece in vocabularies
ELLIPSIS = "…"
_CARRIER = "◌"


def visible(text: str) -> str:
    r"""Return sanitized text on one line with visible white space: tab as \t, space as U+2423.

    An empty text becomes two quotes; a combining mark without a letter is put on a dotted circle.
    """
    line = safe_text(text).replace("\n", r"\n").replace("\t", r"\t") or '""'
    line = line.replace(" ", "␣")
    return _CARRIER + line if category(line[0])[0] == "M" or cell_len(line[0]) == 0 else line


def labels_of(tokens: Sequence[Token]) -> list[str]:
    """Return the `visible` texts of the tokens, without the mark for spaces if all tokens are whole words."""
    pieces = [token.text for token in tokens if not token.special]
    words = [token.word for token in tokens if not token.special]
    whole = len(set(words)) == len(words) and all(piece.startswith(SPACE) and piece != SPACE for piece in pieces)
    shown = [t.text.removeprefix(SPACE) if whole and not t.special else t.text for t in tokens]
    return [visible(text) for text in shown]


def clusters(text: str) -> list[str]:
    """Return the grapheme clusters of a text: marks, joined emoji and flags are not split."""
    graphemes: list[str] = regex.findall(r"\X", text)
    return graphemes


def cut(text: str, width: int) -> str:
    """Return the text cut to `width` terminal cells, with an ellipsis if it was longer."""
    if cell_len(text) <= width:
        return text
    shown = ""
    for cluster in clusters(text):
        if cell_len(shown + cluster) > width - 1:
            break
        shown += cluster
    return shown + ELLIPSIS if width > 0 else ""


def aligned(text: str, width: int, left: bool = False) -> str:
    """Return the text cut or padded to exactly `width` terminal cells, aligned right, or left with `left`."""
    shown = cut(text, width)
    space = " " * (width - cell_len(shown))
    return shown + space if left else space + shown


def upright(labels: Sequence[str], cell: int) -> list[str]:
    """Return the lines of vertical labels, aligned at the bottom, in columns of `cell` terminal cells."""
    stacks = [clusters(label) for label in labels]
    height = max(map(len, stacks), default=0)
    padded = [[""] * (height - len(stack)) + stack for stack in stacks]
    return ["".join(aligned(part, cell, left=True) for part in line) for line in zip(*padded, strict=True)]
