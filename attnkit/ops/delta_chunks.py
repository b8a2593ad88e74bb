"""The gated delta rule in chunks, on a CPU, with a hand-written gradient.

Notation as in `mechanisms.gated_delta.chunked`, the plain implementation: the values N that a chunk writes solve
(1 + A) N = w v - (b k G_0) S. Here 1 + A is inverted explicitly, so that the backward pass solves no system and
(1 + A)^-1 (b k G_0) is never formed. The erase keys b k and the queries are stacked (`readers`), since both read the
state and the keys of their chunk in the same way.

Gradient of the decays: with `total`, the cumulative sum of the log decays of a chunk, reader i occurs only in r_i
e^(total_i) and key j only in k_j e^(-total_j). So the gradient of total_i is <r_i, dr_i> summed over both readers,
minus <k_i, dk_i>. The gradient of the normalization of q and k to length 1 needs the same inner products.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit.ops.autograd import once_differentiable

TINY = 1e-12
"""Minimum length of a vector that is normalized, as in `F.normalize`."""


def delta_chunks(
    size: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    erase: Tensor,
    write: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, E] and the last state [B, H, D, E], computed in chunks of `size` tokens.

    q, k [B, H, T, D] (normalized here), v [B, H, T, E], log_decay [B, H, T, 1] or None (no decay), erase
    [B, H, T, 1 or D], write [B, H, T, 1], state [B, H, D, E] or None (zeros).
    """
    given = [q, k, v, log_decay, erase, write]
    if spare := -q.shape[2] % size:  # padding writes and erases nothing and does not decay
        given = [x if x is None else F.pad(x, (0, 0, 0, spare)) for x in given]
    y, state = _DeltaChunks.apply(size, *given, state)  # type: ignore[no-untyped-call]
    return y[:, :, : q.shape[2]], state


