"""Generated text for language modelling whose next-token distributions are known exactly.

    toy-chains  words of two syllables; each starts with the last syllable of the previous word, and its second one
                depends on the first syllable of the word before that: mostly it is the next in the order of the
                syllables, otherwise any other.  So the next word depends on the last two words and on their order
    toy-topics  lines on one of eight topics, whose words are drawn independently, early words of a list more often.
                No word belongs to two topics, so each word determines the topic, and given any word all others are
                independent: exactly what naive Bayes assumes.  (With shared words this would not hold: if words may
                come in any order, a word makes the others independent only if it determines all that they share.)

Training and scoring cut the text into blocks of `data.max_length` tokens.  A line has `LINE` tokens with its end, and
the first line of a split has one word more.  So if a block divides `LINE`, the end of a line is always the first token
of a block: no block contains words of two lines, and the distribution of each next token follows from its block.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar

from attnkit.data.draw import Draw
from attnkit.data.rows import Row
from attnkit.data.synthetic import word_tables
from attnkit.errors import UsageError
from attnkit.text import quoted

LINE = 1024
"""Number of tokens in a line: words, and the end of the line."""
END = ""
"""Token for the end of a line."""
SYLLABLES = ("ka", "mi", "ne", "ro", "su", "to")
STEPS = (1, 15, 1, 1, 1, 1)
"""Relative frequencies of the steps, in circular order, from a syllable to the second syllable that depends on it."""
TOPICS: dict[str, list[str]] = word_tables("topics")["topics"]
WEIGHTS = tuple(1000 // (rank + 1) for rank in range(12))
"""Relative frequency of a word, by its rank in the list of its topic."""
TOPIC_OF = {word: topic for topic, words in TOPICS.items() for word in words}


class KnownSource(ABC):
    """A random process that writes words and knows the distribution of the next word."""

    VERSION: ClassVar = 1
    SIZES: ClassVar = {"train": 400, "valid": 20, "test": 60}
    name: ClassVar[str]

    @abstractmethod
    def line(self, draw: Draw) -> Iterator[str]:
        """Yield the words of a new line, without end."""

    @abstractmethod
    def next_words(self, before: Sequence[str]) -> Mapping[str, float]:
        """Return the distribution of the next word given only the words `before`.  Raises UsageError if impossible."""

    def next_tokens(self, before: Sequence[str], block: int) -> dict[str, float]:
        """Return the distribution of the next token of a block, given the tokens since its begin token.

        `before` may start with `END`; `block` is `data.max_length`.  Raises UsageError if the block does not divide a
        line, or no line contains these words in a row.
        """
        if block < 1 or LINE % block:
            raise UsageError(f"block must divide the {LINE} tokens of a line, got {block}")
        ends = block / LINE
        if before:
            return dict(self.next_words(before[before[0] == END :]))
        words = {word: (1 - ends) * share for word, share in self.next_words(()).items()}
        return words | {END: ends}

    def rows(self, split: str, size: int, seed: int) -> Iterator[Row]:
        """Yield `size` lines of a split; the same seed gives the same lines."""
        draw = Draw(f"{self.VERSION}/{self.name}/{split}/{seed}")
        for number in range(size):
            words = self.line(draw)
            yield Row("", " ".join(next(words) for _ in range(LINE - (number > 0))))


class ChainSource(KnownSource):
    """Chain of syllables, each drawn given the third one before it; every word shows two of them.  All syllables are
    equally likely, and three in a row are independent."""

    name = "chains"

    def line(self, draw: Draw) -> Iterator[str]:
        count = len(SYLLABLES)
        third, second, last = (draw.randrange(count) for _ in range(3))
        steps = list(enumerate(STEPS))
        while True:
            yield SYLLABLES[second] + SYLLABLES[last]
            third, second, last = second, last, (third + draw.weighted_choice(steps)) % count

    def next_words(self, before: Sequence[str]) -> Mapping[str, float]:
        last = [(word[:2], word[2:]) for word in before[-2:]]
        valid = all(part in SYLLABLES for word in last for part in word)
        if not valid or (len(last) == 2 and last[0][1] != last[1][0]):
            raise UsageError(f"{quoted(' '.join(before))}: no line has these words in a row")
        share = 1 / len(SYLLABLES)
        if len(last) == 2:
            place = SYLLABLES.index(last[0][0])
            seconds = {
                SYLLABLES[(place + step) % len(SYLLABLES)]: weight / sum(STEPS) for step, weight in enumerate(STEPS)
            }
        else:
            seconds = dict.fromkeys(SYLLABLES, share)
        firsts = {last[-1][1]: 1.0} if last else dict.fromkeys(SYLLABLES, share)
        return {a + b: p * q for a, p in firsts.items() for b, q in seconds.items()}


class TopicSource(KnownSource):
    """Words of one topic, drawn independently."""

    name = "topics"

    def line(self, draw: Draw) -> Iterator[str]:
        words = list(zip(TOPICS[draw.choice(tuple(TOPICS))], WEIGHTS, strict=True))
        while True:
            yield draw.weighted_choice(words)

    def next_words(self, before: Sequence[str]) -> Mapping[str, float]:
        topics = {TOPIC_OF.get(word) for word in before}
        if None in topics or len(topics) > 1:
            raise UsageError(f"{quoted(' '.join(before))}: no line has these words")
        return _shares(topics.pop() if topics else None)


SOURCES: dict[str, KnownSource] = {"toy-chains": ChainSource(), "toy-topics": TopicSource()}
"""Corpora whose source is known exactly; their cards have `line_tokens`."""


@cache
def _shares(topic: str | None) -> Mapping[str, float]:
    """Return the distribution of the words of a topic, or of all topics."""
    topics = TOPICS if topic is None else (topic,)
    total = sum(WEIGHTS) * len(topics)
    return {word: weight / total for name in topics for word, weight in zip(TOPICS[name], WEIGHTS, strict=True)}
