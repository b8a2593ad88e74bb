"""Attention maps as one HTML file that needs nothing else: no network, no other file."""

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
BUDGET = 1_500_000  # bytes of a page unless another size is asked for

FIRST: tuple[Kind, ...] = ("cross", "decoder", "encoder")
"""Kinds of attention, the one to show first."""
NUMBERS = (
    ("entropy", "of the rows, in bits"),
    ("spread", "entropy as a share of the largest possible"),
    ("distance", "mean distance of what is looked at: in tokens, in cross attention from 0 to 1"),
    ("first", "weight on the first token"),
    ("last", "weight on the last token of the text, in a decoder on the token itself"),
    ("end", "weight on the closing special token"),
    ("special", "weight on all special tokens"),
)
"""Fields of `attnkit.analysis.map_statistics.HeadStatistics`, and what they say to a reader."""


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
    """The page of one text through one model, or through several to compare.

    Weights are rounded (see `encode`).  Where all maps in full would make the page larger than `budget`, a cell stands
    for a block of queries and keys, and the page says with which `command` single heads are shown in full, to which
    `--layer L --head H` is added.  The same captures give the same bytes.

    Args:
        captures: at least one; the first is the one that others are compared with.  The reference
            of a capture follows it as one more.
        command: how this page was asked for, without layer and head.
        budget: bytes; maps of 8 x 8 cells are shown even where they alone take more.
        view: what opens first; None: the grid, or the matrix where there is one map only.
        kind: which attention opens first; None: cross, else the first that all have.
        scale: "linear", "log" or "row", to open with.
        words, hide_special, hide_first: whether pieces are merged to words, and special tokens or
            the first column hidden, when it opens.

    Raises:
        UsageError: no capture has a map with a token on each axis.
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
    """The weights of each, as finely as the room allows, and a word on what is left out."""
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
    """The colours of a palette, as the page reads them."""
    return table(palette).tobytes().hex()


class _TokenAxes:
    """Axes of tokens, each written once; equal numbers are equal tokens."""

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
    """Captures and their references with the maps that have a cell."""
    every = [one for some in captures for one in (some, some.reference) if one is not None]
    drawable = [(one, [one.maps[k] for k in KINDS if k in one.maps and one.maps[k].weights.size]) for one in every]
    return [(one, maps) for one, maps in drawable if maps]


def _common_kind(drawable: Sequence[tuple[Capture, list[AttentionMaps]]]) -> Kind:
    """Cross attention, else what a decoder attends to, as far as all have it."""
    shared = [{maps.kind for maps in some} for _, some in drawable]
    return next((kind for kind in FIRST if all(kind in some for some in shared)), "cross")


def _texts(captures: Sequence[Capture]) -> list[tuple[str, str]]:
    """What was read and written, each text once, and notes; outputs that differ name the model."""
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
    """A note on the first map in which the first column takes most, and what to do about it."""
    for maps in every:
        sink = attention_sink(maps)
        if sink is not None and sink.place == 0:
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
    """To four decimals; what is no number is null, which JSON has."""
    return [round(float(number), 4) if number is not None and math.isfinite(number) else None for number in numbers]
