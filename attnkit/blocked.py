"""The sums of kernels.py for a CPU, in blocks that stay in its cache.

Features and squares are computed again in the backward pass, so nothing of size T x M or T x C is
ever stored.  Everything here equals the plain forms, forward and backward.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnkit.kernels import Maps, finite, widest

SPREAD = 30.0
"""Keys of one block share a shift as long as the running maximum rises by at most this in it."""
BLOCK = 2048
"""Rows x heads x positions of a block."""


def usable(*tensors: Tensor | None) -> bool:
    """Whether these sums may be taken: eager code on a CPU."""
    if torch.compiler.is_compiling():
        return False
    return all(x is None or x.device.type == "cpu" for x in tensors)


def causal(
    maps: Maps, chunk: int, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None
) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
    """Answers [B, H, T, E] of causal self-attention, and the sums after it.

    q, k [B, H, T, D], v [B, H, T, E], valid [B, T] or None where no key is a pad.
    """
    found = _Causal.apply(maps, chunk, q, k, v, valid, *maps.parameters)  # type: ignore[no-untyped-call]
    return found[0], (found[1], found[2])


def key_sums(
    maps: Maps, k: Tensor, v: Tensor, valid: Tensor | None, *, channels: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Sums over all keys; `channels`: a peak for each feature, [B, H, M], rather than for all."""
    found = _KeySums.apply(maps, channels, k, v, valid, *maps.parameters)  # type: ignore[no-untyped-call]
    return found[0], found[1]


def answers(maps: Maps, q: Tensor, sums: Tensor, *, divide: bool = True) -> Tensor:
    """phi(q) S [B, H, T, E]: divided by its last column, or (divide=False) as it is."""
    y: Tensor = _Answers.apply(maps, divide, q, sums, *maps.parameters)  # type: ignore[no-untyped-call]
    return y


