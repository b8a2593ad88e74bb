"""The naive-Bayes language model: every token before says alone what comes next; a pool decides.

log p(x_t | x_1 .. x_t-1) = (1 + beta) P[log p(x_t | x_j)] - beta log p(x_t) + constant, where P
pools the n = t - 1 tokens before.  With P the mean and beta = n - 1 this is naive Bayes itself: the
tokens before are independent given x_t.

Source: Su 2023, "Naive Bayes is all you need?" (kexue.fm).  Several contexts of a whole language
model are pooled by the same rule in `attnkit.nbce.merge`.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnkit.attention import State
from attnkit.data.batch import Batch
from attnkit.models.counted import CountedModel, add_neighbours, add_pairs, no_counts
from attnkit.recipe import schema


class NaiveBayes(CountedModel):
    """Tables of p(x) and p(x | a), and the pool of them that `model.naive_bayes` describes.

    Both come from one joint count N(a, x), over all tokens a before each token x of a block, with
    `smoothing` added to each row.  What all rows have in common goes through every pool, so rows
    are kept as log p(x | a) - log p(x): then log p(x_t | ...) is (1 + beta) P + log p(x_t), and
    sums over a long text stay small.  The residual is one more row of the last token before, so
    with beta = -1 and a table of its own it is the bigram model.
    """

    unigram: Tensor
    """log p(x) [V]."""
    pairs: Tensor
    """Estimate counts: log p(x | a) - log p(x) [V, V]; row a."""
    past: nn.Parameter
    """Estimate skip-gram: v(a) [V, W]."""
    future: nn.Parameter
    """Estimate skip-gram: w(x) [V, W]."""
    joint: Tensor | None
    """Estimate skip-gram: the joint count while the vectors are fitted, as shares [V, V]."""
    neighbours: Tensor
    """Residual own: log p(x | a) - log p(x) with p(x | a) of neighbours [V, V]."""

    def __init__(self, model: schema.ModelConfig, sizes: tuple[int, int], max_length: int) -> None:
        super().__init__(sizes[1])
        self.how, self.width = model.naive_bayes, model.width
        size = self.size
        self.register_buffer("unigram", torch.zeros(size))
        if self.how.estimate == "counts":
            self.register_buffer("pairs", torch.zeros(size, size))
        else:
            self.register_buffer("pairs", None)
            scale = self.width**-0.5
            self.past = nn.Parameter(torch.randn(size, self.width) * scale)
            self.future = nn.Parameter(torch.randn(size, self.width) * scale)
        if self.how.residual == "own":
            self.register_buffer("neighbours", torch.zeros(size, size))
        self.register_buffer("joint", None, persistent=False)
        self._made: tuple[Tensor, Tensor, Tensor] | None = None  # made by `_tables`, if up to date

    def count(self, batches: Iterable[Batch]) -> None:
        """Set the tables; for skip-gram then lower `pair_loss`, and `settle`."""
        pairs = no_counts(self.size)
        near = no_counts(self.size if self.how.residual == "own" else 0)
        for batch in batches:
            add_pairs(pairs, batch)
            if len(near):
                add_neighbours(near, batch)
        self.set_joint(smoothed(pairs, self.how.smoothing))
        if len(near):
            near = smoothed(near, 1.0)
            self.neighbours.copy_((near / near.sum(1, keepdim=True)).log() - self.unigram)

    def set_joint(self, joint: Float[Tensor, "V V"]) -> None:
        """Take p(x) and p(x | a) from counts of a (rows) and x (columns), all above 0."""
        unigram = (joint.sum(0) / joint.sum()).log()
        self.unigram.copy_(unigram)
        if self.how.estimate == "counts":
            self.pairs.copy_((joint / joint.sum(1, keepdim=True)).log() - unigram)
        else:
            self.joint = (joint / joint.sum()).to(self.unigram)
        self._made = None

    def pair_loss(self) -> Float[Tensor, ""]:
        """The loss of the estimate skip-gram: mean nats over the pairs that were counted."""
        assert self.joint is not None
        return -(self.joint * (self.past @ self.future.t()).log_softmax(-1)).sum()

    @torch.no_grad()
    def settle(self) -> None:
        """Take p(x) from the vectors, so that p(x) and p(x | a) are again of one joint count."""
        assert self.joint is not None
        shares = (self.past @ self.future.t()).log_softmax(-1)
        unigram = (self.joint.sum(1).log()[:, None] + shares).logsumexp(0)
        if self.how.residual == "own":
            self.neighbours += self.unigram - unigram
        self.unigram.copy_(unigram)
        self.joint, self._made = None, None

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """The rows that are pooled and those of the residual [V, V], and the entropy of each [V].

        They are made once: the sum over the vocabulary that normalises vectors costs V^2.
        """
        if self._made is not None:
            return self._made
        how, rows, entropy = self.how, self.pairs, self.unigram.new_empty(0)
        if how.estimate == "skip-gram":
            scores = (self.past @ self.future.t()).detach()
            rows = (scores.log_softmax(-1) if how.normalize else scores) - self.unigram
        if how.pool == "entropy" or (how.pool == "weighted" and how.weights == "entropy"):
            logs = (rows + self.unigram).log_softmax(-1)
            entropy = -torch.linalg.vecdot(logs.exp(), logs)
        self._made = rows, self.neighbours if how.residual == "own" else rows, entropy
        return self._made

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._made = None

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._made = None
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> Any:
        if mode:
            self._made = None
        return super().train(mode)

    def first_state(self, rows: int) -> State:
        """Tokens so far [R], and what the pool keeps of them.

        The sum of weights, or the least entropy [R]; and the weighted sum, the maximum or the row
        of least entropy [R, V].
        """
        zero, table = self.unigram.new_zeros(rows), self.unigram.new_zeros(rows, self.size)
        if self.how.pool == "entropy":
            return zero, zero + torch.inf, table
        return zero, zero, table - torch.inf if self.how.pool == "max" else table

    def read(
        self, ids: Int[Tensor, "R t"], real: Bool[Tensor, "R t"], state: State
    ) -> tuple[Float[Tensor, "R t V"], State]:
        rows, last, _ = self._tables()
        hidden = rows.new_empty((*ids.shape, self.size))
        for column in range(ids.shape[1]):
            token = ids[:, column]
            state = self._add(token, real[:, column], state)
            count, weight, pooled = state
            if self.how.pool in ("mean", "weighted"):
                pooled = pooled / weight.clamp_min(torch.finfo(weight.dtype).tiny)[:, None]
            pooled = torch.where(count[:, None] > 0, pooled, 0.0)  # nothing pooled yet: p(x) alone
            factor = count if self.how.beta == "exact" else 1 + self.how.beta
            factor = torch.as_tensor(factor, dtype=rows.dtype, device=rows.device)
            logits = factor.reshape(-1, 1) * pooled + self.unigram
            if self.how.residual != "none":
                logits = logits + last[token]
            torch.log_softmax(logits, -1, out=hidden[:, column])
        return hidden, state

    def _add(self, token: Int[Tensor, " R"], real: Bool[Tensor, " R"], state: State) -> Any:
        """The state with one token more, in O(V) a row; a pad changes nothing."""
        assert isinstance(state, tuple)
        count, weight, kept = state
        rows, _, entropies = self._tables()
        row, pool = rows[token], self.how.pool
        entropy = entropies[token] if len(entropies) else weight
        there = real[:, None]
        if pool == "max":
            kept = torch.where(there, torch.maximum(kept, row), kept)
        elif pool == "entropy":
            better = real & (entropy < weight)
            weight = torch.where(better, entropy, weight)
            kept = torch.where(better[:, None], row, kept)
        else:
            fresh = real.to(kept.dtype)
            if pool == "weighted" and self.how.weights == "entropy":
                fresh = fresh * torch.exp(-entropy)
            elif pool == "weighted":
                fade = torch.where(real, self.how.decay, 1.0).to(kept.dtype)  # pads fade nothing
                weight, kept = weight * fade, kept * fade[:, None]
            weight, kept = weight + fresh, torch.addcmul(kept, fresh[:, None], row)
        return count + real.to(count.dtype), weight, kept


def smoothed(counts: Float[Tensor, "V V"], smoothing: float) -> Float[Tensor, "V V"]:
    """Counts with `smoothing` more in each row, spread like all that was counted (plus one each).

    The result is one joint count again: p(x) and p(x | a) are taken from it together.
    """
    total = counts.sum(0) + 1
    return counts + smoothing * total / total.sum()
