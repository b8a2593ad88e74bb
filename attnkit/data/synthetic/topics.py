"""toy-topics: lines on one of eight topics, whose words come independently of each other.

No word belongs to two topics, so each word tells the topic, and given any one of them all others
are independent: exactly what naive Bayes assumes.  (With words in common it would not hold: of
words that may come in any order, one makes the others independent only if it tells all that they
share.)
Words early in their list are more frequent.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import log
from typing import final

from attnkit.data.draw import Draw
from attnkit.data.rows import Row
from attnkit.data.synthetic import word_tables
from attnkit.data.synthetic.known_source import KnownSource, entropy
from attnkit.errors import UsageError
from attnkit.text import quoted

VERSION = 1
SIZES = {"train": 400, "valid": 20, "test": 60}
TOPICS: dict[str, list[str]] = word_tables("topics")["topics"]
WEIGHTS = tuple(1000 // (rank + 1) for rank in range(12))
"""How often a word is drawn, by its rank in the list of its topic."""
TOPIC_OF = {word: topic for topic, words in TOPICS.items() for word in words}


@final
class TopicSource(KnownSource):
    """Words of one topic, drawn independently."""

    def line(self, draw: Draw) -> Iterator[str]:
        words = list(zip(TOPICS[draw.choice(tuple(TOPICS))], WEIGHTS, strict=True))
        while True:
            yield draw.weighted_choice(words)

    def next_words(self, before: Sequence[str]) -> Mapping[str, float]:
        topics = {TOPIC_OF.get(word) for word in before}
        if None in topics or len(topics) > 1:
            raise UsageError(f"{quoted(' '.join(before))}: no line has these words")
        return _shares(topics.pop() if topics else None)

    def entropy(self, count: int) -> float:
        """The topic is known from the first word on."""
        within = entropy([weight / sum(WEIGHTS) for weight in WEIGHTS])
        return within if count else within + log(len(TOPICS))


SOURCE = TopicSource()


@cache
def _shares(topic: str | None) -> Mapping[str, float]:
    """The distribution of words of a topic, or of all topics."""
    topics = TOPICS if topic is None else (topic,)
    total = sum(WEIGHTS) * len(topics)
    return {
        word: weight / total
        for name in topics
        for word, weight in zip(TOPICS[name], WEIGHTS, strict=True)
    }


def rows(split: str, size: int, seed: int) -> Iterator[Row]:
    """`size` lines of a split; the same seed gives the same lines."""
    return SOURCE.rows(f"{VERSION}/topics/{split}/{seed}", size)
