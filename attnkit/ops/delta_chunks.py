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
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.ops.autograd import once_differentiable

TINY = 1e-12
"""Lower bound of the norm by which a vector is divided, as in `F.normalize`."""


def delta_chunks(
    size: int,
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H T D"],
    v: Float[Tensor, "B H T E"],
    log_decay: Float[Tensor, "B H T 1"] | None,
    erase: Float[Tensor, "B H T d"],
    write: Float[Tensor, "B H T 1"],
    state: Float[Tensor, "B H D E"] | None,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H D E"]]:
    """Return the outputs and the last state, computed in chunks of `size` tokens.

    q and k are normalized here. d is 1 or D. `log_decay` is None without decay, `state` if it is 0.
    """
    inputs = [q, k, v, log_decay, erase, write]
    if missing := -q.shape[2] % size:  # padding writes and erases nothing and does not decay
        inputs = [x if x is None else F.pad(x, (0, 0, 0, missing)) for x in inputs]
    y, state = _DeltaChunks.apply(size, *inputs, state)  # type: ignore[no-untyped-call]
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
        chunks, key_width, value_width = k.shape[2] // size, k.shape[3], v.shape[3]
        shape = (k.shape[0] * k.shape[1], chunks, size)  # [N, n, C]
        q, k, v, erase, write = (  # [B, H, n, C, *]
            torch.unflatten(x, 2, (chunks, size)) for x in (q, k, v, erase, write)
        )
        norms = [x.square().sum(-1, keepdim=True).sqrt_().clamp_min_(TINY) for x in (q, k)]
        keys, written = k.new_empty(*shape, key_width), v.new_empty(*shape, value_width)
        readers = k.new_empty(*shape[:2], 2, size, key_width)  # [N, n, 2, C, D]: erase keys, queries
        torch.div(k, norms[1], out=keys.view_as(k))
        torch.mul(keys.view_as(k), erase, out=readers[:, :, 0].view_as(k))
        torch.div(q, norms[0], out=readers[:, :, 1].view_as(q))
        torch.mul(v, write, out=written.view_as(v))
        decay = k.new_zeros(1, chunks, size, 1) if log_decay is None else log_decay
        total = decay.reshape(-1, chunks, size, 1).cumsum(2)
        # G_ij; later keys are set to 0 by tril_, since e^(total_i - total_j) may be infinite: inf * 0 is NaN
        ratio = (total - total.mT).exp_().tril_().unsqueeze(2)  # [N, n, 1, C, C]
        from_start, to_end = total.exp(), (total[:, :, -1:] - total).exp_()  # G_i0, G_Cj [N, n, C, 1]
        pairs = readers.view(-1, 2 * size, key_width) @ keys.view(-1, size, key_width).mT
        pairs = pairs.view(*shape[:2], 2, size, size).mul_(ratio)  # A (below its diagonal) and q k^T
        # unitriangular: the diagonal of A is not read, but taken as 1
        solved = partial(torch.linalg.solve_triangular, upper=False, unitriangular=True)
        inverse = solved(pairs[:, :, 0], torch.eye(size, dtype=k.dtype)).contiguous()
        # N = (1 + A)^-1 (w v - r_0 S), y = r_1 S + (q k^T) N, S <- e^(total_C) S + (k G_C)^T N
        y, states = torch.empty_like(written), list[Tensor]()
        current = None if state is None else state.reshape(shape[0], key_width, value_width)
        for c in range(chunks):
            if current is not None:
                states.append(current)
                read = readers[:, c].flatten(1, 2) @ current  # [N, 2 C, E]
                read = read.view(-1, 2, size, value_width).mul_(from_start[:, c, None])
                torch.bmm(inverse[:, c], written[:, c] - read[:, 0], out=written[:, c])
                torch.baddbmm(read[:, 1], pairs[:, c, 1], written[:, c], out=y[:, c])
                current = current * from_start[:, c, -1:]
            else:
                torch.bmm(inverse[:, c], written[:, c].clone(), out=written[:, c])  # `out` must not be an input
                torch.bmm(pairs[:, c, 1], written[:, c], out=y[:, c])
                current = k.new_zeros(())
            current = torch.baddbmm(current, (keys[:, c] * to_end[:, c]).mT, written[:, c])
        assert current is not None, "there is a chunk"
        saved = ratio, from_start, to_end, pairs, inverse, written, current, *states
        ctx.save_for_backward(v, erase, write, *norms, keys, readers, *saved)
        ctx.has_decay, ctx.has_state = log_decay is not None, state is not None
        ctx.set_materialize_grads(False)  # in training the last state usually has no gradient
        return y.view_as(v).flatten(2, 3), current.view(*k.shape[:2], key_width, value_width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dstate: Tensor | None) -> tuple[Any, ...]:
        v, erase, write, q_norm, k_norm, keys, readers, *saved = ctx.saved_tensors
        ratio, from_start, to_end, pairs, inverse, written, last, *states = saved
        (_, chunks, size, key_width), value_width = keys.shape, written.shape[3]
        # gradients of the products of readers and state, after decay (`dread`) and before it (`dread_raw`)
        dread = written.new_zeros(*readers.shape[:4], value_width)  # [N, n, 2, C, E]
        if dy is not None:
            dread[:, :, 1] = dy.reshape_as(written)
        dread_raw, dkeys = torch.empty_like(dread), torch.empty_like(keys)
        dreaders, dtotal = torch.zeros_like(readers), torch.zeros_like(keys[..., :1])
        dstate = None if dstate is None else dstate.reshape(-1, key_width, value_width)
        dwritten = pairs[:, :, 1].mT @ dread[:, :, 1]  # y = ... + (q k^T) N
        without_state, ends = chunks - len(states), [*states[1:], last] if ctx.has_state else [*states, last]
        for c in reversed(range(chunks)):
            if dstate is not None:  # of the state after the chunk
                dwritten[:, c].baddbmm_(keys[:, c] * to_end[:, c], dstate)
                torch.bmm(written[:, c], dstate.mT, out=dkeys[:, c])
                dkeys[:, c] *= to_end[:, c]
                dtotal[:, c, -1, 0] = (ends[c] * dstate).sum((1, 2))  # all of that state has e^(total_C)
            else:
                dkeys[:, c] = 0
            # N = (1 + A)^-1 (w v - r_0 S): d(w v) = (1 + A)^-T dN, and d(r_0 S) is its negative
            torch.baddbmm(dread[:, c, 0], inverse[:, c].mT, dwritten[:, c], beta=0, alpha=-1, out=dread[:, c, 0])
            if c < without_state:
                continue
            initial = states[c - without_state]
            torch.mul(dread[:, c], from_start[:, c, None], out=dread_raw[:, c])
            chunk_dread = dread_raw[:, c].flatten(1, 2)
            dreaders[:, c] = (chunk_dread @ initial.mT).view_as(dreaders[:, c])
            dstate_here = readers[:, c].flatten(1, 2).mT @ chunk_dread
            dstate = dstate_here if dstate is None else dstate_here.addcmul_(dstate, from_start[:, c, -1:])
        # dA = -(1 + A)^-T dN N^T and d(q k^T) = dy N^T: both are `dread` times N^T
        dpairs = dread.view(-1, 2 * size, value_width) @ written.view(-1, size, value_width).mT
        dpairs = dpairs.view_as(pairs).mul_(ratio)
        dpairs[:, :, 0].diagonal(dim1=2, dim2=3).zero_()  # not read in the forward pass
        flat = dpairs.view(-1, 2 * size, size)
        dreaders.view(-1, 2 * size, key_width).baddbmm_(flat, keys.view(-1, size, key_width))
        dkeys.view(-1, size, key_width).baddbmm_(flat.mT, readers.view(-1, 2 * size, key_width))
        shape = (*v.shape[:4], key_width)
        k, dk = keys.view(shape), dkeys.view(shape)
        (_, q), (derase_keys, dq) = (x.unbind(2) for x in (readers, dreaders))
        derase_keys, dq, q = derase_keys.view(shape), dq.view(shape), q.view(shape)
        by_k = (dk * k).sum(-1, keepdim=True)  # [B, H, n, C, 1]; on these inner products see the module
        derase = derase_keys * k
        if erase.shape[-1] == 1:
            derase = derase.sum(-1, keepdim=True)
        by_erase_keys = (derase * erase).sum(-1, keepdim=True)
        by_q, dlog = (dq * q).sum(-1, keepdim=True), None
        if ctx.has_decay:
            dtotal = (by_q + by_erase_keys - by_k).add_(dtotal.view_as(by_q))
            dlog = dtotal.flip(3).cumsum(3).flip(3).flatten(2, 3)  # each log decay is in all later sums
        # of x = k / |k|: dk = (dx - x <x, dx>) / |k|; k is read itself and in the erase keys
        dk = dk.addcmul_(derase_keys, erase).addcmul_(k, by_k + by_erase_keys, value=-1).div_(k_norm)
        dq = dq.addcmul_(q, by_q, value=-1).div_(q_norm)
        dvalues = dread[:, :, 0].neg().view_as(v)  # d(w v)
        dwrite = (dvalues * v).sum(-1, keepdim=True)
        dqkv = [x.flatten(2, 3) for x in (dq, dk, dvalues.mul_(write))]
        dgates = dlog, derase.flatten(2, 3), dwrite.flatten(2, 3)
        dinitial = dstate.view(*v.shape[:2], key_width, value_width) if ctx.has_state else None  # type: ignore[union-attr]
        return None, *dqkv, *dgates, dinitial
