"""The sums of linear attention, on a CPU in blocks that stay in its cache.

Features and squares are computed again in the backward pass, so nothing of size T x M or T x C is
ever stored.  The plain forms, `linear_attention.prepare` with `add` and `linear_attention.answer`,
give the same numbers and take over wherever `fast_cpu.usable` refuses.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnkit.ops import linear_attention
from attnkit.ops.autograd import once_differentiable
from attnkit.ops.fast_cpu import usable
from attnkit.ops.linear_attention import FeatureMaps, Sums, finite, shifted_exp, widest

SPREAD = 30.0
"""Keys of one block share a shift as long as the running maximum rises by at most this in it."""
BLOCK = 4096
"""Rows x heads x positions of a block."""
Block: TypeAlias = tuple[slice, slice, slice]
"""The index of a block in [B, H, T, ...]: some rows, all heads, some positions."""


def key_sums(maps: FeatureMaps, k: Tensor, v: Tensor, valid: Tensor | None) -> Sums:
    """Sums over all keys [B, H, S, D] with values [B, H, S, E]; `valid` [B, S] or None: all."""
    if k.shape[2] > 1 and usable(k, v):
        sums, peak = _KeySums.apply(maps, k, v, valid, *maps.parameters)  # type: ignore[no-untyped-call]
        return sums, peak
    return linear_attention.add(*linear_attention.prepare(maps, k, v, valid), maps.exponent)


def answers(maps: FeatureMaps, q: Tensor, sums: Sums) -> Tensor:
    """What queries [B, H, T, D] read from the sums: [B, H, T, E]."""
    if q.shape[2] > 1 and usable(q):
        y: Tensor = _Answers.apply(maps, q, *sums, *maps.parameters)  # type: ignore[no-untyped-call]
        return y
    return linear_attention.answer(maps, q, sums).to(q.dtype)


def row_groups(batch: int, heads: int, length: int) -> tuple[list[slice], int]:
    """Groups of rows of a batch, and the longest block of positions of such a group."""
    rows = min(batch, max(1, BLOCK // (heads * min(length, 64))))
    groups = [slice(start, min(start + rows, batch)) for start in range(0, batch, rows)]
    return groups, max(1, BLOCK // (rows * heads))


def spans(length: int, block: int, chunk: int = 1) -> list[slice]:
    """Blocks of whole chunks, and what is left, in order."""
    step = max(1, block // chunk) * chunk
    chunked = length - length % chunk
    found = [slice(start, min(start + step, chunked)) for start in range(0, chunked, step)]
    return [*found, slice(chunked, length)] if chunked < length else found


def blocks(x: Tensor) -> Iterator[Block]:
    """The blocks of [B, H, T, ...], those of one group of rows one after the other."""
    groups, longest = row_groups(*x.shape[:3])
    for rows in groups:
        for span in spans(x.shape[2], longest):
            yield rows, slice(None), span


def leaf(x: Tensor, block: Block, valid: Tensor | None = None) -> Tensor:
    """A block of x in at least float32, with zeros on pads: garbage there may be infinite."""
    own = x[block].to(widest(x.dtype)).detach()
    if valid is not None:
        own = own.masked_fill(pads(valid, block), 0)
    return own.requires_grad_(torch.is_grad_enabled())


def pads(valid: Tensor, block: Block) -> Tensor:
    """The pads of a block: [r, 1, L, 1]."""
    return ~valid[block[0], None, block[2], None]


def values_with_ones(v: Tensor, block: Block, valid: Tensor | None) -> Tensor:
    """A block of values with a column of ones: [R, L, E + 1], zeros on pads."""
    own = v[block]
    out = own.new_empty((*own.shape[:3], own.shape[3] + 1), dtype=widest(v.dtype))
    out[..., :-1] = own
    out[..., -1] = 1
    if valid is not None:
        out.masked_fill_(pads(valid, block), 0)
    return out.flatten(0, 1)


def key_features(maps: FeatureMaps, own: Tensor, block: Block, valid: Tensor | None) -> Tensor:
    """Features of a block of keys, or their logarithms: [r, H, L, M]; 0 or -inf on pads."""
    if valid is None:
        all_real = torch.ones((), dtype=torch.bool).expand(own.shape[0], own.shape[2])
        return maps.k(own, all_real)
    hidden = -torch.inf if maps.exponent else 0
    return maps.k(own, valid[block[0], block[2]]).masked_fill(pads(valid, block), hidden)


class MapGradients:
    """Gradients through feature maps; those of learned parameters add up block by block."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = [x for x in parameters if x.requires_grad]
        self.learned: dict[int, Tensor] = {}

    def through(self, output: Tensor, grad: Tensor, own: Tensor) -> Tensor:
        """The gradient of a block `own` from that of what a map made of it."""
        grad = grad.view_as(output)
        if output is own:
            return grad
        if not output.requires_grad:
            return torch.zeros_like(own)
        inputs = (own, *self.parameters)
        own_grad, *rest = torch.autograd.grad(output, inputs, grad, allow_unused=True)
        for parameter, new in zip(self.parameters, rest, strict=True):
            if new is not None:
                old = self.learned.get(id(parameter))
                self.learned[id(parameter)] = new if old is None else old.add_(new)
        return torch.zeros_like(own) if own_grad is None else own_grad

    def of(self, parameters: list[Tensor]) -> list[Tensor | None]:
        """One gradient a parameter, None where it took no part."""
        return [self.learned.get(id(x)) for x in parameters]


