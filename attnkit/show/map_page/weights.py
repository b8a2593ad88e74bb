"""Weights of a page as 16-bit values, pooled to the size of the page."""

import base64
import zlib
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps
from attnkit.show.color import pooled

SIDES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 8)
"""Numbers of cells of a map's longer side to try, if not all maps fit unpooled."""


class CodedWeights(TypedDict):
    """The maps of all layers and heads, as the page's script reads them."""

    rows: int
    columns: int
    pool: tuple[int, ...]
    """Number of queries and keys per value."""
    step: float
    data: str
    """Values as multiples of the step, 16-bit little endian, deflated, in base64."""


def fitted(all_maps: Sequence[AttentionMaps], room: int) -> list[CodedWeights]:
    """Return the encoded maps, pooled as little as possible so that they take at most `room` characters."""
    stacks = [maps.weights.reshape(-1, *maps.weights.shape[2:]) for maps in all_maps]
    longest_side = max(max(stack.shape[1:]) for stack in stacks)
    encoded: list[CodedWeights] = []
    for side in (longest_side, *(side for side in SIDES if side < longest_side)):
        pools = [tuple(-(-length // side) for length in stack.shape[1:]) for stack in stacks]
        cells = sum(stack.size / (pool[0] * pool[1]) for stack, pool in zip(stacks, pools, strict=True))
        if cells > 2 * room and side > SIDES[-1]:  # too many, however well they can be packed
            continue
        encoded = [encode(stack, pool) for stack, pool in zip(stacks, pools, strict=True)]
        if sum(len(weights["data"]) + 160 for weights in encoded) <= room:
            break
    return encoded


def encode(weights: Float[NDArray[np.float32], "N T S"], pool: tuple[int, ...] = (1, 1)) -> CodedWeights:
    """Encode finite maps [maps, queries, keys].

    The rounding error is at most half a step: 1/65,534 of the largest weight, or 1/510 if maps are pooled.
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
