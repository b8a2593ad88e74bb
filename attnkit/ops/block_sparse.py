"""Block-sparse self-attention over some distances, without a T x T matrix.

The functions take q, k, v [B, H, T, D], padded on the right only, so that distances between columns are distances
between positions, and `valid` [B or 1, T]; None: no padding. Scores are q k / sqrt(D); the output is 0 for a query
without visible keys.

- `near`: |i - j| <= window, a sliding window. Blocks of queries against overlapping windows of keys.
- `strided`: |i - j| mod rate = 0. `rate` dense attentions over sub-sequences.
- `joint`: both, for rate = window. One softmax over two disjoint sets of keys.

The plain implementation is `attention.sparse_pattern.Pattern`: dense attention with a mask.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.fast_cpu import FLASH, FLASH_BACKWARD, operator, usable
from attnkit.ops.sliding_window import Band

Heads: TypeAlias = Float[Tensor, "B H T D"]
Real: TypeAlias = Bool[Tensor, "b T"]

GROUP = 2**19
"""Number of elements of the key windows of a group of blocks: 2 MB in float32, which fit into a cache."""


def flash_usable(q: Tensor) -> bool:
    """Return whether torch's fused kernel for the CPU and its backward pass can be used."""
    return usable(q, operators=(FLASH, FLASH_BACKWARD), autocast=True)


class _Windows(torch.autograd.Function):
    """`Band.windows` with its adjoint, `Band.gather`, as gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, band: Band) -> Tensor:
        ctx.band, ctx.rows, ctx.length = band, x.shape[0], x.shape[2]
        return band.windows(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.band.gather(grads[0], ctx.rows, ctx.length), None


def near(q: Heads, k: Heads, v: Heads, valid: Real | None, window: int, causal: bool) -> Heads:
    """Return attention to the keys at most `window` away; cost T * window."""
    rows, _, length, _ = q.shape
    band = Band.of(window, length, causal=causal)
    distance = band.distances(q.device)  # [step, width]
    pattern = (distance >= 0 if causal else distance >= -window) & (distance <= window)
    allowed = band.allowed(pattern, valid, rows, length)
    if flash_usable(q):
        y: Tensor = _Banded.apply(q, k, v, band, allowed, None)  # type: ignore[no-untyped-call]
        return y
    return _attend(_in_bands(band, allowed, length), q, k, v)


def strided(q: Heads, k: Heads, v: Heads, valid: Real | None, rate: int, causal: bool) -> Heads:
    """Return attention to the keys at distances that are multiples of `rate`; cost T^2 / rate."""
    return _attend(_in_strides(q, valid, rate, causal), q, k, v)


def joint(q: Heads, k: Heads, v: Heads, valid: Real | None, rate: int, causal: bool) -> Heads:
    """Return attention to the keys at multiples of `rate` and to those less than `rate` away, each counted once."""
    rows, _, length, _ = q.shape
    band = Band.of(rate - 1, length, causal=causal)
    distance = band.distances(q.device)
    pattern = (distance > 0 if causal else distance != 0) & (distance.abs() < rate)  # 0: in strides
    strided_part = _in_strides(q, valid, rate, causal)
    allowed = band.allowed(pattern, valid, rows, length)
    if flash_usable(q):
        y: Tensor = _Banded.apply(q, k, v, band, allowed, strided_part)  # type: ignore[no-untyped-call]
        return y
    near_part = _in_bands(band, allowed, length)
    return _combine(_partial(strided_part, q, k, v), _partial(near_part, q, k, v))[0].to(q.dtype)


class _SparsePart(NamedTuple):
    """A set of pairs of queries and keys, as a batch of small dense attentions."""

    queries: Callable[[Tensor], Tensor]
    """[B, H, T, D] -> [N, h, t, D]"""
    keys: Callable[[Tensor], Tensor]
    """[B, H, T, D] -> [N, h, s, D]"""
    outputs: Callable[[Tensor], Tensor]
    """The inverse of `queries`."""
    allowed: Bool[Tensor, "N h t s"] | None
    """None: all keys are visible; dimensions may be 1."""
    causal: bool = False
    """Whether later keys of each small attention are hidden in addition."""

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        return None if self.allowed is None else _bias(self.allowed, dtype)

    def without_keys(self) -> Bool[Tensor, "N h t 1"] | None:
        """Return True for queries without visible keys in this part; None: the part has no mask."""
        return None if self.allowed is None else ~self.allowed.any(-1, keepdim=True)


def _bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return zeros.masked_fill_(~allowed, -torch.inf)


def _in_bands(band: Band, allowed: Tensor, length: int) -> _SparsePart:
    return _SparsePart(
        band.cut,
        lambda x: _Windows.apply(x, band),  # type: ignore[no-untyped-call]
        lambda x: band.join(x, length),
        allowed,
    )


def _in_strides(q: Tensor, valid: Tensor | None, rate: int, causal: bool) -> _SparsePart:
    """Return `rate` x H attentions a row, each over every `rate`-th token."""
    rows, heads, length, _ = q.shape
    # whichever layout needs no copy: heads contiguous in memory, or tokens
    heads_first = rows == 1 or q.stride(0) == heads * q.stride(1)

    def split(x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, -length % rate)) if length % rate else x
        x = torch.unflatten(x, 2, (-1, rate))  # [B, H, t, rate, D]
        if heads_first:
            return x.flatten(0, 1).transpose(1, 2)  # [B H, rate, t, D]
        return x.permute(0, 3, 1, 2, 4).flatten(1, 2)  # [B, rate H, t, D]

    def merge(x: Tensor) -> Tensor:
        if heads_first:
            return torch.unflatten(x.transpose(1, 2).flatten(1, 2)[:, :length], 0, (rows, heads))
        x = torch.unflatten(x, 1, (rate, heads)).permute(0, 2, 3, 1, 4)  # [B, H, t, rate, D]
        return x.flatten(2, 3)[:, :, :length]

    allowed = None  # causal: padding comes after all tokens
    if not causal and (valid is not None or length % rate):
        if valid is None:
            valid = torch.ones(1, length, dtype=torch.bool, device=q.device)
        allowed = split(valid[:, None, :, None].expand(rows, heads, -1, -1)).transpose(2, 3)
    return _SparsePart(split, split, merge, allowed, causal)


def _attend(part: _SparsePart, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the outputs [B, H, T, D] of one part by torch's fused kernel."""
    q, k, v = part.queries(q), part.keys(k), part.keys(v)
    mask, causal = part.bias(q.dtype), part.causal
    if mask is None or flash_usable(q):  # every query has keys, or FLASH outputs 0 for those without
        return part.outputs(F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal))
    # not every GPU kernel outputs 0 for a query without keys: let it attend to all keys, then mask the output
    without_keys = part.without_keys()
    assert without_keys is not None
    y = F.scaled_dot_product_attention(q, k, v, mask.masked_fill(without_keys, 0))
    return part.outputs(y.masked_fill(without_keys, 0))


