"""toy-passages: questions on short registers of invented facts, one of which contains the answer.

A passage has four entries, three of them of the kind in question, about three people; so a reader must find the name,
not just the kind of fact.  Answers follow from the passage alone: values are drawn anew for every row, common values
more often than rare ones, so that without the passage only a guess is possible.  Half of the other passages have
entries of the same kind, about other people.  In the splits `ordered` and `coupled` no single context is enough: the
answer depends on the order of three chapters, or on two passages together.  Training contains such questions too, with
everything that they need in one passage.  Names in valid and test (first with last) never occur in train; see
`draw.split_of`.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

from attnkit.data.draw import Draw, split_of
from attnkit.data.rows import Row
from attnkit.data.synthetic import word_tables

VERSION = 1
SIZES = {"train": 40000, "valid": 300, "test": 400, "ordered": 400, "coupled": 400}
COMBINED = 0.15
"""Probability of each further kind of question in training."""
SAME_KIND = 0.5
"""Share of the other passages that have the kind of fact in question, about other people."""
WEIGHTS = tuple(1000 // (rank + 3) for rank in range(20))
"""Relative frequency of a value, by its rank in its list."""

WORDS = word_tables("passages")
ORDER = ("First", "Second", "Third")
RELATIONS: dict[str, list[str]] = WORDS["relations"]
"""Kinds of facts and their values, the most frequent first."""
ROOM_KINDS = ("Animal", "Instrument", "Treasure", "Vehicle")
"""Kinds of things in rooms."""
RIVALS = 2
"""Number of other people about whom the right passage has the same kind of fact."""


class QuestionStory(NamedTuple):
    """A question, its answer, and the passages that it needs, in this order."""

    who: tuple[str, ...]
    question: str
    answer: str
    parts: tuple[str, ...]


@cache
def people(split: str) -> tuple[str, ...]:
    """Return the people of a split; `ordered` and `coupled` share those of test."""
    owner = "test" if split in ("ordered", "coupled") else split
    return tuple(
        f"{first} {last}"
        for first, last in product(WORDS["first"], WORDS["last"])
        if split_of("passages", first, last) == owner
    )


class QuestionWriter:
    """Writer of questions with its own random generator."""

    def __init__(self, split: str, key: str) -> None:
        self._draw, self._people = Draw(key), people(split)

    def _values(self, kind: str, count: int) -> list[str]:
        """Return different values of a kind; values early in the list are more frequent."""
        remaining = list(zip(RELATIONS[kind], WEIGHTS, strict=True))
        values: list[str] = []
        for _ in range(count):
            values.append(self._draw.weighted_choice(remaining))
            remaining = [pair for pair in remaining if pair[0] != values[-1]]
        return values

    def _passage(self, kind: str, owners: Sequence[str], values: Sequence[str], *more: str) -> str:
        """Return entries of one kind, and the entries `more`, in random order."""
        entries = [_entry(kind, *fact) for fact in zip(owners, values, strict=True)]
        return " ".join(self._draw.sample([*entries, *more]))

    def single(self, kind: str = "") -> QuestionStory:
        """Return a question with one passage, which has the same kind of fact about others, and one other fact."""
        kind = kind or self._draw.choice(tuple(RELATIONS))
        who = self._draw.sample(self._people, 1 + RIVALS)
        values = self._values(kind, len(who))
        other = self._draw.choice([other for other in RELATIONS if other != kind])
        extra = _entry(other, self._draw.choice(who), *self._values(other, 1))
        passage = self._passage(kind, who, values, extra)
        return QuestionStory(tuple(who), f"{kind} of {who[0]}?", values[0], (passage,))

    def ordered(self) -> QuestionStory:
        """Return three chapters, and a question for the town of one of them by its number."""
        who = self._draw.choice(self._people)
        towns = self._values("Town", len(ORDER))
        chapter = self._draw.randrange(len(ORDER))
        parts = tuple(_entry("Town", who, town) for town in towns)
        return QuestionStory((who,), f"{ORDER[chapter]} town of {who}?", towns[chapter], parts)

    def coupled(self) -> QuestionStory:
        """Return two passages, the rooms of people and the contents of these rooms, and a question that needs both."""
        kind = self._draw.choice(ROOM_KINDS)
        who = self._draw.sample(self._people, 2)
        rooms, values = self._values("Room", 2), self._values(kind, 2)
        parts = (self._passage("Room", who, rooms), self._passage(kind, rooms, values))
        return QuestionStory((who[0],), f"{kind} of the room of {who[0]}?", values[0], parts)

    def mixed(self) -> QuestionStory:
        """Return a question of any kind, with a single passage."""
        for write in (self.ordered, self.coupled):
            if self._draw.chance(COMBINED):
                story = write()
                return story._replace(parts=(" ".join(story.parts),))
        return self.single()

    def among(self, story: QuestionStory, contexts: int) -> Row:
        """Return the question with its passage at a random index among passages about other people."""
        others: list[str] = []
        kind = story.question.split()[0]
        while len(others) < contexts - 1:
            same_kind = self._draw.chance(SAME_KIND) and kind in RELATIONS
            other = self.single(kind if same_kind else "")
            if story.who[0] not in other.who and story.answer not in other.parts[0]:
                others.append(other.parts[0])
        gold = self._draw.randrange(contexts)
        passages = (*others[:gold], story.parts[0], *others[gold:])
        return Row(story.question, story.answer, (story.answer,), passages, gold)


def rows(split: str, size: int, seed: int, contexts: int = 2) -> Iterator[Row]:
    """Yield `size` rows of a split; the same seed gives the same rows.

    A question that one passage answers has `contexts` passages; other questions have the passages that they need, in
    order, and no gold index.  The questions do not depend on `contexts`.
    """
    key = f"{VERSION}/passages/{split}/{seed}"
    writer = QuestionWriter(split, key)
    writers = {"train": writer.mixed, "ordered": writer.ordered, "coupled": writer.coupled}
    for number in range(size):
        story = writers.get(split, writer.single)()
        if split in ("ordered", "coupled"):
            yield Row(story.question, story.answer, (story.answer,), story.parts)
        else:
            yield QuestionWriter(split, f"{key}/{number}").among(story, contexts)


def _entry(kind: str, owner: str, value: str) -> str:
    return f"{kind} of {owner}: {value}."
