"""Captures of random maps, for tests of their display."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps, Capture, Kind, MapLayer, Token

SOURCE = "_A _man _clean ing _a _window . </s>"
TARGET = "<s> _Ein _Mann _putz t _ein _Fenster ."


def tokens(pieces: str) -> tuple[Token, ...]:
    """Split pieces at spaces: `_` marks a new word, `<...>` is a special token."""
    found: list[Token] = []
    word = -1
    for number, piece in enumerate(pieces.split()):
        if piece.startswith("<"):
            found.append(Token(piece, number, None, True))
            continue
        word += piece.startswith("_") or word < 0
        found.append(Token(piece.replace("_", "\u2581"), number, word))
    return tuple(found)


def softmax(scores: Float[NDArray[np.float64], "... T S"]) -> Float[NDArray[np.float32], "... T S"]:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def random_maps(
    kind: Kind,
    queries: Sequence[Token],
    keys: Sequence[Token],
    *,
    layers: int = 2,
    heads: int = 3,
    sharpness: float = 2.0,
    seed: int = 1,
    layer: MapLayer | None = None,
) -> AttentionMaps:
    """Return the softmax of random scores; decoder maps are causal."""
    scores = sharpness * np.random.default_rng(seed).standard_normal((layers, heads, len(queries), len(keys)))
    if kind == "decoder":
        scores = np.where(np.tri(len(queries), len(keys), dtype=bool), scores, -np.inf)
    plain = layer or MapLayer(0, "scaled-dot")
    numbered = tuple(plain._replace(number=number) for number in range(layers))
    return AttentionMaps(kind, softmax(scores), numbered, tuple(range(heads)), tuple(queries), tuple(keys))


def translation(model: str = "toy/vanilla/seed-1", *, seed: int = 1, **options: object) -> Capture:
    """Return a capture with maps of all three kinds."""
    source, target = tokens(SOURCE), tokens(TARGET)
    axes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    return Capture(
        source="A man cleaning a window.",
        output="Ein Mann putzt ein Fenster.",
        how="beam 5",
        model=model,
        maps={kind: random_maps(kind, *axes[kind], seed=seed + n, **options) for n, kind in enumerate(axes)},
        facts={"weights": "3f" * 32, "recipe": "a1" * 32},
    )
