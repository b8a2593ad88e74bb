"""Rendering on consoles of every kind, and texts, maps and captures to render."""

import io
import re

import numpy as np
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from attnkit.analysis.maps import AttentionMaps, Capture, MapLayer, Token

STYLE = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
COLORS = ("truecolor", "256", "standard", None)
WIDTHS = st.sampled_from((20, 40, 80, 200)) | st.integers(8, 120)
UNUSUAL = (
    *("", "\x1b[31m", "\u202eabc", "\ufeff", "\u6f22\u5b57", "e\u0301", "\u0301", "\U0001f469\u200d\U0001f467"),
    *("[bold]", "</s>", "\t", "a\nb", "\r", "\u2028", "\U0001f1e9\U0001f1ea"),
)
TEXTS = st.text(max_size=14) | st.sampled_from(UNUSUAL)


def render(thing: RenderableType, width: int, color: str | None = None) -> str:
    """Return what a console of this width writes."""
    out = io.StringIO()
    plain = dict.fromkeys(("legacy_windows", "markup", "emoji", "highlight"), False)
    Console(file=out, width=width, force_terminal=True, color_system=color, _environ={}, **plain).print(thing)
    return out.getvalue()


def render_checked(thing: RenderableType, width: int, color: str | None = None) -> str:
    """Render without styles; check that lines fit the width, and that there are no control characters."""
    text = STYLE.sub("", render(thing, width, color))
    assert not CONTROL.search(text)
    assert max(map(cell_len, text.split("\n"))) <= width
    return text


def tokens(text: str) -> tuple[Token, ...]:
    return tuple(Token(piece, number, number) for number, piece in enumerate(text.split()))


def cross_maps(queries: str, keys: str, layers: int = 2, heads: int = 4, word: str = "scaled-dot") -> AttentionMaps:
    """Return cross attention in which query t of head h and layer l attends to key l + h + t alone."""
    axes = tokens(queries), tokens(keys)
    weights = np.zeros((layers, heads, len(axes[0]), len(axes[1])), np.float32)
    for place in np.ndindex(weights.shape[:3]):
        weights[(*place, sum(place) % len(axes[1]))] = 1
    map_layers = tuple(MapLayer(number, word) for number in range(layers))
    return AttentionMaps("cross", weights, map_layers, tuple(range(heads)), *axes)


def capture(maps: AttentionMaps, model: str, output: str = "ein Hund .") -> Capture:
    return Capture("a dog !", output, "greedy", model, {maps.kind: maps})
