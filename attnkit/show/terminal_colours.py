"""Cells of a terminal in colours or shades: what a console can show, and the cheapest way there."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from rich.color import Color
from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from attnkit.show import colour
from attnkit.show.colour import Palette, Scaled

HALF_BLOCK = "▀"
DIM = Style(dim=True)
LONGEST_BAR = 32
_SIGNS = "=- +#"
"""Differences in one cell without colours: far below, below, about none, above, far above."""
_SCALES = {"linear": "linear", "log": "logarithmic", "row": "share of the row's maximum"}


def colour_system(console: Console) -> str | None:
    """truecolor or 256, of which rich takes the nearest; None: 16 are too few for a colour map."""
    system = console.color_system
    return system if system in ("truecolor", "256") and not console.no_color else None


class TerminalColours(NamedTuple):
    """How values from 0 to 1 are drawn on one console."""

    system: str | None  # of colours
    ascii_only: bool
    signed: bool = False
    """Differences, which have their own colours."""

    @property
    def palette(self) -> Palette:
        return "difference" if self.signed else "weights"

    @property
    def half_blocks(self) -> bool:
        """Whether a cell can show two values, one above the other."""
        return self.system is not None and not self.ascii_only

    def line(
        self, values: Float[NDArray[np.float32], "T S"], row: int, width: int = 1,
        half: bool = False,
    ) -> Iterator[Segment]:  # fmt: skip
        """One row of values, each `width` cells; with `half` two rows as half blocks.

        Below the last of an odd number of rows there is none.
        """
        upper = colour.steps(values[row]).astype(np.int64)
        if half:
            last = row + 1 == len(values)
            lower = colour.STEPS if last else colour.steps(values[row + 1])
            for pair, count in _runs(upper * (colour.STEPS + 1) + lower):
                front, back = divmod(pair, colour.STEPS + 1)
                below = back if back < colour.STEPS else None
                yield Segment(HALF_BLOCK * count, _style(self.system, self.palette, front, below))
        elif self.system:
            for step, count in _runs(upper):
                yield Segment(" " * (count * width), _style(self.system, self.palette, None, step))
        elif self.signed:
            places = np.clip(values[row] * 5, 0, 4).astype(np.int64)
            yield Segment("".join(_SIGNS[place] * width for place in places))
        else:
            shades = colour.shades(values[row], self.ascii_only)
            yield Segment("".join(shade * width for shade in shades))

    def bar(self, scaled: Scaled, width: int) -> Iterator[Segment]:
        """A blank line, then the colour bar: low end, colours, high end, in at most `width` cells.

        Without room for colours there are the ends alone.
        """
        low, high = ("0" if end == 0 else f"{end:.2g}" for end in (scaled.low, scaled.high))
        if scaled.scale == "row":
            low, high = "-row max" if scaled.signed else "0", "row max"
        length = min(LONGEST_BAR, width - len(low) - len(high) - 2)
        yield Segment.line()
        if length < 3:
            yield Segment(f"{low} {high}"[:width])
        else:
            yield Segment(f"{low} ")
            yield from self.line(np.linspace(0, 1, length, dtype=np.float32)[None], 0)
            yield Segment(f" {high}")
        yield Segment.line()

    def caption(self, scaled: Scaled) -> str:
        """What is drawn, on which scale."""
        plain = not self.system
        sides = " (-, =: less; +, #: more)" if plain else " (blue: less, orange: more)"
        return f"{f'difference{sides}' if scaled.signed else 'weight'}, {_SCALES[scaled.scale]}"


def _runs(steps: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Equal neighbours together: (step, how many)."""
    if not steps.size:
        return
    starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
    counts = np.diff(starts, append=len(steps))
    yield from zip(steps[starts].tolist(), counts.tolist(), strict=True)


@lru_cache(65536)
def _style(system: str | None, palette: Palette, front: int | None, back: int | None) -> Style:
    """The style of the two steps of a colour map; one for each system, whose codes it keeps."""
    shown = (
        None if step is None else Color.from_rgb(*map(int, colour.table(palette)[step]))
        for step in (front, back)
    )
    return Style(color=next(shown), bgcolor=next(shown))
