"""Linear attention on a CPU with a hand-written gradient: few passes over memory and no copies.

Notation as in `ops.linear_attention`, the plain implementation; N is B H.

The feature of a key for a random direction w is e^(w k - |k|^2 / 2). The factor e^(-|k|^2 / 2) is the same for all
directions, so `weighted` multiplies the value of the key, and its 1 for the denominator, by this factor instead.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.ops.autograd import once_differentiable
from attnkit.ops.onednn import product

MODERATE = 30.0
"""Maximum absolute logarithm that is exponentiated without a shift: float32 holds e^60 and sums of such products."""
CHUNK = 64
"""Maximum number of positions of a causal chunk: C x C products inside a chunk, cumulative sums between chunks."""


class Features(NamedTuple):
    """Feature map with a hand-written gradient."""

    directions: Float[Tensor, "M D"] | None
    """Features of x are e^(w x) for each direction w; None: elu(x) + 1."""

    def of(self, x: Float[Tensor, "N T D"]) -> Float[Tensor, "N T M"] | None:
        """Return the features, without the factor e^(-|k|^2 / 2) of keys; None if they may overflow or underflow."""
        w = self.directions
        if w is None:
            return x.clamp_max(0).exp_().add_(x.clamp_min(0))  # e^x up to 0, x + 1 above
        norms = [y.square().sum(-1).max().sqrt() for y in (x, w)]
        # |k|^2 / 2 of keys scaled by D^(-1/4), as the directions are; `not <`: also for NaN
        if not float(norms[0]) ** 2 * x.shape[-1] ** -0.5 / 2 < MODERATE:
            return None
        logarithms = product(x, w)
        if not float(norms[0] * norms[1]) < MODERATE:  # |w x| <= |w| |x|: usually this suffices
            low, high = logarithms.aminmax()
            if not (float(low) > -MODERATE and float(high) < MODERATE):
                return None
        return logarithms.exp_()

    def backward(self, phi: Tensor, dphi: Tensor) -> Float[Tensor, "N T D"]:
        """Return the gradient of x; phi are its features and dphi their gradient, which is overwritten."""
        if self.directions is None:
            return dphi.mul_(phi.clamp_max(1))  # the derivative is e^x = phi < 1 below 0, and 1 above, where phi > 1
        return product(dphi.mul_(phi), self.directions.T.contiguous())


def kernel_sums(
    features: Features, causal: bool, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Return the outputs [B, H, T, E] and the sums over all keys [B, H, M, E + 1]; None if not applicable.

    q [B, H, T, D], k [B, H, S, D], v [B, H, S, E], real [B, S] (False on padding, where k and v must be finite). If
    `causal`, T = S. The caller must have checked `usable`.
    """
    dtypes = {x.dtype for x in (q, k, v, features.directions) if x is not None}
    if len(dtypes) > 1 or q.dtype.itemsize < 4:
        return None
    with torch.no_grad():
        phi = [features.of(x.contiguous().flatten(0, 1)) for x in (q, k)]
    if phi[0] is None or phi[1] is None:
        return None
    y, sums = _KernelSums.apply(features, causal, q, k, v, real, *phi)  # type: ignore[no-untyped-call]
    return y, sums


def weighted(
    features: Features, k: Float[Tensor, "B H S D"], v: Float[Tensor, "B H S E"], real: Tensor | None
) -> tuple[Float[Tensor, "N S E+1"], Float[Tensor, "B H S 1"] | None]:
    """Return values with ones, times the weight e^(-|k|^2 / 2) of the key (0 on padding), and the weight; None: 1."""
    weight = None
    if features.directions is not None:
        weight = k.square().sum(-1, keepdim=True).mul_(-0.5 * k.shape[-1] ** -0.5).exp_()
    if real is not None:
        unpadded = real[:, None, :, None].to(v.dtype)
        weight = unpadded.expand(-1, k.shape[1], -1, -1) if weight is None else weight.mul_(unpadded)
    values = v.new_empty(*v.shape[:3], v.shape[3] + 1)
    torch.mul(v, 1 if weight is None else weight, out=values[..., :-1])
    values[..., -1:] = 1 if weight is None else weight
    return values.flatten(0, 1), weight