def _partial(part: _SparsePart, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, D] of one part and the log-sum-exp of its scores [B, H, T, 1]."""
    queries, keys, values = part.queries(q), part.keys(k), part.keys(v)
    scores = (queries * q.shape[-1] ** -0.5) @ keys.transpose(-1, -2)  # [N, h, t, s]
    bias, without_keys = part.bias(q.dtype), part.without_keys()
    if bias is not None and without_keys is not None:
        scores = scores + bias.masked_fill(without_keys, 0)  # the softmax of a row of -inf is NaN
    if part.causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)  # [t, s]
        scores = scores.masked_fill(later, -torch.inf)
    scores = scores.to(torch.promote_types(q.dtype, torch.float32))  # 16-bit sums are too inaccurate
    log_sums = scores.logsumexp(-1, keepdim=True)  # [N, h, t, 1]
    y = (scores - log_sums).exp().to(q.dtype) @ values  # [N, h, t, D]
    log_sums = log_sums if without_keys is None else log_sums.masked_fill(without_keys, -torch.inf)
    return part.outputs(y), part.outputs(log_sums)


def _flash_partial(part: _SparsePart, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return `_partial` by torch's fused kernel for the CPU."""
    y, log_sums = operator(FLASH)(
        *(part.queries(q), part.keys(k), part.keys(v)), is_causal=part.causal, attn_mask=part.bias(q.dtype)
    )
    without_keys, log_sums = part.without_keys(), log_sums.unsqueeze(-1)
    log_sums = log_sums if without_keys is None else log_sums.masked_fill(without_keys, -torch.inf)  # FLASH returns 0
    return part.outputs(y), part.outputs(log_sums)


