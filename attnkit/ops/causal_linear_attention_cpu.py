"""Causal linear attention, on a CPU in blocks of chunks that stay in its cache.

The plain form is `linear_attention.plain_causal`."""

from typing import Any

import torch
from torch import Tensor

from attnkit.ops import linear_attention
from attnkit.ops.autograd import once_differentiable
from attnkit.ops.fast_cpu import usable
from attnkit.ops.linear_attention import FeatureMaps, Sums, finite, widest
from attnkit.ops.linear_attention_cpu import (
    SPREAD,
    MapGradients,
    divide,
    exponentials,
    highest,
    key_features,
    leaf,
    moderate,
    numerator_gradient,
    row_groups,
    spans,
    values_with_ones,
)


def causal(
    maps: FeatureMaps, chunk: int, q: Tensor, k: Tensor, v: Tensor, valid: Any, state: Sums | None
) -> tuple[Tensor, Sums]:
    """Answers [B, H, T, E] of causal self-attention after the sums `state`, and the sums then.

    q, k [B, H, T, D], v [B, H, T, E], valid [B, T] or None where no key is a pad.
    """
    if state is None and usable(q, k, v):
        y, sums, peak = _Causal.apply(maps, chunk, q, k, v, valid, *maps.parameters)  # type: ignore[no-untyped-call]
        return y, (sums, peak)
    phi, values = linear_attention.prepare(maps, k, v, valid)
    features = maps.q(q.to(widest(q.dtype)))
    y, after = linear_attention.plain_causal(features, phi, values, state, maps.exponent, chunk)
    return y.to(v.dtype), after


def _rise(phi: Tensor, peak: Tensor) -> tuple[float, Tensor]:
    """How much a running maximum of [R, L, M], from `peak` [R, 1, M] on, rises after its first
    real key; and all maxima at the end.
    """
    end = torch.maximum(highest(phi), peak)
    first = (phi[..., :1] > -torch.inf).byte().argmax(1, keepdim=True)
    lowest = torch.where(
        peak == -torch.inf,
        phi.gather(1, first.expand(-1, -1, phi.shape[2])),
        torch.maximum(peak, phi[:, :1]),
    )
    return float((end - lowest).nan_to_num_(0).amax()), end


def _running(outer: Tensor, state: Tensor, back: int) -> Tensor:
    """The sum before (back=1: after) each of n parts: `state` [R, M, E + 1] and earlier parts.

    outer, and the answer: [R n, M, E + 1].  `state` goes on to the sum of all.
    """
    rows, parts = state.shape[0], outer.shape[0] // state.shape[0]
    if parts == 1:
        before = state.clone()
        state += outer
        return before
    flat = outer.view(rows, parts, -1)
    order = torch.ones(parts, parts, dtype=outer.dtype).tril_(-1)
    order = (order.T if back else order).expand(rows, -1, -1)
    before = torch.baddbmm(state.view(rows, 1, -1), order, flat)
    state += flat.sum(1).view_as(state)
    return before.view_as(outer)


