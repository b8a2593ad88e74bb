"""Maps as a picture for print: one map in full, or small multiples; PNG, SVG or PDF."""

import math
from collections.abc import Sequence
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
)
from attnkit.show.colour import Scale, limits, scaled
from attnkit.show.figure import Picture, matplotlib_defaults, rendered, require
from attnkit.show.token_labels import cut, labels_of
from attnkit.text import safe_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

LONGEST = 24  # width of a token's label, in characters of a terminal
TYPE, SMALL, SMALLEST = 8.0, 7.0, 4.5
"""Font sizes in points; labels that would be smaller than the last are left out."""
CHARACTER = 0.6 / 72  # inches of a character for each point of its font, about
MAP = 7.0  # inches of a map in full, at most
ROW, PANEL = 11.0, (0.8, 2.2)  # inches of a row of small multiples, and of the longer side of one
CELL = 0.28  # inches of a cell of a map in full, at most
BESIDE = (2.6, 1.8)  # inches for labels, title and colour bar
EVEN = 8  # times as many tokens on one side as on the other: cells are squares
FINE = 1000  # cells of a side from which on a picture has fewer pixels
MEANING = {"linear": "", "log": ", logarithmic", "row": ", share of the row's maximum"}

Matrix = Float[NDArray[np.float32], "T S"]


class MapBlock(NamedTuple):
    """Maps with the same axes: those of one run, or differences."""

    title: str
    names: Sequence[str]
    """Of the maps."""
    maps: Sequence[Matrix]
    across: int
    queries: Sequence[str]
    keys: Sequence[str]
    sides: tuple[str, str]
    """What queries and keys are."""
    signed: bool

    @property
    def single(self) -> bool:
        """Whether it is one map in full."""
        return len(self.maps) == 1


def picture(captures: Sequence[Capture], kind: Kind, format: str, *, scale: Scale = "linear") -> Picture:
    """Draw the maps of one kind; the same maps give the same bytes.

    One layer and head is drawn in full with every token that fits; more become small multiples
    under one colour scale.  Several captures stand side by side or below each other, with their
    differences to the first where tokens, layers and heads are the same.

    Args:
        captures: of one text; their maps hold what is to be shown (see `AttentionMaps.choose`).
        kind: which of their maps.
        format: png, svg or pdf.
        scale: of the colours; a difference is always linear.

    Raises:
        UsageError: no such format; a capture has no maps of this kind.
        UnavailableError: matplotlib is not installed.
    """
    require(format)
    shown = [maps_of(capture, kind) for capture in captures]
    blocks, notes = [], list[str]()
    for capture, maps in zip(captures, shown, strict=True):
        static = STATIC if all(layer.static for layer in maps.layers) else ""
        facts = (
            f"{NAMES[maps.kind]}: {_line(mechanisms(maps))}",
            static,
            selection_text(maps),
            _line(hidden_text(maps)),
        )
        title = f"{_line(capture.model)}\n{'; '.join(filter(None, facts))}"
        blocks.append(_block(title, maps, maps.weights))
    for capture, maps in zip(captures[1:], shown[1:], strict=True):
        if reason := _no_difference(shown[0], maps):
            notes.append(f"no difference of {capture.model} and {captures[0].model}: {reason}")
        else:
            title = f"{_line(capture.model)}\nminus {_line(captures[0].model)}"
            blocks.append(_block(title, maps, maps.weights - shown[0].weights, signed=True))
    title = f"{NAMES[kind]}: {', '.join(capture.model for capture in captures)}"
    texts = (text for block in blocks for text in (block.title, *block.queries, *block.keys))
    with matplotlib_defaults(texts) as missing:
        data = rendered(_figure(blocks, scale, notes), format, title)
    return Picture(data, (*notes, *missing))


def _no_difference(one: AttentionMaps, other: AttentionMaps) -> str | None:
    """Why the difference of two maps has no meaning; None where it has one."""
    if reason := axes_difference(one, other):
        return reason
    if [layer.number for layer in one.layers] != [layer.number for layer in other.layers]:
        return "they have different layers"
    return None if one.heads == other.heads else "they have different heads"


def _block(
    title: str, maps: AttentionMaps, weights: Float[NDArray[np.float32], "L H T S"], signed: bool = False
) -> MapBlock:
    """Layers down and heads across; the heads of one layer, or layers of one head, are folded."""
    several = len({layer.mechanism for layer in maps.layers}) > 1
    names = [
        f"layer {layer.number}, head {head}" + (f"\n{_line(layer.mechanism)}" if several else "")
        for layer in maps.layers
        for head in maps.heads
    ]
    across = len(maps.heads)
    if min(len(maps.layers), across) == 1 and len(names) > 4:
        across = math.ceil(math.sqrt(len(names)) * 1.2)
    if len(names) == 1:
        title = f"{title}, {names[0]}"
    queries, keys = ([cut(x, LONGEST) for x in labels_of(s)] for s in (maps.queries, maps.keys))
    panels = list(weights.reshape(-1, *weights.shape[2:]))
    return MapBlock(title, names, panels, min(across, len(names)), queries, keys, sides_of(maps), signed)


