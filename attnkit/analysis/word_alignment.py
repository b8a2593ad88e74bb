"""Word alignments: from maps to links, the Pharaoh format, and the alignment error rate.

A link i-j says that word i of the source and word j of the target, both from 0, translate each
other.  Gold alignments may hold possible links beside sure ones, written i?j.

Source: Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models",
section 5.1.
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.errors import DataError
from attnkit.text import quoted

Link = tuple[int, int]
Links = frozenset[Link]
Method = Literal["argmax", "mutual", "threshold"]
METHODS: tuple[Method, ...] = ("argmax", "mutual", "threshold")

_LINK = re.compile(r"(\d{1,9})([-?p])(\d{1,9})")


class Gold(NamedTuple):
    """What people say about a sentence pair."""

    sure: Links
    possible: Links
    """The sure links among them."""


class LinkCounts(NamedTuple):
    """Links of some sentence pairs; add them up for more."""

    made: int = 0
    sure: int = 0
    """In the gold."""
    made_sure: int = 0
    made_possible: int = 0

    @classmethod
    def of(cls, made: Links, gold: Gold) -> "LinkCounts":
        """Those of one sentence pair."""
        return cls(len(made), len(gold.sure), len(made & gold.sure), len(made & gold.possible))

    def plus(self, other: "LinkCounts") -> "LinkCounts":
        """Those of both."""
        return LinkCounts(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))

    @property
    def precision(self) -> float:
        """Percent of the links made that are possible; 100 where none is made."""
        return 100 * self.made_possible / self.made if self.made else 100.0

    @property
    def recall(self) -> float:
        """Percent of the sure links that are made; 100 where there are none."""
        return 100 * self.made_sure / self.sure if self.sure else 100.0

    @property
    def error(self) -> float:
        """Alignment error rate in percent: 1 - (|A and S| + |A and P|) / (|A| + |S|)."""
        links = self.made + self.sure
        return 100 * (1 - (self.made_sure + self.made_possible) / links) if links else 0.0


def links(
    weights: Float[NDArray[np.float32], "T S"], method: Method = "argmax", least: float = 0.0
) -> Links:
    """Links from the weights that target words give to source words.

    argmax: each target word with the source word of its largest weight; mutual: only where that
    weight is also the largest that the source word gets; threshold: all weights of at least
    `least`, which also bounds the other two.  A weight of zero or below never links.
    """
    if not weights.size:
        return frozenset()
    kept = weights >= max(least, np.nextafter(0, 1, dtype=np.float32))
    if method != "threshold":
        kept &= np.arange(weights.shape[1]) == weights.argmax(1)[:, None]
    if method == "mutual":
        kept &= np.arange(weights.shape[0])[:, None] == weights.argmax(0)
    targets, sources = kept.nonzero()
    return frozenset(zip(sources.tolist(), targets.tolist(), strict=True))


def pharaoh(made: Iterable[Link]) -> str:
    """Links as `0-0 1-2 2-1`, by source word."""
    return " ".join(f"{source}-{target}" for source, target in sorted(made))


def gold(line: str, where: str, source: int, target: int) -> Gold:
    """The gold alignment in a line such as `0-0 1?2 2p3`; ? and p mark what is only possible.

    Args:
        line: links with spaces between.
        where: file and line, for messages.
        source, target: numbers of words of the sentence pair.

    Raises:
        DataError: it is malformed, or names a word that is not there.
    """
    sure, possible = set(), set()
    for part in line.split():
        found = _LINK.fullmatch(part)
        if found is None:
            raise DataError(
                f"{where}: {quoted(part)} is no link: write 0-0 (sure) or 0?0 (possible), source "
                "word first, both counted from 0"
            )
        link = (int(found[1]), int(found[3]))
        if link[0] >= source or link[1] >= target:
            raise DataError(
                f"{where}: {part}: the source has {source} words and the target {target}, "
                "counted from 0"
            )
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))
