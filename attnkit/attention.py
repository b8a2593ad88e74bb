"""The contract of an attention mechanism: masks, states, and the two families.

Letters: B batch, T queries, S keys, H heads, D head width, E value width, M features.
Layout is [B, H, T, D].  `layers.MultiHead` projects; a mechanism only mixes.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

State: TypeAlias = Any
"""Nested tuples of batch-first tensors, or None; nothing else."""

GROWTH = 64
"""Longer caches of keys and values get room for at least this many more positions at a time."""


class Shape(NamedTuple):
    """What a mechanism is told about the layer it sits in."""

    heads: int
    head_width: int
    max_length: int
    cross: bool = False
    causal: bool | None = None
    depth: int = 0


class Modifiers(NamedTuple):
    """Options that every scored mechanism takes."""

    attention_dropout: float = 0.0


class Mask(NamedTuple):
    """Who may see whom: facts about positions, not a matrix.

    Positions are 0-based.  `layout` is the caller's word, which spares a test on the device: "any"
    promises nothing, "right" that positions are column numbers (pads only at the end of a row),
    "packed" also that padding hides no key.
    """

    q_pos: Int[Tensor, "b T"]
    k_pos: Int[Tensor, "b S"]
    valid: Bool[Tensor, "b S"]
    causal: bool
    layout: Literal["any", "right", "packed"] = "any"

    @classmethod
    def of(cls, valid: Bool[Tensor, "B S"], queries: int, causal: bool, start: int = 0) -> Self:
        """Self-attention of `queries` tokens whose first one is column `start` of the keys.

        `valid` covers all keys, cached ones included; rows may be padded left, right or in between.
        """
        if start < 0 or start + queries > valid.shape[1]:
            raise ValueError(
                f"queries {start}..{start + queries - 1} must lie among {valid.shape[1]} keys"
            )
        k_pos = (valid.long().cumsum(1) - 1).clamp_min(0).masked_fill(~valid, 0)
        return cls(k_pos[:, start : start + queries], k_pos, valid, causal)

    @classmethod
    def packed(cls, length: int, device: torch.device, *, causal: bool, start: int = 0) -> Self:
        """Self-attention over `length` columns of which none is hidden by padding.

        Also right for causal self-attention of rows padded on the right: no real query comes after
        a pad.  What pad queries answer is then unspecified (but finite).
        """
        k_pos = torch.arange(length, device=device)[None]
        valid = torch.ones_like(k_pos, dtype=torch.bool)
        return cls(k_pos[:, start:], k_pos, valid, causal, "packed")

    @classmethod
    def right(cls, valid: Bool[Tensor, "B S"]) -> Self:
        """Bidirectional self-attention of whole rows that are padded on the right only."""
        k_pos = torch.arange(valid.shape[1], device=valid.device)[None]
        return cls(k_pos, k_pos, valid, False, "right")

    @classmethod
    def cross(cls, valid: Bool[Tensor, "B S"], queries: int) -> Self:
        """Cross attention of `queries` tokens to the keys of another sequence; never causal."""
        k_pos = torch.arange(valid.shape[1], device=valid.device)[None]
        q_pos = k_pos.new_zeros((1, 1)).expand(1, queries)
        return cls(q_pos, k_pos, valid, False)

    def dense(self) -> Bool[Tensor, "b 1 T S"]:
        """The matrix, True = visible; built only by those who need it."""
        visible = self.valid[:, None, None, :]
        if self.causal:
            earlier = self.k_pos[:, None, None, :] <= self.q_pos[:, None, :, None]
            return earlier if self.layout == "packed" else visible & earlier
        return visible.expand(-1, -1, self.q_pos.shape[1], -1)


class Out(NamedTuple):
    """What a mechanism answers."""

    y: Float[Tensor, "B H T E"]
    state: State
    scores: Float[Tensor, "B H T S"] | None = None


def reorder(state: State, rows: Int[Tensor, " n"]) -> State:
    """Take `rows` of every tensor in a state: beams that swap, or sentences that leave."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    parts = [reorder(part, rows) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def append(old: Tensor | None, new: Tensor, total: int) -> Tensor:
    """A cache [B, H, total, D]: `old`, and `new` behind it.

    Without grad a long cache is a view of a buffer with room behind it, grown in blocks and written
    in place, so a state may be used once.  `reorder` copies the view alone: a cache that beams
    shuffle at every step stays as small as it can be, which matters more than a second copy.
    """
    if old is None:
        return new
    recorded = torch.is_grad_enabled() and (old.requires_grad or new.requires_grad)
    room = old.stride(1) // old.stride(2)  # positions from one head to the next
    if room < total:
        if recorded or total <= GROWTH:
            return torch.cat((old, new), 2)
        shape = (*old.shape[:2], total + max(GROWTH, total // 2), old.shape[3])
        buffer = new.new_empty(shape)[:, :, : old.shape[2]]
        old = buffer.copy_(old)
    elif recorded:
        return torch.cat((old, new), 2)
    whole = old.as_strided((*old.shape[:2], total, old.shape[3]), old.stride())
    whole[:, :, old.shape[2] :] = new
    return whole


class Attention(nn.Module, ABC):
    """A way of mixing values by queries and keys.  One subclass a file in `mechanisms/`."""

    uses: ClassVar[str] = "qkv"
    """Projections that exist: q, k, v, and g for gates."""
    causal: ClassVar[bool] = True
    """Can hide the future."""
    cross: ClassVar[bool] = True
    """Can attend to another sequence."""
    limit: int | str | None = None
    """Longest position that the weights allow; the literal "max_length" before the build."""
    positions: ClassVar[tuple[str, ...]] = ("rope", "alibi", "relative")
    """Position schemes of the model that work through this mechanism."""
    map: ClassVar[str] = "exact"
    """Whether `weights` is the matrix that the mechanism forms (exact) or what it amounts to."""
    cost: ClassVar[str] = "T*S*D"
    """Time of one head."""
    why: ClassVar[str] = ""
    """Reason for what it cannot do, for error messages."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    @abstractmethod
    def forward(
        self,
        q: Float[Tensor, "B H T D"] | None,
        k: Float[Tensor, "B H S D"] | None,
        v: Float[Tensor, "B H S E"] | None,
        mask: Mask,
        state: State = None,
        prior: Float[Tensor, "B H T S"] | None = None,
        bias: Float[Tensor, "b H T S"] | None = None,
    ) -> Out:
        """Append k and v to the state, then answer q; any T >= 1.

        k = v = None answers from the state alone (cross attention while decoding).
        """

    @final
    def weights(
        self,
        q: Float[Tensor, "B H T D"] | None,
        k: Float[Tensor, "B H S D"] | None,
        v: Float[Tensor, "B H S E"],
        mask: Mask,
        prior: Float[Tensor, "B H T S"] | None = None,
        bias: Float[Tensor, "b H T S"] | None = None,
    ) -> Float[Tensor, "B H T S"]:
        """The matrix that multiplies the values, always as in evaluation.

        Every mechanism is linear in v, so this is `forward` with the identity as values.
        """
        identity = torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:3], -1)
        was_training = self.training
        self.eval()
        try:
            return self.forward(q, k, identity, mask, None, prior, bias).y
        finally:
            self.train(was_training)

    def extra_repr(self) -> str:
        """The shape, for printing a model."""
        return ", ".join(f"{name}={value}" for name, value in self.shape._asdict().items())


class Scored(Attention):
    """A matrix of scores, then softmax over the visible keys.

    A subclass fills `scores`, and may narrow `allowed` or offer a `fused` path.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.attention_dropout = 0.0

    @final
    def modify(self, modifiers: Modifiers) -> None:
        """Take the options that all scored mechanisms share."""
        self.attention_dropout = modifiers.attention_dropout

    @abstractmethod
    def scores(
        self, q: Float[Tensor, "B H T D"] | None, k: Float[Tensor, "B H S D"] | None, mask: Mask
    ) -> Float[Tensor, "b H T S"]:
        """Scores before bias, mask and softmax."""

    def allowed(self, mask: Mask) -> Bool[Tensor, "b 1 T S"] | None:
        """True where a key may be seen; None where all may."""
        return None if mask.layout == "packed" and not mask.causal else mask.dense()

    def fused(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        mask: Mask,
    ) -> Float[Tensor, "B H T E"] | None:
        """The answer without forming the matrix, or None to take the plain path."""
        return None

    def forward(
        self,
        q: Float[Tensor, "B H T D"] | None,
        k: Float[Tensor, "B H S D"] | None,
        v: Float[Tensor, "B H S E"] | None,
        mask: Mask,
        state: State = None,
        prior: Float[Tensor, "B H T S"] | None = None,
        bias: Float[Tensor, "b H T S"] | None = None,
    ) -> Out:
        """See `Attention.forward`."""
        keys, values, state = self._remember(k, v, state, mask.valid.shape[1])
        dropping = self.training and self.attention_dropout > 0
        if prior is None and bias is None and not dropping and q is not None and keys is not None:
            y = self.fused(q, keys, values, mask)
            if y is not None:
                return Out(y, state)
        scores = self.scores(q, keys, mask)
        for term in (prior, bias):
            scores = scores if term is None else scores + term
        weights = visible_softmax(scores, self.allowed(mask)).to(values.dtype)
        if dropping:
            weights = F.dropout(weights, self.attention_dropout)
        return Out(weights @ values, state)

    def _remember(
        self, k: Tensor | None, v: Tensor | None, state: State, total: int
    ) -> tuple[Tensor | None, Tensor, State]:
        """All keys and values seen so far, and the state that holds them."""
        old_k, old_v = state if state is not None else (None, None)
        if v is not None:
            old_v = append(old_v, v, total)
            old_k = None if k is None else append(old_k, k, total)
        if old_v is None:
            raise ValueError("keys and values must come with the first call; there is no state yet")
        return old_k, old_v, (old_k, old_v)


def visible_softmax(
    scores: Float[Tensor, "b H T S"], allowed: Bool[Tensor, "b 1 T S"] | None
) -> Float[Tensor, "b H T S"]:
    """Softmax over the allowed keys; a query that may see none gets zeros, never NaN."""
    if allowed is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return weights.masked_fill(~allowed, 0)


class Kernel(Attention):
    """y = phi(q) (phi(k)^T v) / (phi(q) sum phi(k)): linear time, constant state when decoding.

    A subclass fills `phi_q` and `phi_k` (non-negative features).  Padding is removed from phi(k),
    so from the denominator too.  Causal training runs in chunks: no [T, M, E] tensor is formed.
    Sums are kept in float32 at least.
    """

    positions: ClassVar[tuple[str, ...]] = ("rope",)
    map: ClassVar[str] = "effective"
    cost: ClassVar[str] = "T*D*D"
    chunk = 64

    @abstractmethod
    def phi_q(self, q: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T M"]:
        """Features of the queries."""

    @abstractmethod
    def phi_k(
        self, k: Float[Tensor, "B H S D"], valid: Bool[Tensor, "b S"]
    ) -> Float[Tensor, "B H S M"]:
        """Features of the keys; those of pads are zeroed afterwards."""

    def forward(
        self,
        q: Float[Tensor, "B H T D"] | None,
        k: Float[Tensor, "B H S D"] | None,
        v: Float[Tensor, "B H S E"] | None,
        mask: Mask,
        state: State = None,
        prior: Float[Tensor, "B H T S"] | None = None,
        bias: Float[Tensor, "b H T S"] | None = None,
    ) -> Out:
        """See `Attention.forward`.  State: phi(k)^T v [B, H, M, E] and sum phi(k) [B, H, M]."""
        if prior is not None or bias is not None:
            raise ValueError("a kernel mechanism has no scores: prior and bias cannot be added")
        if q is None:
            raise ValueError("a kernel mechanism needs queries")
        kind = (v if v is not None else q).dtype
        wide = kind if kind in (torch.float32, torch.float64) else torch.float32
        features = self.phi_q(q.to(wide))
        if k is None or v is None:
            if state is None:
                raise ValueError("keys and values must come with the first call")
            return Out(ratio(features, *state).to(kind), state)
        new = mask.valid[:, -k.shape[2] :]
        # where, not a product: garbage in pads may be infinite, and infinity times zero is NaN
        phi = self.phi_k(k.to(wide), new).masked_fill(~new[:, None, :, None], 0)
        values = v.to(wide).masked_fill(~new[:, None, :, None], 0)
        if mask.causal:
            y, state = chunked_causal(features, phi, values, state, self.chunk)
        else:
            state = add_state(state, phi.transpose(-1, -2) @ values, phi.sum(2))
            y = ratio(features, *state)
        return Out(y.to(kind), state)


def add_state(
    state: tuple[Tensor, Tensor] | None, outer: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    """Add a block's sums to a kernel state."""
    return (outer, total) if state is None else (state[0] + outer, state[1] + total)


def divide(above: Float[Tensor, "*n E"], below: Float[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
    """A quotient where 0/0, a query that sees no key, is 0."""
    return above / below.masked_fill(below == 0, 1).unsqueeze(-1)


def ratio(
    features: Float[Tensor, "B H T M"],
    outer: Float[Tensor, "B H M E"],
    total: Float[Tensor, "B H M"],
) -> Float[Tensor, "B H T E"]:
    """Answer queries from the sums of a kernel state."""
    return divide(features @ outer, (features @ total.unsqueeze(-1)).squeeze(-1))


def chunked_causal(
    features: Float[Tensor, "B H T M"],
    phi: Float[Tensor, "B H T M"],
    values: Float[Tensor, "B H T E"],
    state: tuple[Tensor, Tensor] | None,
    chunk: int,
) -> tuple[Float[Tensor, "B H T E"], tuple[Tensor, Tensor]]:
    """Causal kernel attention in chunks: a small square inside each, running sums between them."""
    length = features.shape[2]
    size = min(chunk, length)
    spare = -length % size
    if spare:
        features, phi, values = (F.pad(x, (0, 0, 0, spare)) for x in (features, phi, values))
    blocks = (-1, size)
    features, phi, values = (torch.unflatten(x, 2, blocks) for x in (features, phi, values))
    outer = phi.transpose(-1, -2) @ values  # [B, H, chunks, M, E]
    total = phi.sum(3)  # [B, H, chunks, M]
    outer_after, total_after = outer.cumsum(2), total.cumsum(2)
    outer_before, total_before = outer_after - outer, total_after - total
    if state is not None:
        outer_before = outer_before + state[0].unsqueeze(2)
        total_before = total_before + state[1].unsqueeze(2)
    square = (features @ phi.transpose(-1, -2)).tril()  # [B, H, chunks, size, size]
    above = square @ values + features @ outer_before
    below = square.sum(-1) + (features @ total_before.unsqueeze(-1)).squeeze(-1)
    y = divide(above, below).flatten(2, 3)[:, :, :length]
    return y, add_state(state, outer_after[:, :, -1], total_after[:, :, -1])
