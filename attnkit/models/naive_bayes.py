"""Naive-Bayes language model: predictions from single earlier tokens are pooled.

log p(x_t | x_1 .. x_t-1) = (1 + beta) P[log p(x_t | x_j)] - beta log p(x_t) + constant, where P pools over the n =
t - 1 earlier tokens. If P is the mean and beta = n - 1, this is naive Bayes: the earlier tokens are independent given
x_t.

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
from attnkit.models.counted import CountedModel, add_neighbors, add_pairs, no_counts
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
        self.config, self.width = model.naive_bayes, model.width
        size = self.size
        self.register_buffer("unigram", torch.zeros(size))
        if self.config.estimate == "counts":
            self.register_buffer("pairs", torch.zeros(size, size))
        else:
            self.register_buffer("pairs", None)
            scale = self.width**-0.5
            self.past = nn.Parameter(torch.randn(size, self.width) * scale)
            self.future = nn.Parameter(torch.randn(size, self.width) * scale)
        if self.config.residual == "own":
            self.register_buffer("neighbours", torch.zeros(size, size))  # this name is in stored weights
        self.register_buffer("joint", None, persistent=False)
        self._cached_tables: tuple[Tensor, Tensor, Tensor] | None = None  # result of `_tables`

    def count(self, batches: Iterable[Batch]) -> None:
        """Set the tables from counts; with skip-gram, the caller then minimizes `pair_loss` and calls `settle`."""
        pairs = no_counts(self.size)
        neighbors = no_counts(self.size if self.config.residual == "own" else 0)
        for batch in batches:
            add_pairs(pairs, batch)
            if len(neighbors):
                add_neighbors(neighbors, batch)
        self.set_joint(smoothed(pairs, self.config.smoothing))
        if len(neighbors):
            neighbors = smoothed(neighbors, 1.0)
            self.neighbours.copy_((neighbors / neighbors.sum(1, keepdim=True)).log() - self.unigram)

    def set_joint(self, joint: Float[Tensor, "V V"]) -> None:
        """Set p(x) and p(x | a) from counts of a (rows) and x (columns), all above 0."""
        unigram = (joint.sum(0) / joint.sum()).log()
        self.unigram.copy_(unigram)
        if self.config.estimate == "counts":
            self.pairs.copy_((joint / joint.sum(1, keepdim=True)).log() - unigram)
        else:
            self.joint = (joint / joint.sum()).to(self.unigram)
        self._cached_tables = None

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
        if self.config.residual == "own":
            self.neighbours += self.unigram - unigram
        self.unigram.copy_(unigram)
        self.joint, self._cached_tables = None, None

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows to pool and the residual's rows [V, V], and the entropy of each row to pool [V].

        They are cached, since normalization over the vocabulary costs V^2.
        """
        if self._cached_tables is not None:
            return self._cached_tables
        config, rows, entropy = self.config, self.pairs, self.unigram.new_empty(0)
        if config.estimate == "skip-gram":
            scores = (self.past @ self.future.t()).detach()
            rows = (scores.log_softmax(-1) if config.normalize else scores) - self.unigram
        if config.pool == "entropy" or (config.pool == "weighted" and config.weights == "entropy"):
            logs = (rows + self.unigram).log_softmax(-1)
            entropy = -torch.linalg.vecdot(logs.exp(), logs)
        self._cached_tables = rows, self.neighbours if config.residual == "own" else rows, entropy
        return self._cached_tables

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._cached_tables = None

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._cached_tables = None
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> Any:
        if mode:
            self._cached_tables = None
        return super().train(mode)

    def first_state(self, rows: int) -> State:
        """Return the number of tokens [R], the sum of weights or minimum entropy [R], and the pool [R, V].

        The pool is the weighted sum, the maximum or the row of minimum entropy.
        """
        zero, table = self.unigram.new_zeros(rows), self.unigram.new_zeros(rows, self.size)
        if self.config.pool == "entropy":
            return zero, zero + torch.inf, table
        return zero, zero, table - torch.inf if self.config.pool == "max" else table

    def read(
        self, ids: Int[Tensor, "R t"], real: Bool[Tensor, "R t"], state: State
    ) -> tuple[Float[Tensor, "R t V"], State]:
        rows, residual_rows, _ = self._tables()
        hidden = rows.new_empty((*ids.shape, self.size))
        for column in range(ids.shape[1]):
            token = ids[:, column]
            state = self._add(token, real[:, column], state)
            count, weight, pooled = state
            if self.config.pool in ("mean", "weighted"):
                pooled = pooled / weight.clamp_min(torch.finfo(weight.dtype).tiny)[:, None]
            pooled = torch.where(count[:, None] > 0, pooled, 0.0)  # no earlier tokens: p(x) alone
            scale = count if self.config.beta == "exact" else 1 + self.config.beta
            scale = torch.as_tensor(scale, dtype=rows.dtype, device=rows.device)
            logits = scale.reshape(-1, 1) * pooled + self.unigram
            if self.config.residual != "none":
                logits = logits + residual_rows[token]
            torch.log_softmax(logits, -1, out=hidden[:, column])
        return hidden, state

    def _add(self, token: Int[Tensor, " R"], real: Bool[Tensor, " R"], state: State) -> Any:
        """Return the state after a further token, in O(V) per row; padding does not change it."""
        assert isinstance(state, tuple)
        count, weight, pooled = state
        rows, _, entropies = self._tables()
        row, kind = rows[token], self.config.pool
        entropy = entropies[token] if len(entropies) else weight
        if kind == "max":
            pooled = torch.where(real[:, None], torch.maximum(pooled, row), pooled)
        elif kind == "entropy":
            lower = real & (entropy < weight)
            weight = torch.where(lower, entropy, weight)
            pooled = torch.where(lower[:, None], row, pooled)
        else:
            increment = real.to(pooled.dtype)
            if kind == "weighted" and self.config.weights == "entropy":
                increment = increment * torch.exp(-entropy)
            elif kind == "weighted":
                decay = torch.where(real, self.config.decay, 1.0).to(pooled.dtype)  # no decay by padding
                weight, pooled = weight * decay, pooled * decay[:, None]
            weight, pooled = weight + increment, torch.addcmul(pooled, increment[:, None], row)
        return count + real.to(count.dtype), weight, pooled


def smoothed(counts: Float[Tensor, "V V"], smoothing: float) -> Float[Tensor, "V V"]:
    """Return counts with `smoothing` added to each row, in proportion to the column sums plus 1.

    The result is a joint count again, from which both p(x) and p(x | a) are computed.
    """
    total = counts.sum(0) + 1
    return counts + smoothing * total / total.sum()
