"""Unigram, bigram and trigram language models with interpolated Kneser-Ney smoothing.

Source: Chen and Goodman 1999, "An empirical study of smoothing techniques for language modeling", section 3 (equations
4.35 to 4.37 of the technical report TR-10-98), with one discount for each order, n1 / (n1 + 2 n2) for n1 n-grams that
occur once and n2 that occur twice.
"""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.attention import State
from attnkit.data.batch import Batch
from attnkit.data.tokenizer import BOS, PAD
from attnkit.models.counted import CountedModel, add_neighbors, no_counts
from attnkit.recipe import schema

WITHOUT_COUNTS = 0.5
"""Discount if no n-gram occurs once, as in small closed vocabularies."""
TABLES = ("contexts", "backoffs", "starts", "tokens", "shares")
"""Names of the trigram tables, whose sizes depend on the text."""


class NGram(CountedModel):
    """p(c | ab) = max(N(abc) - D, 0) / N(ab) + backoff(ab) p(c | b), and recursively for lower orders.

    Below the highest order, N is the number of contexts in which an n-gram occurs, except after the begin token, which
    has a single context: PAD.
    """

    lower: Tensor
    """log p(c) [1, V] of order 1, otherwise log p(c | b) [V, V]; of order 3 from numbers of contexts."""
    contexts: Tensor
    """Order 3: the observed pairs a V + b, ascending [C]."""
    backoffs: Tensor
    """backoff(ab) of each pair [C]."""
    starts: Tensor
    """Offset in `tokens` of the first token after each pair, and the end [C + 1]."""
    tokens: Tensor
    """Tokens observed after each pair [N]."""
    shares: Tensor
    """max(N(abc) - D, 0) / N(ab) of these tokens [N]."""

    def __init__(self, model: schema.ModelConfig, sizes: tuple[int, int], max_length: int) -> None:
        super().__init__(sizes[1])
        self.order = model.order
        self.register_buffer("lower", torch.zeros(1 if self.order == 1 else self.size, self.size))
        for name in TABLES if self.order == 3 else ():
            integer = name in ("contexts", "starts", "tokens")
            dtype = torch.long if integer else None
            self.register_buffer(name, torch.zeros(1 if name == "starts" else 0, dtype=dtype))

    def make_room(self, weights: Mapping[str, Tensor]) -> None:
        for name in TABLES if self.order == 3 else ():
            if name in weights and weights[name].dim() == 1:
                setattr(self, name, getattr(self, name).new_zeros(len(weights[name])))

    def count(self, batches: Iterable[Batch]) -> None:
        pairs, triples = no_counts(self.size), [torch.zeros(0, dtype=torch.long)]
        for batch in batches:
            add_neighbors(pairs, batch)
            if self.order == 3:
                triples.append(_trigrams(batch, self.size))
        if self.order == 1:
            self.lower.copy_(interpolated(pairs.sum(0), _uniform(self.size)).log()[None])
            return
        lower_order = interpolated((pairs > 0).sum(0).double(), _uniform(self.size))  # by contexts
        if self.order == 2:
            self.lower.copy_(interpolated(pairs, lower_order).log())
            return
        keys, counts = torch.unique(torch.cat(triples), return_counts=True)
        last_two = keys % self.size**2
        continued = torch.bincount(last_two, minlength=self.size**2).view(self.size, self.size)
        continued[BOS] = pairs[BOS].long()  # the only context of BOS is PAD
        self.lower.copy_(interpolated(continued.double(), lower_order).log())
        self._set_trigrams(keys, counts.double())

    def _set_trigrams(self, keys: Int[Tensor, " N"], counts: Float[Tensor, " N"]) -> None:
        subtracted = discount(counts)
        contexts, context_index, successors = torch.unique(keys // self.size, return_inverse=True, return_counts=True)
        totals = counts.new_zeros(len(contexts)).index_add_(0, context_index, counts)
        lower = self.lower
        self.contexts = contexts.to(lower.device)
        self.backoffs = (subtracted * successors / totals).to(lower)
        self.starts = torch.cat((successors.new_zeros(1), successors.cumsum(0))).to(lower.device)
        self.tokens = (keys % self.size).to(lower.device)
        self.shares = ((counts - subtracted).clamp_min(0) / totals[context_index]).to(lower)

    def first_state(self, rows: int) -> State:
        return self.lower.new_full((rows,), PAD, dtype=torch.long)

    def read(
        self, ids: Int[Tensor, "R t"], real: Bool[Tensor, "R t"], state: State
    ) -> tuple[Float[Tensor, "R t V"], State]:
        assert isinstance(state, Tensor)
        before, last = [], state
        for column in range(ids.shape[1]):
            before.append(last)
            last = torch.where(real[:, column], ids[:, column], last)
        if self.order == 1:
            return self.lower[torch.zeros_like(ids)], last
        logs = self.lower[ids]
        if self.order == 2:
            return logs, last
        pairs = (torch.stack(before, 1) * self.size + ids).flatten()  # a V + b [R t]
        return self._trigram(pairs, logs.flatten(0, 1)).view_as(logs), last

    def _trigram(self, pairs: Int[Tensor, " N"], lower: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Return log p(c | ab), given log p(c | b), to which it is equal for pairs that were not observed."""
        index = torch.searchsorted(self.contexts, pairs).clamp_max(len(self.contexts) - 1)
        known = self.contexts[index] == pairs  # [N]
        counts = torch.where(known, self.starts[index + 1] - self.starts[index], 0)  # tokens after each pair [N]
        rows = torch.repeat_interleave(torch.arange(len(pairs), device=pairs.device), counts)
        offsets = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
        entries = self.starts[index][rows] + offsets  # indices into `tokens` and `shares`
        shares = lower.exp() * torch.where(known, self.backoffs[index], 1.0)[:, None]
        shares.index_put_((rows, self.tokens[entries]), self.shares[entries], accumulate=True)
        return shares.log()


def discount(counts: Tensor) -> float:
    """Return the discount, which is subtracted from each count above 0."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once else WITHOUT_COUNTS


def interpolated(counts: Float[Tensor, "*rows V"], lower_order: Float[Tensor, " V"]) -> Float[Tensor, "*rows V"]:
    """Return the discounted relative frequencies of each row, the rest distributed as `lower_order`."""
    subtracted = discount(counts)
    totals, nonzero = counts.sum(-1, keepdim=True), (counts > 0).sum(-1, keepdim=True)
    rest = torch.where(totals > 0, subtracted * nonzero / totals.clamp_min(1), 1.0)
    return (counts - subtracted).clamp_min(0) / totals.clamp_min(1) + rest * lower_order


def _uniform(size: int) -> Float[Tensor, " V"]:
    return torch.full((size,), 1 / size, dtype=torch.float64)


def _trigrams(batch: Batch, size: int) -> Int[Tensor, " N"]:
    """Return a V^2 + b V + c for each three consecutive tokens a, b, c."""
    ids, following = batch.input, batch.output
    before = torch.cat((ids.new_full((len(ids), 1), PAD), ids[:, :-1]), 1)
    return ((before * size + ids) * size + following)[following != PAD]
