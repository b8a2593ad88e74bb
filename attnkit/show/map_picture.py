"""Attention maps of a model as a PNG, SVG or PDF: a single map, or small multiples."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnkit.analysis.maps import AttentionMaps, Capture, Kind
from attnkit.show import color
from attnkit.show.attention_matrix import NAMES, STATIC, hidden_text, maps_of, mechanisms, selection_text, sides_of
from attnkit.show.color import Scale, limits, scaled
from attnkit.show.figure import Picture, matplotlib_defaults, rendered, require
from attnkit.show.token_labels import cut, labels_of
from attnkit.text import safe_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABEL_WIDTH = 24  # maximum width of a token's label, in terminal cells
TYPE, SMALL, SMALLEST = 8.0, 7.0, 4.5
"""Font sizes in points; labels that would be smaller than the last size are left out."""
CHARACTER_WIDTH = 0.6 / 72  # approximate width of a character in inches, per point of its font
MAX_MAP = 7.0  # maximum side of a single map, in inches
ROW, PANEL = 11.0, (0.8, 2.2)  # inches: width of a row of small multiples; minimum and maximum longer side of a map
MAX_CELL = 0.28  # maximum side of a cell of a single map, in inches
MARGINS = (2.6, 1.8)  # inches for labels, title and color bar
MAX_SQUARE_RATIO = 8  # maximum ratio of the sides of a map for which cells are squares
MAX_SHARP_CELLS = 1000  # number of cells of a side from which a cell is smaller than a pixel
MEANING = {"linear": "", "log": ", logarithmic", "row": ", share of the row's maximum"}


def picture(capture: Capture, kind: Kind, format: str, *, scale: Scale = "linear") -> Picture:
    """Draw the maps of one kind; equal maps give equal bytes.

    A single map is drawn with all tokens that fit; several maps become small multiples under one color scale.
    `AttentionMaps.choose` selects the layers and heads to draw.

    Raises:
        UsageError: If the format is not png, svg or pdf, or the capture has no maps of this kind.
        UnavailableError: If matplotlib is not installed.
    """
    require(format)
    maps = maps_of(capture, kind)
    facts = (
        f"{NAMES[kind]}: {_line(mechanisms(maps))}",
        STATIC if all(layer.static for layer in maps.layers) else "",
        selection_text(maps),
        _line(hidden_text(maps)),
    )
    title = f"{_line(capture.model)}\n{'; '.join(filter(None, facts))}"
    labels = [[cut(text, MAX_LABEL_WIDTH) for text in labels_of(side)] for side in (maps.queries, maps.keys)]
    with matplotlib_defaults([title, *labels[0], *labels[1]]) as missing:
        figure, notes = _figure(maps, title, labels, scale)
        data = rendered(figure, format, f"{NAMES[kind]}: {capture.model}")
    return Picture(data, (*notes, *missing))


def _figure(
    maps: AttentionMaps, title: str, labels: Sequence[Sequence[str]], scale: Scale
) -> tuple["Figure", list[str]]:
    """Return a figure of the maps with a title and a color bar, and notes on the weights.

    Rows are layers and columns are heads; many heads of a single layer, or layers of a single head, are wrapped.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, LogNorm, Normalize
    from matplotlib.figure import Figure

    names = _names(maps)
    queries, keys = map(len, labels)
    across, single = len(maps.heads), len(names) == 1
    if min(len(maps.layers), across) == 1 and len(names) > 4:
        across = min(math.ceil(math.sqrt(len(names)) * 1.2), len(names))
    down = math.ceil(len(names) / across)
    side = min(max(ROW / across, PANEL[0]), PANEL[1])
    cell = min(MAX_CELL, MAX_MAP / max(queries, keys)) if single else side / max(queries, keys)
    size = across * (cell * keys + 0.2) + MARGINS[0], down * (cell * queries + 0.3) + MARGINS[1]
    figure = Figure(size, layout="constrained")
    title = f"{title}, {names[0]}" if single else f"{title}\n"  # room above the names of maps
    figure.suptitle(title, x=0, ha="left", fontsize=TYPE, linespacing=1.3)
    bounds = limits([maps.weights])
    ends = scaled(np.zeros((1, 1), np.float32), scale, bounds=bounds)
    colors = ListedColormap(color.table(ends.palette) / 255)
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in grid[len(names) :]:
        axes.remove()
    notes, panels = dict[str, None](), grid[: len(names)]
    for number, (axes, matrix) in enumerate(zip(panels, maps.weights.reshape(-1, queries, keys), strict=True)):
        shares = scaled(matrix, scale, bounds=bounds)
        notes |= dict.fromkeys(shares.notes)
        smooth = "nearest" if max(matrix.shape) < MAX_SHARP_CELLS else "auto"
        aspect = "equal" if max(matrix.shape) <= MAX_SQUARE_RATIO * min(matrix.shape) else "auto"
        axes.imshow(shares.values, cmap=colors, vmin=0, vmax=1, interpolation=smooth, aspect=aspect)
        outer = number % across == 0, number < across
        _label(axes, cell, [texts if is_outer else () for texts, is_outer in zip(labels, outer, strict=True)], single)
        if not single:
            axes.set_title(names[number], fontsize=SMALL)
    sides = sides_of(maps)
    if single:
        panels[0].set_ylabel(sides[0], fontsize=SMALL, color="0.35")
        panels[0].set_xlabel(sides[1], fontsize=SMALL, color="0.35")
    else:
        figure.supxlabel(f"each map: {sides[0]} downwards, {sides[1]} to the right", x=0, ha="left", fontsize=SMALL)
    norm = (LogNorm if ends.scale == "log" else Normalize)(ends.low, ends.high)
    bar = figure.colorbar(ScalarMappable(norm, colors), ax=panels, aspect=25, format=_number)
    bar.set_label("attention weight" + MEANING[ends.scale], fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, length=2)
    bar.ax.minorticks_off()
    return figure, list(notes)


def _names(maps: AttentionMaps) -> list[str]:
    """Return the names of the maps, with their mechanisms if these differ between layers."""
    mechanisms_differ = len({layer.mechanism for layer in maps.layers}) > 1
    return [
        f"layer {layer.number}, head {head}" + (f"\n{_line(layer.mechanism)}" if mechanisms_differ else "")
        for layer in maps.layers
        for head in maps.heads
    ]


def _label(axes: "Axes", cell: float, labels: Sequence[Sequence[str]], single: bool) -> None:
    """Label the axes with the tokens that fit; in small multiples with all tokens or none."""
    font, stride = min(TYPE, cell * 72 * 0.8), 1
    if font < SMALLEST and single:
        font, stride = SMALLEST, math.ceil(SMALLEST / font)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=2 if stride > 1 else 0, pad=2)
    for axis, texts in zip((axes.yaxis, axes.xaxis), labels, strict=True):
        ticks = range(0, len(texts), stride) if font >= SMALLEST else ()
        axis.set_ticks(list(ticks), [texts[tick] for tick in ticks], fontsize=font)
    width = max(map(len, labels[1]), default=0) * font * CHARACTER_WIDTH
    if width > 0.95 * cell * stride:
        for label in axes.get_xticklabels():
            label.set(rotation=45, rotation_mode="anchor", va="bottom", ha="left")


def _number(value: float, _: object) -> str:
    """Return a label of the color bar, with a typographic minus sign because formulas are not parsed."""
    return f"{value:g}".replace("-", "\u2212")


def _line(text: str) -> str:
    return safe_text(text).replace("\n", "\\n").replace("\t", "\\t")