class _DeltaChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        size: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        erase: Tensor,
        write: Tensor,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        chunks, width, height = k.shape[2] // size, k.shape[3], v.shape[3]
        shape = (k.shape[0] * k.shape[1], chunks, size)  # [N, n, C]
        q, k, v, erase, write = (  # [B, H, n, C, *]
            torch.unflatten(x, 2, (chunks, size)) for x in (q, k, v, erase, write)
        )
        lengths = [x.square().sum(-1, keepdim=True).sqrt_().clamp_min_(TINY) for x in (q, k)]
        keys, news = k.new_empty(*shape, width), v.new_empty(*shape, height)
        readers = k.new_empty(*shape[:2], 2, size, width)  # [N, n, 2, C, D]: erase keys, queries
        torch.div(k, lengths[1], out=keys.view_as(k))
        torch.mul(keys.view_as(k), erase, out=readers[:, :, 0].view_as(k))
        torch.div(q, lengths[0], out=readers[:, :, 1].view_as(q))
        torch.mul(v, write, out=news.view_as(v))
        decay = k.new_zeros(1, chunks, size, 1) if log_decay is None else log_decay
        total = decay.reshape(-1, chunks, size, 1).cumsum(2)
        # G_ij; later keys are set to 0 by tril_, since e^(total_i - total_j) may be infinite: inf * 0 is NaN
        ratio = (total - total.mT).exp_().tril_().unsqueeze(2)  # [N, n, 1, C, C]
        since, until = total.exp(), (total[:, :, -1:] - total).exp_()  # G_i0, G_Cj [N, n, C, 1]
        pairs = readers.view(-1, 2 * size, width) @ keys.view(-1, size, width).mT
        pairs = pairs.view(*shape[:2], 2, size, size).mul_(ratio)  # A (below its diagonal) and q k^T
        # unitriangular: the diagonal of A is not read, but taken as 1
        solved = partial(torch.linalg.solve_triangular, upper=False, unitriangular=True)
        inverse = solved(pairs[:, :, 0], torch.eye(size, dtype=k.dtype)).contiguous()
        # N = (1 + A)^-1 (w v - r_0 S), y = r_1 S + (q k^T) N, S <- e^(total_C) S + (k G_C)^T N
        y, states = torch.empty_like(news), list[Tensor]()
        old = None if state is None else state.reshape(shape[0], width, height)
        for c in range(chunks):
            if old is not None:
                states.append(old)
                read = readers[:, c].flatten(1, 2) @ old  # [N, 2 C, E]
                read = read.view(-1, 2, size, height).mul_(since[:, c, None])
                torch.bmm(inverse[:, c], news[:, c] - read[:, 0], out=news[:, c])
                torch.baddbmm(read[:, 1], pairs[:, c, 1], news[:, c], out=y[:, c])
                old = old * since[:, c, -1:]
            else:
                torch.bmm(inverse[:, c], news[:, c].clone(), out=news[:, c])  # `out` must not be an input
                torch.bmm(pairs[:, c, 1], news[:, c], out=y[:, c])
                old = k.new_zeros(())
            old = torch.baddbmm(old, (keys[:, c] * until[:, c]).mT, news[:, c])
        assert old is not None, "there is a chunk"
        ctx.save_for_backward(
            v, erase, write, *lengths, keys, readers, ratio, since, until, pairs, inverse, news, old, *states
        )
        ctx.decays, ctx.given = log_decay is not None, state is not None
        ctx.set_materialize_grads(False)  # in training the last state usually has no gradient
        return y.view_as(v).flatten(2, 3), old.view(*k.shape[:2], width, height)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dstate: Tensor | None) -> tuple[Any, ...]:
        v, erase, write, q_length, k_length, keys, readers, *rest = ctx.saved_tensors
        ratio, since, until, pairs, inverse, news, last, *states = rest
        (_, chunks, size, width), height = keys.shape, news.shape[3]
        # gradients of the products of readers and state, after decay (`dread`) and before it (`faded`)
        dread = news.new_zeros(*readers.shape[:4], height)  # [N, n, 2, C, E]
        if dy is not None:
            dread[:, :, 1] = dy.reshape_as(news)
        faded, dkeys = torch.empty_like(dread), torch.empty_like(keys)
        dreaders, dtotal = torch.zeros_like(readers), torch.zeros_like(keys[..., :1])
        dstate = None if dstate is None else dstate.reshape(-1, width, height)
        dnews = pairs[:, :, 1].mT @ dread[:, :, 1]  # y = ... + (q k^T) N
        missing, ends = chunks - len(states), [*states[1:], last] if ctx.given else [*states, last]
        for c in reversed(range(chunks)):
            if dstate is not None:  # of the state after the chunk
                dnews[:, c].baddbmm_(keys[:, c] * until[:, c], dstate)
                torch.bmm(news[:, c], dstate.mT, out=dkeys[:, c])
                dkeys[:, c] *= until[:, c]
                dtotal[:, c, -1, 0] = (ends[c] * dstate).sum((1, 2))  # all of that state has e^(total_C)
            else:
                dkeys[:, c] = 0
            own = dread[:, c, 0]  # N = (1 + A)^-1 (w v - r_0 S): d(w v) is (1 + A)^-T dN, d(r_0 S) its negative
            torch.baddbmm(own, inverse[:, c].mT, dnews[:, c], beta=0, alpha=-1, out=own)
            if c < missing:
                continue
            old = states[c - missing]
            torch.mul(dread[:, c], since[:, c, None], out=faded[:, c])
            own = faded[:, c].flatten(1, 2)
            dreaders[:, c] = (own @ old.mT).view_as(dreaders[:, c])
            found = readers[:, c].flatten(1, 2).mT @ own
            dstate = found if dstate is None else found.addcmul_(dstate, since[:, c, -1:])
        # dA = -(1 + A)^-T dN N^T and d(q k^T) = dy N^T: both are `dread` times N^T
        dpairs = dread.view(-1, 2 * size, height) @ news.view(-1, size, height).mT
        dpairs = dpairs.view_as(pairs).mul_(ratio)
        dpairs[:, :, 0].diagonal(dim1=2, dim2=3).zero_()  # not read in the forward pass
        flat = dpairs.view(-1, 2 * size, size)
        dreaders.view(-1, 2 * size, width).baddbmm_(flat, keys.view(-1, size, width))
        dkeys.view(-1, size, width).baddbmm_(flat.mT, readers.view(-1, 2 * size, width))
        shape = (*v.shape[:4], width)
        k, dk = keys.view(shape), dkeys.view(shape)
        (_, q), (dleft, dq) = (x.unbind(2) for x in (readers, dreaders))
        dleft, dq, q = dleft.view(shape), dq.view(shape), q.view(shape)
        shared = (dk * k).sum(-1, keepdim=True)  # inner products as this one, [B, H, n, C, 1]: see above
        derase = dleft * k
        by_left = (derase * erase if erase.shape[-1] > 1 else derase).sum(-1, keepdim=True)
        if erase.shape[-1] == 1:
            derase, by_left = by_left, by_left * erase
        by_q, dlog = (dq * q).sum(-1, keepdim=True), None
        if ctx.decays:
            dtotal = (by_q + by_left - shared).add_(dtotal.view_as(by_q))
            dlog = dtotal.flip(3).cumsum(3).flip(3).flatten(2, 3)  # each log decay is in all later sums
        # of x = k / |k|: dk = (dx - x <x, dx>) / |k|; k is read itself and in the erase keys
        dk = dk.addcmul_(dleft, erase).addcmul_(k, shared + by_left, value=-1).div_(k_length)
        dq = dq.addcmul_(q, by_q, value=-1).div_(q_length)
        dright = dread[:, :, 0].neg().view_as(v)  # d(w v)
        dwrite = (dright * v).sum(-1, keepdim=True)
        whole = [x.flatten(2, 3) for x in (dq, dk, dright.mul_(write))]
        gates = dlog, derase.flatten(2, 3), dwrite.flatten(2, 3)
        first = dstate.view(*v.shape[:2], width, height) if ctx.given else None  # type: ignore[union-attr]
        return None, *whole, *gates, first
