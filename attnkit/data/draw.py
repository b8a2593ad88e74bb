"""Random draws that are equal on all platforms, and the hash that assigns combinations to splits.

Python guarantees that `random.Random(text).random()` is the same in every version and on every platform, but not
`choice`, `shuffle` or `sample`; so these are built here from `random()` alone.
"""

import hashlib
import random
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

Item = TypeVar("Item")

VALID_SHARE, TEST_SHARE = 10, 20
"""Percentages of all combinations reserved for validation rows and for test rows."""


class Draw:
    """Source of random choices, seeded by a text."""

    def __init__(self, key: str) -> None:
        self._random = random.Random(key)

    def randrange(self, limit: int) -> int:
        """Return an integer in [0, limit)."""
        return int(self._random.random() * limit)

    def randint(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return low + self.randrange(high - low + 1)

    def uniform(self) -> float:
        """Return a number in [0, 1)."""
        return self._random.random()

    def distinct(self, limit: int, count: int) -> list[int]:
        """Return `count` different integers in [0, limit), in random order."""
        found = dict[int, None]()
        while len(found) < count:
            found[self.randrange(limit)] = None
        return [*found]

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def choice(self, items: Sequence[Item]) -> Item:
        """Return an item, all with equal probability."""
        return items[self.randrange(len(items))]

    def weighted_choice(self, items: Sequence[tuple[Item, int]]) -> Item:
        """Return an item of (item, weight) pairs."""
        rest = self.randrange(sum(weight for _, weight in items))
        for item, weight in items:
            if rest < weight:
                return item
            rest -= weight
        raise ValueError("weights must be positive integers")

    def sample(self, items: Sequence[Item], count: int | None = None) -> list[Item]:
        """Return `count` different items, or all items, in random order (Fisher and Yates)."""
        left = list(items)
        count = len(left) if count is None else count
        for i in range(count):
            j = self.randint(i, len(left) - 1)
            left[i], left[j] = left[j], left[i]
        return left[:count]


@cache
def split_of(kind: str, *parts: str) -> str:
    """Return the split of a combination of parts, independent of the corpus' seed and size.

    Train rows use only combinations of train, test rows only combinations of test: a scored combination never occurs
    in training, although each of its parts does.
    """
    digest = hashlib.sha256("/".join((kind, *parts)).encode()).digest()
    percent = int.from_bytes(digest[:4], "big") % 100
    if percent < TEST_SHARE:
        return "test"
    return "valid" if percent < TEST_SHARE + VALID_SHARE else "train"