def _figure(blocks: Sequence[MapBlock], scale: Scale, notes: list[str]) -> Any:
    """Single maps side by side, other blocks below each other; one colour scale for weights and
    one for differences."""
    from matplotlib.figure import Figure

    bounds = {
        signed: limits([one for b in blocks if b.signed == signed for one in b.maps], signed)
        for signed in (False, True)
    }
    sizes = []
    for block in blocks:
        most, down = (max(len(block.queries), len(block.keys)), math.ceil(len(block.maps) / block.across))
        side = min(max(ROW / block.across, PANEL[0]), PANEL[1])
        cell = min(CELL, MAP / most) if block.single else side / most
        sizes.append(
            (
                block.across * (cell * len(block.keys) + 0.2) + BESIDE[0],
                down * (cell * len(block.queries) + 0.3) + BESIDE[1],
                cell,
            )
        )
    wide, high, cells = zip(*sizes, strict=True)
    if all(block.single for block in blocks):
        figure = Figure((sum(wide), max(high)), layout="constrained")
        parts = figure.subfigures(1, len(blocks), squeeze=False, width_ratios=wide)
    else:
        figure = Figure((max(wide), sum(high)), layout="constrained")
        parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=high)
    for block, cell, part in zip(blocks, cells, parts.flat, strict=True):
        way: Scale = "linear" if block.signed else scale
        for note in _draw(block, part, way, bounds[block.signed], cell):
            if note not in notes:
                notes.append(note)
    return figure


def _draw(block: MapBlock, part: "SubFigure", scale: Scale, bounds: tuple[float, float], cell: float) -> list[str]:
    """The maps of a block under its title, and their colour bar; gives what is to be said."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    title = block.title if block.single else f"{block.title}\n"  # room above the names of maps
    part.suptitle(title, x=0, ha="left", fontsize=TYPE, linespacing=1.3)
    colours = ListedColormap(colour.table("difference" if block.signed else "weights") / 255)
    grid = part.subplots(math.ceil(len(block.maps) / block.across), block.across, squeeze=False)
    notes, panels = list[str](), list(grid.flat)
    for axes in panels[len(block.maps) :]:
        axes.remove()
    panels = panels[: len(block.maps)]
    for number, (axes, name, matrix) in enumerate(zip(panels, block.names, block.maps, strict=True)):
        shares = scaled(matrix, scale, signed=block.signed, bounds=bounds)
        notes += shares.notes
        smooth = "nearest" if max(matrix.shape) < FINE else "auto"
        even = max(matrix.shape) <= EVEN * min(matrix.shape)
        axes.imshow(
            shares.values, cmap=colours, vmin=0, vmax=1, interpolation=smooth, aspect="equal" if even else "auto"
        )
        _label(block, axes, cell, number)
        if not block.single:
            axes.set_title(name, fontsize=SMALL)
    if block.single:
        panels[0].set_ylabel(block.sides[0], fontsize=SMALL, color="0.35")
        panels[0].set_xlabel(block.sides[1], fontsize=SMALL, color="0.35")
    else:
        note = f"each map: {block.sides[0]} downwards, {block.sides[1]} to the right"
        part.supxlabel(note, x=0, ha="left", fontsize=SMALL)
    ends = scaled(np.zeros((1, 1), np.float32), scale, signed=block.signed, bounds=bounds)
    norm = (LogNorm if ends.scale == "log" else Normalize)(ends.low, ends.high)
    # nothing is set as a formula, so a minus sign has to be a real one
    bar = part.colorbar(
        ScalarMappable(norm, colours),
        ax=panels,
        aspect=25,
        format=lambda value, _: f"{value:g}".replace("-", "\u2212"),
    )
    what = "difference of weights" if block.signed else "attention weight"
    bar.set_label(what + MEANING[ends.scale], fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, length=2)
    bar.ax.minorticks_off()
    return notes


def _label(block: MapBlock, axes: "Axes", cell: float, number: int) -> None:
    """Tokens along the axes: as many as fit, of small maps all or none, beside the first ones."""
    font, stride = min(TYPE, cell * 72 * 0.8), 1
    if font < SMALLEST and block.single:
        font, stride = SMALLEST, math.ceil(SMALLEST / font)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=2 if stride > 1 else 0, pad=2)
    outer = (number % block.across == 0, number < block.across)
    for axis, labels, shown in ((axes.yaxis, block.queries, outer[0]), (axes.xaxis, block.keys, outer[1])):
        ticks = range(0, len(labels), stride) if shown and font >= SMALLEST else ()
        axis.set_ticks(list(ticks), [labels[tick] for tick in ticks], fontsize=font)
    longest = max(map(len, block.keys), default=0) * font * CHARACTER
    if longest > 0.95 * cell * stride:
        for label in axes.get_xticklabels():
            label.set(rotation=45, rotation_mode="anchor", va="bottom", ha="left")


def _line(text: str) -> str:
    """Safe text on one line."""
    return safe_text(text).replace("\n", "\\n").replace("\t", "\\t")
