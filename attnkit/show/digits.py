"""A map as digits: hundredths under horizontal labels, for screen readers and for grep."""

from collections.abc import Iterator

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment, Segments
from rich.text import Text

from attnkit.show.attention_matrix import AttentionMatrix
from attnkit.show.token_labels import aligned, cut, labels_of

_WIDEST = 12


def digits(matrix: AttentionMatrix, width: int, ascii_only: bool) -> Iterator[Text | Segments]:
    """All weights as hundredths, in blocks of columns where the screen is too narrow for all.

    Args:
        matrix: what is shown.
        width: cells of the screen.
        ascii_only: whether labels must be ASCII.
    """
    what = "differences" if matrix.signed else "weights"
    yield Text(f"{what} in hundredths; {matrix.axes_text}", overflow="fold")
    cells = _hundredths(matrix)
    names = labels_of(matrix.queries, ascii_only)
    longest = max(1, min(_WIDEST, width // 3))
    margin = min(longest, max(map(cell_len, names)))
    names = [aligned(name, margin, ascii_only, left=True) for name in names]
    room = max(1, width - margin)
    keys = [
        cut(key, min(longest, room - 1), ascii_only) for key in labels_of(matrix.keys, ascii_only)
    ]
    widths = [
        min(room - 1, max(cell_len(key), *(len(row[at]) for row in cells)))
        for at, key in enumerate(keys)
    ]
    blocks = _blocks(widths, room)
    segments = []
    for first, last in blocks:
        if len(blocks) > 1:
            segments += _line(f"keys {first} to {last - 1} of {len(keys)}"[:width])
        columns = range(first, last)
        head = "".join(f" {aligned(keys[at], widths[at], ascii_only)}" for at in columns)
        segments += _line(" " * margin + head)
        for name, row in zip(names, cells, strict=True):
            numbers = "".join(f" {aligned(row[at], widths[at], ascii_only)}" for at in columns)
            segments += _line(name + numbers)
    yield Segments(segments)


def _hundredths(matrix: AttentionMatrix) -> list[list[str]]:
    """Each weight as text; exactly none is a point, so that masks are seen."""
    hundredths = np.rint(matrix.weights.astype(np.float64) * 100) + 0.0
    form = "+.0f" if matrix.signed else ".0f"
    return [
        ["." if exact == 0 else format(rounded, form if rounded else ".0f")
         for exact, rounded in zip(*rows, strict=True)]
        for rows in zip(matrix.weights.tolist(), hundredths.tolist(), strict=True)
    ]  # fmt: skip


def _blocks(widths: list[int], room: int) -> list[tuple[int, int]]:
    """Runs of columns that fit, each with a space before it."""
    found, first, used = [], 0, 0
    for at, width in enumerate(widths):
        if used + width + 1 > room and at > first:
            found.append((first, at))
            first, used = at, 0
        used += width + 1
    return [*found, (first, len(widths))]


def _line(text: str) -> list[Segment]:
    return [Segment(text), Segment.line()]
