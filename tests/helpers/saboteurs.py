"""Mechanisms that are wrong in one way each, as mistakes are really made.

`BREAKS` says which contracts must catch each of them, and in which role; where one mistake breaks
two promises by its nature, both are named.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import AttentionCall, Kernel, Mask, Out, Scored, Shape, State, one_head, visible_softmax
from attnkit.contract import Role
from attnkit.mechanisms.parallax import Parallax
from attnkit.mechanisms.path import Path


class Right(Scored):
    """softmax(q k^T / sqrt(D)) v: breaks nothing."""

    def scores(self, q: Tensor | None, k: Tensor | None, mask: Mask) -> Tensor:
        assert q is not None
        assert k is not None
        return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


class NoShift(Kernel):
    """Exponentials of scores without their maximum taken off: float32 overflows."""

    def phi_q(self, q: Tensor) -> Tensor:
        return q.exp()

    def phi_k(self, k: Tensor, valid: Tensor) -> Tensor:
        return k.masked_fill(~valid[:, None, :, None], 0).exp()


class DeadWeight(Right):
    """A parameter that no answer depends on."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.unused = nn.Parameter(torch.zeros(3))


class Swallowed(Right):
    """A large number on all scores: it cancels in float64, and swallows them in float32."""

    def scores(self, q: Tensor | None, k: Tensor | None, mask: Mask) -> Tensor:
        return super().scores(q, k, mask) - 1e5


class Detached(Right):
    """Half of the gradient of the queries is lost."""

    def scores(self, q: Tensor | None, k: Tensor | None, mask: Mask) -> Tensor:
        assert q is not None
        return super().scores((q + q.detach()) / 2, k, mask)


class Curved(Right):
    """Not linear in the values, though the identity does not show it."""

    def forward(self, q: Any, k: Any, v: Any, *rest: Any, **more: Any) -> Out:
        if v is not None:
            v = v + 0.1 * (v * v - v)
        return super().forward(q, k, v, *rest, **more)


class Overweight(Right):
    """Rows that sum to 1.01, undeclared."""

    def forward(self, *given: Any, **more: Any) -> Out:
        out = super().forward(*given, **more)
        return out._replace(y=out.y * 1.01)


class FarSighted(Right):
    """Sees the next token, in long sequences only."""

    def allowed(self, mask: Mask) -> Tensor | None:
        if mask.causal and mask.q_pos.shape[1] > 256:
            return mask._replace(q_pos=mask.q_pos + 1).dense()
        return super().allowed(mask)


class Hindsight(Right):
    """The future changes no value, but gets a gradient."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, *rest: Any, **more: Any) -> Out:
        out = super().forward(q, k, v, mask, *rest, **more)
        total = v.masked_fill(~mask.valid[:, None, -v.shape[2] :, None], 0).sum(2, keepdim=True)
        return out._replace(y=out.y + 1e-3 * (total - total.detach()))


class ValuesOnly(Right):
    """Pads keep their share of the softmax; only their values are zeroed."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, *rest: Any, **more: Any) -> Out:
        new = mask.valid[:, None, -v.shape[2] :, None]
        v = v.masked_fill(~new, 0)
        return super().forward(q, k, v, mask._replace(valid=mask.valid | True), *rest, **more)


class Coupled(Right):
    """One normaliser for the whole batch, as in some iterative inverses."""

    def scores(self, q: Tensor | None, k: Tensor | None, mask: Mask) -> Tensor:
        assert q is not None
        return super().scores(q, k, mask) * (1 + 0.01 * q.shape[0])


class Trusting(Right):
    """Takes rows padded on the right for rows without pads."""

    def allowed(self, mask: Mask) -> Tensor | None:
        return None if mask.layout == "right" else super().allowed(mask)


class Forgetful(Right):
    """Steps do not see the oldest key of the state."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, state: State = None, *rest: Any) -> Out:
        if state is not None:
            hidden = mask.valid.clone()
            hidden[:, 3:4] = False
            mask = mask._replace(valid=hidden)
        return super().forward(q, k, v, mask, state, *rest)


class Overwriting(Right):
    """Steps write behind the keys of the state, as if no other step could."""

    def _extend_cache(self, k: Any, v: Any, state: State, total: int) -> Any:
        if state is None:
            room = [x.new_zeros((*x.shape[:2], 600, x.shape[3])) for x in (k, v)]
        else:
            room = list(state)
        for whole, new in zip(room, (k, v), strict=True):
            whole[:, :, total - new.shape[2] : total] = new
        return room[0][:, :, :total], room[1][:, :, :total], tuple(room)


class Rounded(Right):
    """The state of cross attention is kept in float32, whatever it is made of."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, state: State = None, *rest: Any) -> Out:
        if k is None:
            state = tuple(part.float().to(q.dtype) for part in state)
        return super().forward(q, k, v, mask, state, *rest)


class Numbering(Right):
    """Scores of long calls depend on the place of the query in the call, so folded beams differ."""

    def scores(self, q: Tensor | None, k: Tensor | None, mask: Mask) -> Tensor:
        assert q is not None
        last = 1.1 if q.shape[2] > 6 else 1
        order = torch.linspace(1, last, q.shape[2], dtype=q.dtype, device=q.device)
        return super().scores(q, k, mask) * order[:, None]


