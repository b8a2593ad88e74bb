"""Generated text for language modelling whose next token has an exactly known distribution.

Training and scoring cut the text into blocks of `data.max_length` tokens.  A line has `LINE` tokens
with its end, and the first line of a split one word more.  So where a block divides `LINE`, the end
of a line is always the first token of a block: no block has words of two lines, and how likely each
token is to come next follows from the tokens of its block.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import final

from attnkit.data.draw import Draw
from attnkit.data.rows import Row
from attnkit.errors import UsageError
from attnkit.recipe import corpus_cards

LINE = 1024
"""Tokens of a line: words, and the end of the line."""
END = ""
"""Stands for the end of a line among words."""


class KnownSource(ABC):
    """A random process that writes words, and knows how likely each of them is to come next."""

    @abstractmethod
    def line(self, draw: Draw) -> Iterator[str]:
        """The words of a new line, without end."""

    @abstractmethod
    def next_words(self, before: Sequence[str]) -> Mapping[str, float]:
        """The distribution of the next word of a line, given some words in a row before it.

        What came earlier is not known.  Raises UsageError where the words are impossible.
        """

    @abstractmethod
    def entropy(self, count: int) -> float:
        """The expected entropy of the next word, in nats, where `count` words before are known."""

    @final
    def next_tokens(self, before: Sequence[str], block: int) -> dict[str, float]:
        """The distribution of the next token of a block, given the tokens since its begin token.

        Args:
            before: the words of the block so far; the first may be `END`.
            block: `data.max_length`.

        Raises:
            UsageError: the block does not divide a line, or no line has these words in a row.
        """
        ends = _end_share(block)
        if before:
            return dict(self.next_words(before[before[0] == END :]))
        words = {word: (1 - ends) * share for word, share in self.next_words(()).items()}
        return words | {END: ends}

    @final
    def nats(self, block: int) -> float:
        """The expected cross-entropy of the best possible model, in nats a token.

        Its exponential is the lowest perplexity that can be expected in blocks of this length.

        Raises:
            UsageError: the block does not divide a line.
        """
        ends = _end_share(block)
        total = entropy((ends, 1 - ends))
        for place in range(block):
            after_end = self.entropy(place - 1) if place else 0.0
            total += (1 - ends) * self.entropy(place) + ends * after_end
        return total / block

    @final
    def rows(self, key: str, size: int) -> Iterator[Row]:
        """`size` lines; the same key gives the same lines."""
        draw = Draw(key)
        for number in range(size):
            words = self.line(draw)
            yield Row("", " ".join(next(words) for _ in range(LINE - (number > 0))))


def known_source(corpus: str) -> KnownSource | None:
    """The source of an embedded corpus, such as toy-topics; None where it is not known exactly."""
    if corpus not in corpus_cards.names() or corpus_cards.load(corpus).line_tokens is None:
        return None
    generator = import_module(f"attnkit.data.synthetic.{corpus.removeprefix('toy-')}")
    source: KnownSource = generator.SOURCE
    return source


def entropy(shares: Sequence[float]) -> float:
    """Of a distribution, in nats."""
    return -sum(share * math.log(share) for share in shares if share)


def _end_share(block: int) -> float:
    """The probability that a block begins with the end of a line."""
    if block < 1 or LINE % block:
        raise UsageError(f"a block must divide {LINE} tokens, the length of a line; got {block}")
    return block / LINE
