"""The colour bar: what the two ends of a map's colours stand for."""

from collections.abc import Iterator

import numpy as np
from rich.segment import Segment

from attnkit.show.colour_scale import Scaled
from attnkit.show.terminal_paint import Paint

LONGEST = 32
_NAMES = {"linear": "linear", "log": "logarithmic", "row": "share of the row's maximum"}


def caption(scaled: Scaled, coloured: bool = True) -> str:
    """What is drawn, on which scale."""
    sides = " (blue: less, orange: more)" if coloured else " (-, =: less; +, #: more)"
    what = f"difference{sides}" if scaled.signed else "weight"
    return f"{what}, {_NAMES[scaled.scale]}"


def ends(scaled: Scaled) -> tuple[str, str]:
    """The limits as text."""
    if scaled.scale == "row":
        return ("-row max" if scaled.signed else "0"), "row max"
    return _number(scaled.low), _number(scaled.high)


def bar(scaled: Scaled, paint: Paint, width: int) -> Iterator[Segment]:
    """A free line, then one of at most `width` cells: low end, colours, high end.

    Without room for colours there are the ends alone.
    """
    low, high = ends(scaled)
    length = min(LONGEST, width - len(low) - len(high) - 2)
    yield Segment.line()
    if length < 3:
        yield Segment(f"{low} {high}"[:width])
    else:
        yield Segment(f"{low} ")
        yield from paint.cells(np.linspace(0, 1, length, dtype=np.float32))
        yield Segment(f" {high}")
    yield Segment.line()


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"
