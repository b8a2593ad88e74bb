"""Values as colored or shaded characters of a terminal, as far as its console supports colors."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from rich.color import Color
from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from attnkit.show import color
from attnkit.show.color import Palette, Scaled

HALF_BLOCK = "▀"
DIM = Style(dim=True)
MAX_BAR = 32
_SIGNS = "=- +#"
"""Characters for diverging values on a console without colors: far below 0, below, about 0, above, far above."""
_SCALES = {"linear": "linear", "log": "logarithmic", "row": "share of the row's maximum"}


def color_system(console: Console) -> str | None:
    """Return "truecolor" or "256" (rich picks the nearest colors), or None: 16 are too few for a color map."""
    system = console.color_system
    return system if system in ("truecolor", "256") and not console.no_color else None


class TerminalColors(NamedTuple):
    """Renderer of values from 0 to 1 on one console."""

    system: str | None  # result of `color_system`
    palette: Palette = "sequential"

    @property
    def middle(self) -> float:
        """Position of the value 0."""
        return 0.5 if self.palette == "diverging" else 0.0

    @property
    def pooled_value(self) -> str:
        """Name of the value to which `pooled` reduces a block."""
        return "value farthest from 0" if self.palette == "diverging" else "highest"

    @property
    def half_blocks(self) -> bool:
        """Whether a character can show two values, one above the other."""
        return self.system is not None

    def line(
        self, values: Float[NDArray[np.float32], "T S"], row: int, width: int = 1, half: bool = False
    ) -> Iterable[Segment]:
        """Return a row of values, each `width` characters wide; with `half`, this and the next row as half blocks."""
        if self.system:
            upper = color.steps(values[row]).tolist()
            lower = [None] * len(upper)
            if half and row + 1 < len(values):
                lower = color.steps(values[row + 1]).tolist()
            return Segment.simplify(
                Segment(HALF_BLOCK, self._style(above, below))
                if half
                else Segment(" " * width, self._style(None, above))
                for above, below in zip(upper, lower, strict=True)
            )
        if self.palette == "diverging":
            marks = np.array([*_SIGNS])[np.clip(values[row] * 5, 0, 4).astype(np.int64)]
        else:
            marks = color.shades(values[row])
        return [Segment("".join(mark * width for mark in marks))]

    @lru_cache(65536)  # noqa: B019
    def _style(self, front: int | None, back: int | None) -> Style:
        """Return the style of two steps of the color map; cached, because styles cache their terminal codes."""
        colors = color.table(self.palette)
        shown = (None if step is None else Color.from_rgb(*map(int, colors[step])) for step in (front, back))
        return Style(color=next(shown), bgcolor=next(shown))

    def bar(self, scaled: Scaled, width: int) -> Iterator[Segment]:
        """Yield a blank line and a color bar of at most `width` characters, without colors if there is no room."""
        low, high = ("0" if end == 0 else f"{end:.2g}" for end in (scaled.low, scaled.high))
        if scaled.scale == "row":
            low, high = "0", "row max"
        length = min(MAX_BAR, width - len(low) - len(high) - 2)
        yield Segment.line()
        if length < 3:
            yield Segment(f"{low} {high}"[:width])
        else:
            yield Segment(f"{low} ")
            yield from self.line(np.linspace(0, 1, length, dtype=np.float32)[None], 0)
            yield Segment(f" {high}")
        yield Segment.line()

    def caption(self, scaled: Scaled, *, difference: bool = False) -> str:
        """Return the quantity and the scale, with the meaning of the sides of diverging colors."""
        below, above = ("less", "more") if difference else ("negative", "positive")
        marks = ("blue", "orange") if self.system else ("-, =", "+, #")
        sides = f" ({marks[0]}: {below}, {marks[1]}: {above})" if scaled.palette == "diverging" else ""
        return f"{'difference' if difference else 'weight'}{sides}, {_SCALES[scaled.scale]}"
