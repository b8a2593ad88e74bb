"""Drawing maps with matplotlib: where panels, labels and colour bars go, in inches."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.show import colour
from attnkit.show.colour import Palette
from attnkit.show.colour_scale import Scale, Scaled, limits, pooled, scaled
from attnkit.show.figure import RESOLUTION

if TYPE_CHECKING:
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

Matrix = Float[NDArray[np.float32], "T S"]

TYPE, SMALL, SMALLEST = 8.0, 7.0, 4.5
"""Font sizes in points; labels that would be smaller than the last are left out."""
LINE = TYPE * 1.35 / 72  # inches of a line of text
LONGEST_MAP, LONGEST_ROW = 7.0, 11.0
"""Inches: a map in full, and a row of small multiples, are at most about so long."""
CELL = (0.24, 0.5)  # inches of a cell: at most the first, in a map of few cells the second
PANEL = (0.8, 2.2)  # least and largest inches of the longer side of a small multiple
NUMBERED_CELL = 0.42
NARROWEST_MAP = 0.12  # inches: no map is thinner, however few rows it has
GAP, PAD = 0.3, 0.08  # inches between blocks, and between a thing and its label
BAR = (0.11, 2.6)  # width, and largest height, of a colour bar in inches
MEANING = {"linear": "", "log": ", logarithmic", "row": ", share of the row's maximum"}


@dataclass(frozen=True)
class Panel:
    """One map to draw."""

    values: Matrix
    title: str = ""


@dataclass(frozen=True)
class PanelBlock:
    """The maps of one run, or a difference, as rows of panels with the same axes."""

    title: str
    rows: list[list[Panel]]
    queries: list[str]
    keys: list[str]
    names: tuple[str, str]  # what queries and keys are
    row_names: tuple[str, ...] = ()
    column_names: tuple[str, ...] = ()
    signed: bool = False  # a difference: the colours diverge from zero
    meaning: str = ""  # what the colours stand for; weights or their difference when empty
    numbers: bool = False  # write each value into its cell

    @property
    def single(self) -> bool:
        """Whether it is one map in full."""
        return len(self.rows) == len(self.rows[0]) == 1

    def texts(self) -> Iterator[str]:
        """All that is written in it."""
        yield from (self.title, *self.queries, *self.keys, *self.row_names, *self.column_names)
        yield from (panel.title for row in self.rows for panel in row)


class PanelSize(NamedTuple):
    """Sizes in a block, in inches; font size in points."""

    width: float
    height: float
    font: float  # font size of the tokens' labels; 0: none
    stride: int  # each how many tokens have a label
    left: float  # what the labels of the queries take
    top: float  # what the labels of the keys take
    slant: int  # angle of the labels of the keys in degrees


class MapFigure:
    """Blocks on one figure, with one colour scale for weights and one for differences.

    Every panel has its size in inches, so the figure measures one inch by one inch: what is drawn
    reaches beyond it, to the right and downwards, and saving trims to what is there.  (A layout by
    constraints takes five times as long for many heads.)
    """

    def __init__(
        self, blocks: Sequence[PanelBlock], scale: Scale, palette: Palette = "cividis"
    ) -> None:
        self.blocks, self.scale = blocks, scale
        self.palette: Palette = palette
        self.warnings: list[str] = []
        panels = [(block.signed, panel.values) for block in blocks for row in block.rows
                  for panel in row]  # fmt: skip
        # one range for the weights, and one for the differences
        self._bounds = {
            signed: limits([values for which, values in panels if which == signed], signed)
            for signed in (False, True)
        }
        self.side_by_side = all(block.single for block in blocks)

    def draw(self) -> "Figure":
        """All blocks."""
        from matplotlib.backends.backend_agg import RendererAgg
        from matplotlib.figure import Figure

        self._renderer: Any = RendererAgg(8, 8, 72)  # type: ignore[no-untyped-call]
        figure = Figure(figsize=(1, 1), dpi=RESOLUTION)
        sizes = [self._size(block) for block in self.blocks]
        lines = [1 + block.title.count("\n") for block in self.blocks]
        if self.side_by_side:
            # maps that stand side by side begin at one height
            sizes = [size._replace(top=max(p.top for p in sizes)) for size in sizes]
            lines = [max(lines)] * len(lines)
        x, y = 0.0, 0.0
        for number, (block, size) in enumerate(zip(self.blocks, sizes, strict=True)):
            self._text(figure, x, y, block.title, va="top", linespacing=1.3)
            right, top, bottom = self._block(figure, block, size, x, y - lines[number] * LINE)
            after = self.blocks[number + 1 : number + 2]
            if not self.side_by_side or not after or after[0].signed != block.signed:
                self._bar(figure, block, right + 2 * PAD, top, top - bottom)
                right += 2 * PAD + BAR[0] + 4 * LINE
            title = x + max(self._width(line) for line in block.title.split("\n"))
            below = bottom - GAP - LINE * (not block.single)
            x, y = (max(right, title) + GAP, y) if self.side_by_side else (x, below)
        return figure

    def _block(
        self, figure: "Figure", block: PanelBlock, size: PanelSize, x: float, y: float
    ) -> tuple[float, float, float]:
        """Draw the panels of a block below and right of a corner; right, upper and lower edge."""
        margin = max((self._width(n) for name in block.row_names for n in name.split("\n")),
                     default=-PAD) + PAD  # fmt: skip
        head = 0.0 if block.single else LINE + PAD / 2
        left, top = x + margin + size.left, y - head - size.top - PAD
        upper = top
        for number, row in enumerate(block.rows):
            for column, panel in enumerate(row):
                start = left + column * (size.width + PAD)
                where = (start, upper - size.height, size.width, size.height)
                self._panel(figure, block, panel, size, where, (column == 0, number == 0))
                names = block.column_names if number == 0 else ()
                lift = PAD / 2 + size.top * (number == 0)
                title = panel.title or (names[column] if names else "")
                self._text(figure, start + size.width / 2, upper + lift, title, ha="center")
            if block.row_names:
                self._text(figure, x + margin - PAD, upper - size.height / 2,
                           block.row_names[number], ha="right", va="center")  # fmt: skip
            upper -= size.height + PAD + head * bool(row[0].title)
        bottom = upper + PAD + head * bool(block.rows[0][0].title)
        if not block.single:
            note = f"each map: {block.names[0]} downwards, {block.names[1]} to the right"
            self._text(figure, left, bottom - PAD, note, va="top", fontsize=SMALL)
        return left + len(block.rows[0]) * (size.width + PAD) - PAD, top, bottom

    def _size(self, block: PanelBlock) -> PanelSize:
        """How large the panels of a block are, and what their labels need."""
        most = max(len(block.queries), len(block.keys), 1)
        if block.numbers:
            cell = NUMBERED_CELL
        elif block.single:
            cell = min(max(CELL[0], min(CELL[1], 1.2 / most)), LONGEST_MAP / most)
        else:
            columns = len(block.rows[0])
            cell = min(max(LONGEST_ROW / columns - PAD, PANEL[0]), PANEL[1]) / most
        width, height = (
            max(cell * max(len(side), 1), NARROWEST_MAP) for side in (block.keys, block.queries)
        )
        fits = cell * 72 * 0.8
        size, stride = min(TYPE, fits), 1
        if fits < SMALLEST:
            if not block.single:
                return PanelSize(width, height, 0.0, 1, 0.0, 0.0, 0)
            size, stride = SMALLEST, math.ceil(SMALLEST / fits)
        longest = [max((self._width(t, size) for t in side[::stride]), default=0.0)
                   for side in (block.queries, block.keys)]  # fmt: skip
        room = cell * stride
        slant = 0 if longest[1] < 0.95 * room else 45 if room * 72 > 1.7 * size else 90
        rise = max(math.sin(math.radians(slant)) * longest[1], size / 72)
        named = LINE * block.single
        return PanelSize(width, height, size, stride, longest[0] + PAD + named,
                     rise + PAD + named, slant)  # fmt: skip

    def _shares(self, block: PanelBlock, panel: Panel, size: PanelSize) -> Matrix:
        """Values from 0 to 1; a map with more cells than its picture has pixels is pooled."""
        shares = self._scaled(panel.values, block.signed)
        sides = ((len(block.queries), size.height), (len(block.keys), size.width))
        down, across = (max(1, math.ceil(n / (inches * RESOLUTION))) for n, inches in sides)
        if down * across > 1:
            note = (
                f"maps of {len(block.queries)} x {len(block.keys)} tokens have more cells than "
                f"their pictures have pixels: each shows the largest of {down} x {across}"
            )
            self.warnings += [note] if note not in self.warnings else []
        return pooled(shares.values, down, across, shares.middle)

    def _panel(
        self,
        figure: "Figure",
        block: PanelBlock,
        panel: Panel,
        size: PanelSize,
        where: tuple[float, float, float, float],
        outer: tuple[bool, bool],
    ) -> None:
        """One map; `outer` says whether it is the first of its row and of its column."""
        axes = figure.add_axes(where)
        values = self._shares(block, panel, size)
        # the extent counts tokens, whatever was merged
        extent = (-0.5, len(block.keys) - 0.5, len(block.queries) - 0.5, -0.5)
        axes.imshow(values, cmap=self._colours(block.signed), vmin=0, vmax=1, aspect="auto",
                    extent=extent, interpolation="nearest")  # fmt: skip
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.tick_params(length=2 if size.stride > 1 else 0, pad=2)
        for axis, labels, shown in (
            (axes.yaxis, block.queries, outer[0]),
            (axes.xaxis, block.keys, outer[1]),
        ):
            ticks = list(range(0, len(labels), size.stride)) if shown and size.font else []
            axis.set_ticks(ticks, [labels[tick] for tick in ticks], fontsize=size.font or TYPE)
        for label in axes.get_xticklabels():
            label.set(rotation=size.slant, rotation_mode="anchor", va="bottom",
                      ha="center" if size.slant == 0 else "left")  # fmt: skip
            if size.slant == 90:
                label.set(va="center")
        if block.numbers:
            for (row, column), value in np.ndenumerate(panel.values):
                dark = abs(values[row, column] - 0.5) > 0.35
                word = _number(f"{round(float(value), 2) + 0.0:.2f}")  # none has no sign
                axes.text(column, row, word, fontsize=SMALL,
                          ha="center", va="center", color="white" if dark else "black")  # fmt: skip
        if block.single:
            axes.set_ylabel(block.names[0], fontsize=SMALL, color="0.35")
            axes.set_xlabel(block.names[1], fontsize=SMALL, color="0.35")

    def _bar(
        self, figure: "Figure", block: PanelBlock, x: float, top: float, height: float
    ) -> None:
        """The colour bar beside a block."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LogNorm, Normalize

        signed = block.signed
        height = min(max(height, 6 * LINE), BAR[1])
        axes = figure.add_axes((x, top - height, BAR[0], height))
        ends = self._scaled(np.zeros((1, 1), np.float32), signed)
        norm = (LogNorm if ends.scale == "log" else Normalize)(ends.low, ends.high)
        bar = figure.colorbar(ScalarMappable(norm, self._colours(signed)), cax=axes,
                              format=lambda value, _: _number(f"{value:g}"))  # fmt: skip
        what = "difference of weights" if signed else "attention weight"
        bar.set_label((block.meaning or what) + MEANING[ends.scale], fontsize=SMALL)
        bar.ax.tick_params(labelsize=SMALL, length=2)
        bar.ax.minorticks_off()
        bar.outline.set_linewidth(0.5)

    def _scaled(self, values: Matrix, signed: bool) -> Scaled:
        """Values as shares of the colours."""
        scale = "linear" if signed else self.scale
        shares = scaled(values, scale, signed=signed, bounds=self._bounds[signed])
        self.warnings += [note for note in shares.notes if note not in self.warnings]
        return shares

    def _colours(self, signed: bool) -> "ListedColormap":
        from matplotlib.colors import ListedColormap

        return ListedColormap(colour.table("difference" if signed else self.palette) / 255)

    def _text(self, figure: "Figure", x: float, y: float, text: str, **style: Any) -> None:
        options: Any = {"fontsize": TYPE, "ha": "left", "va": "bottom"} | style
        figure.text(x, y, text, **options)

    def _width(self, text: str, size: float = TYPE) -> float:
        """Inches of a line of text."""
        from matplotlib.font_manager import FontProperties

        font = FontProperties(size=size)
        return float(self._renderer.get_text_width_height_descent(text, font, False)[0]) / 72


def _number(text: str) -> str:
    """A number with a real minus sign, since nothing is set as a formula."""
    return text.replace("-", "\u2212")
