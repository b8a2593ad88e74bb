"""An attention matrix with its tokens and title, and descriptions of attention maps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.map_statistics import AttentionSink
from attnkit.analysis.maps import AttentionMaps, Capture, Kind, Step, Token
from attnkit.errors import UsageError
from attnkit.show.token_labels import labels_of

NAMES: dict[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross attention",
}
SIDES: dict[Kind, tuple[str, str]] = {  # texts of the queries and keys
    "encoder": ("source", "source"),
    "decoder": ("output", "output"),
    "cross": ("output", "source"),
}
STEPS: dict[Step, str] = {"output": "predicted token", "input": "token read"}
STATIC = "static: the same for every text of this length"


@dataclass(frozen=True)
class AttentionMatrix:
    """A matrix to be drawn."""

    weights: Float[NDArray[np.float32], "T S"]
    queries: tuple[Token, ...]
    keys: tuple[Token, ...]
    title: str
    notes: tuple[str, ...] = ()
    signed: bool = False  # difference of two maps, drawn in diverging colors
    axes: tuple[str, str] = ("queries", "keys")  # names of rows and columns
    first_key: int = 0  # index of the first column that is not hidden

    def minus(self, other: "AttentionMatrix") -> "AttentionMatrix":
        """Return the weights minus those of another matrix with equal axes."""
        weights = self.weights - other.weights
        return replace(self, weights=weights, title="difference", notes=(), signed=True)


def matrix_of(maps: AttentionMaps) -> AttentionMatrix:
    """Return the mean over the layers and heads of the maps."""
    place = f"{_numbers('layer', [layer.number for layer in maps.layers])}, "
    place += _numbers("head", maps.heads)
    title = f"{NAMES[maps.kind]}, {place}: {mechanisms(maps)}"
    weights = maps.weights.mean((0, 1), dtype=np.float64).astype(np.float32)
    rows, columns = sides_of(maps)
    return AttentionMatrix(
        weights,
        maps.queries,
        maps.keys,
        title,
        notes(maps),
        axes=(f"{rows} (queries)", f"{columns} (keys)"),
        first_key=len(maps.hidden),
    )


def sides_of(maps: AttentionMaps) -> tuple[str, str]:
    """Return the names of rows and columns."""
    if maps.alone:
        return "text", "text"
    rows, columns = SIDES[maps.kind]
    return (STEPS[maps.step] if maps.kind == "cross" else rows), columns


def maps_of(capture: Capture, kind: Kind) -> AttentionMaps:
    """Return the maps of one kind. Raises UsageError if the capture has none."""
    if kind not in capture.maps:
        available = ", ".join(capture.maps) or "none"
        raise UsageError(f"--kind {kind}: {capture.model} has no {NAMES[kind]}; it has {available}")
    return capture.maps[kind]


def axes_difference(first: AttentionMatrix, other: AttentionMatrix) -> str | None:
    """Return why the difference of two matrices is undefined; None if their tokens are equal."""
    pairs = {"queries": (first.queries, other.queries), "keys": (first.keys, other.keys)}
    for name, sides in pairs.items():
        ours, theirs = ([(token.text, token.special) for token in side] for side in sides)
        if ours != theirs:
            return f"the {name} are different tokens"
    return None


def mechanisms(maps: AttentionMaps) -> str:
    """Return the mechanisms of the layers, without duplicates, as in "performer (effective)"."""
    kinds = {True: "exact", False: "effective"}
    return ", ".join(dict.fromkeys(f"{layer.mechanism} ({kinds[layer.exact]})" for layer in maps.layers))


def notes(maps: AttentionMaps) -> tuple[str, ...]:
    """Return the notes on the maps: hidden column, static and effective maps, distance from softmax attention."""
    lines = [line] if (line := hidden_text(maps)) else []
    if static := [layer.number for layer in maps.layers if layer.static]:
        prefix = "" if len(static) == len(maps.layers) else f"{_numbers('layer', static, mean=False)}: "
        lines.append(f"{prefix}{STATIC}")
    if not all(layer.exact for layer in maps.layers):
        lines.append("effective: the matrix equivalent to the computation; the mechanism never forms this matrix")
    distances = [layer.distance for layer in maps.layers if layer.distance]
    if distances and len(distances) == len(maps.layers):
        mean = sum(map(sum, distances)) / sum(map(len, distances))
        lines.append(f"half the L1 distance from exact softmax attention: mean {mean:.3f}")
    return tuple(lines)


def hidden_text(maps: AttentionMaps) -> str:
    """Return the note on a hidden first column; empty if none is hidden."""
    return f"first column hidden: {', '.join(labels_of(maps.hidden))}" if maps.hidden else ""


def sink_text(sink: AttentionSink) -> str:
    """Return the share of the attention that a sink receives, as a sentence."""
    label = labels_of([sink.token])[0]
    token = label if sink.position else f"the first token ({label})"
    return f"{sink.share:.0%} of the attention is on {token}"


def selection_text(maps: AttentionMaps) -> str:
    """Return the numbers of selected layers and heads; empty if all are shown."""
    if maps.chosen_from is None:
        return ""
    layers, heads = maps.chosen_from
    return f"{len(maps.layers)} of {layers} layers, {len(maps.heads)} of {heads} heads"


def _numbers(noun: str, numbers: Sequence[int], mean: bool = True) -> str:
    """Return "layer 3", or "mean of layers 0 to 5"."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    consecutive = len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    listed = f"{numbers[0]} to {numbers[-1]}" if consecutive else ", ".join(map(str, numbers))
    return f"{'mean of ' if mean else ''}{noun}s {listed}"
