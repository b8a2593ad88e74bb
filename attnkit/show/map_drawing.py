"""A selection of attention maps as SVG that needs no matplotlib: layers' means and some heads."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps
from attnkit.show.attention_matrix import NAMES, mechanisms, notes, sides_of
from attnkit.show.colour import table
from attnkit.show.colour_scale import limits, pooled, scaled
from attnkit.show.svg import Drawing, text, width_of
from attnkit.show.token_labels import cut, labels_of

Matrix = Float[NDArray[np.float32], "T S"]

LAYERS, HEADS = 3, 4
"""Layers, and heads of the last layer, that are drawn at most."""
LARGEST = 48
"""Cells of a map along each side, at most; larger ones show the largest of each block."""
SIDE, CELL = 180.0, 14.0  # pixels: of a map's longer side, and of a cell at most
LABELLED = 7.0  # pixels of a cell from which on tokens are named
LONGEST = 14  # characters of a token
LEVELS = 32  # colours
ACROSS = 4  # maps beside each other
GAP, SMALL = 14.0, 10.0  # pixels between maps, font size


class _MapPanel(NamedTuple):
    title: str
    values: Matrix


def drawing(maps: AttentionMaps, name: str) -> Drawing:
    """The means over heads of the first, middle and last layer, and heads of the last one.

    Args:
        maps: of one kind, with a token on each axis.
        name: whose they are.
    """
    panels = list(_panels(maps))
    bounds = limits([panel.values for panel in panels])
    height, width = maps.weights.shape[2:]
    pool = -(-height // LARGEST), -(-width // LARGEST)
    rows, columns = -(-height // pool[0]), -(-width // pool[1])
    cell = min(CELL, SIDE / max(rows, columns))
    labels = [
        [cut(label, LONGEST) for label in labels_of(tokens)] if cell >= LABELLED else []
        for tokens in (maps.queries, maps.keys)
    ]
    if pool != (1, 1):
        labels = [[], []]
    left, above = (width_of(side, SMALL) + 6 for side in labels)
    wide, high = max(cell * columns, width_of([p.title for p in panels], SMALL)), cell * rows
    top = 2 * SMALL + 10
    elements = [text(f"{sides_of(maps)[0]} \u2193, {sides_of(maps)[1]} \u2192", 0, SMALL + 2)]
    x, y = left, top
    for place, panel in enumerate(panels):
        if place % ACROSS == 0:
            x, y = left, top if not place else y + above + high + SMALL + GAP
            elements += _queries(labels[0], x, y + above, cell)
        elements += _keys(labels[1], x, y + above, cell)
        elements += _cells(pooled(panel.values, *pool), bounds, x, y + above, cell)
        elements.append(text(panel.title, x, y + above + high + SMALL + 3, size=SMALL))
        x += wide + GAP
    across = min(ACROSS, len(panels))
    title = f"{name}: {NAMES[maps.kind]}, {mechanisms(maps)}"
    return Drawing(
        left + across * (wide + GAP), y + above + high + SMALL + 10, title, tuple(elements)
    )


def caption(maps: AttentionMaps) -> str:
    """What kind of maps they are, what the colours mean, and what is left out."""
    low, high = limits([panel.values for panel in _panels(maps)])
    parts = [f"{NAMES[maps.kind]}, {mechanisms(maps)}", *notes(maps)]
    parts.append(f"colours from {low:.2g} (dark) to {high:.2g} (light)")
    sizes = maps.weights.shape[2:]
    if max(sizes) > LARGEST:
        blocks = " x ".join(str(-(-size // LARGEST)) for size in sizes)
        parts.append(f"each cell is the largest of {blocks} weights")
    return "; ".join(parts)


def _panels(maps: AttentionMaps) -> Iterator[_MapPanel]:
    numbers, heads = [layer.number for layer in maps.layers], len(maps.heads)
    last = len(numbers) - 1
    chosen = range(last + 1) if last < LAYERS else (0, last // 2, last)
    for at in chosen:
        head = f"mean of {heads} heads" if heads > 1 else f"head {maps.heads[0]}"
        yield _MapPanel(f"layer {numbers[at]}, {head}", maps.weights[at].mean(0))
    for at, number in enumerate(maps.heads[:HEADS] if heads > 1 else ()):
        yield _MapPanel(f"layer {numbers[last]}, head {number}", maps.weights[last, at])


def _queries(labels: Sequence[str], x: float, y: float, cell: float) -> Iterator[str]:
    size = min(SMALL, cell * 0.9)
    for row, label in enumerate(labels):
        yield text(label, x - 4, y + (row + 0.5) * cell + size / 3, size=size, anchor="end")


def _keys(labels: Sequence[str], x: float, y: float, cell: float) -> Iterator[str]:
    size = min(SMALL, cell * 0.9)
    for column, label in enumerate(labels):
        at = x + (column + 0.5) * cell + size / 3
        turn = f' transform="rotate(-90 {at:.1f} {y - 4:.1f})"'
        yield text(label, at, y - 4, size=size, more=turn)


def _cells(
    values: Matrix, bounds: tuple[float, float], x: float, y: float, cell: float
) -> Iterator[str]:
    """The cells of one map: a path for each colour, of runs of equal cells."""
    shares = scaled(values, bounds=bounds).values
    levels = np.rint(shares * (LEVELS - 1)).astype(int)
    colours = table()
    place = f"translate({x:.1f} {y:.1f}) scale({cell:.3f})"
    yield f'<g transform="{place}" shape-rendering="crispEdges">'
    paths: dict[int, list[str]] = {}
    for row, line in enumerate(levels):
        edges = np.flatnonzero(np.diff(line)) + 1
        starts, ends = [0, *edges.tolist()], [*edges.tolist(), len(line)]
        for start, end in zip(starts, ends, strict=True):
            paths.setdefault(int(line[start]), []).append(f"M{start} {row}.5h{end - start}")
    for level, runs in sorted(paths.items()):
        red, green, blue = colours[round(level * 255 / (LEVELS - 1))]
        yield f'<path d="{"".join(runs)}" stroke="#{red:02x}{green:02x}{blue:02x}"/>'
    yield "</g>"
