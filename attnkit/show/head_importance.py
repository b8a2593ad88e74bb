"""What a model loses without each head, layer by head: on a terminal, and as a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment, Segments

from attnkit.analysis.maps import Kind
from attnkit.show import colour
from attnkit.show.attention_matrix import NAMES
from attnkit.show.colour_scale import limits, scaled
from attnkit.show.differences import signed
from attnkit.show.figure import Picture
from attnkit.show.heatmap import text
from attnkit.show.map_picture import Panels, draw_panels
from attnkit.show.terminal_colours import Depth, colour_depth, text_on
from attnkit.show.token_labels import one_line

Matrix = Float[NDArray[np.float64], "L H"]


@dataclass(frozen=True)
class HeadGrid:
    """Losses of one kind of attention."""

    kind: Kind
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    losses: Matrix  # above 0 the model is worse without the head


@dataclass(frozen=True, eq=False)
class HeadGrids:
    """A rich renderable: each loss as a number on its colour; never wider than the screen."""

    grids: Sequence[HeadGrid]
    what: str  # name of the loss, such as "loss of BLEU"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bounds = limits([grid.losses for grid in self.grids], signed=True)
        for grid in self.grids:
            yield text(f"{NAMES[grid.kind]}: {self.what}", "bold", options.ascii_only)
            yield Segments(_lines(grid, bounds, colour_depth(console), options.max_width))


def _lines(
    grid: HeadGrid, bounds: tuple[float, float], depth: Depth, width: int
) -> Iterator[Segment]:
    """Layers down and heads across, in blocks of heads where the screen is too narrow."""
    shown = [[signed(loss) for loss in row] for row in grid.losses.tolist()]
    shares = scaled(grid.losses.astype(np.float32), signed=True, bounds=bounds).values
    colours = colour.colours(shares, "difference")
    margin = max(len(f"layer {layer}") for layer in grid.layers)
    heads = [f"head {head}" for head in grid.heads]
    cell = max(len(word) for word in (*heads, *(word for row in shown for word in row))) + 1
    fit = max(1, (width - margin) // cell)
    for first in range(0, len(heads), fit):
        block = slice(first, first + fit)
        yield Segment(" " * margin + "".join(f"{head:>{cell}}" for head in heads[block]))
        yield Segment.line()
        for layer, words, rgb in zip(grid.layers, shown, colours, strict=True):
            yield Segment(f"{f'layer {layer}':>{margin}}")
            for word, back in zip(words[block], rgb[block], strict=True):
                yield Segment(f"{word:>{cell}}", text_on(back, depth))
            yield Segment.line()


def importance_picture(grids: Sequence[HeadGrid], title: str, what: str, format: str) -> Picture:
    """The grids side by side with their numbers, as PNG, SVG or PDF.

    Raises:
        UsageError, UnavailableError: as `attnkit.show.figure.require`.
    """
    title = one_line(title)
    blocks = [
        Panels(
            f"{'' if place else title}\n{NAMES[grid.kind]}",
            [[grid.losses.astype(np.float32)]],
            [str(layer) for layer in grid.layers],
            [str(head) for head in grid.heads],
            ("layer", "head"),
            signed=True,
            meaning=what,
            numbers=True,
        )
        for place, grid in enumerate(grids)
    ]
    return draw_panels(blocks, f"{title}: {what}", format)
