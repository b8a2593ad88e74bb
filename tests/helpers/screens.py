"""What consoles of every kind write, and views and captures to show on them."""

import io
import re

import numpy as np
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from attnkit.analysis.maps import AttentionMaps, Capture, MapLayer, Token

STYLE = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
COLOURS = ("truecolor", "256", "standard", None)
WIDTHS = st.sampled_from((20, 40, 80, 200)) | st.integers(8, 120)
TEXTS = st.text(max_size=14) | st.sampled_from(
    (
        "",
        "\x1b[31m",
        "\u202eabc",
        "\ufeff",
        "\u6f22\u5b57",
        "e\u0301",
        "\u0301",
        "\U0001f469\u200d\U0001f467",
        "[bold]",
        "</s>",
        "\t",
        "a\nb",
        "\r",
        "\u2028",
        "\U0001f1e9\U0001f1ea",
    )
)


def render(thing: RenderableType, width: int, colour: str | None = None) -> str:
    """What a console of this width writes."""
    out = io.StringIO()
    Console(
        file=out,
        width=width,
        force_terminal=True,
        color_system=colour,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    ).print(thing)
    return out.getvalue()


def render_checked(thing: RenderableType, width: int, colour: str | None = None) -> str:
    """The same without styles, no wider than the screen, and without any other command to it."""
    found = STYLE.sub("", render(thing, width, colour))
    assert not CONTROL.search(found)
    assert max(map(cell_len, found.split("\n"))) <= width
    return found


def tokens(text: str) -> tuple[Token, ...]:
    return tuple(Token(piece, at, at) for at, piece in enumerate(text.split()))


def cross_maps(queries: str, keys: str, layers: int = 2, heads: int = 4, word: str = "scaled-dot") -> AttentionMaps:
    """Cross attention in which head h of layer l looks at the key l + h + t after query t alone."""
    axes = tokens(queries), tokens(keys)
    weights = np.zeros((layers, heads, len(axes[0]), len(axes[1])), np.float32)
    for place in np.ndindex(weights.shape[:3]):
        weights[(*place, sum(place) % len(axes[1]))] = 1
    known = tuple(MapLayer(at, word) for at in range(layers))
    return AttentionMaps("cross", weights, known, tuple(range(heads)), *axes)


def capture(maps: AttentionMaps, model: str, output: str = "ein Hund .") -> Capture:
    return Capture("a dog !", output, "greedy", model, {maps.kind: maps})
