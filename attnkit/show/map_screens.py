"""Attention maps on a terminal: all layers and heads of a model, and several models in comparison."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment, Segments

from attnkit.analysis.maps import AttentionMaps, Capture, Kind
from attnkit.show.attention_matrix import (
    NAMES,
    axes_difference,
    maps_of,
    matrix_of,
    mechanisms,
    notes,
    selection_text,
    sides_of,
)
from attnkit.show.color import Scale, Scaled, limits, pooled, scaled
from attnkit.show.heatmap import Heatmap, text
from attnkit.show.terminal_colors import DIM, TerminalColors, color_system
from attnkit.show.token_labels import aligned

MAX_CELLS, MIN_CELLS = 32, 6  # maximum rows and columns, and minimum columns, of a drawn map


@dataclass(frozen=True, eq=False)
class MapGrid:
    """A rich renderable of small maps: a row per layer, a map per head, one color bar.

    Heads that do not fit side by side are wrapped. Maps that are too large are pooled: each cell is the highest weight
    of a block, in diverging colors the weight farthest from 0.
    """

    maps: AttentionMaps
    scale: Scale = "linear"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        maps = self.maps
        selection = selection_text(maps) or "all heads"
        yield text(f"{NAMES[maps.kind]}, {selection}: {mechanisms(maps)}", "bold")
        if not maps.weights.size:
            yield text("nothing to show: an axis has no tokens")
            return
        bounds = limits([maps.weights])
        shares = [[scaled(head, self.scale, bounds=bounds) for head in layer] for layer in maps.weights]
        colors = TerminalColors(color_system(console), shares[0][0].palette)
        queries, keys = maps.weights.shape[2:]
        margin = 1 + max(len(str(layer.number)) for layer in maps.layers)
        room = max(2, options.max_width - margin)
        max_across = max(1, room // (min(keys, MIN_CELLS) + 1))
        across = ceil(len(maps.heads) / ceil(len(maps.heads) / max_across))
        columns = ceil(keys / min(max(1, room // across - 1), MAX_CELLS))
        # a character is about twice as high as wide
        rows = max(columns, ceil(queries / MAX_CELLS)) * (1 if colors.half_blocks else 2)
        rows = rows if queries > 2 else 1
        yield Segments(self._lines(shares, colors, (rows, columns), across, margin))
        yield Segments(colors.bar(shares[0][0], options.max_width))
        sides = sides_of(maps)
        parts = [
            colors.caption(shares[0][0]),
            f"L layer, H head; rows: {sides[0]} (queries), columns: {sides[1]} (keys)",
        ]
        if rows * columns > 1:
            parts.append(f"a cell is the {colors.pooled_value} of {rows} x {columns} (queries x keys)")
        parts += dict.fromkeys(note for band in shares for share in band for note in share.notes)
        yield text("; ".join(parts), "dim")
        for note in notes(maps):
            yield text(note, "dim")

    def _lines(
        self, shares: list[list[Scaled]], colors: TerminalColors, block: tuple[int, int], across: int, margin: int
    ) -> Iterator[Segment]:
        """Yield the maps, `across` heads side by side; `block`: number of queries and keys per cell."""
        width, half = ceil(self.maps.weights.shape[3] / block[1]), colors.half_blocks
        for layer, layer_shares in zip(self.maps.layers, shares, strict=True):
            for first in range(0, len(layer_shares), across):
                heads = self.maps.heads[first : first + across]
                labels = [aligned(f"H{head}", width, left=True) for head in heads]
                name = f"L{layer.number}".ljust(margin)
                yield Segment(" ".join([name, *labels]).rstrip(), DIM)
                yield Segment.line()
                band = [pooled(share.values, *block, colors.middle) for share in layer_shares[first : first + across]]
                for row in range(0, len(band[0]), 1 + half):
                    yield Segment(" " * margin)
                    for values in band:
                        yield Segment(" ")
                        yield from colors.line(values, row, 1, half)
                    yield Segment.line()


class MapComparison:
    """A rich renderable of the mean map, over layers and heads, of several captures.

    All maps, with model and output, have one color scale; then follows the difference of each other capture to the
    first, or the reason why it is undefined.
    """

    def __init__(self, captures: Sequence[Capture], kind: Kind, scale: Scale = "linear") -> None:
        """Compare with the first capture. Raises UsageError if a capture has no maps of this kind."""
        self.captures, self.scale = captures, scale
        self.matrices = [matrix_of(maps_of(capture, kind)) for capture in captures]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first = self.matrices[0]
        bounds = limits([matrix.weights for matrix in self.matrices])
        for capture, matrix in zip(self.captures, self.matrices, strict=True):
            yield text(capture.model, "bold")
            if capture.output:
                yield text(f"output ({capture.how}): {capture.output}")
            yield Heatmap(matrix, self.scale, bounds)
        name = self.captures[0].model
        for capture, matrix in zip(self.captures[1:], self.matrices[1:], strict=True):
            if reason := axes_difference(first, matrix):
                yield text(f"no difference map of {capture.model} and {name}: {reason}")
            else:
                yield text(f"{capture.model} minus {name}", "bold")
                yield Heatmap(replace(matrix.minus(first), title=""))
