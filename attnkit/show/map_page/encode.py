"""Weights as 8-bit values with a step for each row: small, and as exact as the page says."""

import base64
import zlib
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Weights = Float[NDArray[np.float32], "N T S"]
Power = Literal[1, 2]


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
