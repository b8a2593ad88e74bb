"""Attribution of an answer to a context, used by tables, traces, pages and scores alike."""

import math
from collections.abc import Sequence
from typing import NamedTuple

LEAD = 0.1
"""Minimum lead of the largest share over the second largest; below it, no context is named."""


class Source(NamedTuple):
    """Attribution of an answer to the contexts."""

    context: int | None
    """0-based index of the named context; None if the lead is below `LEAD`."""
    shares: tuple[float, ...]
    """Share of each context, sum 1; uniform if the contexts do not disagree."""

    @property
    def leading(self) -> int:
        """Context with the largest share, the first on ties."""
        return self.shares.index(max(self.shares))

    @property
    def share(self) -> float:
        """Share of the leading context."""
        return max(self.shares)


def named_source(contexts: int, tokens: Sequence[Sequence[float]], prompt: Sequence[float] = ()) -> Source:
    """Name the context under which the prompt and the answer are likeliest, weighted by how much contexts disagree.

    A token of the answer gives the distribution p_k / (p_1 + ... + p_n) over the contexts, where p_k is the token's
    probability under context k. The weight of the token is the disagreement of the contexts: log n minus the entropy
    of this distribution, 0 if the token is equally likely under all contexts. The weighted mean over the tokens is the
    answer's distribution; the prompt as a whole gives another; the shares are the mean of both, weighted likewise.

    Args:
        contexts: number of contexts, n.
        tokens: [T][n], log-probabilities (nats) of the answer's tokens under each context; () for unknown tokens.
        prompt: [n], log-probabilities (nats) of the prompt; () for models that are not trained to predict prompts.
    """
    answer = _mean([_softmax(row) for row in tokens if row], contexts)
    shares = _mean([answer, *([_softmax(prompt)] if prompt else [])], contexts)
    largest, *others = sorted(shares, reverse=True)
    clear = not others or largest - others[0] >= LEAD
    return Source(shares.index(largest) if clear else None, tuple(shares))


def _softmax(logprobs: Sequence[float]) -> list[float]:
    """Compute the softmax; uniform if all log-probabilities are -inf."""
    maximum = max(logprobs)
    weights = [1.0 if maximum == -math.inf else math.exp(value - maximum) for value in logprobs]
    return [weight / sum(weights) for weight in weights]


def _mean(rows: Sequence[Sequence[float]], count: int) -> list[float]:
    """Average distributions over `count` contexts, weighted by log(count) - entropy."""
    weights = [max(0.0, math.log(count) + sum(p * math.log(p) for p in row if p > 0)) for row in rows]
    total = sum(weights)
    if total < 1e-9:  # differences by rounding only
        return [1 / count] * count
    columns = zip(*rows, strict=True)
    return [sum(w * p for w, p in zip(weights, column, strict=True)) / total for column in columns]
