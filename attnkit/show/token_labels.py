"""Tokens as labels: harmless, visible, and as wide as a terminal draws them."""

from collections.abc import Sequence
from unicodedata import category

import regex
from rich.cells import cell_len

from attnkit.analysis.maps import Token
from attnkit.text import safe_text

SPACE = "▁"  # U+2581: how vocabularies spell the space before a piece
MORE = "…"
_CARRIER = "◌"


def visible(text: str) -> str:
    r"""One line of text that commands no terminal and hides nothing: tab as \t, space as U+2423.

    An empty text is shown as two quotes; a mark without a letter gets a dotted circle to sit on.
    """
    line = safe_text(text).replace("\n", r"\n").replace("\t", r"\t") or '""'
    line = line.replace(" ", "␣")
    return _CARRIER + line if category(line[0])[0] == "M" or cell_len(line[0]) == 0 else line


def labels_of(tokens: Sequence[Token]) -> list[str]:
    """The tokens as `visible` text.

    Where all of them are whole words, the mark of the space before a word says nothing and is
    left out.
    """
    pieces = [token.text for token in tokens if not token.special]
    words = [token.word for token in tokens if not token.special]
    whole = len(set(words)) == len(words) and all(piece.startswith(SPACE) and piece != SPACE for piece in pieces)
    shown = [t.text.removeprefix(SPACE) if whole and not t.special else t.text for t in tokens]
    return [visible(text) for text in shown]


def clusters(text: str) -> list[str]:
    """Characters as readers count them: marks, joined emoji and flags stay in one piece."""
    found: list[str] = regex.findall(r"\X", text)
    return found


def cut(text: str, width: int) -> str:
    """Text of at most `width` cells, an ellipsis at the end where something is missing."""
    if cell_len(text) <= width:
        return text
    shown = ""
    for cluster in clusters(text):
        if cell_len(shown + cluster) > width - 1:
            break
        shown += cluster
    return shown + MORE if width > 0 else ""


def aligned(text: str, width: int, left: bool = False) -> str:
    """Text of exactly `width` cells, cut where it must be, at the right side or the left."""
    shown = cut(text, width)
    space = " " * (width - cell_len(shown))
    return shown + space if left else space + shown


def upright(labels: Sequence[str], cell: int) -> list[str]:
    """Labels written from top to bottom in columns of `cell` cells, ending at the bottom."""
    stacks = [clusters(label) for label in labels]
    height = max(map(len, stacks), default=0)
    padded = [[""] * (height - len(stack)) + stack for stack in stacks]
    return ["".join(aligned(one, cell, left=True) for one in line) for line in zip(*padded, strict=True)]