def _groups(batch: int, heads: int, length: int) -> tuple[list[slice], int]:
    """Groups of rows of a batch, and the longest block of positions of such a group."""
    rows = min(batch, max(1, BLOCK // (heads * min(length, 64))))
    groups = [slice(start, min(start + rows, batch)) for start in range(0, batch, rows)]
    return groups, max(1, BLOCK // (rows * heads))


def _spans(length: int, block: int, chunk: int) -> list[slice]:
    """Blocks of whole chunks, and what is left, in order."""
    step = max(1, block // chunk) * chunk
    whole = length - length % chunk
    spans = [slice(start, min(start + step, whole)) for start in range(0, whole, step)]
    return [*spans, slice(whole, length)] if whole < length else spans


def _leaf(x: Tensor, rows: slice, span: slice, valid: Tensor | None = None) -> Tensor:
    """A block of x in at least float32, with zeros on pads: garbage there may be infinite."""
    block = x[rows, :, span].to(widest(x.dtype)).detach()
    if valid is not None:
        block = block.masked_fill(~valid[rows, None, span, None], 0)
    return block.requires_grad_(torch.is_grad_enabled())


def _values(v: Tensor, rows: slice, span: slice, valid: Tensor | None) -> Tensor:
    """A block of values with ones: [R, L, E + 1]."""
    block = v[rows, :, span]
    out = block.new_empty((*block.shape[:3], block.shape[3] + 1), dtype=widest(v.dtype))
    out[..., :-1] = block
    out[..., -1] = 1
    if valid is not None:
        out.masked_fill_(~valid[rows, None, span, None], 0)
    return out.flatten(0, 1)


def _key_map(maps: Maps, leaf: Tensor, rows: slice, span: slice, valid: Tensor | None) -> Tensor:
    """Features of a block of keys, or their logarithms: [R, L, M]; 0 or -inf on pads."""
    if valid is None:
        seen = torch.ones((), dtype=torch.bool).expand(leaf.shape[0], leaf.shape[2])
        return maps.k(leaf, seen).flatten(0, 1)
    seen = valid[rows, span]
    phi = maps.k(leaf, seen)
    return phi.masked_fill(~seen[:, None, :, None], -torch.inf if maps.exponent else 0).flatten(
        0, 1
    )


class _Slopes:
    """Gradients of learned parameters, collected block by block."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = [x for x in parameters if x.requires_grad]
        self.learned: dict[int, Tensor] = {}

    def through(self, output: Tensor, slope: Tensor, leaf: Tensor) -> Tensor:
        """The gradient of a block's input from that of its features."""
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


def _rise(own: Tensor, peak: Tensor) -> tuple[float, Tensor]:
    """How much the running maximum of [R, L] rises after its first real key, and its end [R]."""
    running = torch.maximum(own.cummax(-1).values, peak[:, None])
    end = running[:, -1]
    lowest = torch.where(running == -torch.inf, end[:, None], running).amin(-1)
    return float((end - lowest).nan_to_num_(0).amax()), end


def _upstream(dy: Tensor, y: Tensor, below: Tensor, rows: slice, span: slice) -> Tensor:
    """Gradient of numerators and denominators of a block, [R, L, E + 1], from that of y."""
    norm = below[rows, :, span]
    slope = dy[rows, :, span].to(below.dtype)
    out = norm.new_empty((*slope.shape[:3], slope.shape[3] + 1))
    torch.div(slope, norm, out=out[..., :-1])
    torch.sum(out[..., :-1] * y[rows, :, span], -1, keepdim=True, out=out[..., -1:]).neg_()
    return out.flatten(0, 1)


def _forward_block(
    features: Tensor, phi: Tensor, values: Tensor, state: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """u = phi(q) S for a block [R, L, *] in chunks of `size`, and S before each chunk.

    `state`, the sums before the block, becomes those after it.
    """
    features, phi, values = (x.reshape(-1, size, x.shape[-1]) for x in (features, phi, values))
    outer = torch.bmm(phi.transpose(1, 2), values).view(state.shape[0], -1, *state.shape[1:])
    before = torch.empty_like(outer)
    for index in range(outer.shape[1]):
        before[:, index] = state
        state += outer[:, index]
    before = before.flatten(0, 1)
    square = torch.bmm(features, phi.transpose(1, 2)).tril_()
    return torch.bmm(square, values).baddbmm_(features, before), before


def _backward_block(
    features: Tensor,
    phi: Tensor,
    values: Tensor,
    before: Tensor,
    du: Tensor,
    slope: Tensor,
    size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of features, phi and values; `slope`, that of the sums, goes to the start."""
    features, phi, values, du = (
        x.reshape(-1, size, x.shape[-1]) for x in (features, phi, values, du)
    )
    outer = torch.bmm(features.transpose(1, 2), du).view(slope.shape[0], -1, *slope.shape[1:])
    after = torch.empty_like(outer)
    for index in reversed(range(outer.shape[1])):
        after[:, index] = slope
        slope += outer[:, index]
    after = after.flatten(0, 1)
    square = torch.bmm(features, phi.transpose(1, 2)).tril_()
    dsquare = torch.bmm(du, values.transpose(1, 2)).tril_()
    dfeatures = torch.bmm(dsquare, phi).baddbmm_(du, before.transpose(1, 2))
    dphi = torch.bmm(dsquare.transpose(1, 2), features).baddbmm_(values, after.transpose(1, 2))
    dvalues = torch.bmm(square.transpose(1, 2), du).baddbmm_(phi, after)
    return dfeatures, dphi, dvalues


class _Trace(NamedTuple):
    """What the backward pass of a causal block must know."""

    rows: slice
    span: slice
    size: int
    before: Tensor
    rescale: Tensor | None
    """Factor [R, 1, 1] from the unit of the sums that entered to the block's unit."""
    shift: Tensor | None
    """Peak [R, 1, 1] that was subtracted from the block's logarithms."""


class _Causal(torch.autograd.Function):
    """Causal sums, block by block."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: Maps,
        chunk: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        batch, heads, length, width = v.shape
        y = v.new_empty((batch, length, heads, width)).transpose(1, 2)
        below = v.new_empty((batch, heads, length, 1), dtype=widest(v.dtype))
        ctx.maps, ctx.traces = maps, []
        groups, longest = _groups(batch, heads, length)
        ends = [
            _forward_rows(
                ctx, rows, _spans(length, longest, chunk), chunk, q, k, v, valid, y, below
            )
            for rows in groups
        ]
        ctx.save_for_backward(q, k, v, valid, y, below, *parameters)
        ctx.set_materialize_grads(False)
        sums = torch.cat([end[0] for end in ends])
        if not maps.exponent:
            return y, sums, None
        peak = torch.cat([end[1] for end in ends])
        ctx.mark_non_differentiable(peak)
        return y, sums, peak

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dy: Tensor | None, dsums: Tensor | None, _: Tensor | None
    ) -> tuple[Any, ...]:
        q, k, v, valid, y, below, *parameters = ctx.saved_tensors
        maps, slopes = ctx.maps, _Slopes(parameters)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        dy = torch.zeros_like(y) if dy is None else dy
        heads, group, slope = y.shape[1], None, below
        for rows, span, size, before, rescale, shift in reversed(ctx.traces):
            if rows is not group:
                group, count = rows, (rows.stop - rows.start) * heads
                slope = before.new_zeros((count, *before.shape[1:]))
                if dsums is not None:
                    slope += dsums[rows].flatten(0, 1)
            with torch.enable_grad():
                leaf_q, leaf_k = _leaf(q, rows, span), _leaf(k, rows, span, valid)
                features = maps.q(leaf_q).flatten(0, 1)
                own = _key_map(maps, leaf_k, rows, span, valid)
            phi = own if shift is None else (own.detach() - shift).exp_()
            du = _upstream(dy, y, below, rows, span)
            values = _values(v, rows, span, valid)
            df, dphi, dvalues = _backward_block(
                features.detach(), phi.detach(), values, before, du, slope, size
            )
            if rescale is not None:
                slope *= rescale
                dphi = dphi.view_as(phi).mul_(phi)
            dq[rows, :, span] = slopes.through(features, df.view_as(features), leaf_q)
            dk[rows, :, span] = slopes.through(own, dphi.view_as(own), leaf_k)
            dv[rows, :, span] = dvalues.view(*leaf_k.shape[:3], -1)[..., :-1]
        return None, None, dq, dk, dv, None, *slopes.of(parameters)


def _forward_rows(
    ctx: Any,
    rows: slice,
    spans: list[slice],
    chunk: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    y: Tensor,
    below: Tensor,
) -> tuple[Tensor, Tensor]:
    """Fill y and below for some rows of a batch; their sums and peaks at the end."""
    maps, heads = ctx.maps, q.shape[1]
    state = peak = torch.empty(0)
    todo = spans[::-1]
    while todo:
        span = todo.pop()
        phi = _key_map(maps, _leaf(k, rows, span, valid), rows, span, valid)
        count, long, features = phi.shape
        size = min(chunk, long)
        if span.start == 0 and state.numel() == 0:
            state = phi.new_zeros((count, features, v.shape[3] + 1))
            peak = phi.new_full((count,), -torch.inf)
        rescale = shift = None
        if maps.exponent:
            rise, end = _rise(phi.amax(-1), peak)
            if rise > SPREAD and long > 1:  # two shorter blocks, each with its own shift
                cut = span.start + (size * (long // size // 2) if long > size else long // 2)
                todo += [slice(cut, span.stop), slice(span.start, cut)]
                continue
            shift = finite(end)[:, None, None]
            rescale = (peak[:, None, None] - shift).exp_()
            peak, phi = end, (phi - shift).exp_()
            state *= rescale
        psi = maps.q(_leaf(q, rows, span)).flatten(0, 1)
        u, before = _forward_block(psi, phi, _values(v, rows, span, valid), state, size)
        u = u.view(-1, heads, long, u.shape[-1])
        norm = u[..., -1:].masked_fill(u[..., -1:] == 0, 1)
        torch.div(u[..., :-1], norm, out=y[rows, :, span])
        below[rows, :, span] = norm
        if any(ctx.needs_input_grad):
            ctx.traces.append(_Trace(rows, span, size, before, rescale, shift))
    return state.view(-1, heads, *state.shape[1:]), peak.view(-1, heads)


class _KeySums(torch.autograd.Function):
    """Sums over all keys, block by block, under a peak that rises."""

    @staticmethod
    def forward(
        ctx: Any,
        maps: Maps,
        channels: bool,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        batch, heads, length = k.shape[:3]
        ctx.maps, ctx.channels = maps, channels
        groups, longest = _groups(batch, heads, length)
        states, peaks = list[Any](), list[Any]()
        for rows in groups:
            state: Tensor | None = None
            peak: Tensor | None = None
            for span in _spans(length, longest, 1):
                phi = _key_map(maps, _leaf(k, rows, span, valid), rows, span, valid)
                values = _values(v, rows, span, valid)
                if maps.exponent:
                    own = phi.amax(1 if channels else (1, 2), keepdim=True)  # [R, 1, M or 1]
                    end = own if peak is None else torch.maximum(own, peak)
                    phi = (phi - finite(end)).exp_()
                    if state is not None and peak is not None:
                        state *= (peak - finite(end)).exp_().transpose(1, 2)
                    peak = end
                phi = phi.transpose(1, 2)
                state = torch.bmm(phi, values) if state is None else state.baddbmm_(phi, values)
            states.append(state)
            peaks.append(peak)
        ctx.set_materialize_grads(False)
        sums = torch.cat(states)
        sums = sums.view(batch, heads, *sums.shape[1:])
        if not maps.exponent:
            ctx.save_for_backward(k, v, valid, None, *parameters)
            return sums, None
        peak = torch.cat(peaks)
        ctx.save_for_backward(k, v, valid, peak, *parameters)
        peak = peak.view(batch, heads, -1) if channels else peak.view(batch, heads)
        ctx.mark_non_differentiable(peak)
        return sums, peak

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dsums: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
        k, v, valid, peak, *parameters = ctx.saved_tensors
        if dsums is None:
            return (None,) * (5 + len(parameters))
        maps, slopes = ctx.maps, _Slopes(parameters)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        (batch, heads, length), slope_of = k.shape[:3], dsums.flatten(0, 1)
        groups, longest = _groups(batch, heads, length)
        for rows in groups:
            inner = slice(rows.start * heads, rows.stop * heads)
            slope = slope_of[inner]
            for span in _spans(length, longest, 1):
                with torch.enable_grad():
                    leaf = _leaf(k, rows, span, valid)
                    own = _key_map(maps, leaf, rows, span, valid)
                phi = own.detach() if peak is None else (own.detach() - finite(peak[inner])).exp_()
                dphi = torch.bmm(_values(v, rows, span, valid), slope.transpose(1, 2))
                if peak is not None:
                    dphi *= phi
                dk[rows, :, span] = slopes.through(own, dphi, leaf)
                dv[rows, :, span] = torch.bmm(phi, slope[..., :-1]).view(*leaf.shape[:3], -1)
        return None, None, dk, dv, None, *slopes.of(parameters)


class _Answers(torch.autograd.Function):
    """phi(q) S, block by block."""

    @staticmethod
    def forward(
        ctx: Any, maps: Maps, divide: bool, q: Tensor, sums: Tensor, *parameters: Tensor
    ) -> Tensor:
        batch, heads, length = q.shape[:3]
        width = sums.shape[3] - int(divide)
        y = q.new_empty((batch, length, heads, width)).transpose(1, 2)
        below = q.new_empty((batch, heads, length, 1), dtype=sums.dtype) if divide else None
        groups, longest = _groups(batch, heads, length)
        for rows in groups:
            state = sums[rows].flatten(0, 1)
            for span in _spans(length, longest, 1):
                u = torch.bmm(maps.q(_leaf(q, rows, span)).flatten(0, 1), state)
                u = u.view(-1, heads, u.shape[1], u.shape[2])
                if below is not None:
                    norm = u[..., -1:].masked_fill(u[..., -1:] == 0, 1)
                    below[rows, :, span] = norm
                    u = torch.div(u[..., :-1], norm, out=u[..., :-1])
                y[rows, :, span] = u
        ctx.maps = maps
        ctx.save_for_backward(q, sums, y if divide else None, below, *parameters)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        q, sums, y, below, *parameters = ctx.saved_tensors
        maps, slopes = ctx.maps, _Slopes(parameters)
        dq, dsums = torch.empty_like(q), torch.zeros_like(sums)
        groups, longest = _groups(*q.shape[:3])
        for rows in groups:
            state, slope = sums[rows].flatten(0, 1), dsums[rows].flatten(0, 1)
            for span in _spans(q.shape[2], longest, 1):
                with torch.enable_grad():
                    leaf = _leaf(q, rows, span)
                    features = maps.q(leaf).flatten(0, 1)
                if below is None:
                    du = dy[rows, :, span].to(sums.dtype).reshape(*features.shape[:2], -1)
                else:
                    du = _upstream(dy, y, below, rows, span)
                slope.baddbmm_(features.detach().transpose(1, 2), du)
                df = torch.bmm(du, state.transpose(1, 2))
                dq[rows, :, span] = slopes.through(features, df, leaf)
        return None, None, dq, dsums, *slopes.of(parameters)
