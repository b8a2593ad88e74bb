"""Which context an answer is from: the one rule of tables, traces, pages and scores."""

import math
from collections.abc import Sequence
from typing import NamedTuple

LEAD = 0.1
"""By how much the share of the named context exceeds the next one's; else none is named."""


class Source(NamedTuple):
    """The context that an answer is from."""

    context: int | None
    """From 0; None: unclear, since no context leads."""
    shares: tuple[float, ...]
    """Of each context, with sum 1; all equal where nothing tells the contexts apart."""

    @property
    def leading(self) -> int:
        """The context of the largest share, the first of equal ones."""
        return self.shares.index(max(self.shares))

    @property
    def share(self) -> float:
        """Of the leading context."""
        return max(self.shares)


def named_source(contexts: int, tokens: Sequence[Sequence[float]], prompt: Sequence[float] = ()) -> Source:
    """The context under which question and answer are likeliest, where contexts disagree on them.

    A token of the answer gives context k the part p_k / (p_1 + ... + p_n), where p_k is its probability under that
    context, and counts by how much the contexts disagree: log n minus the entropy of the parts, which is 0 where all
    find the token equally likely. The mean over the tokens is the answer's part, that of the whole question is formed
    likewise, and the share of a context is the mean of both, each again counted by its disagreement.

    Args:
        contexts: n.
        tokens: [T][n], log-probabilities (nats) of the written tokens under each context; () where they are not known.
        prompt: [n], those of the question; () for models that have not learned to predict it.
    """
    answer = _mean([_softmax(row) for row in tokens if row], contexts)
    shares = _mean([answer, *([_softmax(prompt)] if prompt else [])], contexts)
    first, *others = sorted(shares, reverse=True)
    clear = not others or first - others[0] >= LEAD
    return Source(shares.index(first) if clear else None, tuple(shares))


def _softmax(logprobs: Sequence[float]) -> list[float]:
    """exp(logprobs) with sum 1; uniform where none is possible."""
    most = max(logprobs)
    powers = [1.0 if most == -math.inf else math.exp(value - most) for value in logprobs]
    return [power / sum(powers) for power in powers]


def _mean(rows: Sequence[Sequence[float]], count: int) -> list[float]:
    """The mean of distributions over `count` contexts, weighted by log n - entropy."""
    weights = [max(0.0, math.log(count) + sum(part * math.log(part) for part in row if part > 0)) for row in rows]
    total = sum(weights)
    if total < 1e-9:  # rounding alone tells nothing apart
        return [1 / count] * count
    columns = zip(*rows, strict=True)
    return [sum(w * p for w, p in zip(weights, column, strict=True)) / total for column in columns]
