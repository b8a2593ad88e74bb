"""Mechanisms with one mistake each, of a kind that really happens, and the contracts that detect them."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import AttentionCall, Kernel, Mask, Out, Scored, Shape, State, one_head, visible_softmax
from attnkit.contract import Role
from attnkit.mechanisms.parallax import Parallax
from attnkit.mechanisms.path import Path


class Correct(Scored):
    """softmax(q k^T / sqrt(D)) v: keeps all contracts."""

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


class NoShift(Kernel):
    """Takes exponentials without subtracting the maximum: float32 overflows."""

    def phi_q(self, q: Tensor) -> Tensor:
        return q.exp()

    def phi_k(self, k: Tensor, valid: Tensor) -> Tensor:
        return k.masked_fill(~valid[:, None, :, None], 0).exp()


class UnusedParameter(Correct):
    """Has a parameter that no output depends on."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.unused = nn.Parameter(torch.zeros(3))


class RoundedOff(Correct):
    """Adds a large number to all scores, which cancels in float64 but rounds them off in float32."""

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return super().scores(q, k, mask) - 1e5


class HalfDetached(Correct):
    """Loses half of the gradient of the queries."""

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return super().scores((q + q.detach()) / 2, k, mask)


class NonlinearValues(Correct):
    """Is not linear in the values, except in zeros and ones."""

    def forward(self, q: Any, k: Any, v: Any, *rest: Any, **more: Any) -> Out:
        if v is not None:
            v = v + 0.1 * (v * v - v)
        return super().forward(q, k, v, *rest, **more)


class LargeRowSums(Correct):
    """Has weights that sum to 1.01, without declaring it."""

    def forward(self, *given: Any, **more: Any) -> Out:
        out = super().forward(*given, **more)
        return out._replace(y=out.y * 1.01)


class SeesNextToken(Correct):
    """Attends to the next token, in long sequences only."""

    def allowed(self, mask: Mask) -> Tensor | None:
        if mask.causal and mask.q_pos.shape[1] > 256:
            return mask._replace(q_pos=mask.q_pos + 1).dense()
        return super().allowed(mask)


class FutureGradient(Correct):
    """Gives future values a gradient, though outputs do not depend on them."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, *rest: Any, **more: Any) -> Out:
        out = super().forward(q, k, v, mask, *rest, **more)
        total = v.masked_fill(~mask.valid[:, None, -v.shape[2] :, None], 0).sum(2, keepdim=True)
        return out._replace(y=out.y + 1e-3 * (total - total.detach()))


class PaddingInSoftmax(Correct):
    """Sets values of padding to zero, but includes its scores in the softmax."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, *rest: Any, **more: Any) -> Out:
        new = mask.valid[:, None, -v.shape[2] :, None]
        v = v.masked_fill(~new, 0)
        return super().forward(q, k, v, mask._replace(valid=mask.valid | True), *rest, **more)


class BatchDependent(Correct):
    """Scales scores by the number of rows, as some iterative inverses share a factor in a batch."""

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return super().scores(q, k, mask) * (1 + 0.01 * q.shape[0])


class NoRightPadding(Correct):
    """Treats rows padded on the right as rows without padding."""

    def allowed(self, mask: Mask) -> Tensor | None:
        return None if mask.layout == "right" else super().allowed(mask)


class DroppedKey(Correct):
    """Masks one of the oldest keys in steps."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, state: State = None, *rest: Any) -> Out:
        if state is not None:
            hidden = mask.valid.clone()
            hidden[:, 3:4] = False
            mask = mask._replace(valid=hidden)
        return super().forward(q, k, v, mask, state, *rest)


class SharedState(Correct):
    """Appends keys to the state in place, which changes other branches of the same state."""

    def _extend_cache(self, k: Any, v: Any, state: State, total: int) -> Any:
        if state is None:
            room = [x.new_zeros((*x.shape[:2], 600, x.shape[3])) for x in (k, v)]
        else:
            room = list(state)
        for whole, new in zip(room, (k, v), strict=True):
            whole[:, :, total - new.shape[2] : total] = new
        return room[0][:, :, :total], room[1][:, :, :total], tuple(room)


class Float32State(Correct):
    """Keeps the state of cross attention in float32, whatever the type of keys."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, state: State = None, *rest: Any) -> Out:
        if k is None:
            state = tuple(part.float().to(q.dtype) for part in state)
        return super().forward(q, k, v, mask, state, *rest)


class QueryPosition(Correct):
    """Scales scores by the position of the query in a long call, so that folded beams differ."""

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        last = 1.1 if q.shape[2] > 6 else 1
        order = torch.linspace(1, last, q.shape[2], dtype=q.dtype, device=q.device)
        return super().scores(q, k, mask) * order[:, None]