def parts(length: int, *tensors: Tensor) -> list[Sequence[Tensor]]:
    """Return chunks [N, C, *] of about equal length of each tensor [N, T, *]."""
    size = -(-length // -(-length // CHUNK))
    return [torch.split(x, size, 1) for x in tensors]


class _KernelSums(torch.autograd.Function):
    """`kernel_sums` with precomputed features of q and k [N, T or S, M], whose gradients are propagated to q and k."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Features,
        causal: bool,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        real: Tensor | None,
        phi_q: Tensor,
        phi_k: Tensor,
    ) -> tuple[Tensor, Tensor]:
        (batch, heads, length, _), width = q.shape, v.shape[3]
        values, weight = weighted(features, k, v, real)
        y = q.new_empty(batch, length, heads, width).transpose(1, 2)
        denominator = q.new_empty(batch * heads, length, 1)
        squares, states = list[Tensor](), list[Tensor]()
        if causal:
            chunk_u, sums = list[Tensor](), None  # sums over earlier chunks [N, M, E + 1]
            for phi, keys, chunk_values in zip(*parts(length, phi_q, phi_k, values), strict=True):
                square = torch.bmm(phi, keys.mT).tril_()
                u = torch.bmm(square, chunk_values)
                squares.append(square)
                if sums is None:
                    sums = torch.bmm(keys.mT, chunk_values)
                else:
                    u.baddbmm_(phi, sums)
                    states.append(sums)
                    sums = torch.baddbmm(sums, keys.mT, chunk_values)
                chunk_u.append(u)
        else:
            sums = torch.bmm(phi_k.mT, values)
            chunk_u = [torch.bmm(phi_q, sums)]
        assert sums is not None, "there is a token"
        start = 0
        for u in chunk_u:
            columns = slice(start, start + u.shape[1])
            start = columns.stop
            denominator[:, columns] = u[..., -1:].masked_fill_(u[..., -1:] == 0, 1)  # a query without keys: 0 / 1
            numerator = torch.unflatten(u[..., :-1], 0, (batch, heads))
            torch.div(numerator, torch.unflatten(denominator[:, columns], 0, (batch, heads)), out=y[:, :, columns])
        sums = torch.unflatten(sums, 0, (batch, heads))
        if not causal:
            states.append(sums)
        ctx.causal, ctx.chunks = causal, len(squares)
        ctx.save_for_backward(k, y, denominator, weight, values, phi_q, phi_k, features.directions, *squares, *states)
        ctx.set_materialize_grads(False)  # in training the sums usually have no gradient
        return y, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dsums: Tensor | None) -> tuple[Any, ...]:
        k, y, denominator, weight, values, phi_q, phi_k, directions, *rest = ctx.saved_tensors
        squares, states = rest[: ctx.chunks], rest[ctx.chunks :]
        features, sizes = Features(directions), (k.shape[0], k.shape[1])
        # y = n / d: dn = dy / d, dd = -<dy, n> / d^2 = -<dn, y>
        du = y.new_zeros(*sizes, y.shape[2], y.shape[3] + 1)
        if dy is not None:
            torch.div(dy, torch.unflatten(denominator, 0, sizes), out=du[..., :-1])
            torch.sum(du[..., :-1] * y, -1, keepdim=True, out=du[..., -1:]).neg_()
        du, dsums_after = du.flatten(0, 1), None if dsums is None else dsums.flatten(0, 1)
        if ctx.causal:
            shape = phi_q.shape[:2]
            dq, dk = (k.new_empty(*shape, k.shape[3]) for _ in range(2))
            dvalues, end = torch.empty_like(values), shape[1]
            # from the last chunk to the first; `dsums_after` is of the sums after the chunk
            chunks = list(zip(*parts(y.shape[2], phi_q, phi_k, values, du), strict=True))
            for number in reversed(range(len(chunks))):
                phi, keys, chunk_values, chunk_du = chunks[number]
                dsquare = torch.bmm(chunk_du, chunk_values.mT).tril_()
                dphi, dkeys = torch.bmm(dsquare, keys), torch.bmm(dsquare.mT, phi)
                chunk_dvalues = torch.bmm(squares[number].mT, chunk_du)
                if dsums_after is not None:
                    dkeys.baddbmm_(chunk_values, dsums_after.mT)
                    chunk_dvalues.baddbmm_(keys, dsums_after)
                if number:
                    dphi.baddbmm_(chunk_du, states[number - 1].mT)
                    dsums_here = torch.bmm(phi.mT, chunk_du)
                    dsums_after = dsums_here if dsums_after is None else dsums_here.add_(dsums_after)
                columns = slice(end - phi.shape[1], end)
                end = columns.start
                dq[:, columns], dk[:, columns] = features.backward(phi, dphi), features.backward(keys, dkeys)
                dvalues[:, columns] = chunk_dvalues
        else:
            dsums_here = torch.bmm(phi_q.mT, du)
            dsums_after = dsums_here if dsums_after is None else dsums_here.add_(dsums_after)
            dq = features.backward(phi_q, torch.bmm(du, states[0].flatten(0, 1).mT))
            dk = features.backward(phi_k, torch.bmm(values, dsums_after.mT))
            dvalues = torch.bmm(phi_k, dsums_after)
        dv = torch.unflatten(dvalues[..., :-1], 0, sizes)
        dq, dk = (torch.unflatten(x, 0, sizes) for x in (dq, dk))
        if weight is not None:
            dv = dv * weight
        if directions is not None:  # the weight is w = e^(-|k|^2 / (2 sqrt(D))): dk = -k / sqrt(D) w dw
            by_weight = torch.unflatten(dvalues.mul_(values).sum(-1, keepdim=True), 0, sizes)
            dk.addcmul_(k, by_weight, value=-(k.shape[3] ** -0.5))
        return None, None, dq, dk, dv, None, None, None