def exponentials(logarithms: Tensor, peak: Tensor | None) -> Tensor:
    """Features of queries [..., L, M] for sums in units of e^peak [..., 1, M] (None: of 1)."""
    return shifted_exp(logarithms if peak is None else logarithms + peak)


def moderate(logarithms: Tensor) -> bool:
    """Whether exponentials need no shift; the common case, and far cheaper to find out."""
    low, high = logarithms.aminmax()
    return float(low) > -SPREAD and float(high) < SPREAD


def highest(logarithms: Tensor) -> Tensor:
    """The maximum of [R, L, M] over positions, [R, 1, M]."""
    while logarithms.shape[1] > 8:  # halves against halves: far faster than amax along columns
        half = -(-logarithms.shape[1] // 2)
        logarithms = torch.maximum(logarithms[:, :half], logarithms[:, -half:])
    return logarithms.amax(1, keepdim=True)


def divide(u: Tensor, block: Block, y: Tensor, norms: Tensor) -> None:
    """Write the quotients of a block u [R, L, E + 1] to y, and their denominators to `norms`."""
    u = u.view(*norms[block].shape[:3], -1)  # [r, H, L, E + 1]
    norm = u[..., -1:].masked_fill(u[..., -1:] == 0, 1)
    norms[block] = norm
    torch.div(u[..., :-1], norm, out=y[block])


def numerator_gradient(dy: Tensor, y: Tensor, norms: Tensor, block: Block) -> Tensor:
    """Gradient of numerators and denominators of a block, [R, L, E + 1], from that of y."""
    norm = norms[block]
    grad = dy[block].to(norms.dtype)
    out = norm.new_empty((*grad.shape[:3], grad.shape[3] + 1))
    torch.div(grad, norm, out=out[..., :-1])
    torch.sum(out[..., :-1] * y[block], -1, keepdim=True, out=out[..., -1:]).neg_()
    return out.flatten(0, 1)


class _KeySums(torch.autograd.Function):
    """Sums over all keys, block by block, under a peak that rises."""

    @staticmethod
    def forward(
        ctx: Any, maps: FeatureMaps, k: Tensor, v: Tensor, valid: Tensor | None, *learned: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        states, peaks, calm = list[Any](), list[Any](), False
        outer = total = peak = torch.empty(0)
        for block in blocks(k):
            phi = key_features(maps, leaf(k, block, valid), block, valid).flatten(0, 1)  # [R, L, M]
            if block[2].start == 0:
                calm = maps.exponent and valid is None
                # two tensors while they grow: a product cannot be added to a part of one
                outer = phi.new_zeros((phi.shape[0], phi.shape[2], v.shape[3]))
                total = phi.new_zeros((phi.shape[0], 1, phi.shape[2]))
                peak = torch.full_like(total, -torch.inf)
            if calm and moderate(phi):
                peak, phi = torch.zeros_like(peak), phi.exp()
            elif maps.exponent:
                calm = False
                end = torch.maximum(highest(phi), peak)
                phi = (phi - finite(end)).exp_()
                rescale, peak = (peak - finite(end)).exp_(), end
                outer *= rescale.transpose(1, 2)
                total *= rescale
            outer.baddbmm_(phi.transpose(1, 2), leaf(v, block, valid).flatten(0, 1))  # [R, M, E]
            total.baddbmm_(phi.new_ones((phi.shape[0], 1, phi.shape[1])), phi)  # [R, 1, M]
            if block[2].stop == k.shape[2]:
                states.append(torch.cat((outer, total.transpose(1, 2)), 2))
                peaks.append(peak)
        ctx.maps = maps
        ctx.set_materialize_grads(False)
        sums = torch.cat(states)
        sums = sums.view(*k.shape[:2], *sums.shape[1:])  # [B, H, M, E + 1]
        if not maps.exponent:
            ctx.save_for_backward(k, v, valid, None, *learned)
            return sums, None
        peak = torch.cat(peaks)
        ctx.save_for_backward(k, v, valid, peak, *learned)
        peak = peak.view(*k.shape[:2], -1)  # [B, H, M]
        ctx.mark_non_differentiable(peak)
        return sums, peak

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dsums: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
        k, v, valid, peak, *learned = ctx.saved_tensors
        if dsums is None:
            return (None,) * (4 + len(learned))
        maps, gradients, heads = ctx.maps, MapGradients(learned), k.shape[1]
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        for block in blocks(k):
            with torch.enable_grad():
                own = leaf(k, block, valid)
                mapped = key_features(maps, own, block, valid)
            phi = mapped.detach().flatten(0, 1)  # [R, L, M]
            if peak is not None:
                shift = finite(peak[block[0].start * heads : block[0].stop * heads])
                phi = (phi - shift).exp_() if bool(shift.any()) else phi.exp()
            dstate = dsums[block[0]].flatten(0, 1)  # [R, M, E + 1]
            values, outer = leaf(v, block, valid).flatten(0, 1), dstate.transpose(1, 2)
            dphi = torch.bmm(values, outer[:, :-1]).add_(outer[:, -1:])
            if peak is not None:
                dphi *= phi
            dk[block] = gradients.through(mapped, dphi, own)
            own_dv = dv[block]
            if len(own_dv) == 1 and own_dv.dtype == phi.dtype:  # one row's: no copy is needed
                torch.bmm(phi, dstate[..., :-1], out=own_dv[0])
            else:
                own_dv.copy_(torch.bmm(phi, dstate[..., :-1]).view_as(own_dv))
        return None, dk, dv, None, *gradients.of(learned)


class _Answers(torch.autograd.Function):
    """phi(q) S divided by its last column, block by block."""

    @staticmethod
    def forward(
        ctx: Any, maps: FeatureMaps, q: Tensor, sums: Tensor, peak: Tensor | None, *learned: Tensor
    ) -> Tensor:
        batch, heads, length = q.shape[:3]
        y = q.new_empty((batch, length, heads, sums.shape[3] - 1)).transpose(1, 2)
        norms = q.new_empty((batch, heads, length, 1), dtype=sums.dtype)
        shift = None if peak is None else finite(peak).unsqueeze(2)  # [B, H, 1, M]
        for block in blocks(q):
            features = maps.q(leaf(q, block))
            if shift is not None:
                features = exponentials(features, shift[block[0]])
            u = torch.bmm(features.flatten(0, 1), sums[block[0]].flatten(0, 1))  # [R, L, E + 1]
            divide(u, block, y, norms)
        ctx.maps = maps
        ctx.save_for_backward(q, sums, shift, y, norms, *learned)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        q, sums, shift, y, norms, *learned = ctx.saved_tensors
        maps, gradients = ctx.maps, MapGradients(learned)
        dq, dsums = torch.empty_like(q), torch.zeros_like(sums)
        for block in blocks(q):
            with torch.enable_grad():
                own = leaf(q, block)
                mapped = maps.q(own)
            features = mapped.detach()
            if shift is not None:
                features = exponentials(features, shift[block[0]])
            features = features.flatten(0, 1)  # [R, L, M]
            du = numerator_gradient(dy, y, norms, block)
            state, dstate = (x[block[0]].flatten(0, 1) for x in (sums, dsums))  # [R, M, E + 1]
            dstate.baddbmm_(features.transpose(1, 2), du)
            dfeatures = torch.bmm(du, state.transpose(1, 2))
            if shift is not None:
                dfeatures *= features
            dq[block] = gradients.through(mapped, dfeatures, own)
        return None, dq, dsums, None, *gradients.of(learned)