def _combine(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the outputs and log-sum-exp of one softmax over the keys of both parts.

    y = y_1 e^(L_1 - L) + y_2 e^(L_2 - L) with L = log(e^(L_1) + e^(L_2)).
    """
    (y_1, log_1), (y_2, log_2) = first, second
    logs = torch.logaddexp(log_1, log_2)
    logs = logs.masked_fill(logs == -torch.inf, 0)  # no keys in either part: -inf - -inf would be NaN
    return torch.addcmul(y_1 * (log_1 - logs).exp(), y_2, (log_2 - logs).exp()), logs


def _groups(keys: Float[Tensor, "n H width D"]) -> Iterator[slice]:
    """Yield slices of blocks whose windows fit into the cache together."""
    size = max(1, GROUP // keys[0].numel())
    for first in range(0, len(keys), size):
        yield slice(first, first + size)


class _Banded(torch.autograd.Function):
    """Attention in a band by torch's fused kernel, combined with strides unless `strided_part` is None.

    The kernel's backward pass computes weights as exp(scores - log-sum-exp). Given the combined output and
    log-sum-exp, its result for each part is the contribution of that part to the combined gradient.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, band: Band, allowed: Tensor, strided_part: Any) -> Tensor:
        # in groups of blocks: the kernel's intermediate tensors stay in the cache, and allocating fresh memory for
        # all of them would take longer than the computation
        queries, keys, values = band.cut(q), band.windows(k), band.windows(v)  # [n, H, t or s, D]
        y = torch.empty_like(queries.transpose(1, 2)).transpose(1, 2)  # a layout that `join` need not copy
        log_sums = q.new_empty((*y.shape[:3], 1), dtype=torch.promote_types(q.dtype, torch.float32))
        for group in _groups(keys):
            y[group], log_sums[group, ..., 0] = operator(FLASH)(
                queries[group], keys[group], values[group], attn_mask=_bias(allowed[group], q.dtype)
            )
        y, log_sums = band.join(y, q.shape[2]), band.join(log_sums, q.shape[2])
        if strided_part is not None:
            without_keys = (~allowed.any(-1, keepdim=True)).expand(-1, q.shape[1], -1, -1)
            log_sums = log_sums.masked_fill(band.join(without_keys, q.shape[2]), -torch.inf)  # FLASH returns 0
            y, log_sums = _combine(_flash_partial(strided_part, q, k, v), (y, log_sums))
            y = y.to(q.dtype)
        ctx.band, ctx.strides = band, strided_part
        ctx.save_for_backward(q, k, v, y, log_sums, allowed)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, y, log_sums, allowed), band, strided_part = ctx.saved_tensors, ctx.band, ctx.strides
        rows, _, length, _ = q.shape
        queries, keys, values = band.cut(q), band.windows(k), band.windows(v)
        band_dy, band_y, band_log_sums = (band.cut(x) for x in (grad, y, log_sums))  # of both parts, if combined
        q_grad = torch.empty_like(queries.transpose(1, 2)).transpose(1, 2)
        k_grad, v_grad = (band.flat(x, rows, length) for x in (k, v))  # accumulated: windows overlap
        for group in _groups(keys):
            q_grad[group], k_part, v_part = operator(FLASH_BACKWARD)(
                *(x[group] for x in (band_dy, queries, keys, values, band_y)),
                *(band_log_sums[group, ..., 0], 0.0, False),  # log-sum-exp, dropout rate, is_causal
                attn_mask=_bias(allowed[group], q.dtype),
            )
            band.add(k_grad, group.start, k_part)
            band.add(v_grad, group.start, v_part)
        k_grad, v_grad = (band.inner(x, rows, length) for x in (k_grad, v_grad))
        grads = band.join(q_grad, length), k_grad, v_grad
        if strided_part is not None:
            strided_grads = operator(FLASH_BACKWARD)(
                *(strided_part.queries(grad), strided_part.queries(q), strided_part.keys(k), strided_part.keys(v)),
                *(strided_part.queries(y), strided_part.queries(log_sums).squeeze(-1), 0.0, strided_part.causal),
                attn_mask=strided_part.bias(q.dtype),
            )
            for band_grad, strided_grad in zip(grads, strided_grads, strict=True):
                band_grad.add_(strided_part.outputs(strided_grad))
        return (*grads, None, None, None)
