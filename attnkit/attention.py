"""The contract of an attention mechanism: masks, states, and the two families.

Letters: B batch, T queries, S keys, H heads, D head width, E value width, M features;
[B, H, T, D].  `layers.MultiHead` projects; a mechanism only mixes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit import blocked, blocked_causal, kernels
from attnkit.masks import Mask as Mask
from attnkit.masks import readable
from attnkit.modifiers import EntropyScale, Modifiers

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


class Out(NamedTuple):
    """What a mechanism answers."""

    y: Float[Tensor, "B H T E"]
    state: State
    scores: Float[Tensor, "B H T S"] | None = None


def numbers(*rows: Sequence[float]) -> Float[Tensor, "1 1 n D"]:
    """Rows of one head, for worked numbers."""
    return torch.tensor(rows, dtype=torch.float64)[None, None]


class Buffer:
    """Room that the caches of successive states share; a cache notes it as its `buffer`.

    `claimed` counts the positions that belong to some state.  Only the cache that ends there may
    write behind itself; every other one is copied first, so that each state stays what it was.
    """

    def __init__(self, whole: Float[Tensor, "B H room D"]) -> None:
        self.whole, self.claimed = whole, 0

    def cache(self, length: int) -> Float[Tensor, "B H length D"]:
        """The first `length` positions, which nobody else will write from now on."""
        self.claimed = length
        view = self.whole[:, :, :length]
        view.buffer = self  # type: ignore[attr-defined]
        return view


def reorder(state: State, rows: Int[Tensor, " n"], room: int = 0) -> State:
    """Take `rows` of every tensor in a state: beams that swap, or sentences that leave.

    Without grad, caches get `room` for further positions, so that `append` need not copy them.
    """
    if state is None:
        return None
    if isinstance(state, Tensor):
        if not room or state.dim() != 4 or (state.requires_grad and torch.is_grad_enabled()):
            return state.index_select(0, rows)
        heads, length, width = state.shape[1:]
        chosen = Buffer(state.new_empty((len(rows), heads, length + room, width))).cache(length)
        torch.index_select(state, 0, rows, out=chosen)
        return chosen
    parts = [reorder(part, rows, room) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def append(old: Tensor | None, new: Tensor, total: int) -> Tensor:
    """A cache [B, H, total, D]: `old`, and `new` behind it.

    Without grad a long cache is a view of a buffer with room behind it, grown in blocks and written
    in place.  A state that is used again, after another one has claimed that room, is copied, so
    states are values.  `reorder` copies the view and as much room as it is told: a cache that beams
    shuffle at every step stays as small as it can be.
    """
    if old is None:
        return new
    length = old.shape[2]
    recorded = torch.is_grad_enabled() and (old.requires_grad or new.requires_grad)
    buffer: Buffer | None = getattr(old, "buffer", None)
    tip = buffer is not None and buffer.claimed == length and buffer.whole.shape[2] >= total
    if recorded or (not tip and total <= GROWTH):
        return torch.cat((old, new), 2)
    if buffer is None or not tip:
        room = total + max(GROWTH, total // 2)
        buffer = Buffer(new.new_empty((*old.shape[:2], room, old.shape[3])))
        buffer.whole[:, :, :length] = old
    buffer.whole[:, :, length:total] = new
    return buffer.cache(total)


class Attention(nn.Module, ABC):
    """A way of mixing values by queries and keys.  One subclass a file in `mechanisms/`."""

    uses: ClassVar[str] = "qkv"
    """Projections that exist: q, k, v, and g for gates; x stands for slices of the input."""
    uses_with: ClassVar[dict[str, dict[str, str]]] = {}  # option -> value -> `uses` with it
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
    state: ClassVar[str] = "growing"
    """What decoding keeps of the past: a "growing" cache, or sums of "constant" size."""
    by_distance: ClassVar[bool] = False
    """Finds its keys by their distance, so no two may stand at one position."""
    why: ClassVar[str] = ""
    """Reason for what it cannot do, for error messages."""
    gates: ClassVar[int] = 0
    """Gate values a head, projected from x, where `uses` has g."""
    normalised: ClassVar[bool] = True
    """Whether each row of `weights` sums to 1."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.key_heads = shape.heads
        self.query_sets = self.key_sets = 1  # projections a head; they come as further heads

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
        gates: Float[Tensor, "B H T n"] | None = None,
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
        gates: Float[Tensor, "B H T n"] | None = None,
    ) -> Float[Tensor, "B H T S"]:
        """The matrix that multiplies the values, always as in evaluation.

        Every mechanism is linear in v, so this is `forward` with the identity as values.
        """
        identity = torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:3], -1)
        was_training = self.training
        self.eval()
        try:
            return self.forward(q, k, identity, mask, None, prior, bias, gates).y
        finally:
            self.train(was_training)

    @classmethod
    def worked(cls) -> tuple[Tensor, Tensor] | None:
        """The worked number of the file: what the code gives, and what a hand calculation gives.

        Two small tensors of equal shape in float64 that agree to six decimals.
        """
        return None

    def extra_repr(self) -> str:
        """The shape, for printing a model."""
        return ", ".join(f"{name}={value}" for name, value in self.shape._asdict().items())


