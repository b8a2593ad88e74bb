"""Block top-k attention: A = softmax(q k^T / sqrt(D)) over the keys of chosen blocks.

Also known as MoBA, mixture of block attention. The sequence is split into blocks of `block` tokens. A query attends to
its own block and to the `blocks` other blocks with the highest q . mean(keys of the block), by default 3 or as many as
there are. If causal, it attends to its own block up to itself, and of the others only to earlier blocks. The selection
has no parameters and no gradient. With enough blocks this is scaled-dot. Padding belongs to no block and to no mean.

Position biases do not change the selection. The entropy factor counts all visible keys. Long sequences are computed
block by block: the queries that selected a block are gathered for it, and their partial softmaxes are merged. That
takes T*blocks*block*D, and T*S*D/block for the selection; short sequences and decoding take T*S*D. Self-attention
only. Source: Lu et al. 2025, "MoBA: Mixture of Block Attention for Long-Context LLMs", equations 2 to 6; there
`blocks` counts the query's own block too, and encoders are not treated.

Worked number: D = 1, blocks of 1 token, one other block, keys ln 2, 0 and 0 and a query of 1 at the third token: it
attends to the first token and to itself with scores ln 2 and 0, so the weights are 2/3, 0, 1/3.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask, Shape, at_least, dot_scores, one_head, visible_softmax
from attnkit.attention.mask import pads_last, readable, with_pads_last
from attnkit.errors import UsageError
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.ops.fast_cpu import usable
from attnkit.ops.grouped_heads import repeat_heads
from attnkit.ops.score_chunks import ScoreChunk, Softmax, in_chunks

PLAIN_UP_TO = 256 * 256
"""Number of scores per head up to which plain products are faster than blocks."""


class SoftmaxOverBlocks(Softmax):
    """Softmax over the keys of selected blocks, chunk by chunk."""

    def __init__(self, added: Float[Tensor, "B H T n"], block: int) -> None:
        self.added, self.block = added, block  # 0 for a visible block, otherwise -inf

    def weigh(self, scores: Sequence[Tensor], chunk: ScoreChunk) -> tuple[Tensor]:
        added = self.added[chunk.rows, :, chunk.queries, :, None]
        of_keys = added.expand(-1, -1, -1, -1, self.block).flatten(3)[..., : scores[0].shape[3]]
        return super().weigh([scores[0].add_(of_keys)], chunk)


class BlockTopk(ScaledDot):
    """Softmax over the best blocks; cost below T*S*D. For `key_heads` see `dot`."""

    cross = False
    by_distance = True
    cost = "T*S*D/block"
    onnx = ("encoder",)
    why = "its blocks are parts of the query's own sequence"

    def __init__(
        self, shape: Shape, *, block: int = 16, blocks: int | None = None, key_heads: int | None = None
    ) -> None:
        super().__init__(shape, key_heads=key_heads)
        self.block = at_least("block-topk", "block", block)
        self.blocks = 3 if blocks is None else at_least("block-topk", "blocks", blocks, 0)
        max_blocks = -(-shape.max_length // block)
        if blocks is not None and blocks > max_blocks:
            raise UsageError(
                f"block-topk: blocks must be at most {max_blocks}, as {shape.max_length} tokens are "
                f"{max_blocks} blocks of {block}, got {blocks}"
            )

    def gate(
        self, means: Float[Tensor, "B H T n"], mask: Mask, real: Bool[Tensor, "b n"]
    ) -> tuple[Int[Tensor, "B H T K"], Bool[Tensor, "B H T K"]]:
        """Return the blocks that queries select beside their own, and whether each selection counts."""
        own_block = (mask.q_pos // self.block)[:, None, :, None]  # [b, 1, T, 1]
        indices = torch.arange(means.shape[-1], device=means.device)
        candidates = (indices < own_block if mask.causal else indices != own_block) & real[:, None, None]
        ranked = means.detach().masked_fill(~candidates, -torch.inf)  # the selection has no gradient
        # stable: of equal blocks the first, whatever the padding
        values, places = ranked.sort(dim=-1, descending=True, stable=True)
        return places[..., : self.blocks], values[..., : self.blocks] > -torch.inf

    def normalize(self, scores: Tensor, mask: Mask, raw_scores: Tensor) -> Float[Tensor, "b H T S"]:
        """Compute the softmax over the selected blocks; q . mean(keys) is the mean of their scores."""
        allowed = mask.dense()
        block_of_key = mask.k_pos // self.block  # [b, S]
        count = -(-mask.k_pos.shape[1] // self.block)
        member = F.one_hot(block_of_key, count).masked_fill(~mask.valid[..., None], 0)  # [b, S, n]
        size = member.sum(1)  # [b, n], number of tokens in each block
        means = raw_scores @ member[:, None].to(raw_scores.dtype) / size.clamp_min(1)[:, None, None]
        selected, counts = self.gate(means, mask, size > 0)
        seen = torch.zeros_like(means, dtype=torch.bool).scatter(-1, selected, counts)
        index = block_of_key[:, None, None, :].expand(*seen.shape[:3], -1)  # the block of each key
        in_own_block = block_of_key[:, None, None, :] == (mask.q_pos // self.block)[:, None, :, None]
        return visible_softmax(scores, allowed & (in_own_block | seen.gather(-1, index)))

    @torch.no_grad()
    def seen_blocks(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "B H T n"]:
        """Return 0 for the blocks that queries attend to, otherwise -inf; columns are positions."""
        padding = -k.shape[2] % self.block
        size = torch.unflatten(F.pad(mask.valid, (0, padding)), 1, (-1, self.block)).sum(-1)  # [b, n]
        keys = F.pad(k * mask.valid[:, None, :, None], (0, 0, 0, padding))
        sums = torch.unflatten(keys, 2, (-1, self.block)).sum(3) / size.clamp_min(1)[:, None, :, None]
        means = dot_scores(q, sums)
        selected, counts = self.gate(means, mask, size > 0)
        seen = torch.zeros_like(means, dtype=torch.bool).scatter_(-1, selected, counts)
        own_block = (mask.q_pos // self.block)[:, None, :, None] == torch.arange(means.shape[3])
        return torch.zeros_like(means).masked_fill_(~(seen | own_block), -torch.inf)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        """Compute as scaled-dot if all blocks are selected, in chunks, or block by block for a long sequence."""
        queries, keys = q.shape[2], k.shape[2]
        if usable(q, k, v) and -(-keys // self.block) <= self.blocks + 1:
            return super().fused(q, k, v, mask)
        short = queries == keys and queries * keys <= PLAIN_UP_TO and self.blocks
        if short and in_chunks(q, k, v) and pads_last(mask) is None:
            weighing = SoftmaxOverBlocks(self.seen_blocks(q, k, mask), self.block)
            return self.chunked(weighing, self.scale, (q,), (k,), v, mask)
        if queries != keys or queries * keys <= PLAIN_UP_TO or v.shape[3] != q.shape[3]:
            return None
        if torch.compiler.is_compiling() or (mask.layout == "any" and not readable(mask.valid)):
            return None
        k, v = (repeat_heads(x, q.shape[1]) for x in (k, v))
        answer = partial(self._by_blocks, mask.causal)
        y = with_pads_last(answer, mask, q * q.shape[-1] ** -0.5, k, v)
        return y.masked_fill(~mask.valid[:, None, :, None], 0)  # outputs of padding are arbitrary

    def _by_blocks(
        self, causal: bool, valid: Bool[Tensor, "b T"], q: Tensor, k: Tensor, v: Tensor
    ) -> Float[Tensor, "B H T D"]:
        """Compute rows whose columns are positions; outputs of padding are arbitrary."""
        size, length = self.block, q.shape[2]
        padding = -length % size
        q, k, v = (F.pad(x, (0, 0, 0, padding)) for x in (q, k, v))
        valid = F.pad(valid, (0, padding))
        real = torch.unflatten(valid, 1, (-1, size))  # [b, n, block]
        blocks = [torch.unflatten(x, 2, (-1, size)) for x in (q, k, v)]  # [B, H, n, block, D]
        keys, values = (x.flatten(0, 2) for x in blocks[1:])  # [B H n, block, D]
        # the query's own block; padding attends to itself, so that no row is empty
        visible = torch.ones(size, size, dtype=torch.bool, device=q.device)
        visible = visible.tril() if causal else visible
        itself = torch.eye(size, dtype=torch.bool, device=q.device)
        visible = (visible & real[:, None, :, None]) | itself  # [b, 1, n, block, block]
        own_scores = (blocks[0] @ blocks[1].transpose(-1, -2)).masked_fill(~visible, -torch.inf)
        parts = [(own_scores.softmax(-1) @ blocks[2]).flatten(2, 3)[:, :, :, None]]  # [B, H, T, 1, D]
        logs = [own_scores.logsumexp(-1).flatten(2, 3)[..., None]]  # [B, H, T, 1]
        # the selected blocks
        counted = real.sum(-1)  # [b, n]
        sums = (blocks[1] * real[:, None, :, :, None]).sum(3)
        means = q @ (sums / counted.clamp_min(1)[:, None, :, None]).transpose(-1, -2)
        position = torch.arange(q.shape[2], device=q.device)[None]
        selected, counts = self.gate(means, Mask(position, position, valid, causal), counted > 0)
        if selected.shape[-1]:
            is_token = real.expand(q.shape[0], -1, -1)[:, None].expand(-1, q.shape[1], -1, -1)
            y, log = _attend_selected(q, keys, values, is_token.flatten(0, 2), selected, counts)
            parts.append(y)
            logs.append(log)
        share = torch.cat(logs, -1).softmax(-1).unsqueeze(-1)  # weight of each part in the joint softmax
        return (share * torch.cat(parts, 3)).sum(3)[:, :, :length]

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(1, 1, 3), block=1, blocks=1)
        q, k = one_head((1,), (1,), (1,)), one_head((math.log(2),), (0,), (0,))
        maps = mechanism.weights(q, k, k, Mask.packed(3, torch.device("cpu"), causal=True))
        return maps[:, :, 2:], one_head((2 / 3, 0, 1 / 3))


def _attend_selected(
    q: Float[Tensor, "B H T D"],
    keys: Float[Tensor, "N block D"],
    values: Float[Tensor, "N block D"],
    real: Bool[Tensor, "N block"],
    selected: Int[Tensor, "B H T K"],
    counts: Bool[Tensor, "B H T K"],
) -> tuple[Float[Tensor, "B H T K D"], Float[Tensor, "B H T K"]]:
    """Return the output of each selected block, and the logarithm of its softmax sum (-inf: no selection).

    Pairs of a query and a block are sorted by block; each block is multiplied with its queries in tiles of as many
    rows as it has keys.
    """
    total, size = keys.shape[:2]
    heads = q.shape[0] * q.shape[1]
    first = torch.arange(heads, device=q.device).view(*q.shape[:2], 1, 1) * (total // heads)
    owner = (selected + first).masked_fill(~counts, total).flatten()  # the block of each pair
    by_block = owner.argsort()  # pairs sorted by block
    number = torch.bincount(owner, minlength=total + 1)  # number of queries of each block
    tiles = -(-number // size)  # number of tiles of `size` queries per block, the last one with spare slots
    tiles[total] = 0  # selections that do not count
    start, tile_start = number.cumsum(0) - number, tiles.cumsum(0) - tiles
    sorted_owner = owner[by_block]
    rank = torch.arange(len(owner), device=q.device) - start[sorted_owner]  # within its block
    place = tile_start[sorted_owner] * size + rank
    place = place.masked_fill(sorted_owner == total, 0)  # read, but masked at the end
    slot = torch.empty_like(place).scatter_(0, by_block, place)  # the slot of each pair
    count = int(tiles.sum())  # waits for the device
    if not count:
        nothing = q.new_zeros((*selected.shape, values.shape[-1]))
        return nothing, q.new_full(selected.shape, -torch.inf)
    held = counts.flatten()  # selections that count
    reader = torch.zeros(count * size, dtype=torch.long, device=q.device)  # spare slots: query 0
    row = torch.arange(len(owner), device=q.device) // selected.shape[-1]  # the query of a pair
    reader[slot[held]] = row[held]
    block = torch.arange(total + 1, device=q.device).repeat_interleave(tiles)  # the block of each tile
    rows = q.flatten(0, 2).index_select(0, reader).view(count, size, -1)  # [tiles, rows, D]
    scores = rows @ keys.index_select(0, block).transpose(-1, -2)  # [tiles, rows, block]
    scores = scores.masked_fill(~real[block].unsqueeze(1), -torch.inf)
    log = scores.logsumexp(-1).flatten()
    y = (scores.softmax(-1) @ values.index_select(0, block)).flatten(0, 1)  # [slots, D]
    y = y.index_select(0, slot).view(*selected.shape, -1)
    log = log.index_select(0, slot).view(selected.shape)
    return y, log.masked_fill(~counts, -torch.inf)
