"""Maps as a picture for print: one map in full, or small multiples; PNG, SVG or PDF."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps, Capture, Kind
from attnkit.show import colour
from attnkit.show.attention_matrix import (
    NAMES,
    STATIC,
    axes_difference,
    hidden_text,
    maps_of,
    mechanisms,
    selection_text,
    sides_of,
)  # fmt: skip
from attnkit.show.colour import Scale, limits, pooled, scaled
from attnkit.show.figure import RESOLUTION, Picture, matplotlib_defaults, rendered, require
from attnkit.show.token_labels import cut, labels_of
from attnkit.text import safe_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

LONGEST = 24  # width of a token's label, in characters of a terminal
TYPE, SMALL, SMALLEST = 8.0, 7.0, 4.5
"""Font sizes in points; labels that would be smaller than the last are left out."""
LINE = TYPE * 1.35 / 72  # inches of a line of text
CHARACTER = 0.6 / 72  # inches of a character for each point of its font, about
MAP = 7.0  # inches of a map in full, at most
ROW, PANEL = 11.0, (0.8, 2.2)  # inches of a row of small multiples, and of the longer side of one
CELL = (0.24, 0.5)  # inches of a cell: at most the first, in a map of few cells the second
NARROWEST = 0.12  # inches: no map is thinner, however few rows it has
BAR = (0.7, 2.6, 0.11)  # inches of a colour bar with its labels across, its height, its width
MEANING = {"linear": "", "log": ", logarithmic", "row": ", share of the row's maximum"}

Matrix = Float[NDArray[np.float32], "T S"]


@dataclass(frozen=True)
class Panels:
    """Matrices with the same axes as rows of panels: those of one run, or a difference."""

    title: str
    rows: Sequence[Sequence[Matrix]]
    queries: Sequence[str]
    keys: Sequence[str]
    sides: tuple[str, str]
    """What queries and keys are."""
    row_names: Sequence[str] = ()
    column_names: Sequence[str] = ()
    names: Sequence[str] = ()
    """Of the panels one by one, where rows and columns have none."""
    signed: bool = False
    """A difference: the colours diverge from zero."""

    @property
    def single(self) -> bool:
        """Whether it is one map in full."""
        return len(self.rows) == len(self.rows[0]) == 1

    def texts(self) -> Iterator[str]:
        """All that is written in it."""
        yield self.title
        for some in (self.queries, self.keys, self.row_names, self.column_names, self.names):
            yield from some


def picture(
    captures: Sequence[Capture],
    kind: Kind,
    format: str,
    *,
    scale: Scale = "linear",
) -> Picture:
    """Draw the maps of one kind; the same maps give the same bytes.

    One layer and head is drawn in full with every token that fits; more become small multiples
    under one colour scale.  Several captures stand side by side, with their differences to the
    first where tokens, layers and heads are the same.

    Args:
        captures: of one text; their maps hold what is to be shown (see `AttentionMaps.choose`).
        kind: which of their maps.
        format: png, svg or pdf.
        scale: of the colours; a difference is always linear.

    Raises:
        UsageError: no such format; a capture has no maps of this kind.
        UnavailableError: matplotlib is not installed.
    """
    shown = [maps_of(capture, kind) for capture in captures]
    blocks, notes = [], []
    for capture, maps in zip(captures, shown, strict=True):
        static = STATIC if all(layer.static for layer in maps.layers) else ""
        facts = (f"{NAMES[maps.kind]}: {_line(mechanisms(maps))}", static, selection_text(maps),
                 _line(hidden_text(maps)))  # fmt: skip
        title = f"{_line(capture.model)}\n{'; '.join(filter(None, facts))}"
        blocks.append(_panels(title, maps, maps.weights))
    for capture, maps in zip(captures[1:], shown[1:], strict=True):
        reason = no_difference(shown[0], maps)
        if reason is None:
            title = f"{_line(capture.model)}\nminus {_line(captures[0].model)}"
            difference = maps.weights - shown[0].weights
            blocks.append(_panels(title, maps, difference, signed=True))
        else:
            notes.append(f"no difference of {capture.model} and {captures[0].model}: {reason}")
    names = ", ".join(capture.model for capture in captures)
    drawn = draw_panels(blocks, f"{NAMES[kind]}: {names}", format, scale)
    return drawn._replace(warnings=(*notes, *drawn.warnings))


def no_difference(one: AttentionMaps, other: AttentionMaps) -> str | None:
    """Why the difference of two maps has no meaning; None where it has one."""
    if reason := axes_difference(one, other):
        return reason
    if [layer.number for layer in one.layers] != [layer.number for layer in other.layers]:
        return "they have different layers"
    return None if one.heads == other.heads else "they have different heads"


def _panels(
    title: str,
    maps: AttentionMaps,
    weights: Float[NDArray[np.float32], "L H T S"],
    signed: bool = False,
) -> Panels:
    """Layers down and heads across; a single row or column of many maps is folded."""
    heads = [f"head {number}" for number in maps.heads]
    several = len({layer.mechanism for layer in maps.layers}) > 1
    layers = [
        f"layer {layer.number}" + (f"\n{_line(layer.mechanism)}" if several else "")
        for layer in maps.layers
    ]
    queries, keys = ([cut(x, LONGEST) for x in labels_of(s)] for s in (maps.queries, maps.keys))
    rest: dict[str, Any] = {"queries": queries, "keys": keys, "sides": sides_of(maps),
                            "signed": signed}  # fmt: skip
    if min(len(layers), len(heads)) > 1:
        rows = [list(of_layer) for of_layer in weights]
        return Panels(title, rows, row_names=layers, column_names=heads, **rest)
    names = [f"{layer}, {head}".replace("\n", ", ") for layer in layers for head in heads]
    panels = list(weights.reshape(-1, *weights.shape[2:]))
    if len(panels) == 1:
        return Panels(f"{title}, {names[0]}", [panels], **rest)
    across = len(panels) if len(panels) <= 4 else math.ceil(math.sqrt(len(panels)) * 1.2)
    rows = [panels[start : start + across] for start in range(0, len(panels), across)]
    return Panels(title, rows, names=names, **rest)


def draw_panels(
    blocks: Sequence[Panels],
    title: str,
    format: str,
    scale: Scale = "linear",
) -> Picture:
    """Blocks of panels with one colour scale for weights and one for differences.

    Single maps stand side by side, other blocks below each other.

    Raises:
        UsageError, UnavailableError: as `attnkit.show.figure.require`.
    """
    require(format)
    with matplotlib_defaults(text for block in blocks for text in block.texts()) as missing:
        drawing = _PanelFigure(blocks, scale)
        data = rendered(drawing.figure, format, title)
    return Picture(data, (*missing, *drawing.warnings))


class _PanelSizes(NamedTuple):
    """Of a block, in inches, and what of its axes is labelled."""

    panel: tuple[float, float]  # width and height of each
    whole: tuple[float, float]  # of the block with its labels, about: matplotlib places them
    font: float  # of the tokens in points; 0: none
    stride: int  # each how many tokens have a label
    slant: int  # of the keys' labels in degrees


def _sizes(block: Panels) -> _PanelSizes:
    """How large the panels of a block are, and how their tokens are labelled."""
    most, across = max(len(block.queries), len(block.keys), 1), len(block.rows[0])
    if block.single:
        cell = min(max(CELL[0], min(CELL[1], 1.2 / most)), MAP / most)
    else:
        cell = min(max(ROW / across, PANEL[0]), PANEL[1]) / most
    width, height = (max(cell * max(len(s), 1), NARROWEST) for s in (block.keys, block.queries))
    fits = cell * 72 * 0.8
    font, stride = min(TYPE, fits), 1
    if fits < SMALLEST:
        font, stride = (SMALLEST, math.ceil(SMALLEST / fits)) if block.single else (0.0, 1)
    longest = [max(map(len, side), default=0) * font * CHARACTER
               for side in (block.queries, block.keys)]  # fmt: skip
    room = cell * stride
    slant = 45 if block.single and room * 72 > 1.7 * font else 90
    slant = slant if longest[1] > 0.95 * room else 0
    rise = max(math.sin(math.radians(slant)) * longest[1], font / 72)
    margin = max((len(line) for name in block.row_names for line in name.split("\n")), default=0)
    heads = LINE * (len(block.rows) if block.names else 1)
    lines = block.title.split("\n")
    whole = (
        max(width * across + longest[0] + margin * TYPE * CHARACTER,
            max(map(len, lines)) * TYPE * CHARACTER) + 0.3,
        height * len(block.rows) + rise + heads + LINE * (len(lines) + 1),
    )  # fmt: skip
    return _PanelSizes((width, height), whole, font, stride, slant)


class _PanelFigure:
    """One figure."""

    def __init__(self, blocks: Sequence[Panels], scale: Scale) -> None:
        from matplotlib.figure import Figure

        self.scale, self.warnings = scale, list[str]()
        self.bounds = {
            signed: limits([m for b in blocks if b.signed == signed for row in b.rows for m in row],
                           signed)
            for signed in (False, True)
        }  # fmt: skip
        sizes = [_sizes(block) for block in blocks]
        beside = all(block.single for block in blocks)
        # maps side by side share one bar for the weights and one for the differences
        barred = [
            not beside or not after or after[0].signed != block.signed
            for number, block in enumerate(blocks, 1)
            for after in [blocks[number : number + 1]]
        ]
        wide = [size.whole[0] + BAR[0] * bar for size, bar in zip(sizes, barred, strict=True)]
        high = [size.whole[1] for size in sizes]
        if beside:
            self.figure: Figure = Figure((sum(wide), max(high)), layout="constrained")
            parts = self.figure.subfigures(1, len(blocks), squeeze=False, width_ratios=wide)
        else:
            self.figure = Figure((max(wide), sum(high)), layout="constrained")
            parts = self.figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=high)
        for block, size, bar, part in zip(blocks, sizes, barred, parts.flat, strict=True):
            panels = self._block(block, size, part)
            if bar:
                self._bar(block, part, panels, size.panel[1] * len(block.rows))

    def _block(self, block: Panels, size: _PanelSizes, part: "SubFigure") -> list["Axes"]:
        """Draw the panels of a block under its title."""
        part.suptitle(block.title, x=0, ha="left", fontsize=TYPE, linespacing=1.3)
        down, across = len(block.rows), len(block.rows[0])
        grid = part.subplots(down, across, squeeze=False)
        for row, line in enumerate(block.rows):
            for column, axes in enumerate(grid[row]):
                if column >= len(line):
                    axes.remove()
                    continue
                self._panel(block, line[column], size, axes, (column == 0, row == 0))
                if block.names:
                    axes.set_title(block.names[row * across + column], fontsize=TYPE)
                elif block.column_names and row == 0:
                    axes.set_title(block.column_names[column], fontsize=TYPE)
            if block.row_names:
                grid[row, 0].set_ylabel(block.row_names[row], rotation=0, ha="right", va="center",
                                        fontsize=TYPE)  # fmt: skip
        if block.single:
            grid[0, 0].set_ylabel(block.sides[0], fontsize=SMALL, color="0.35")
            grid[0, 0].set_xlabel(block.sides[1], fontsize=SMALL, color="0.35")
        else:
            note = f"each map: {block.sides[0]} downwards, {block.sides[1]} to the right"
            part.supxlabel(note, x=0, ha="left", fontsize=SMALL)
        return [axes for axes in grid.flat if axes.figure is not None]

    def _panel(
        self,
        block: Panels,
        matrix: Matrix,
        size: _PanelSizes,
        axes: "Axes",
        outer: tuple[bool, bool],
    ) -> None:
        """One map; `outer` says whether it is the first of its row and of its column."""
        shares = scaled(matrix, self._scale(block), signed=block.signed,
                        bounds=self.bounds[block.signed])  # fmt: skip
        self._warn(shares.notes)
        width, height = size.panel
        # a map with more cells than its picture has pixels is pooled
        pixels = height * RESOLUTION, width * RESOLUTION
        down, across = (math.ceil(n / most) for n, most in zip(matrix.shape, pixels, strict=True))
        if down * across > 1:
            self._warn([
                f"maps of {matrix.shape[0]} x {matrix.shape[1]} tokens have more cells than "
                f"their pictures have pixels: each shows the largest of {down} x {across}"
            ])  # fmt: skip
        # the extent counts tokens, whatever was merged
        extent = (-0.5, matrix.shape[1] - 0.5, matrix.shape[0] - 0.5, -0.5)
        axes.imshow(pooled(shares.values, down, across, shares.middle), extent=extent,
                    cmap=self._colours(block), vmin=0, vmax=1, aspect="auto",
                    interpolation="nearest")  # fmt: skip
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.tick_params(length=2 if size.stride > 1 else 0, pad=2)
        for axis, labels, shown in ((axes.yaxis, block.queries, outer[0]),
                                    (axes.xaxis, block.keys, outer[1])):  # fmt: skip
            axis.set_visible(shown and (size.font > 0 or bool(block.row_names)))
            ticks = list(range(0, len(labels), size.stride)) if shown and size.font else []
            axis.set_ticks(ticks, [labels[tick] for tick in ticks], fontsize=size.font or TYPE)
        for label in axes.get_xticklabels():
            label.set(rotation=size.slant, rotation_mode="anchor",
                      va="center" if size.slant == 90 else "bottom",
                      ha="center" if size.slant == 0 else "left")  # fmt: skip

    def _bar(self, block: Panels, part: "SubFigure", panels: list["Axes"], height: float) -> None:
        """The colour bar beside a block."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LogNorm, Normalize

        ends = scaled(np.zeros((1, 1), np.float32), self._scale(block), signed=block.signed,
                      bounds=self.bounds[block.signed])  # fmt: skip
        norm = (LogNorm if ends.scale == "log" else Normalize)(ends.low, ends.high)
        bar = part.colorbar(ScalarMappable(norm, self._colours(block)), ax=panels,
                            aspect=min(height, BAR[1]) / BAR[2], shrink=min(1.0, BAR[1] / height),
                            format=lambda value, _: _number(f"{value:g}"))  # fmt: skip
        what = "difference of weights" if block.signed else "attention weight"
        bar.set_label(what + MEANING[ends.scale], fontsize=SMALL)
        bar.ax.tick_params(labelsize=SMALL, length=2)
        bar.ax.minorticks_off()
        bar.outline.set_linewidth(0.5)

    def _scale(self, block: Panels) -> Scale:
        return "linear" if block.signed else self.scale

    def _warn(self, notes: Sequence[str]) -> None:
        self.warnings += [note for note in notes if note not in self.warnings]

    def _colours(self, block: Panels) -> Any:
        from matplotlib.colors import ListedColormap

        return ListedColormap(colour.table("difference" if block.signed else "weights") / 255)


def _number(text: str) -> str:
    """A number with a real minus sign, since nothing is set as a formula."""
    return text.replace("-", "\u2212")


def _line(text: str) -> str:
    """Safe text on one line."""
    return safe_text(text).replace("\n", "\\n").replace("\t", "\\t")
