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
from attnkit.show.colour import FLOOR, NEGATIVE_SHARE, Palette, Scale, table
from attnkit.show.html_document import document
from attnkit.show.map_page.weights import fitted
from attnkit.show.token_labels import visible
from attnkit.text import safe_text

PageView = Literal["grid", "matrix", "lines", "numbers"]
BUDGET = 1_500_000  # default maximum size of a page, in bytes

FIRST: tuple[Kind, ...] = ("cross", "decoder", "encoder")
"""Kinds of attention, in the order of preference for the first view."""
NUMBERS = (
    ("entropy", "of the rows, in bits"),
    ("spread", "entropy as a share of the largest possible"),
    ("distance", "mean distance of what is looked at: in tokens, in cross attention from 0 to 1"),
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
    command for a single head in full: `command` with `--layer L --head H`. Equal captures give equal bytes.

    Args:
        captures: models to compare with the first; the reference of a capture is shown as a further capture.
        command: command line of the page, without layer and head.
        budget: maximum size in bytes; may be exceeded by maps of 8 x 8 cells.
        view: first view; None: the matrix for a single map, otherwise the grid.
        kind: first kind of attention; None: the first of FIRST that all captures have.
        scale: first colour scale.
        words, hide_special, hide_first: whether at first pieces are merged into words, special tokens are hidden, and
            the first column is hidden.

    Raises:
        UsageError: If no capture has a map with a token on each axis.
    """
    drawable = _drawable(captures)
    every = [maps for _, some in drawable for maps in some]
    if not every:
        raise UsageError("no attention maps to show: choose a text with at least one token")
    axes = _TokenAxes()
    records = [_record(capture, some, axes) for capture, some in drawable]
    opened = view or ("matrix" if all(maps.weights.shape[:2] == (1, 1) for maps in every) else "grid")
    hidden = {"words": words, "plain": hide_special, "first": hide_first}
    start = {"view": opened, "kind": kind or _common_kind(drawable), "scale": scale, **hidden}
    data = {
        "captures": records,
        "axes": axes.records,
        "command": safe_text(command),
        "colours": {"sequential": _hex("sequential"), "diverging": _hex("diverging")},
        "floor": FLOOR,
        "negative_share": NEGATIVE_SHARE,
        "kinds": NAMES,
        "sides": {maps.kind: sides_of(maps) for maps in every},
        "numbers": NUMBERS,
        "start": start | {"other": 1 if len(drawable) > 1 else -1},
        "omitted": "",
        "texts": [*_texts([capture for capture, _ in drawable]), *_sink(every)],
    }
    draw = partial(document, Path(__file__).parent, scripts=("maps.js", "draw.js", "page.js"))
    first, *more = dict.fromkeys(record["model"] for record in records)
    title = "Attention: " + ", ".join([first, *(name.removeprefix(f"{first}, ") for name in more)])
    _add_weights(data, every, budget - len(draw(title, data)) - len(command) - 300 * len(every))
    return draw(title, data)


def _add_weights(data: dict[str, Any], every: Sequence[AttentionMaps], room: int) -> None:
    """Add the weights of the maps, in at most `room` characters, and a note if maps are pooled."""
    described = [maps for record in data["captures"] for maps in record["maps"]]
    finite = [replace(m, weights=np.nan_to_num(m.weights, posinf=0, neginf=0)) for m in every]
    for maps, coded in zip(described, fitted(finite, room), strict=True):
        maps["weights"] = coded
    if any(maps["weights"]["pool"] != (1, 1) for maps in described):
        data["omitted"] = (
            "To keep this file small, not every head is here in full resolution. "
            f"In full: {data['command']} --layer L --head H"
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
    every = [one for some in captures for one in (some, some.reference) if one is not None]
    drawable = [(one, [one.maps[k] for k in KINDS if k in one.maps and one.maps[k].weights.size]) for one in every]
    return [(one, maps) for one, maps in drawable if maps]


def _common_kind(drawable: Sequence[tuple[Capture, list[AttentionMaps]]]) -> Kind:
    """Return the first kind of FIRST that all captures have, otherwise "cross"."""
    shared = [{maps.kind for maps in some} for _, some in drawable]
    return next((kind for kind in FIRST if all(kind in some for some in shared)), "cross")


def _texts(captures: Sequence[Capture]) -> list[tuple[str, str]]:
    """Return the distinct inputs, outputs (with their models, if they differ) and notes, with their labels."""
    texts: dict[tuple[str, str], tuple[str, str]] = {}
    several = len({one.output for one in captures if one.output}) > 1
    for one in captures:
        if one.source:
            texts["read", one.source] = "read", one.source
        if one.output:
            name = "given" if one.how == "given" else "wrote"
            how = f" ({one.how})" if one.how not in ("", "given") else ""
            texts["wrote", one.output] = f"{one.model} " * several + name, one.output + how
        if note := one.facts.get("note"):
            texts["note", note] = "note", f"{one.model}: {note}"
    return [(name, safe_text(text)) for name, text in texts.values()]


def _sink(every: Sequence[AttentionMaps]) -> list[tuple[str, str]]:
    """Return a note on the first maps whose attention sink is the first column, if there are any."""
    for maps in every:
        sink = attention_sink(maps)
        if sink is not None and sink.position == 0:
            advice = '"hide first column" shows what is on the others'
            return [("note", f"{NAMES[maps.kind]}: {sink_text(sink)}; {advice}")]
    return []


def _record(capture: Capture, every: Sequence[AttentionMaps], axes: _TokenAxes) -> dict[str, Any]:
    return {
        "model": safe_text(capture.model),
        "facts": {safe_text(name): safe_text(fact) for name, fact in capture.facts.items()},
        "maps": [_describe(maps, axes) for maps in every],
    }


def _describe(maps: AttentionMaps, axes: _TokenAxes) -> dict[str, Any]:
    effective = "effective map: what the mechanism amounts to, not a matrix that it forms"

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


def _rounded(numbers: Iterable[float | None]) -> list[float | None]:
    """Return the numbers to four decimals; NaN and infinity become None, because JSON lacks them."""
    return [round(float(number), 4) if number is not None and math.isfinite(number) else None for number in numbers]
