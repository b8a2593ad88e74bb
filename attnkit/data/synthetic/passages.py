"""toy-passages: questions on short registers of invented facts, one of which has the answer.

A passage has four entries, three of them of the kind that is asked, of three people; so a reader
must find the name, not just the kind of fact.  Answers follow from the passage alone: who has what
is drawn anew for every row, common values more often than rare ones, so that without the passage
only a guess is possible.  Half of the other passages have entries of the same kind, of others.  In
the splits `ordered` and `coupled` no single context is enough: the answer depends on the order of
three chapters, or on two passages together.  Training shows such questions too, with all that they
need in one passage.
Names of valid and test (first with last) are never those of train; `draw.share` says which.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

from attnkit.data.draw import Draw, share
from attnkit.data.rows import Row

VERSION = 1
SIZES = {"train": 40000, "valid": 300, "test": 400, "ordered": 400, "coupled": 400}
JOINED = 0.15
"""Share of training questions of each further kind."""
LIKE = 0.5
"""Share of other passages that tell the asked kind of thing of other people."""
WEIGHTS = tuple(1000 // (rank + 3) for rank in range(20))
"""How often a value is drawn, by its place in its list."""

FIRST = ("Adela", "Alvar", "Berta", "Boris", "Celia", "Cyril", "Daria", "Dorin",
         "Edda", "Emil", "Felix", "Flora", "Greta", "Gustav", "Hilda", "Hugo")  # fmt: skip
LAST = ("Abend", "Birke", "Calder", "Dorn", "Eschen", "Falk", "Grimm", "Hafen",
        "Imhof", "Jansen", "Kranich", "Linde", "Moor", "Nadel", "Ostrow", "Pilz")  # fmt: skip
ORDER = ("First", "Second", "Third")
RELATIONS = {
    "Animal": ("cat", "dog", "goat", "horse", "rabbit", "parrot", "pony", "sheep", "duck",
               "goose", "snake", "turtle", "canary", "ferret", "hamster", "hedgehog", "lizard",
               "mouse", "owl", "pigeon"),
    "Instrument": ("accordion", "banjo", "bassoon", "cello", "clarinet", "drum", "fiddle",
                   "flute", "guitar", "harp", "horn", "lute", "oboe", "organ", "piano",
                   "trumpet", "tuba", "viola", "violin", "zither"),
    "Job": ("baker", "carpenter", "dentist", "farmer", "florist", "gardener", "judge",
            "locksmith", "mason", "miller", "nurse", "painter", "pilot", "potter", "sailor",
            "singer", "surgeon", "tailor", "teacher", "weaver"),
    "Room": ("attic", "barn", "cellar", "chapel", "garden", "kitchen", "library", "mill",
             "orchard", "parlour", "pantry", "shed", "stable", "study", "tower", "well",
             "bakery", "gallery", "hall", "porch"),
    "Town": ("Altmar", "Brevik", "Corvo", "Dunholm", "Elsta", "Farnau", "Gollen", "Hestra",
             "Ivry", "Jarnow", "Kalmen", "Lundby", "Mersa", "Norvik", "Ostrau", "Pellin", "Rusk",
             "Solna", "Tarvo", "Ulmen"),
    "Treasure": ("brooch", "coin", "compass", "crown", "dagger", "diary", "goblet", "key",
                 "lantern", "letter", "map", "medal", "mirror", "necklace", "pearl", "ring",
                 "statue", "sword", "vase", "watch"),
    "Vehicle": ("bicycle", "boat", "bus", "car", "cart", "sledge", "tractor", "truck", "van",
                "canoe", "scooter", "wagon", "lorry", "moped", "raft", "yacht", "carriage",
                "kayak", "barge", "glider"),
}  # fmt: skip
"""Kinds of facts and their values, the likeliest first."""
INSIDE = ("Animal", "Instrument", "Treasure", "Vehicle")
"""Kinds of things that rooms have."""
RIVALS = 2
"""Other people in the right passage of whom the same kind of thing is told."""


class QuestionStory(NamedTuple):
    """A question, its answer, and the passages that it needs in this order."""

    who: tuple[str, ...]
    question: str
    answer: str
    parts: tuple[str, ...]


@cache
def people(split: str) -> tuple[str, ...]:
    """The people of a split; `ordered` and `coupled` have those of test."""
    owner = "test" if split in ("ordered", "coupled") else split
    return tuple(
        f"{first} {last}"
        for first, last in product(FIRST, LAST)
        if share("passages", first, last) == owner
    )


class QuestionWriter:
    """Makes questions from one source of chance."""

    def __init__(self, split: str, key: str) -> None:
        self._draw, self._people = Draw(key), people(split)

    def _values(self, relation: str, count: int) -> list[str]:
        """Different values of a relation; those early in their list are likelier."""
        left = list(zip(RELATIONS[relation], WEIGHTS, strict=True))
        found: list[str] = []
        for _ in range(count):
            found.append(self._draw.weighted(left))
            left = [pair for pair in left if pair[0] != found[-1]]
        return found

    def _passage(self, entries: Sequence[str]) -> str:
        """Entries in random order."""
        return " ".join(self._draw.several(entries))

    def _relation(self, *but: str) -> str:
        return self._draw.one([name for name in RELATIONS if name not in but])

    def single(self, relation: str = "") -> QuestionStory:
        """One passage answers: it tells the same of others, and something else of one of them."""
        asked = relation or self._relation()
        who = self._draw.several(self._people, 1 + RIVALS)
        values = self._values(asked, len(who))
        entries = [_entry(asked, *fact) for fact in zip(who, values, strict=True)]
        other = self._relation(asked)
        entries.append(_entry(other, self._draw.one(who), *self._values(other, 1)))
        return QuestionStory(
            tuple(who), f"{asked} of {who[0]}?", values[0], (self._passage(entries),)
        )

    def ordered(self) -> QuestionStory:
        """Three chapters, and the town of one of them by its number."""
        who = self._draw.one(self._people)
        towns = self._values("Town", len(ORDER))
        place = self._draw.below(len(ORDER))
        parts = tuple(_entry("Town", who, town) for town in towns)
        return QuestionStory((who,), f"{ORDER[place]} town of {who}?", towns[place], parts)

    def coupled(self) -> QuestionStory:
        """One passage names the rooms of people, another tells what is in these rooms."""
        asked = self._draw.one(INSIDE)
        who = self._draw.several(self._people, 2)
        rooms, values = self._values("Room", 2), self._values(asked, 2)
        parts = (
            self._passage([_entry("Room", *fact) for fact in zip(who, rooms, strict=True)]),
            self._passage([_entry(asked, *fact) for fact in zip(rooms, values, strict=True)]),
        )
        return QuestionStory((who[0],), f"{asked} of the room of {who[0]}?", values[0], parts)

    def mixed(self) -> QuestionStory:
        """A question of any kind, with one passage that is enough."""
        make: Callable[[], QuestionStory]
        for make in (self.ordered, self.coupled):
            if self._draw.chance(JOINED):
                story = make()
                return story._replace(parts=(" ".join(story.parts),))
        return self.single()

    def among(self, story: QuestionStory, contexts: int) -> Row:
        """The question with its passage at a random place among those of other people."""
        others: list[str] = []
        named = story.question.split()[0]
        asked = named if named in RELATIONS else ""
        while len(others) < contexts - 1:
            other = self.single(asked if self._draw.chance(LIKE) else "")
            if story.who[0] not in other.who and story.answer not in other.parts[0]:
                others.append(other.parts[0])
        gold = self._draw.below(contexts)
        passages = (*others[:gold], story.parts[0], *others[gold:])
        return Row(story.question, story.answer, (story.answer,), passages, gold)


def rows(split: str, size: int, seed: int, contexts: int = 2) -> Iterator[Row]:
    """`size` rows of a split; the same seed gives the same rows.

    Questions that one passage answers have `contexts` of them, the others those that are needed,
    in order, and no gold.  With more contexts come the same questions.
    """
    writer = QuestionWriter(split, f"{VERSION}/passages/{split}/{seed}")
    make = {"train": writer.mixed, "ordered": writer.ordered, "coupled": writer.coupled}
    tell = make.get(split, writer.single)
    for number in range(size):
        story = tell()
        if split in ("ordered", "coupled"):
            yield Row(story.question, story.answer, (story.answer,), story.parts)
        else:
            others = QuestionWriter(split, f"{VERSION}/passages/{split}/{seed}/{number}")
            yield others.among(story, contexts)


def _entry(relation: str, who: str, value: str) -> str:
    return f"{relation} of {who}: {value}."