class Square(Right):
    """Answers only a few more queries than there are keys."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, *rest: Any) -> Out:
        out = super().forward(q, k, v, mask, *rest)
        beyond = max(0, q.shape[2] - mask.valid.shape[1] - 4)
        return out._replace(y=F.pad(out.y[:, :, : q.shape[2] - beyond], (0, 0, 0, beyond)))


class LargeNegative(Right):
    """Masks by a large negative number: a query without keys attends to pads."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, state: State = None, *rest: Any) -> Out:
        keys, values, state = self._extend_cache(k, v, state, mask.valid.shape[1])
        scores = sum((x for x in rest[:2] if x is not None), self.scores(q, keys, mask))
        weights = scores.masked_fill(~mask.dense(), -1e9).softmax(-1)
        return Out(weights @ values, state)


class Unbiased(Right):
    """Drops the bias and the earlier scores in silence."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, state: State = None, *rest: Any) -> Out:
        return super().forward(q, k, v, mask, state)


class Clamped(Right):
    """Declares a limit and takes longer rows all the same, by repeating the last position."""

    limit: int | str | None = "max_length"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.limit = shape.max_length


class Speechless(Right):
    """Cannot be cross attention, and does not say why."""

    cross: ClassVar[bool] = False


class Hasty(Right):
    """A fast path with another scale, for longer sequences."""

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        if q.shape[2] < 40:
            return None
        weights = (self.scores(q, k, mask) * 1.001).masked_fill(~mask.dense(), -torch.inf)
        return weights.softmax(-1).masked_fill(~mask.dense(), 0) @ v


class HalfDifferentiable(Right):
    """A fast path that is right forward and forgets a part of its gradient."""

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        weights = self.scores(q.detach(), k, mask).masked_fill(~mask.dense(), -torch.inf)
        return weights.softmax(-1).masked_fill(~mask.dense(), 0) @ v + 0 * q.sum()


class NeverFast(Right):
    """A fast path that is never taken, so nothing tests it."""

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        return None


class Unsaved(Right):
    """A random table that is not among the saved tensors."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        table = torch.randn(shape.heads, shape.head_width, shape.head_width)
        self.register_buffer("table", table, persistent=False)

    def scores(self, q: Tensor | None, k: Tensor | None, mask: Mask) -> Tensor:
        assert q is not None
        return super().scores(q @ self.table, k, mask)


class Moody(Right):
    """Draws noise in evaluation too; too little of it for any other contract."""

    def scores(self, q: Tensor | None, k: Tensor | None, mask: Mask) -> Tensor:
        scores = super().scores(q, k, mask)
        return scores + 1e-13 * torch.randn_like(scores)


class Miscounted(Right):
    """A worked number that does not come out."""

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        return one_head((0.25, 0.75)), one_head((0.25, 0.76))


class Standing(Path):
    """Cached keys stay as they were when they came, while further tokens go by."""

    def answer(self, call: AttentionCall) -> Out:
        out = super().answer(call)
        assert call.k is not None
        old = call.k[:, :, :0] if call.state is None else call.state[0]
        return out._replace(state=(torch.cat((old, call.k), 2), out.state[1]))


class Uncentred(Parallax):
    """Weights lose what keys have along r, and do not get back what the mean key has."""

    def normalise(self, scores: Tensor, mask: Mask, raw_scores: Tensor) -> Tensor:
        p = visible_softmax(scores, self.allowed(mask))
        return p * (1 - raw_scores.chunk(2, 1)[1])


BREAKS: list[tuple[type[Scored] | type[Kernel], Role, set[str]]] = [
    (Right, "encoder", set()),
    (Right, "decoder", set()),
    (Right, "cross", set()),
    (NoShift, "encoder", {"finite"}),
    (DeadWeight, "encoder", {"finite"}),
    (Swallowed, "encoder", {"precise"}),
    (Detached, "cross", {"gradients"}),
    (Curved, "encoder", {"map"}),
    (Overweight, "decoder", {"rows"}),
    (FarSighted, "decoder", {"future"}),
    (Hindsight, "decoder", {"future", "gradients"}),
    (ValuesOnly, "encoder", {"padding"}),
    (Coupled, "encoder", {"batch"}),
    (Trusting, "encoder", {"layouts"}),
    (Forgetful, "decoder", {"steps"}),
    (Overwriting, "decoder", {"branches"}),
    (Rounded, "cross", {"cached"}),
    (Numbering, "cross", {"beams", "lengths"}),
    (Square, "cross", {"lengths"}),
    (LargeNegative, "encoder", {"empty"}),
    (Unbiased, "encoder", {"bias"}),
    (Clamped, "encoder", {"limits"}),
    (Speechless, "cross", {"limits"}),
    (Hasty, "encoder", {"fast"}),
    (HalfDifferentiable, "decoder", {"fast", "gradients"}),
    (NeverFast, "encoder", {"fast"}),
    (Unsaved, "encoder", {"saved"}),
    (Moody, "encoder", {"same", "saved"}),
    (Miscounted, "encoder", {"worked"}),
    (Standing, "decoder", {"steps", "branches"}),
    (Uncentred, "cross", {"rows", "worked", "fast"}),
]
