"""The colour bar: what the two ends of a map's colours stand for."""

from collections.abc import Iterator

import numpy as np
from rich.segment import Segment

from attnkit.show.paint import Paint
from attnkit.show.scale import Scaled

LONGEST = 32
_NAMES = {"linear": "linear", "log": "logarithmic", "row": "share of the row's maximum"}


def caption(scaled: Scaled) -> str:
    """What is drawn, on which scale."""
    what = "difference" if scaled.signed else "weight"
    return f"{what}, {_NAMES[scaled.scale]}"


def ends(scaled: Scaled) -> tuple[str, str]:
    """The limits as text."""
    if scaled.scale == "row":
        return ("-row max" if scaled.signed else "0"), "row max"
    return _number(scaled.low), _number(scaled.high)


def bar(scaled: Scaled, paint: Paint, width: int) -> Iterator[Segment]:
    """One line of at most `width` cells: low end, colours, high end; without room no colours."""
    low, high = ends(scaled)
    length = min(LONGEST, width - len(low) - len(high) - 2)
    if length < 3:
        yield Segment(f"{low} {high}"[:width])
        return
    yield Segment(f"{low} ")
    yield from paint.cells(np.linspace(0, 1, length, dtype=np.float32))
    yield Segment(f" {high}")


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"
