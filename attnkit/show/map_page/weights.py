"""The weights of a page as 16-bit values, as finely as its size allows."""

import base64
import zlib
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import AttentionMaps
from attnkit.show.colour import pooled

SIDES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 8)
"""Cells of a map's longer side to try, where not all are there in full."""


class CodedWeights(TypedDict):
    """Maps as the page reads them."""

    rows: int
    columns: int
    pool: tuple[int, ...]
    """How many queries and keys each value stands for."""
    step: float
    data: str
    """Values as multiples of the step, 16-bit little endian, deflated, as base64."""


def fitted(every: Sequence[AttentionMaps], room: int) -> list[CodedWeights]:
    """All layers and heads of each, coded in full, or as finely as takes no more than `room` characters."""
    stacks = [maps.weights.reshape(-1, *maps.weights.shape[2:]) for maps in every]
    longest = max(max(stack.shape[1:]) for stack in stacks)
    coded: list[CodedWeights] = []
    for side in (longest, *(side for side in SIDES if side < longest)):
        pools = [tuple(-(-length // side) for length in stack.shape[1:]) for stack in stacks]
        cells = sum(stack.size / (pool[0] * pool[1]) for stack, pool in zip(stacks, pools, strict=True))
        if cells > 2 * room and side > SIDES[-1]:  # too many, however well they can be packed
            continue
        coded = [encode(stack, pool) for stack, pool in zip(stacks, pools, strict=True)]
        if sum(len(one["data"]) + 160 for one in coded) <= room:
            break
    return coded


def encode(weights: Float[NDArray[np.float32], "N T S"], pool: tuple[int, ...] = (1, 1)) -> CodedWeights:
    """Code finite maps [maps, queries, keys].

    Values are within half a step, which is 1/65,534 of the largest weight, of pooled maps 1/510.
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
