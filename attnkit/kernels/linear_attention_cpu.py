"""The sums of kernels.py for a CPU, in blocks that stay in its cache.

Features and squares are computed again in the backward pass, so nothing of size T x M or T x C is
ever stored.  Everything here equals the plain forms, forward and backward.
"""

from typing import Any

import torch
from torch import Tensor

from attnkit.kernels.autograd import once_differentiable
from attnkit.kernels.linear_attention import FeatureMaps, Sums, finite, shifted_exp, widest

SPREAD = 30.0
"""Keys of one block share a shift as long as the running maximum rises by at most this in it."""
BLOCK = 4096
"""Rows x heads x positions of a block."""


def usable(*tensors: Tensor | None) -> bool:
    """Whether these sums may be taken: eager code on a CPU, for at least one row and position.

    Not under autocast, which would mix types in sums that are added to in place.
    """
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return all(x is None or (x.device.type == "cpu" and x.numel() > 0) for x in tensors)


def key_sums(maps: FeatureMaps, k: Tensor, v: Tensor, valid: Tensor | None) -> Sums:
    """Sums over all keys."""
    found = _KeySums.apply(maps, k, v, valid, *maps.parameters)  # type: ignore[no-untyped-call]
    return found[0], found[1]


def answers(maps: FeatureMaps, q: Tensor, sums: Sums, *, divide: bool = True) -> Tensor:
    """phi(q) S [B, H, T, E]: divided by its last column, or (divide=False) as it is."""
    y: Tensor = _Answers.apply(maps, divide, q, *sums, *maps.parameters)  # type: ignore[no-untyped-call]
    return y


