"""Attention maps as a self-contained HTML file."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnkit.analysis.map_statistics import attention_sink, statistics
from attnkit.analysis.maps import KINDS, AttentionMaps, Capture, Kind, MapLayer, Token
from attnkit.errors import UsageError
from attnkit.show.attention_matrix import NAMES, STATIC, sides_of, sink_text
from attnkit.show.color import FLOOR, NEGATIVE_SHARE, Palette, Scale, table
from attnkit.show.html_document import document
from attnkit.show.map_page.weights import fitted
from attnkit.show.token_labels import visible
from attnkit.text import safe_text

PageView = Literal["grid", "matrix", "lines", "numbers"]
BUDGET = 1_500_000  # default maximum size of a page, in bytes

KIND_ORDER: tuple[Kind, ...] = ("cross", "decoder", "encoder")
"""Kinds of attention, in the order of preference for the first view."""
STATISTICS = (
    ("entropy", "of the rows, in bits"),
    ("spread", "entropy as a share of its maximum"),
    ("distance", "mean distance of the attended tokens: in tokens, in cross attention from 0 to 1"),
    ("first", "weight on the first token"),
    ("last", "weight on the last token of the text, in a decoder on the token itself"),
    ("end", "weight on the closing special token"),
    ("special", "weight on all special tokens"),
)
"""Fields of `attnkit.analysis.map_statistics.HeadStatistics`, and their meaning."""


def page(
    captures: Sequence[Capture],
    *,
    command: str = "attnkit visualize-attn RUN TEXT",
    budget: int = BUDGET,
    view: PageView | None = None,
    kind: Kind | None = None,
    scale: Scale = "linear",
    words: bool = False,
    hide_special: bool = False,
    hide_first: bool = False,
) -> bytes:
    """Return a page of one text through one model, or through several models to compare.

    Weights are rounded (see `encode`). If the page would exceed `budget`, maps are pooled, and the page shows the
    command for a single head in full: `command` with `--layer L --head H`. Equal captures give equal bytes. Raises
    UsageError if no capture has a map with a token on each axis.

    Args:
        captures: models to compare with the first; the reference of a capture is shown as a further capture.
        command: command line of the page, without layer and head.
        budget: maximum size in bytes; may be exceeded by maps of 8 x 8 cells.
        view: first view; None: the matrix for a single map, otherwise the grid.
        kind: first kind of attention; None: the first of KIND_ORDER that all captures have.
        scale: first color scale.
        words, hide_special, hide_first: whether at first pieces are merged into words, special tokens are hidden, and
            the first column is hidden.
    """
    drawable = _drawable(captures)
    all_maps = [maps for _, maps_of_capture in drawable for maps in maps_of_capture]
    if not all_maps:
        raise UsageError("no attention maps to show: choose a text with at least one token")
    axes = _TokenAxes()
    records = [_record(*pair, axes) for pair in drawable]
    data = {
        "captures": records,
        "axes": axes.records,
        "command": safe_text(command),
        "colors": {"sequential": _hex("sequential"), "diverging": _hex("diverging")},
        "floor": FLOOR,
        "negative_share": NEGATIVE_SHARE,
        "kinds": NAMES,
        "sides": {maps.kind: sides_of(maps) for maps in all_maps},
        "numbers": STATISTICS,
        "start": {
            "view": view or ("matrix" if all(maps.weights.shape[:2] == (1, 1) for maps in all_maps) else "grid"),
            "kind": kind or _common_kind(drawable),
            "scale": scale,
            **{"words": words, "plain": hide_special, "first": hide_first},
            "other": 1 if len(drawable) > 1 else -1,
        },
        "omitted": "",
        "texts": [*_texts([capture for capture, _ in drawable]), *_sink(all_maps)],
    }
    draw = partial(document, Path(__file__).parent, scripts=("maps.js", "draw.js", "page.js"))
    first, *others = dict.fromkeys(record["model"] for record in records)
    title = "Attention: " + ", ".join([first, *(name.removeprefix(f"{first}, ") for name in others)])
    _add_weights(data, all_maps, budget - len(draw(title, data)) - len(command) - 300 * len(all_maps))
    return draw(title, data)


def _add_weights(data: dict[str, Any], all_maps: Sequence[AttentionMaps], room: int) -> None:
    """Add the weights of the maps, in at most `room` characters, and a note if maps are pooled."""
    records = [maps for record in data["captures"] for maps in record["maps"]]
    finite_maps = [replace(m, weights=np.nan_to_num(m.weights, posinf=0, neginf=0)) for m in all_maps]
    for maps, encoded in zip(records, fitted(finite_maps, room), strict=True):
        maps["weights"] = encoded
    if any(maps["weights"]["pool"] != (1, 1) for maps in records):
        data["omitted"] = (
            "To keep this file small, some heads have a reduced resolution. Full resolution: "
            f"{data['command']} --layer L --head H"
        )


def _hex(palette: Palette) -> str:
    return table(palette).tobytes().hex()


class _TokenAxes:
    """Distinct axes of tokens, numbered."""

    def __init__(self) -> None:
        self.records: list[dict[str, list[Any]]] = []
        self.numbers: dict[tuple[Token, ...], int] = {}

    def number(self, tokens: tuple[Token, ...]) -> int:
        if tokens not in self.numbers:
            self.numbers[tokens] = len(self.records)
            self.records.append(
                {
                    "text": [visible(token.text) for token in tokens],
                    "word": [token.word for token in tokens],
                    "special": [int(token.special) for token in tokens],
                }
            )
        return self.numbers[tokens]


def _drawable(captures: Sequence[Capture]) -> list[tuple[Capture, list[AttentionMaps]]]:
    """Return the captures and their references, with their maps that are not empty."""
    both = [version for capture in captures for version in (capture, capture.reference) if version is not None]
    pairs = [(capture, [capture.maps[kind] for kind in KINDS if kind in capture.maps]) for capture in both]
    drawable = [(capture, [maps for maps in all_maps if maps.weights.size]) for capture, all_maps in pairs]
    return [(capture, maps) for capture, maps in drawable if maps]


def _common_kind(drawable: Sequence[tuple[Capture, list[AttentionMaps]]]) -> Kind:
    """Return the first of KIND_ORDER that all captures have, otherwise "cross"."""
    shared = [{maps.kind for maps in kinds} for _, kinds in drawable]
    return next((kind for kind in KIND_ORDER if all(kind in kinds for kinds in shared)), "cross")


def _texts(captures: Sequence[Capture]) -> list[tuple[str, str]]:
    """Return the distinct inputs, outputs (with their models, if they differ) and notes, with their labels."""
    texts: dict[tuple[str, str], tuple[str, str]] = {}
    several = len({capture.output for capture in captures if capture.output}) > 1
    for capture in captures:
        if capture.source:
            texts["read", capture.source] = "read", capture.source
        if capture.output:
            name = "given" if capture.how == "given" else "wrote"
            method = f" ({capture.how})" if capture.how not in ("", "given") else ""
            texts["wrote", capture.output] = f"{capture.model} " * several + name, capture.output + method
        if note := capture.facts.get("note"):
            texts["note", note] = "note", f"{capture.model}: {note}"
    return [(name, safe_text(text)) for name, text in texts.values()]


def _sink(all_maps: Sequence[AttentionMaps]) -> list[tuple[str, str]]:
    """Return a note on the first maps whose attention sink is the first column, if there are any."""
    for maps in all_maps:
        sink = attention_sink(maps)
        if sink is not None and sink.position == 0:
            advice = '"hide first column" shows the weights of the other columns'
            return [("note", f"{NAMES[maps.kind]}: {sink_text(sink)}; {advice}")]
    return []


def _record(capture: Capture, all_maps: Sequence[AttentionMaps], axes: _TokenAxes) -> dict[str, Any]:
    return {
        "model": safe_text(capture.model),
        "facts": {safe_text(name): safe_text(fact) for name, fact in capture.facts.items()},
        "maps": [_describe(maps, axes) for maps in all_maps],
    }


def _describe(maps: AttentionMaps, axes: _TokenAxes) -> dict[str, Any]:
    effective = "effective map: the matrix equivalent to the computation; the mechanism never forms this matrix"

    def label(layer: MapLayer) -> str:
        parts = (safe_text(layer.mechanism), STATIC * layer.static, effective * (not layer.exact))
        return " \u00b7 ".join(filter(None, parts))

    return {
        "kind": maps.kind,
        "layers": [
            {
                "number": layer.number,
                "mechanism": safe_text(layer.mechanism),
                "exact": layer.exact,
                "static": layer.static,
                "label": label(layer),
                "distance": layer.distance and _rounded(layer.distance),
            }
            for layer in maps.layers
        ],
        "heads": list(maps.heads),
        "queries": axes.number(maps.queries),
        "keys": axes.number(maps.keys),
        "lost": int(maps.weights.size - np.isfinite(maps.weights).sum()),
        "numbers": [[_rounded(head) for head in layer] for layer in statistics(maps)],
    }


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    """Return the numbers to four decimals; NaN and infinity become None, because JSON lacks them."""
    return [round(float(value), 4) if value is not None and math.isfinite(value) else None for value in values]