def _forward_block(
    features: Tensor, phi: Tensor, values: Tensor, state: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """u = phi(q) S for a block [R, L, *] in chunks of `size`, and S before each chunk.

    `state`, the sums before the block, becomes those after it.
    """
    features, phi, values = (x.reshape(-1, size, x.shape[-1]) for x in (features, phi, values))
    before = _running(torch.bmm(phi.transpose(1, 2), values), state, 0)
    square = torch.bmm(features, phi.transpose(1, 2)).tril_()
    return torch.bmm(square, values).baddbmm_(features, before), before


def _backward_block(
    features: Tensor,
    phi: Tensor,
    values: Tensor,
    before: Tensor,
    du: Tensor,
    dstate: Tensor,
    size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of features, phi and values; `dstate`, that of the sums, goes to the start."""
    features, phi, values, du = (
        x.reshape(-1, size, x.shape[-1]) for x in (features, phi, values, du)
    )
    after = _running(torch.bmm(features.transpose(1, 2), du), dstate, 1)
    square = torch.bmm(features, phi.transpose(1, 2)).tril_()
    dsquare = torch.bmm(du, values.transpose(1, 2)).tril_()
    dfeatures = torch.bmm(dsquare, phi).baddbmm_(du, before.transpose(1, 2))
    dphi = torch.bmm(dsquare.transpose(1, 2), features).baddbmm_(values, after.transpose(1, 2))
    dvalues = torch.bmm(square.transpose(1, 2), du).baddbmm_(phi, after)
    return dfeatures, dphi, dvalues


class _Causal(torch.autograd.Function):
    """Causal sums, block by block."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: FeatureMaps,
        chunk: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        *learned: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        batch, heads, length, width = v.shape
        y = v.new_empty((batch, length, heads, width)).transpose(1, 2)
        norms = v.new_empty((batch, heads, length, 1), dtype=widest(v.dtype))
        ctx.maps, ctx.traces, ctx.before = maps, [], []
        groups, longest = row_groups(batch, heads, length)
        ends = [
            _forward_rows(ctx, rows, spans(length, longest, chunk), chunk, q, k, v, valid, y, norms)
            for rows in groups
        ]
        # sums before each chunk, saved like the rest, so that they go when the pass has used them
        ctx.save_for_backward(q, k, v, valid, y, norms, *ctx.before, *learned)
        del ctx.before
        ctx.set_materialize_grads(False)
        sums = torch.cat([end[0] for end in ends])  # [B, H, M, E + 1]
        if not maps.exponent:
            return y, sums, None
        peak = torch.cat([end[1] for end in ends])  # [B, H, M]
        ctx.mark_non_differentiable(peak)
        return y, sums, peak

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dy: Tensor | None, dsums: Tensor | None, _: Tensor | None
    ) -> tuple[Any, ...]:
        q, k, v, valid, y, norms, *rest = ctx.saved_tensors
        sums, learned = rest[: len(ctx.traces)], rest[len(ctx.traces) :]
        maps, gradients = ctx.maps, MapGradients(learned)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        dy = torch.zeros_like(y) if dy is None else dy
        group, dstate = None, norms
        for trace, before in zip(reversed(ctx.traces), reversed(sums), strict=True):
            # rescale: factors [R, M, 1] from the units of the sums that entered to the block's;
            # shift: peaks [R, 1, M] that were subtracted from the block's logarithms
            block, size, rescale, shift = trace
            if block[0] is not group:
                group, count = block[0], (block[0].stop - block[0].start) * y.shape[1]
                dstate = before.new_zeros((count, *before.shape[1:]))  # [R, M, E + 1]
                if dsums is not None:
                    dstate += dsums[group].flatten(0, 1)
            with torch.enable_grad():
                leaf_q, leaf_k = leaf(q, block), leaf(k, block, valid)
                mapped_q = maps.q(leaf_q)
                mapped_k = key_features(maps, leaf_k, block, valid)
            features, phi = (x.detach().flatten(0, 1) for x in (mapped_q, mapped_k))  # [R, L, M]
            if maps.exponent:
                features = exponentials(features, shift)
                phi = phi.exp() if shift is None else (phi - shift).exp_()
            du = numerator_gradient(dy, y, norms, block)
            values = values_with_ones(v, block, valid)
            df, dphi, dvalues = _backward_block(features, phi, values, before, du, dstate, size)
            if rescale is not None:
                dstate *= rescale
            if maps.exponent:
                df.view_as(features).mul_(features)
                dphi.view_as(phi).mul_(phi)
            dq[block] = gradients.through(mapped_q, df, leaf_q)
            dk[block] = gradients.through(mapped_k, dphi, leaf_k)
            dv[block] = dvalues.view(*leaf_k.shape[:3], -1)[..., :-1]
        return None, None, dq, dk, dv, None, *gradients.of(learned)


def _forward_rows(
    ctx: Any,
    rows: slice,
    todo: list[slice],
    chunk: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    y: Tensor,
    norms: Tensor,
) -> tuple[Tensor, Tensor]:
    """Fill y and norms for some rows of a batch, span by span; their sums and peaks at the end."""
    maps, heads = ctx.maps, q.shape[1]
    state = peak = torch.empty(0)
    todo, calm = todo[::-1], True
    while todo:
        span = todo.pop()
        block = rows, slice(None), span
        phi = key_features(maps, leaf(k, block, valid), block, valid).flatten(0, 1)
        count, long, features = phi.shape  # [R, L, M]
        size = min(chunk, long)
        if span.start == 0 and state.numel() == 0:
            state = phi.new_zeros((count, features, v.shape[3] + 1))
            peak = phi.new_full((count, 1, features), -torch.inf)
        rescale = shift = None
        if maps.exponent and calm and valid is None and moderate(phi):
            peak, phi = torch.zeros_like(peak), phi.exp()
        elif maps.exponent:
            calm = False
            rise, end = _rise(phi, peak)
            if rise > SPREAD and long > 1:  # two shorter blocks, each with its own shift
                cut = span.start + (size * (long // size // 2) if long > size else long // 2)
                todo += [slice(cut, span.stop), slice(span.start, cut)]
                continue
            shift = finite(end)
            rescale = (peak - shift).exp_().transpose(1, 2)
            peak, phi = end, (phi - shift).exp_()
            state *= rescale
        psi = maps.q(leaf(q, block)).flatten(0, 1)  # [R, L, M]
        psi = exponentials(psi, shift) if maps.exponent else psi
        values = values_with_ones(v, block, valid)
        u, before = _forward_block(psi, phi, values, state, size)
        divide(u, block, y, norms)
        if any(ctx.needs_input_grad):
            ctx.traces.append((block, size, rescale, shift))
            ctx.before.append(before)
    return state.view(-1, heads, *state.shape[1:]), peak.view(-1, heads, peak.shape[2])
