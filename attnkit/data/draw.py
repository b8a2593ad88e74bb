"""Random draws that are the same everywhere, and the hash that assigns combinations to splits.

Python promises that `random.Random(text).random()` stays the same in every version and on every platform, and promises
nothing of the kind for `choice`, `shuffle` or `sample`; so those are built here from `random()` alone.
"""

import hashlib
import random
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

Item = TypeVar("Item")

VALID_SHARE, TEST_SHARE = 10, 20
"""Percent of all combinations that only the validation or only the test rows may use."""


class Draw:
    """A private source of random choices, seeded by a text."""

    def __init__(self, key: str) -> None:
        self._random = random.Random(key)

    def randrange(self, limit: int) -> int:
        """An integer in [0, limit)."""
        return int(self._random.random() * limit)

    def randint(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + self.randrange(high - low + 1)

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()

    def distinct(self, limit: int, count: int) -> list[int]:
        """`count` different integers in [0, limit), in random order."""
        found = dict[int, None]()
        while len(found) < count:
            found[self.randrange(limit)] = None
        return [*found]

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def choice(self, items: Sequence[Item]) -> Item:
        """One of the items, all equally likely."""
        return items[self.randrange(len(items))]

    def weighted_choice(self, items: Sequence[tuple[Item, int]]) -> Item:
        """One item of (item, weight) pairs."""
        rest = self.randrange(sum(weight for _, weight in items))
        for item, weight in items:
            if rest < weight:
                return item
            rest -= weight
        raise ValueError("weights must be positive integers")

    def sample(self, items: Sequence[Item], count: int | None = None) -> list[Item]:
        """`count` different items, or all of them, in random order (Fisher and Yates)."""
        left = list(items)
        count = len(left) if count is None else count
        for i in range(count):
            j = self.randint(i, len(left) - 1)
            left[i], left[j] = left[j], left[i]
        return left[:count]


@cache
def split_of(kind: str, *parts: str) -> str:
    """The split that owns a combination of parts, whatever the corpus' seed or size.

    A train row uses combinations of train only, a test row those of test only: what is scored
    was never seen together in training, although each part was.
    """
    digest = hashlib.sha256("/".join((kind, *parts)).encode()).digest()
    percent = int.from_bytes(digest[:4], "big") % 100
    if percent < TEST_SHARE:
        return "test"
    return "valid" if percent < TEST_SHARE + VALID_SHARE else "train"
