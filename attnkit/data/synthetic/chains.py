"""Generated lines for language modelling: words of two syllables whose order decides what comes.

Each word begins with the syllable that the word before it ends with, and its second one follows the
first one of the word before that: mostly it is the next in the order of the syllables, else any
other.  So the next word depends on the last two words.  All syllables are equally likely, and three
in a row are independent.
"""

from collections.abc import Iterator

from attnkit.data.draw import Draw
from attnkit.data.rows import Row

VERSION = 1
SIZES = {"train": 400, "valid": 20, "test": 60}
LINE = 1024
"""Tokens of a line: words, and the end of the line; the first line has one word more."""
SYLLABLES = ("ka", "mi", "ne", "ro", "su", "to")
STEPS = (1, 15, 1, 1, 1, 1)
"""How often a second syllable is so many places behind the one that it follows, in a circle."""


def rows(split: str, size: int, seed: int) -> Iterator[Row]:
    """`size` lines of a split; the same seed gives the same lines."""
    draw = Draw(f"{VERSION}/chains/{split}/{seed}")
    for number in range(size):
        words = line(draw)
        yield Row("", " ".join(next(words) for _ in range(LINE - (number > 0))))


def line(draw: Draw) -> Iterator[str]:
    """The words of a new line, without end."""
    count = len(SYLLABLES)
    third, second, last = (draw.randrange(count) for _ in range(3))
    steps = list(enumerate(STEPS))
    while True:
        yield SYLLABLES[second] + SYLLABLES[last]
        third, second, last = second, last, (third + draw.weighted_choice(steps)) % count