def groups_of(batch: int, heads: int, length: int) -> tuple[list[slice], int]:
    """Groups of rows of a batch, and the longest block of positions of such a group."""
    rows = min(batch, max(1, BLOCK // (heads * min(length, 64))))
    groups = [slice(start, min(start + rows, batch)) for start in range(0, batch, rows)]
    return groups, max(1, BLOCK // (rows * heads))


def spans_of(length: int, block: int, chunk: int) -> list[slice]:
    """Blocks of whole chunks, and what is left, in order."""
    step = max(1, block // chunk) * chunk
    whole = length - length % chunk
    spans = [slice(start, min(start + step, whole)) for start in range(0, whole, step)]
    return [*spans, slice(whole, length)] if whole < length else spans


def leaf_of(x: Tensor, rows: slice, span: slice, valid: Tensor | None = None) -> Tensor:
    """A block of x in at least float32, with zeros on pads: garbage there may be infinite."""
    block = x[rows, :, span].to(widest(x.dtype)).detach()
    if valid is not None:
        block = block.masked_fill(~valid[rows, None, span, None], 0)
    return block.requires_grad_(torch.is_grad_enabled())


def values_of(v: Tensor, rows: slice, span: slice, valid: Tensor | None) -> Tensor:
    """A block of values with ones: [R, L, E + 1]."""
    block = v[rows, :, span]
    out = block.new_empty((*block.shape[:3], block.shape[3] + 1), dtype=widest(v.dtype))
    out[..., :-1] = block
    out[..., -1] = 1
    if valid is not None:
        out.masked_fill_(~valid[rows, None, span, None], 0)
    return out.flatten(0, 1)


def key_map(
    maps: FeatureMaps, leaf: Tensor, rows: slice, span: slice, valid: Tensor | None
) -> Tensor:
    """Features of a block of keys, or their logarithms: [r, H, L, M]; 0 or -inf on pads."""
    if valid is None:
        seen = torch.ones((), dtype=torch.bool).expand(leaf.shape[0], leaf.shape[2])
        return maps.k(leaf, seen)
    seen = valid[rows, span]
    pads = ~seen[:, None, :, None]
    return maps.k(leaf, seen).masked_fill(pads, -torch.inf if maps.exponent else 0)


class ParameterGradients:
    """Gradients of learned parameters, collected block by block."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = [x for x in parameters if x.requires_grad]
        self.learned: dict[int, Tensor] = {}

    def through(self, output: Tensor, slope: Tensor, leaf: Tensor) -> Tensor:
        """The gradient of a block's input from that of what a map made of it."""
        slope = slope.view_as(output)
        if output is leaf:
            return slope
        if not output.requires_grad:
            return torch.zeros_like(leaf)
        inputs = (leaf, *self.parameters)
        own, *rest = torch.autograd.grad(output, inputs, slope, allow_unused=True)
        for parameter, new in zip(self.parameters, rest, strict=True):
            if new is not None:
                old = self.learned.get(id(parameter))
                self.learned[id(parameter)] = new if old is None else old.add_(new)
        return torch.zeros_like(leaf) if own is None else own

    def of(self, parameters: list[Tensor]) -> list[Tensor | None]:
        """One gradient a parameter, None where it took no part."""
        return [self.learned.get(id(x)) for x in parameters]


def multiply(left: Tensor, right: Tensor, whole: Tensor, rows: slice, span: slice) -> None:
    """Write left @ right [R, L, E] to a block of `whole`, without a copy where it is one row's."""
    block = whole[rows, :, span]
    if len(block) == 1 and block.dtype == left.dtype:
        torch.bmm(left, right, out=block[0])
    else:
        block.copy_(torch.bmm(left, right).view_as(block))


def exponentials(logarithms: Tensor, peak: Tensor | None) -> Tensor:
    """Features of queries [R, L, M] for sums in units of e^peak [R, 1, M] (None: of 1)."""
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


def upstream(dy: Tensor, y: Tensor, below: Tensor, rows: slice, span: slice) -> Tensor:
    """Gradient of numerators and denominators of a block, [R, L, E + 1], from that of y."""
    norm = below[rows, :, span]
    slope = dy[rows, :, span].to(below.dtype)
    out = norm.new_empty((*slope.shape[:3], slope.shape[3] + 1))
    torch.div(slope, norm, out=out[..., :-1])
    torch.sum(out[..., :-1] * y[rows, :, span], -1, keepdim=True, out=out[..., -1:]).neg_()
    return out.flatten(0, 1)


class _KeySums(torch.autograd.Function):
    """Sums over all keys, block by block, under a peak that rises."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: FeatureMaps,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        batch, heads, length = k.shape[:3]
        ctx.maps = maps
        groups, longest = groups_of(batch, heads, length)
        states, peaks = list[Any](), list[Any]()
        for rows in groups:
            outer, total, peak = torch.empty(0), torch.empty(0), torch.empty(0)
            calm = maps.exponent and valid is None
            for span in spans_of(length, longest, 1):
                phi = key_map(maps, leaf_of(k, rows, span, valid), rows, span, valid)
                phi = phi.flatten(0, 1)
                if span.start == 0:
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
                outer.baddbmm_(phi.transpose(1, 2), leaf_of(v, rows, span, valid).flatten(0, 1))
                total.baddbmm_(phi.new_ones((phi.shape[0], 1, phi.shape[1])), phi)
            states.append(torch.cat((outer, total.transpose(1, 2)), 2))
            peaks.append(peak)
        ctx.set_materialize_grads(False)
        sums = torch.cat(states)
        sums = sums.view(batch, heads, *sums.shape[1:])
        if not maps.exponent:
            ctx.save_for_backward(k, v, valid, None, *parameters)
            return sums, None
        peak = torch.cat(peaks)
        ctx.save_for_backward(k, v, valid, peak, *parameters)
        peak = peak.view(batch, heads, -1)
        ctx.mark_non_differentiable(peak)
        return sums, peak

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dsums: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
        k, v, valid, peak, *parameters = ctx.saved_tensors
        if dsums is None:
            return (None,) * (4 + len(parameters))
        maps, slopes = ctx.maps, ParameterGradients(parameters)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        (batch, heads, length), slope_of = k.shape[:3], dsums.flatten(0, 1)
        groups, longest = groups_of(batch, heads, length)
        for rows in groups:
            inner = slice(rows.start * heads, rows.stop * heads)
            slope = slope_of[inner]
            for span in spans_of(length, longest, 1):
                with torch.enable_grad():
                    leaf = leaf_of(k, rows, span, valid)
                    own = key_map(maps, leaf, rows, span, valid)
                phi = own.detach().flatten(0, 1)
                if peak is not None:
                    shift = finite(peak[inner])
                    phi = (phi - shift).exp_() if bool(shift.any()) else phi.exp()
                values, outer = leaf_of(v, rows, span, valid).flatten(0, 1), slope.transpose(1, 2)
                dphi = torch.bmm(values, outer[:, :-1]).add_(outer[:, -1:])
                if peak is not None:
                    dphi *= phi
                dk[rows, :, span] = slopes.through(own, dphi, leaf)
                multiply(phi, slope[..., :-1], dv, rows, span)
        return None, dk, dv, None, *slopes.of(parameters)


class _Answers(torch.autograd.Function):
    """phi(q) S, block by block."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: FeatureMaps,
        divide: bool,
        q: Tensor,
        sums: Tensor,
        peak: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        batch, heads, length = q.shape[:3]
        width = sums.shape[3] - int(divide)
        y = q.new_empty((batch, length, heads, width)).transpose(1, 2)
        below = q.new_empty((batch, heads, length, 1), dtype=sums.dtype) if divide else None
        groups, longest = groups_of(batch, heads, length)
        shift = None if peak is None else finite(peak).unsqueeze(2)
        for rows in groups:
            state = sums[rows].flatten(0, 1)
            for span in spans_of(length, longest, 1):
                features = maps.q(leaf_of(q, rows, span))
                if shift is not None:
                    features = exponentials(features, shift[rows])
                if below is None:
                    multiply(features.flatten(0, 1), state, y, rows, span)
                    continue
                u = torch.bmm(features.flatten(0, 1), state)
                u = u.view(-1, heads, u.shape[1], u.shape[2])
                norm = u[..., -1:].masked_fill(u[..., -1:] == 0, 1)
                below[rows, :, span] = norm
                torch.div(u[..., :-1], norm, out=y[rows, :, span])
        ctx.maps = maps
        ctx.save_for_backward(q, sums, shift, y if divide else None, below, *parameters)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        q, sums, shift, y, below, *parameters = ctx.saved_tensors
        maps, slopes = ctx.maps, ParameterGradients(parameters)
        dq, dsums = torch.empty_like(q), torch.zeros_like(sums)
        groups, longest = groups_of(*q.shape[:3])
        for rows in groups:
            state, slope = sums[rows].flatten(0, 1), dsums[rows].flatten(0, 1)
            for span in spans_of(q.shape[2], longest, 1):
                with torch.enable_grad():
                    leaf = leaf_of(q, rows, span)
                    own = maps.q(leaf)
                features = own.detach()
                if shift is not None:
                    features = exponentials(features, shift[rows])
                features = features.flatten(0, 1)
                if below is None:
                    du = dy[rows, :, span].to(sums.dtype).reshape(*features.shape[:2], -1)
                else:
                    du = upstream(dy, y, below, rows, span)
                slope.baddbmm_(features.transpose(1, 2), du)
                df = torch.bmm(du, state.transpose(1, 2))
                if shift is not None:
                    df *= features
                dq[rows, :, span] = slopes.through(own, df, leaf)
        return None, None, dq, dsums, None, *slopes.of(parameters)
