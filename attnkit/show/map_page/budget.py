"""What of the maps fits into a page of a given size, and their weights as 8-bit values."""

import base64
import zlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps
from attnkit.show.colour import pooled

Weights = Float[NDArray[np.float32], "N T S"]
Power = Literal[1, 2]

SIDES = (64, 48, 32, 24, 16, 8)  # sizes of thumbnails to try, in cells


def size(coded: dict[str, Any]) -> int:
    """Characters that a coded stack of maps takes in the page, about."""
    return len(coded["data"]) + 160


def fitted(every: Sequence[AttentionMaps], room: int) -> list[dict[str, Any]]:
    """For each Maps its `overview`, all layers and heads, and `full`, some in more detail.

    Names in `full` are "layer.head" or "layer.mean", by place and not by number.  Everything is in
    full where that takes no more than `room` characters.  Else the overview is pooled, and each
    layer's mean over heads comes as finely as its share of the room allows, then single heads in
    full, in the order given, until the next one does not fit.
    """
    if sum(maps.weights.size for maps in every) <= 4 * room:
        powers: tuple[Power, ...] = (2, 1)
        for power in powers:
            whole = [encode(_stack(maps), power) for maps in every]
            if sum(map(size, whole)) <= room:
                return [{"overview": coded, "full": {}} for coded in whole]
    parts: list[dict[str, Any]] = []
    for side in SIDES:
        parts = [{"overview": _thumbnails(maps, side), "full": {}} for maps in every]
        if sum(size(part["overview"]) for part in parts) <= 0.5 * room:
            break
    room -= sum(size(part["overview"]) for part in parts)
    pooled_ones = [
        (maps, part)
        for maps, part in zip(every, parts, strict=True)
        if tuple(part["overview"]["pool"]) != (1, 1)
    ]
    room = _add_means(pooled_ones, room)
    for maps, part in pooled_ones:
        for layer, head in np.ndindex(*maps.weights.shape[:2]):
            coded = encode(maps.weights[layer, head][None], 1)
            if size(coded) > room:
                return parts
            room -= size(coded)
            part["full"][f"{layer}.{head}"] = coded
    return parts


def _stack(maps: AttentionMaps) -> Weights:
    return maps.weights.reshape(-1, *maps.weights.shape[2:])


def _thumbnails(maps: AttentionMaps, side: int) -> dict[str, Any]:
    rows, columns = maps.weights.shape[2:]
    pool = -(-rows // side), -(-columns // side)
    return encode(pooled(_stack(maps), *pool), 1, pool)


def _add_means(pooled_ones: Sequence[tuple[AttentionMaps, dict[str, Any]]], room: int) -> int:
    """Add each layer's mean over heads, in full or pooled by 2, 4, ... to fit; the room left."""
    means = sum(len(maps.layers) for maps, _ in pooled_ones)
    for maps, part in pooled_ones:
        coarsest = tuple(part["overview"]["pool"])
        for layer in range(len(maps.layers)):
            mean, factor = maps.weights[layer].mean(0, keepdims=True), 1
            while True:
                pool = min(factor, coarsest[0]), min(factor, coarsest[1])
                coded = encode(pooled(mean, *pool), 1, pool)
                if size(coded) <= room // means or factor >= max(coarsest):
                    break
                factor *= 2
            part["full"][f"{layer}.mean"] = coded
            room -= size(coded)
            means -= 1
    return room


def encode(weights: Weights, power: Power, pool: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    """Code maps [maps, queries, keys] as the page reads them.

    A value is step * q with q = byte - zero, or step * q * |q| where `power` is 2, which is finer
    where weights are small; step and zero are the row's own.  Rows in [0, 1] come back within
    1/255, and with `power` 2, where that allows it, with their exact sum.  Weights are
    finite.

    Returns:
        shape, `power`, `pool` (how many queries and keys each value stands for), `error` (the
        largest difference between a decoded value and its weight), and `data`: steps (float32,
        little endian), zeros and values, deflated, as base64.
    """
    count, rows, columns = weights.shape
    bent = weights if power == 1 else np.sign(weights) * np.sqrt(np.abs(weights))
    low = np.minimum(bent.min(2, keepdims=True), 0)
    high = np.maximum(bent.max(2, keepdims=True), 0)
    zero = np.rint(255 * -low / np.maximum(high - low, np.float32(1e-30)))
    step = np.maximum(-low / np.maximum(zero, 1), high / np.maximum(255 - zero, 1))
    q = np.clip(np.rint(bent / np.where(step > 0, step, 1)) + zero, 0, 255)
    places = (q - zero).astype(np.float32)
    if power == 2:
        places *= np.abs(places)
    steps = (step**power).astype(np.float32)
    if power == 2 and pool == (1, 1):
        steps = _with_sums(weights, places, steps)
    error = float(np.abs(steps * places - weights).max())
    parts = (steps.astype("<f4"), zero.astype(np.uint8), q.astype(np.uint8))
    packed = zlib.compressobj(6, zlib.DEFLATED, -15)
    data = b"".join(packed.compress(part.tobytes()) for part in parts) + packed.flush()
    return {
        "count": count, "rows": rows, "columns": columns, "power": power, "pool": pool,
        "error": float(f"{1.05 * error:.2g}"), "data": base64.b64encode(data).decode("ascii"),
    }  # fmt: skip


def _with_sums(weights: Weights, places: Weights, steps: Weights) -> Weights:
    """Steps with which each row has its exact sum, where that moves no value far."""
    wanted = weights.sum(2, keepdims=True, dtype=np.float64)
    got = (steps * places).sum(2, keepdims=True, dtype=np.float64)
    ratio = np.divide(wanted, got, out=np.ones_like(got), where=np.abs(got) > 1e-6)
    better = (steps * ratio).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(better * places - weights).max(2, keepdims=True)
    return np.where((error <= 1 / 255) & (np.abs(ratio - 1) < 0.02), better, steps)