class Scored(Attention):
    """A matrix of scores, then softmax over the allowed keys.

    A subclass fills `scores`, and may narrow `allowed` or offer a `fused` path.  Scores of a layer
    are its own, times the entropy factor; plus the running sum of the layers before; plus bias and
    noise; then the mask.
    """

    homogeneous: ClassVar[bool] = False
    """Scores are proportional to q, so a factor may go into q (and the fused path stays open)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.modifiers = Modifiers()

    @final
    def modify(self, modifiers: Modifiers) -> None:
        """Take the options that all scored mechanisms share."""
        self.modifiers = modifiers

    def kept(self, k: Float[Tensor, "B H S D"]) -> Float[Tensor, "B H S M"]:
        """What scores read of each key by itself; a state keeps that, so it is made only once."""
        return k

    @abstractmethod
    def scores(
        self, q: Float[Tensor, "B H T D"] | None, k: Float[Tensor, "B H S M"] | None, mask: Mask
    ) -> Float[Tensor, "b H T S"]:
        """Scores before bias, mask and softmax; k as `kept` made it."""

    def allowed(self, mask: Mask) -> Bool[Tensor, "b 1 T S"] | None:
        """True where a key may be seen; None where all may."""
        # the only query of a packed mask is the last one, which sees all keys
        future = mask.causal and mask.q_pos.shape[1] > 1
        return None if mask.layout == "packed" and not future else mask.dense()

    def fused(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        mask: Mask,
    ) -> Float[Tensor, "B H T E"] | None:
        """The answer without forming the matrix, or None to take the plain path."""
        return None

    def key_length(self) -> float:
        """The length that `key_norm` gives keys; in the dot family scores are then q k / |k|."""
        return 1.0

    def keys_seen(self, mask: Mask) -> Int[Tensor, "b 1 T"]:
        """The number of allowed keys of each query."""
        allowed = self.allowed(mask)
        return mask.visible() if allowed is None else allowed.sum(-1)

    def forward(
        self,
        q: Float[Tensor, "B H T D"] | None,
        k: Float[Tensor, "B H S D"] | None,
        v: Float[Tensor, "B H S E"] | None,
        mask: Mask,
        state: State = None,
        prior: Float[Tensor, "B H T S"] | None = None,
        bias: Float[Tensor, "b H T S"] | None = None,
        gates: Float[Tensor, "B H T n"] | None = None,
    ) -> Out:
        """See `Attention.forward`."""
        chosen = self.modifiers
        if chosen.key_norm and k is not None:
            k = F.normalize(k, dim=-1) * self.key_length()
        k = None if k is None else self.kept(k)
        keys, values, state = self._remember(k, v, state, mask.valid.shape[1])
        factor = self._factor(mask, values.dtype)
        if factor is not None and self.homogeneous and q is not None:
            q, factor = q * factor, None
        noisy = self.training and (chosen.attention_dropout > 0 or chosen.score_noise > 0)
        plain = noisy or chosen.residual_scores or not (prior is bias is factor is None)
        if not plain and q is not None and keys is not None:
            y = self.fused(q, keys, values, mask)
            if y is not None:
                return Out(y, state)
        own = self.scores(q, keys, mask)
        total = own if factor is None else own * factor
        total = total if prior is None else total + prior
        if noisy:
            # what depends on positions only is one matrix for all rows, but each row has its draws
            total = total.expand(values.shape[0], -1, -1, -1)
        scores = self._perturbed(total, bias)
        weights = visible_softmax(scores, self.allowed(mask)).to(values.dtype)
        if self.training and chosen.attention_dropout > 0:
            weights = F.dropout(weights, chosen.attention_dropout)
        carried = total.expand(values.shape[0], -1, -1, -1) if chosen.residual_scores else None
        return Out(mix(weights, values), state, carried)

    def _factor(self, mask: Mask, dtype: torch.dtype) -> Float[Tensor, "b 1 T 1"] | None:
        """The entropy factor of each query, or None."""
        scale = self.modifiers.entropy_scale
        if not isinstance(scale, EntropyScale) or (scale.test_only and self.training):
            return None
        seen = self.keys_seen(mask).clamp_min(max(1, scale.floor)).unsqueeze(-1).double()
        factor = seen.log() / math.log(scale.base)
        return (factor.clamp_min(1) if scale.test_only else factor).to(dtype)

    def _perturbed(self, total: Tensor, bias: Tensor | None) -> Tensor:
        """What the softmax sees of the running sum: its mean where asked, with bias and noise."""
        if self.modifiers.residual_scores == "mean":
            total = total / (self.shape.depth + 1)
        if bias is not None:
            total = total + bias
        if self.training and self.modifiers.score_noise > 0:
            total = total + torch.randn_like(total) * self.modifiers.score_noise
        return total

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


def dot_scores(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G S D"]
) -> Float[Tensor, "B H T S"]:
    """q k^T, where H / G neighbouring query heads share each head of keys; keys are not copied."""
    if k.shape[1] == q.shape[1]:
        return q @ k.transpose(-1, -2)
    scores = torch.unflatten(q, 1, (k.shape[1], -1)).flatten(2, 3) @ k.transpose(-1, -2)
    return torch.unflatten(scores, 2, (-1, q.shape[2])).flatten(1, 2)


def mix(weights: Float[Tensor, "b H T S"], v: Float[Tensor, "B G S E"]) -> Float[Tensor, "B H T E"]:
    """Weights times values, where H / G neighbouring heads share each head of values."""
    if v.shape[1] == weights.shape[1]:
        return weights @ v
    y = torch.unflatten(weights, 1, (v.shape[1], -1)).flatten(2, 3) @ v
    return torch.unflatten(y, 2, (-1, weights.shape[2])).flatten(1, 2)


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

    A subclass fills `phi_q` and `phi_k`, each position by itself, so that every key gets a weight
    of at least 0.  Padding is removed from phi(k), so from the denominator too.  No [T, M, E]
    tensor is formed.  Sums are kept in float32 at least.
    """

    positions: ClassVar[tuple[str, ...]] = ("rope",)
    map: ClassVar[str] = "effective"
    cost: ClassVar[str] = "T*D*D"
    state: ClassVar[str] = "constant"
    exponent: bool = False
    """Whether phi_q and phi_k answer logarithms of the features.  They are then exponentiated under
    shifts that cancel, so that nothing overflows or vanishes; those of keys come from the keys that
    a query may see."""
    chunk: int = 32
    """Positions of a causal chunk: a square inside each, sums between them.  About M / 2."""

    @abstractmethod
    def phi_q(self, q: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T M"]:
        """Features of the queries, or their logarithms; a factor common to a query's cancels."""

    @abstractmethod
    def phi_k(
        self, k: Float[Tensor, "B H S D"], valid: Bool[Tensor, "b S"]
    ) -> Float[Tensor, "B H S M"]:
        """Features of the keys, or their logarithms; those of pads are removed afterwards."""

    def maps(self) -> kernels.Maps:
        """Both maps as they are now, for this call and its backward pass."""
        learned = tuple(self.parameters())
        return kernels.Maps(self.phi_q, self.phi_k, self.exponent, learned)

    def forward(
        self,
        q: Float[Tensor, "B H T D"] | None,
        k: Float[Tensor, "B H S D"] | None,
        v: Float[Tensor, "B H S E"] | None,
        mask: Mask,
        state: State = None,
        prior: Float[Tensor, "B H T S"] | None = None,
        bias: Float[Tensor, "b H T S"] | None = None,
        gates: Float[Tensor, "B H T n"] | None = None,
    ) -> Out:
        """See `Attention.forward`.  State: `kernels.Sums`, phi(k)^T [v, 1] and the peaks."""
        if prior is not None or bias is not None:
            raise ValueError("a kernel mechanism has no scores: prior and bias cannot be added")
        if q is None:
            raise ValueError("a kernel mechanism needs queries")
        maps = self.maps()
        if k is None or v is None:
            if state is None:
                raise ValueError("keys and values must come with the first call")
            return Out(self._answer(maps, q, state), state)
        real = new_keys(mask, k)
        quick = blocked.usable(q, k, v)
        if mask.causal and k.shape[2] > 1:
            if quick and state is None:
                return Out(*blocked_causal.causal(maps, self.chunk, q, k, v, real))
            phi, values = kernels.prepare(maps, k, v, real)
            features = maps.q(q.to(kernels.widest(q.dtype)))
            y, state = kernels.plain_causal(features, phi, values, state, maps.exponent, self.chunk)
            return Out(y.to(v.dtype), state)
        if quick and k.shape[2] > 1:
            new = blocked.key_sums(maps, k, v, real)
        else:
            new = kernels.add(*kernels.prepare(maps, k, v, real), maps.exponent)
        state = kernels.merge(state, new)
        return Out(self._answer(maps, q, state), state)

    def _answer(self, maps: kernels.Maps, q: Tensor, sums: kernels.Sums) -> Tensor:
        if q.shape[2] > 1 and blocked.usable(q):
            return blocked.answers(maps, q, sums)
        return kernels.answer(maps, q, sums).to(q.dtype)


def new_keys(mask: Mask, k: Float[Tensor, "B H S D"]) -> Bool[Tensor, "B S"] | None:
    """Which of the keys that come with this call are real; None where all are known to be."""
    if mask.layout == "packed":
        return None
    real = mask.valid[:, -k.shape[2] :]
    if readable(real) and bool(real.all()):
        return None
    return real.expand(k.shape[0], -1)


def whole(word: str, q: Tensor | None, k: Tensor | None, v: Tensor | None,
          state: State, prior: object, bias: object) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """q, k, v of a mechanism without scores of pairs that answers whole sequences only.

    Raises ValueError for a part of a sequence, and for what would be added to scores.
    """
    if prior is not None or bias is not None:
        raise ValueError(f"{word} has no scores of pairs: prior and bias cannot be added")
    if q is None or k is None or v is None or state is not None:
        raise ValueError(f"{word} answers whole sequences: queries, keys and values, no state")
    return q, k, v
