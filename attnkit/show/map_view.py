"""What one picture shows: a matrix with its axes, its title and what a reader must know."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps, Kind, Token

NAMES: dict[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross attention",
}
AXES: dict[Kind, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("output", "output"),
    "cross": ("output", "source"),
}
"""What queries and keys are."""
STATIC = "static: the same for every text of this length"


@dataclass(frozen=True)
class View:
    """One matrix, as it is drawn."""

    matrix: Float[NDArray[np.float32], "T S"]
    queries: tuple[Token, ...]
    keys: tuple[Token, ...]
    title: str
    notes: tuple[str, ...] = ()
    signed: bool = False
    """A difference of two maps: drawn with the diverging colours."""
    axes: tuple[str, str] = ("queries", "keys")
    """What rows and columns are."""


def view(maps: AttentionMaps, layer: int | None = None, head: int | None = None) -> View:
    """One layer and head by their numbers; None: the mean over all that `maps` has.

    Raises:
        UsageError: the layer or head is not there.
    """
    one = maps.choose([] if layer is None else [layer], [] if head is None else [head])
    place = f"{_numbers('layer', [item.number for item in one.layers])}, "
    place += _numbers("head", one.heads)
    title = f"{NAMES[maps.kind]}, {place}: {mechanisms(one)}"
    matrix = one.weights.mean((0, 1), dtype=np.float64).astype(np.float32)
    rows, columns = AXES[maps.kind]
    return View(
        matrix, one.queries, one.keys, title, notes(one),
        axes=(f"{rows} (queries)", f"{columns} (keys)"),
    )  # fmt: skip


def difference(first: View, other: View, title: str = "difference") -> View:
    """What `other` takes more (positive) or less (negative) than `first`, key by key.

    Raises:
        ValueError: the axes hold different tokens (see `different`).
    """
    if reason := different(first, other):
        raise ValueError(reason)
    matrix = other.matrix - first.matrix
    return replace(first, matrix=matrix, title=title, notes=(), signed=True)


def different(first: View | AttentionMaps, other: View | AttentionMaps) -> str | None:
    """Why maps with these axes have no difference; None where they have one."""
    for what, ours, theirs in (
        ("queries", first.queries, other.queries),
        ("keys", first.keys, other.keys),
    ):
        if _texts(ours) != _texts(theirs):
            return f"their {what} are different tokens"
    return None


def mechanisms(maps: AttentionMaps) -> str:
    """What the maps come from: "performer (effective)", one after the other where layers differ."""
    named = [
        f"{layer.mechanism} ({'exact' if layer.exact else 'effective'})" for layer in maps.layers
    ]
    return ", ".join(dict.fromkeys(named))


def notes(maps: AttentionMaps) -> tuple[str, ...]:
    """What a reader must know about where these maps come from."""
    found = []
    fixed = [layer.static for layer in maps.layers]
    if any(fixed):
        some = [layer.number for layer in maps.layers if layer.static]
        where = "" if all(fixed) else f"{_numbers('layer', some, mean=False)}: "
        found.append(f"{where}{STATIC}")
    if not all(layer.exact for layer in maps.layers):
        found.append("effective: what the mechanism amounts to; it never forms this matrix")
    distances = [layer.distance for layer in maps.layers if layer.distance]
    if distances and len(distances) == len(maps.layers):
        mean = sum(map(sum, distances)) / sum(map(len, distances))
        found.append(f"mean total variation from exact softmax attention: {mean:.3f} (0 to 1)")
    return tuple(found)


def _numbers(what: str, numbers: Sequence[int], mean: bool = True) -> str:
    """ "layer 3", or "mean of layers 0 to 5"."""
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    run = len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    listed = f"{numbers[0]} to {numbers[-1]}" if run else ", ".join(map(str, numbers))
    return f"{'mean of ' if mean else ''}{what}s {listed}"


def _texts(tokens: Sequence[Token]) -> list[tuple[str, bool]]:
    return [(token.text, token.special) for token in tokens]
