"""Naive-Bayes language model: predictions from single earlier tokens are pooled.

log p(x_t | x_1 .. x_t-1) = (1 + beta) P[log p(x_t | x_j)] - beta log p(x_t) + constant, where P pools over n earlier
tokens. If P is the mean and beta = n - 1, this is naive Bayes: the earlier tokens are independent given x_t.

Source: Su 2023, "Naive Bayes is all you need?" (kexue.fm). `attnkit.nbce.merge` pools predictions of a language model
from several contexts by the same rule.
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
    """Tables of p(x) and p(x | a), pooled as `model.naive_bayes` configures.

    Both tables are computed from one joint count N(a, x) over all tokens a before each token x of a block, with
    `smoothing` added to each row. Rows are stored as log p(x | a) - log p(x), since each pool preserves a term that
    all rows share: then log p(x_t | ...) is (1 + beta) P + log p(x_t), and sums over long texts stay small. The
    residual adds a row for the last token once more; with beta = -1 and the residual `own` the model is a bigram
    model.
    """

    unigram: Tensor
    """log p(x) [V]."""
    pairs: Tensor
    """Estimate counts: log p(x | a) - log p(x) [V, V]; a is the row."""
    past: nn.Parameter
    """Estimate skip-gram: v(a) [V, W]."""
    future: nn.Parameter
    """Estimate skip-gram: w(x) [V, W]."""
    joint: Tensor | None
    """Estimate skip-gram: joint probabilities p(a, x) [V, V] while the vectors are trained."""
    neighbours: Tensor
    """Residual own: log p(x | a) - log p(x) [V, V], where x is the token right after a."""

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
        self._made: tuple[Tensor, Tensor, Tensor] | None = None  # cached result of `_tables`

    def count(self, batches: Iterable[Batch]) -> None:
        """Set the tables from counts; with skip-gram, the caller then minimizes `pair_loss` and calls `settle`."""
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
        """Set p(x) and p(x | a) from counts of a (rows) and x (columns), all above 0."""
        unigram = (joint.sum(0) / joint.sum()).log()
        self.unigram.copy_(unigram)
        if self.how.estimate == "counts":
            self.pairs.copy_((joint / joint.sum(1, keepdim=True)).log() - unigram)
        else:
            self.joint = (joint / joint.sum()).to(self.unigram)
        self._made = None

    def pair_loss(self) -> Float[Tensor, ""]:
        """Return the skip-gram loss: mean negative log-probability, in nats, over the counted pairs."""
        assert self.joint is not None
        return -(self.joint * (self.past @ self.future.t()).log_softmax(-1)).sum()

    @torch.no_grad()
    def settle(self) -> None:
        """Set p(x) from the vectors, so that p(x) and p(x | a) belong to the same joint distribution."""
        assert self.joint is not None
        shares = (self.past @ self.future.t()).log_softmax(-1)
        unigram = (self.joint.sum(1).log()[:, None] + shares).logsumexp(0)
        if self.how.residual == "own":
            self.neighbours += self.unigram - unigram
        self.unigram.copy_(unigram)
        self.joint, self._made = None, None

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows to pool and the residual's rows [V, V], and the entropy of each row to pool [V].

        They are cached, since normalization over the vocabulary costs V^2.
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
        """Return the number of tokens [R], the sum of weights or minimum entropy [R], and the pool [R, V].

        The pool is the weighted sum, the maximum or the row of minimum entropy.
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
            pooled = torch.where(count[:, None] > 0, pooled, 0.0)  # no earlier tokens: p(x) alone
            factor = count if self.how.beta == "exact" else 1 + self.how.beta
            factor = torch.as_tensor(factor, dtype=rows.dtype, device=rows.device)
            logits = factor.reshape(-1, 1) * pooled + self.unigram
            if self.how.residual != "none":
                logits = logits + last[token]
            torch.log_softmax(logits, -1, out=hidden[:, column])
        return hidden, state

    def _add(self, token: Int[Tensor, " R"], real: Bool[Tensor, " R"], state: State) -> Any:
        """Return the state after a further token, in O(V) a row; padding does not change it."""
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
                fade = torch.where(real, self.how.decay, 1.0).to(kept.dtype)  # no decay by padding
                weight, kept = weight * fade, kept * fade[:, None]
            weight, kept = weight + fresh, torch.addcmul(kept, fresh[:, None], row)
        return count + real.to(count.dtype), weight, kept


def smoothed(counts: Float[Tensor, "V V"], smoothing: float) -> Float[Tensor, "V V"]:
    """Return counts with `smoothing` added to each row, in proportion to the column sums plus 1.

    The result is a joint count again, from which both p(x) and p(x | a) are computed.
    """
    total = counts.sum(0) + 1
    return counts + smoothing * total / total.sum()
