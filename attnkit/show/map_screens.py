"""Attention maps on a terminal: all layers and heads small, and several models side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from attnkit.analysis.maps import AttentionMaps, Capture, Kind
from attnkit.show.attention_matrix import (
    NAMES,
    AttentionMatrix,
    axes_difference,
    maps_of,
    matrix_of,
    mechanisms,
    notes,
    selection_text,
    sides_of,
)
from attnkit.show.colour import Scale, Scaled, limits, pooled, scaled
from attnkit.show.heatmap import Heatmap, layout, text
from attnkit.show.terminal_colours import DIM, TerminalColours, colour_system
from attnkit.show.token_labels import aligned, labels_of

_WIDEST, _HIGHEST = 32, 32  # drawn columns and rows of a map
_NARROWEST = 6
_ENLARGED = 12  # maps of so few queries and keys are drawn two cells a key
_BETWEEN = "  "


@dataclass(frozen=True, eq=False)
class MapGrid:
    """A rich renderable: a band a layer, in it a map a head, all with one colour bar.

    Heads that do not fit side by side go below.  A map with more keys than there is room for is
    pooled: each cell is the highest weight of a block.
    """

    maps: AttentionMaps
    scale: Scale = "linear"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        maps, ascii_only = self.maps, options.ascii_only
        which = selection_text(maps) or "all heads"
        yield text(f"{NAMES[maps.kind]}, {which}: {mechanisms(maps)}", "bold", ascii_only)
        if not maps.weights.size:
            yield text("nothing to show: no token is left on an axis", "", ascii_only)
            return
        colours = TerminalColours(colour_system(console), ascii_only)
        layout = _GridLayout.of(maps, options.max_width, colours.half_blocks)
        bounds = limits([maps.weights])
        shares = [
            [scaled(weights, self.scale, bounds=bounds) for weights in of_layer]
            for of_layer in maps.weights
        ]
        yield Segments(self._lines(shares, colours, layout, options.max_width))
        yield Segments(colours.bar(shares[0][0], options.max_width))
        rows, columns = sides_of(maps)
        parts = [
            colours.caption(shares[0][0]),
            f"L layer, H head; rows: {rows} (queries), columns: {columns} (keys)",
        ]
        if layout.rows * layout.columns > 1:
            pool = f"{layout.rows} x {layout.columns}"
            parts.append(f"a cell is the highest of {pool} (queries x keys)")
        parts += dict.fromkeys(note for band in shares for one in band for note in one.notes)
        yield text("; ".join(parts), "dim", ascii_only)
        for note in notes(maps):
            yield text(note, "dim", ascii_only)

    def _lines(
        self,
        shares: list[list[Scaled]],
        colours: TerminalColours,
        layout: "_GridLayout",
        width: int,
    ) -> Iterator[Segment]:
        """A band a layer, several beside each other or one folded, as there is room."""
        layers, heads, margin = self.maps.layers, self.maps.heads, layout.margin
        for top in range(0, len(layers), layout.beside):
            rows = range(top, min(top + layout.beside, len(layers)))
            for first in range(0, len(heads), layout.across):
                shown = slice(first, first + layout.across)
                labels = [aligned(f"H{h}", layout.width, True, left=True) for h in heads[shown]]
                names = (f"L{layers[row].number}"[:margin].ljust(margin) for row in rows)
                titles = [" ".join([name, *labels]) for name in names]
                yield Segment(_BETWEEN.join(titles).rstrip()[:width], DIM)
                yield Segment.line()
                bands = [
                    [pooled(one.values, layout.rows, layout.columns) for one in shares[row][shown]]
                    for row in rows
                ]
                for line in range(0, len(bands[0][0]), 2 if layout.half else 1):
                    for number, band in enumerate(bands):
                        yield Segment((_BETWEEN if number else "") + " " * margin)
                        for values in band:
                            yield Segment(" ")
                            yield from colours.line(values, line, layout.cell, layout.half)
                    yield Segment.line()


class _GridLayout(NamedTuple):
    """How the maps are laid out."""

    margin: int  # cells of the layers' names
    across: int  # heads side by side
    width: int  # cells of a map
    cell: int  # cells of a drawn column
    rows: int  # queries that a drawn row stands for
    columns: int  # keys that a drawn column stands for
    half: bool  # two drawn rows a line

    beside: int = 1  # layers side by side

    @classmethod
    def of(cls, maps: AttentionMaps, width: int, half_blocks: bool) -> "_GridLayout":
        """As many heads side by side as are still seen, all bands alike."""
        queries, keys = maps.weights.shape[2:]
        heads = len(maps.heads)
        margin = 1 + max(len(str(layer.number)) for layer in maps.layers)
        room = max(2, width - margin)
        least = min(keys, _NARROWEST)
        across = ceil(heads / ceil(heads / max(1, room // (least + 1))))
        share = max(1, room // across - 1)
        columns = ceil(keys / min(share, _WIDEST))
        rows = max(columns, ceil(queries / _HIGHEST)) * (1 if half_blocks else 2)
        rows = rows if queries > 2 else 1
        layout = cls(margin, across, ceil(keys / columns), 1, rows, columns, half_blocks)
        band = margin + across * (layout.width + 1) + len(_BETWEEN)
        beside = (width + len(_BETWEEN)) // band if across == heads else 1
        layers = len(maps.layers)
        if beside > 1 and layers > 1:
            return layout._replace(beside=ceil(layers / ceil(layers / beside)))
        if max(queries, keys) <= _ENLARGED and 2 * keys <= share:
            return cls(margin, across, 2 * keys, 2, 1, 1, False)
        return layout


_GAP = 3
_NARROWEST_MAP = 36  # cells in which a title and a colour bar still read well


_ComparedMap = tuple[list[Text], Heatmap | None]  # a heading with its map, if any


class MapComparison:
    """A rich renderable of maps of one kind of several captures: the mean over layers and heads.

    Each with its model and output, weights with one colour scale; then the difference of every
    other one to the first where their tokens are the same, or else a sentence why there is none.
    They stand side by side where all of them fit as squares, else below each other.
    """

    def __init__(self, captures: Sequence[Capture], kind: Kind, scale: Scale = "linear") -> None:
        """The first capture is what the others are compared with.

        Raises:
            UsageError: a capture has no maps of this kind.
        """
        self.captures = captures
        self.matrices = [matrix_of(maps_of(capture, kind)) for capture in captures]
        self.heatmap = partial(Heatmap, scale=scale)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ascii_only = options.ascii_only
        bounds = limits([one.weights for one in self.matrices])
        parts: list[_ComparedMap] = []
        for capture, one in zip(self.captures, self.matrices, strict=True):
            heading = [text(capture.model, "bold", ascii_only), text(one.title, "bold", ascii_only)]
            if capture.output:
                output = f"output ({capture.how}): {capture.output}"
                heading.insert(1, text(output, "", ascii_only))
            parts.append((heading, self.heatmap(replace(one, title=""), bounds=bounds)))
        parts += sorted(self._differences(ascii_only), key=lambda part: part[1] is None)
        drawn = sum(heatmap is not None for _, heatmap in parts)
        for columns in dict.fromkeys((drawn, len(self.captures))):
            share = (options.max_width - _GAP * (columns - 1)) // columns
            if columns > 1 and all(_fits(one, share, ascii_only) for one in self.matrices):
                grid = Table.grid(padding=(0, _GAP, 0, 0))
                for _ in range(columns):
                    grid.add_column(width=share)
                grid.add_row(*(Group(*heading) for heading, _ in parts[:columns]))
                grid.add_row(*(heatmap or "" for _, heatmap in parts[:columns]))
                yield grid
                parts = parts[columns:]
                break
        for heading, heatmap in parts:
            yield Group(*heading, *([heatmap] if heatmap else []))

    def _differences(self, ascii_only: bool) -> Iterator["_ComparedMap"]:
        """Each other one minus the first, or why there is none."""
        name, first = self.captures[0].model, self.matrices[0]
        for capture, shown in zip(self.captures[1:], self.matrices[1:], strict=True):
            if reason := axes_difference(first, shown):
                note = f"no difference of {capture.model} and {name}: {reason}"
                yield [text(note, "", ascii_only)], None
            else:
                heading = text(f"{capture.model} minus {name}", "bold", ascii_only)
                yield [heading], self.heatmap(replace(shown.minus(first), title=""))


def _fits(shown: AttentionMatrix, width: int, ascii_only: bool) -> bool:
    """Whether the map is drawn as squares in so many cells."""
    sizes = shown.weights.shape
    if width < _NARROWEST_MAP or 0 in sizes:
        return False
    label = max(map(cell_len, labels_of(shown.queries, ascii_only)))
    shape = layout((sizes[0], sizes[1]), label, width, True)
    return shape.cell == 2 and shape.block == sizes[1]
