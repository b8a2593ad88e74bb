"""Cells of a terminal in colours or shades: what a console can show, and the cheapest way there."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from rich.color import Color
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from attnkit.show import colour
from attnkit.show.colour import Palette

Depth = Literal["truecolor", "256", "none"]
UPPER = "▀"
_SIGNS = "=- +#"
"""Differences in one cell without colours: far below, below, about none, above, far above."""


class Paint(NamedTuple):
    """How values are drawn on one console."""

    depth: Depth
    ascii_only: bool
    palette: Palette

    @classmethod
    def of(cls, console: Console, options: ConsoleOptions, palette: Palette) -> "Paint":
        """What this console can show: 16 colours are no colour map, so shades take their place."""
        depths: dict[str | None, Depth] = {"truecolor": "truecolor", "256": "256"}
        depth = "none" if console.no_color else depths.get(console.color_system, "none")
        return cls(depth, options.ascii_only, palette)

    @property
    def coloured(self) -> bool:
        """Whether there are colours."""
        return self.depth != "none"

    @property
    def halves(self) -> bool:
        """Whether a cell can show two values, one above the other."""
        return self.coloured and not self.ascii_only

    def cells(self, row: Float[NDArray[np.float32], "S"], wide: int = 1) -> Iterator[Segment]:
        """One row of values from 0 to 1, each `wide` cells."""
        if not self.coloured:
            draw = self._signs if self.palette == "difference" else self._shades
            yield Segment(draw(row, wide))
            return
        for step, count in _runs(colour.steps(row).astype(np.int64)):
            yield Segment(" " * (count * wide), _style(self.depth, self.palette, None, step))

    def _shades(self, row: Float[NDArray[np.float32], "S"], wide: int) -> str:
        return "".join(shade * wide for shade in colour.shades(row, self.ascii_only))

    def _signs(self, row: Float[NDArray[np.float32], "S"], wide: int) -> str:
        """Differences: a sign with the shade of its magnitude beside it, or the sign alone."""
        if wide == 1:
            return "".join(_SIGNS[place] for place in np.clip(row * 5, 0, 4).astype(np.int64))
        magnitudes = colour.shades(np.abs(row - 0.5) * 2, self.ascii_only)
        return "".join(
            " " * wide if shade == " " else ("-" if value < 0.5 else "+") + shade * (wide - 1)
            for value, shade in zip(row, magnitudes, strict=True)
        )

    def half_cells(
        self,
        upper: Float[NDArray[np.float32], "S"],
        lower: Float[NDArray[np.float32], "S"] | None,
        wide: int = 1,
    ) -> Iterator[Segment]:
        """Two rows of values in one line; no lower one below the last of an odd number."""
        if lower is None:
            for step, count in _runs(colour.steps(upper).astype(np.int64)):
                yield Segment(UPPER * (count * wide), _style(self.depth, self.palette, step, None))
            return
        pairs = colour.steps(upper).astype(np.int64) * 256 + colour.steps(lower)
        for pair, count in _runs(pairs):
            style = _style(self.depth, self.palette, pair // 256, pair % 256)
            yield Segment(UPPER * (count * wide), style)


def _runs(steps: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Equal neighbours together: (step, how many)."""
    if not steps.size:
        return
    starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
    counts = np.diff(starts, append=len(steps))
    for start, count in zip(starts, counts, strict=True):
        yield int(steps[start]), int(count)


@lru_cache(65536)
def _style(depth: Depth, palette: Palette, front: int | None, back: int | None) -> Style:
    """The style of the two steps of a colour map, as foreground and background."""
    return Style(color=_colour(depth, palette, front), bgcolor=_colour(depth, palette, back))


def _colour(depth: Depth, palette: Palette, step: int | None) -> Color | None:
    if step is None:
        return None
    if depth == "256":
        return Color.from_ansi(int(colour.xterm_table(palette)[step]))
    red, green, blue = (int(channel) for channel in colour.table(palette)[step])
    return Color.from_rgb(red, green, blue)
