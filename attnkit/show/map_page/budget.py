"""What of the maps fits into a page of a given size, and their weights as 16-bit values."""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps
from attnkit.show.colour import pooled

SIDES = (64, 48, 32, 24, 16, 8)  # sizes of thumbnails to try, in cells


def fitted(every: Sequence[AttentionMaps], room: int) -> list[dict[str, Any]]:
    """For each Maps its `overview`, all layers and heads, and `full`, some in more detail.

    Names in `full` are "layer.head" or "layer.mean", by place and not by number.  Everything is in
    full where that takes no more than `room` characters.  Else the overview is pooled, and each
    layer's mean over heads comes as finely as half of the room allows, then single heads in full,
    in the order given, until the next one does not fit.
    """
    stacks = [maps.weights.reshape(-1, *maps.weights.shape[2:]) for maps in every]
    if sum(stack.size for stack in stacks) <= 2 * room:
        whole = [{"overview": encode(stack), "full": {}} for stack in stacks]
        if _size(whole) <= room:
            return whole
    parts: list[dict[str, Any]] = []
    for side in SIDES:
        pools = [tuple(-(-length // side) for length in stack.shape[1:]) for stack in stacks]
        parts = [{"overview": encode(stack, pool), "full": {}} for stack, pool in zip(stacks, pools, strict=True)]
        if _size(parts) <= 0.5 * room:
            break
    room -= _size(parts)
    coarse = [(maps, part) for maps, part in zip(every, parts, strict=True) if part["overview"]["pool"] != (1, 1)]
    for factor in (1, 2, 4, 8, 16, 32):
        for maps, part in coarse:
            pool = tuple(min(factor, size) for size in part["overview"]["pool"])
            means = maps.weights.mean(1, keepdims=True)
            part["full"] = {f"{at}.mean": encode(mean, pool) for at, mean in enumerate(means)}
        if _means_size(coarse) <= 0.5 * room:
            break
    room -= _means_size(coarse)
    for maps, part in coarse:
        for layer, head in np.ndindex(*maps.weights.shape[:2]):
            coded = encode(maps.weights[layer, head][None])
            room -= _characters(coded)
            if room < 0:
                return parts
            part["full"][f"{layer}.{head}"] = coded
    return parts


def _characters(coded: dict[str, Any]) -> int:
    """What a coded stack of maps takes in the page, about."""
    return len(coded["data"]) + 160


def _size(parts: Sequence[dict[str, Any]]) -> int:
    return sum(_characters(part["overview"]) for part in parts)


def _means_size(coarse: Sequence[tuple[AttentionMaps, dict[str, Any]]]) -> int:
    return sum(_characters(coded) for _, part in coarse for coded in part["full"].values())


def encode(weights: Float[NDArray[np.float32], "N T S"], pool: tuple[int, ...] = (1, 1)) -> dict[str, Any]:
    """Code finite maps [maps, queries, keys] as the page reads them.

    Returns:
        shape, `pool` (how many queries and keys each value stands for), `step` and `data`: values
        as multiples of the step, 16-bit little endian, deflated, as base64.  They are within half
        a step, which is 1/65,534 of the largest weight, of pooled maps 1/510.
    """
    cells = pooled(weights, *pool)
    step = float(np.abs(cells).max()) / (32767 if pool == (1, 1) else 255) or 1.0
    packed = zlib.compressobj(6, zlib.DEFLATED, -15)
    data = packed.compress(np.rint(cells / step).astype("<i2").tobytes()) + packed.flush()
    return {
        "rows": cells.shape[1],
        "columns": cells.shape[2],
        "pool": pool,
        "step": step,
        "data": base64.b64encode(data).decode("ascii"),
    }