class FewQueries(Correct):
    """Returns zeros for queries beyond a few more than the number of keys."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, *rest: Any) -> Out:
        out = super().forward(q, k, v, mask, *rest)
        beyond = max(0, q.shape[2] - mask.valid.shape[1] - 4)
        return out._replace(y=F.pad(out.y[:, :, : q.shape[2] - beyond], (0, 0, 0, beyond)))


class LargeNegative(Correct):
    """Masks with a large negative number: a query without keys attends to padding."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, state: State = None, *rest: Any) -> Out:
        keys, values, state = self._extend_cache(k, v, state, mask.valid.shape[1])
        scores = sum((x for x in rest[:2] if x is not None), self.scores(q, keys, mask))
        weights = scores.masked_fill(~mask.dense(), -1e9).softmax(-1)
        return Out(weights @ values, state)


class IgnoredBias(Correct):
    """Ignores the bias and the scores of earlier layers."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, state: State = None, *rest: Any) -> Out:
        return super().forward(q, k, v, mask, state)


class IgnoredLimit(Correct):
    """Declares a limit, but accepts longer rows."""

    limit: int | str | None = "max_length"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.limit = shape.max_length


class NoReason(Correct):
    """Does not support cross attention, and gives no reason."""

    cross: ClassVar[bool] = False


class WrongFastPath(Correct):
    """Has a fast path with another scale, for longer sequences."""

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        if q.shape[2] < 40:
            return None
        weights = (self.scores(q, k, mask) * 1.001).masked_fill(~mask.dense(), -torch.inf)
        return weights.softmax(-1).masked_fill(~mask.dense(), 0) @ v


class FastPathGradient(Correct):
    """Has a fast path that is right forward but loses the gradient of the queries."""

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        weights = self.scores(q.detach(), k, mask).masked_fill(~mask.dense(), -torch.inf)
        return weights.softmax(-1).masked_fill(~mask.dense(), 0) @ v + 0 * q.sum()


class UnusedFastPath(Correct):
    """Has a fast path that is never used, so no test covers it."""

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor | None:
        return None


class UnsavedTable(Correct):
    """Has a random table that is not saved."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        table = torch.randn(shape.heads, shape.head_width, shape.head_width)
        self.register_buffer("table", table, persistent=False)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return super().scores(q @ self.table, k, mask)


class NoisyEvaluation(Correct):
    """Adds noise in evaluation too, too little for other contracts."""

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        scores = super().scores(q, k, mask)
        return scores + 1e-13 * torch.randn_like(scores)


class WrongWorkedNumber(Correct):
    """Has a wrong worked number."""

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        return one_head((0.25, 0.75)), one_head((0.25, 0.76))


class StaleKeys(Path):
    """Does not update cached keys when further tokens arrive."""

    def answer(self, call: AttentionCall) -> Out:
        out = super().answer(call)
        old = call.k[:, :, :0] if call.state is None else call.state[0]
        return out._replace(state=(torch.cat((old, call.k), 2), out.state[1]))


class NotCentered(Parallax):
    """Subtracts the projection of each key on r, but does not add that of the mean key."""

    def normalize(self, scores: Tensor, mask: Mask, raw_scores: Tensor) -> Tensor:
        p = visible_softmax(scores, self.allowed(mask))
        return p * (1 - raw_scores.chunk(2, 1)[1])


BROKEN: list[tuple[type[Scored] | type[Kernel], Role, set[str]]] = [
    (Correct, "encoder", set()),
    (Correct, "decoder", set()),
    (Correct, "cross", set()),
    (NoShift, "encoder", {"finite"}),
    (UnusedParameter, "encoder", {"finite"}),
    (RoundedOff, "encoder", {"precise"}),
    (HalfDetached, "cross", {"gradients"}),
    (NonlinearValues, "encoder", {"map"}),
    (LargeRowSums, "decoder", {"rows"}),
    (SeesNextToken, "decoder", {"future"}),
    (FutureGradient, "decoder", {"future", "gradients"}),
    (PaddingInSoftmax, "encoder", {"padding"}),
    (BatchDependent, "encoder", {"batch"}),
    (NoRightPadding, "encoder", {"layouts"}),
    (DroppedKey, "decoder", {"steps"}),
    (SharedState, "decoder", {"branches"}),
    (Float32State, "cross", {"cached"}),
    (QueryPosition, "cross", {"beams", "lengths"}),
    (FewQueries, "cross", {"lengths"}),
    (LargeNegative, "encoder", {"empty"}),
    (IgnoredBias, "encoder", {"bias"}),
    (IgnoredLimit, "encoder", {"limits"}),
    (NoReason, "cross", {"limits"}),
    (WrongFastPath, "encoder", {"fast"}),
    (FastPathGradient, "decoder", {"fast", "gradients"}),
    (UnusedFastPath, "encoder", {"fast"}),
    (UnsavedTable, "encoder", {"saved"}),
    (NoisyEvaluation, "encoder", {"same", "saved"}),
    (WrongWorkedNumber, "encoder", {"worked"}),
    (StaleKeys, "decoder", {"steps", "branches"}),
    (NotCentered, "cross", {"rows", "worked", "fast"}),
]
"""Mechanism, role, and the contracts that detect the mistake: two if it breaks both by its nature."""
