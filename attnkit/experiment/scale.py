"""What a recipe will cost on many devices and with more data, computed from what one costs here.

Memory follows from how `train.parallel` keeps parameters; what is sent is that of ring algorithms;
updates follow from the global batch, which grows with the number of ranks.
"""

from typing import NamedTuple

import torch

from attnkit import models
from attnkit.data.preparation import PreparedData
from attnkit.experiment.cost import MemoryEstimate, Pace, Padding
from attnkit.layers import Block
from attnkit.models.precision import DTYPES
from attnkit.recipe import Recipe

FLOAT = 4
"""Bytes of a float32, in which parameters, gradients and moments are kept."""
OFFSET = 8
"""Bytes on the disk beside the ids of each side of a row."""


class ScaledCost(NamedTuple):
    """One variant on a number of ranks."""

    ranks: int
    memory: int
    """Bytes of each rank, beside the interpreter and its libraries."""
    sent: int
    """Bytes that each rank sends in an update."""
    rows: int
    """Of the training data."""
    stored: int
    """Bytes of the encoded training data."""
    updates: float
    """Of one epoch."""
    update: float
    """Seconds of an update that waits for nothing, as measured with one process."""
    operations: float
    """Of the matrix products of one epoch, on all ranks together."""


class _Sizes(NamedTuple):
    """Parameters of a model as FSDP shards them."""

    blocks: int
    largest: int
    """Of one block."""
    rest: int


def at_scale(
    recipe: Recipe,
    prepared: PreparedData,
    memory: MemoryEstimate,
    padding: Padding,
    pace: Pace,
    operations: float,
    *,
    ranks: int,
    rows: int,
) -> ScaledCost:
    """One variant on so many ranks, trained on `rows` rows like those that there are.

    Args:
        memory, padding, pace, operations: of the variant in one process, from `cost`.
    """
    sizes = _sizes(recipe, prepared)
    updates = padding.updates * rows / padding.rows / ranks
    wide = DTYPES[pace.precision].itemsize
    sharded = recipe.train.parallel == "fsdp"
    held = _sharded_memory(memory, sizes, ranks, wide) if sharded else _copied_memory(memory, sizes)
    return ScaledCost(
        ranks,
        held if ranks > 1 else memory.total,
        round(_sent(sizes, ranks, wide if sharded else None, recipe.train.accumulate)),
        rows,
        round(_stored(prepared) * rows / padding.rows),
        updates,
        pace.seconds,
        operations * updates * ranks,
    )


def _sizes(recipe: Recipe, prepared: PreparedData) -> _Sizes:
    with torch.device("meta"):
        sizes = (len(prepared.tokenizer.source), len(prepared.tokenizer.target))
        model = models.build_for(recipe, sizes)
    blocks = [
        sum(p.numel() for p in module.parameters())
        for module in model.modules()
        if isinstance(module, Block)
    ]
    total = sum(p.numel() for p in model.parameters())
    return _Sizes(sum(blocks), max(blocks, default=0), total - sum(blocks))


def _copied_memory(memory: MemoryEstimate, sizes: _Sizes) -> int:
    """DDP: everything, and the gradients once more in the buckets that are sent."""
    return memory.total + FLOAT * (sizes.blocks + sizes.rest)


def _sharded_memory(memory: MemoryEstimate, sizes: _Sizes, ranks: int, wide: int) -> int:
    """FSDP: a share of all but the activations and the whole copy that validates.

    Two blocks, one of them ahead, and the rest of the model are whole while they are computed.
    """
    whole = FLOAT * (sizes.blocks + sizes.rest)
    kept = memory.total - memory.activations - whole
    gathered = wide * (2 * sizes.largest + sizes.rest)
    return memory.activations + whole + gathered + -(-kept // ranks)


def _sent(sizes: _Sizes, ranks: int, wide: int | None, accumulate: int) -> float:
    """Bytes of an update; `wide` are those of a parameter that FSDP gathers, None with DDP."""
    share, total = (ranks - 1) / ranks, sizes.blocks + sizes.rest
    if wide is None:  # sums of gradients: scattered, then gathered
        return 2 * share * FLOAT * total
    # blocks are gathered for the forward and for the backward pass of every micro-batch
    gathered = accumulate * wide * (2 * sizes.blocks + sizes.rest)
    return share * (gathered + FLOAT * total)


def _stored(prepared: PreparedData) -> int:
    """Bytes of the encoded training data."""
    sides = [side for side in (prepared.train.source, prepared.train.target) if side is not None]
    return sum(side.ids.nbytes + OFFSET * len(prepared.train) for side in sides)
