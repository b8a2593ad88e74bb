"""Attention maps as a picture for print: one map in full, or small multiples; PNG, SVG or PDF."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps, Capture, Kind
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
from attnkit.show.colour import Palette
from attnkit.show.colour_scale import Scale
from attnkit.show.figure import Picture, matplotlib_defaults, rendered, require
from attnkit.show.map_figure import MapFigure, Panel, PanelBlock
from attnkit.show.token_labels import cut, labels_of
from attnkit.text import safe_text

LONGEST = 24  # width of a token's label, in characters of a terminal


def picture(
    captures: Sequence[Capture],
    kind: Kind,
    format: str,
    *,
    mean: bool = False,
    scale: Scale = "linear",
    palette: Palette = "cividis",
) -> Picture:
    """Draw the maps of one kind; the same maps give the same bytes.

    One layer and head, or the mean over the heads of one layer, is drawn in full with every token
    that fits; more become small multiples under one colour scale.  Several captures stand side by
    side, with their differences to the first where tokens, layers and heads are the same.

    Args:
        captures: of one text; their maps hold what is to be shown (see `Maps.choose`).
        kind: which of their maps.
        format: png, svg or pdf.
        mean: over the heads of each layer.
        scale: of the colours; a difference is always linear.
        palette: the colours of weights; differences have their own.

    Raises:
        UsageError: no such format; a capture has no maps of this kind.
        UnavailableError: matplotlib is not installed.
    """
    require(format)
    shown = [maps_of(capture, kind) for capture in captures]
    blocks, notes = [], []
    for capture, maps in zip(captures, shown, strict=True):
        static = STATIC if all(layer.static for layer in maps.layers) else ""
        facts = "; ".join(filter(None, (
            f"{NAMES[maps.kind]}: {_line(mechanisms(maps))}", static, selection_text(maps),
            _line(hidden_text(maps)),
        )))  # fmt: skip
        blocks.append(_block(f"{_line(capture.model)}\n{facts}", maps, mean))
    for capture, maps in zip(captures[1:], shown[1:], strict=True):
        reason = no_difference(shown[0], maps)
        if reason is None:
            title = f"{_line(capture.model)}\nminus {_line(captures[0].model)}"
            blocks.append(_block(title, maps, mean, maps.weights - shown[0].weights))
        else:
            notes.append(f"no difference of {capture.model} and {captures[0].model}: {reason}")
    with matplotlib_defaults(text for block in blocks for text in block.texts()) as missing:
        figure = MapFigure(blocks, scale, palette)
        names = ", ".join(capture.model for capture in captures)
        data = rendered(figure.draw(), format, f"{NAMES[kind]}: {names}")
    return Picture(data, (*notes, *missing, *figure.warnings))


def no_difference(one: AttentionMaps, other: AttentionMaps) -> str | None:
    """Why the difference of two maps has no meaning; None where it has one."""
    if reason := axes_difference(one, other):
        return reason
    if [layer.number for layer in one.layers] != [layer.number for layer in other.layers]:
        return "they have different layers"
    return None if one.heads == other.heads else "they have different heads"


def _block(
    title: str,
    maps: AttentionMaps,
    mean: bool,
    difference: Float[NDArray[np.float32], "L H T S"] | None = None,
) -> PanelBlock:
    """Layers down and heads across; a single row or column of many maps is folded."""
    weights = maps.weights if difference is None else difference
    heads = [f"head {number}" for number in maps.heads]
    if mean:
        weights = weights.mean(1, keepdims=True, dtype=np.float32)
        heads = ["mean of all heads" if len(heads) > 1 else heads[0]]
    several = len({layer.mechanism for layer in maps.layers}) > 1
    layers = [
        f"layer {layer.number}" + (f"\n{_line(layer.mechanism)}" if several else "")
        for layer in maps.layers
    ]
    folded = min(len(layers), len(heads)) == 1
    rows = [
        [
            Panel(matrix, f"{layer}, {head}".replace("\n", ", ") if folded else "")
            for head, matrix in zip(heads, of_layer, strict=True)
        ]
        for layer, of_layer in zip(layers, weights, strict=True)
    ]
    if len(rows) == len(rows[0]) == 1:
        title, rows = f"{title}, {rows[0][0].title}", [[Panel(rows[0][0].values)]]
    elif folded:
        panels = [panel for row in rows for panel in row]
        across = len(panels) if len(panels) <= 4 else math.ceil(math.sqrt(len(panels)) * 1.2)
        rows = [panels[start : start + across] for start in range(0, len(panels), across)]
    queries, keys = ([cut(x, LONGEST) for x in labels_of(s)] for s in (maps.queries, maps.keys))
    row_names, column_names = ((), ()) if folded else (tuple(layers), tuple(heads))
    return PanelBlock(
        title, rows, queries, keys, sides_of(maps), row_names, column_names,
        signed=difference is not None,
    )  # fmt: skip


def _line(text: str) -> str:
    """Safe text on one line."""
    return safe_text(text).replace("\n", "\\n").replace("\t", "\\t")
