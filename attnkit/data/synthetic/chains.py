"""toy-chains: words of two syllables in an order that decides everything.

Each word begins with the syllable that the word before it ends with.  Its second syllable follows
the first one of the word before that: mostly it is the next in the order of the syllables, else any
other.  So the next word depends on the last two words and on which of them came last.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import final

from attnkit.data.draw import Draw
from attnkit.data.rows import Row
from attnkit.data.synthetic.known_source import KnownSource, entropy
from attnkit.errors import UsageError
from attnkit.text import quoted

VERSION = 1
SIZES = {"train": 400, "valid": 20, "test": 60}
SYLLABLES = ("ka", "mi", "ne", "ro", "su", "to")
STEPS = (1, 15, 1, 1, 1, 1)
"""How often a second syllable is so many places behind the one that it follows, in a circle."""


@final
class ChainSource(KnownSource):
    """Syllables, each drawn by the third one before it; every word shows two of them.

    All syllables are equally likely, and three in a row are independent.
    """

    def line(self, draw: Draw) -> Iterator[str]:
        count = len(SYLLABLES)
        third, second, last = (draw.randrange(count) for _ in range(3))
        steps = list(enumerate(STEPS))
        while True:
            yield SYLLABLES[second] + SYLLABLES[last]
            third, second, last = second, last, (third + draw.weighted_choice(steps)) % count

    def next_words(self, before: Sequence[str]) -> Mapping[str, float]:
        last = [(word[:2], word[2:]) for word in before[-2:]]
        known = all(part in SYLLABLES for word in last for part in word)
        if not known or (len(last) == 2 and last[0][1] != last[1][0]):
            raise UsageError(f"{quoted(' '.join(before))}: no line has these words in a row")
        share = 1 / len(SYLLABLES)
        if len(last) == 2:
            place = SYLLABLES.index(last[0][0])
            seconds = {
                SYLLABLES[(place + step) % len(SYLLABLES)]: weight / sum(STEPS)
                for step, weight in enumerate(STEPS)
            }
        else:
            seconds = dict.fromkeys(SYLLABLES, share)
        firsts = {last[-1][1]: 1.0} if last else dict.fromkeys(SYLLABLES, share)
        return {a + b: p * q for a, p in firsts.items() for b, q in seconds.items()}

    def entropy(self, count: int) -> float:
        if count >= 2:
            return entropy([weight / sum(STEPS) for weight in STEPS])
        return log(len(SYLLABLES)) * (2 - count)


SOURCE = ChainSource()


def rows(split: str, size: int, seed: int) -> Iterator[Row]:
    """`size` lines of a split; the same seed gives the same lines."""
    return SOURCE.rows(f"{VERSION}/chains/{split}/{seed}", size)
