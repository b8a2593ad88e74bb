"""All layers and heads of one kind at a glance: a small map each."""

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment, Segments
from rich.style import Style

from attnkit.analysis.maps import AttentionMaps
from attnkit.show.colour import Palette
from attnkit.show.colour_bar import bar, caption
from attnkit.show.colour_scale import Scale, Scaled, limits, pooled, scaled
from attnkit.show.heatmap import Heatmap, text
from attnkit.show.map_view import AXES, NAMES, mechanisms, notes, view
from attnkit.show.terminal_paint import Paint
from attnkit.show.token_labels import aligned

_WIDEST, _HIGHEST = 32, 32  # drawn columns and rows of a map
_NARROWEST = 6
_ENLARGED = 12  # maps of so few queries and keys are drawn two cells a key
_BETWEEN = "  "
_DIM = Style(dim=True)


class MapGrid:
    """A rich renderable: a band a layer, in it a map a head, all with one colour bar.

    Heads that do not fit side by side go below.  A map with more keys than there is room for is
    pooled: each cell is the highest weight of a block.
    """

    def __init__(
        self,
        maps: AttentionMaps,
        *,
        scale: Scale = "linear",
        palette: Palette = "cividis",
        bounds: tuple[float, float] | None = None,
        numbers: Float[NDArray[np.float64], "L H"] | None = None,
        named: str = "",
        plain: bool = False,
    ) -> None:
        """
        Args:
            maps: what is drawn.
            scale: from weights to colours.
            palette: the colours.
            bounds: range of the colour bar; default: of all these maps.
            numbers: one for each head, shown above it; NaN: none.
            named: what they are.
            plain: digits for screen readers and grep: every head in full.
        """
        self.maps = maps
        self.scale: Scale = scale
        self.palette: Palette = palette
        self.bounds = bounds or limits([maps.weights])
        self.numbers = numbers
        self.named = named
        self.plain = plain

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        maps, ascii_only = self.maps, options.ascii_only
        if self.plain:
            for layer in maps.layers:
                for head in maps.heads:
                    yield Heatmap(view(maps, layer.number, head), plain=True)
            return
        yield text(f"{NAMES[maps.kind]}, all heads: {mechanisms(maps)}", "bold", ascii_only)
        if not maps.weights.size:
            yield text("nothing to show: no token is left on an axis", "", ascii_only)
            return
        paint = Paint.of(console, options, self.palette)
        places = _Places.of(maps, options.max_width, paint)
        scales = [
            [scaled(weights, self.scale, bounds=self.bounds) for weights in of_layer]
            for of_layer in maps.weights
        ]
        yield Segments(self._lines(scales, paint, places, options.max_width))
        yield Segments(bar(scales[0][0], paint, options.max_width))
        told = dict.fromkeys(note for band in scales for one in band for note in one.notes)
        parts = (caption(scales[0][0]), *self._notes(places), *told)
        yield text("; ".join(parts), "dim", ascii_only)
        for note in notes(maps):
            yield text(note, "dim", ascii_only)

    def _notes(self, places: "_Places") -> Iterator[str]:
        """What is where, and what was done to fit."""
        rows, columns = AXES[self.maps.kind]
        yield f"L layer, H head; rows: {rows} (queries), columns: {columns} (keys)"
        if self.numbers is not None:
            yield f"numbers: {self.named}"
        if places.rows * places.columns > 1:
            yield f"a cell is the highest of {places.rows} x {places.columns} (queries x keys)"

    def _lines(
        self, scales: list[list[Scaled]], paint: Paint, places: "_Places", width: int
    ) -> Iterator[Segment]:
        """A band a layer, several beside each other or one folded, as there is room."""
        layers, heads = len(self.maps.layers), len(self.maps.heads)
        for top in range(0, layers, places.beside):
            rows = range(top, min(top + places.beside, layers))
            for first in range(0, heads, places.across):
                shown = range(first, min(first + places.across, heads))
                titles = _BETWEEN.join(self._title(row, shown, places) for row in rows)
                yield Segment(titles.rstrip()[:width], _DIM)
                yield Segment.line()
                bands = [
                    [pooled(scales[row][at].values, places.rows, places.columns) for at in shown]
                    for row in rows
                ]
                yield from _cells(bands, paint, places)

    def _title(self, row: int, shown: range, places: "_Places") -> str:
        """The line above a band."""
        name = f"L{self.maps.layers[row].number}"[: places.margin].ljust(places.margin)
        return name + "".join(f" {self._name(row, at, places.width)}" for at in shown)

    def _name(self, layer: int, head: int, width: int) -> str:
        """H3, and its number where there is room."""
        name = f"H{self.maps.heads[head]}"
        if self.numbers is not None:
            value = self.numbers[layer, head]
            number = "-" if np.isnan(value) else f"{value:.2f}"
            if len(name) + len(number) < width:
                return name + number.rjust(width - len(name))
        return aligned(name, width, True, left=True)


def _cells(
    bands: list[list[NDArray[np.float32]]], paint: Paint, places: "_Places"
) -> Iterator[Segment]:
    """Maps of one or more layers side by side."""
    for row in range(0, len(bands[0][0]), 2 if places.half else 1):
        for number, band in enumerate(bands):
            yield Segment((_BETWEEN if number else "") + " " * places.margin)
            for values in band:
                yield Segment(" ")
                if places.half:
                    lower = values[row + 1] if row + 1 < len(values) else None
                    yield from paint.half_cells(values[row], lower)
                else:
                    yield from paint.cells(values[row], places.cell)
        yield Segment.line()


class _Places(NamedTuple):
    """How the maps are laid out."""

    margin: int
    """Cells of the layers' names."""
    across: int
    """Heads side by side."""
    width: int
    """Cells of a map."""
    cell: int
    """Cells of a drawn column."""
    rows: int
    """Queries that a drawn row stands for."""
    columns: int
    """Keys that a drawn column stands for."""
    half: bool
    """Two drawn rows a line."""

    beside: int = 1
    """Layers side by side."""

    @classmethod
    def of(cls, maps: AttentionMaps, width: int, paint: Paint) -> "_Places":
        """As many heads side by side as are still seen, all bands alike."""
        queries, keys = maps.weights.shape[2:]
        heads = len(maps.heads)
        margin = 1 + max(len(str(layer.number)) for layer in maps.layers)
        room = max(2, width - margin)
        least = min(keys, _NARROWEST)
        across = ceil(heads / ceil(heads / max(1, room // (least + 1))))
        share = max(1, room // across - 1)
        columns = ceil(keys / min(share, _WIDEST))
        rows = max(columns, ceil(queries / _HIGHEST)) * (1 if paint.halves else 2)
        rows = rows if queries > 2 else 1
        found = cls(margin, across, ceil(keys / columns), 1, rows, columns, paint.halves)
        band = margin + across * (found.width + 1) + len(_BETWEEN)
        beside = (width + len(_BETWEEN)) // band if across == heads else 1
        layers = len(maps.layers)
        if beside > 1 and layers > 1:
            return found._replace(beside=ceil(layers / ceil(layers / beside)))
        if max(queries, keys) <= _ENLARGED and 2 * keys <= share:
            return cls(margin, across, 2 * keys, 2, 1, 1, False)
        return found
