"""Which sentences are decoded together."""

from collections.abc import Iterator, Sequence

SHORTEST = 8
"""Shorter sources count as this long: scores over the vocabulary take memory for each row."""


def batches(lengths: Sequence[int], *, beams: int, budget: int) -> Iterator[list[int]]:
    """Indices of sentences of similar length, longest first, equal lengths in order.

    A batch holds at most `budget` tokens, counted as sentences x beams x its longest source, but
    always one sentence.  Longest first, so that a lack of memory shows at once.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        cost = beams * max(lengths[order[start]], SHORTEST)
        end = start + max(1, budget // cost)
        yield order[start:end]
        start = end
