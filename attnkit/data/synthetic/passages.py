"""toy-passages: questions on short passages of invented facts, one of which has the answer.

A passage tells several things of two people; a question asks for one of them.  Answers follow
from the passage alone: who has what is drawn anew for every row, common values more often than
rare ones, so that without the passage only a guess is possible.  In the splits `ordered` and
`coupled` no single context is enough: the answer depends on the order of three chapters, or on
two passages together.  Training shows such questions too, with all that they need in one passage.
Names of valid and test (first with last) are never those of train; `draw.share` says which.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

from attnkit.data.rows import Row
from attnkit.data.synthetic.draw import SPLITS as USUAL
from attnkit.data.synthetic.draw import Draw, share

__all__ = ["SIZES", "SPLITS", "VERSION", "rows"]

VERSION = 1
SPLITS = (*USUAL, "ordered", "coupled")
SIZES = {"train": 40000, "valid": 300, "test": 400, "ordered": 400, "coupled": 400}
JOINED = 0.1
"""Share of training questions of each further kind."""
WEIGHTS = tuple(1000 // (rank + 3) for rank in range(20))
"""How often a value is drawn, by its place in its list."""

FIRST = ("Adela", "Alvar", "Berta", "Boris", "Celia", "Cyril", "Daria", "Dorin", "Edda", "Emil",
         "Felix", "Flora", "Greta", "Gustav", "Hilda", "Hugo")  # fmt: skip
LAST = ("Abend", "Birke", "Calder", "Dorn", "Eschen", "Falk", "Grimm", "Hafen", "Imhof", "Jansen",
        "Kranich", "Linde", "Moor", "Nadel", "Ostrow", "Pilz")  # fmt: skip
TOWNS = ("Altmar", "Brevik", "Corvo", "Dunholm", "Elsta", "Farnau", "Gollen", "Hestra", "Ivry",
         "Jarnow", "Kalmen", "Lundby", "Mersa", "Norvik", "Ostrau", "Pellin", "Rusk", "Solna",
         "Tarvo", "Ulmen")  # fmt: skip
JOBS = ("baker", "carpenter", "dentist", "farmer", "florist", "gardener", "judge", "locksmith",
        "mason", "miller", "nurse", "painter", "pilot", "potter", "sailor", "singer", "surgeon",
        "tailor", "teacher", "weaver")  # fmt: skip
COLOURS = ("red", "blue", "green", "white", "black", "brown", "grey", "yellow", "orange", "purple",
           "silver", "golden")  # fmt: skip
ANIMALS = ("cat", "dog", "goat", "horse", "rabbit", "parrot", "pony", "sheep", "duck", "goose",
           "snake", "turtle")  # fmt: skip
VEHICLES = ("bicycle", "boat", "bus", "car", "cart", "ferry", "sledge", "tractor", "train", "tram",
            "truck", "van")  # fmt: skip
INSTRUMENTS = ("accordion", "banjo", "bassoon", "cello", "clarinet", "drum", "fiddle", "flute",
               "guitar", "harp", "horn", "lute", "oboe", "organ", "piano", "trumpet", "tuba",
               "viola", "violin", "zither")  # fmt: skip
THINGS = ("brooch", "coin", "compass", "crown", "dagger", "diary", "goblet", "key", "lantern",
          "letter", "map", "medal", "mirror", "necklace", "pearl", "ring", "statue", "sword",
          "vase", "watch")  # fmt: skip
ROOMS = ("attic", "barn", "cellar", "chapel", "garden", "kitchen", "library", "mill", "orchard",
         "parlour", "pantry", "shed", "stable", "study", "tower", "well")  # fmt: skip
ORDER = ("first", "second", "third")


RELATIONS = {
    "animal": (COLOURS, ANIMALS),
    "instrument": (INSTRUMENTS,),
    "job": (JOBS,),
    "room": (ROOMS,),
    "town": (TOWNS,),
    "treasure": (COLOURS, THINGS),
    "vehicle": (COLOURS, VEHICLES),
}
"""Kinds of facts, and the parts of their values, the likeliest first."""


class Story(NamedTuple):
    """A question, its answer, and the passages that it needs in this order."""

    who: tuple[str, ...]
    question: str
    answer: str
    parts: tuple[str, ...]


@cache
def people(split: str) -> tuple[str, ...]:
    """Who is spoken of in a split; `ordered` and `coupled` speak of those of test."""
    owner = split if split in USUAL else "test"
    return tuple(
        f"{first} {last}"
        for first, last in product(FIRST, LAST)
        if share("passages", first, last) == owner
    )


class Writer:
    """Makes questions from one source of chance."""

    def __init__(self, split: str, key: str) -> None:
        self._draw, self._people = Draw(key), people(split)

    def _value(self, parts: Sequence[Sequence[str]]) -> str:
        """An answer; values early in their lists are likelier."""
        return " ".join(
            self._draw.weighted(list(zip(values, WEIGHTS[: len(values)], strict=True)))
            for values in parts
        )

    def _facts(self, names: Sequence[str]) -> dict[str, str]:
        """A value for each of these relations."""
        return {name: self._value(RELATIONS[name]) for name in names}

    def _tell(self, *facts: tuple[str, dict[str, str]], also: Sequence[str] = ()) -> str:
        """A passage of all facts in random order."""
        told = [*also, *(_fact(who, *fact) for who, each in facts for fact in each.items())]
        return " ".join(self._draw.several(told, len(told)))

    def _chosen(self, count: int, *first: str) -> list[str]:
        """Names of relations, these first."""
        others = [name for name in RELATIONS if name not in first]
        return [*first, *self._draw.several(others, count - len(first))]

    def single(self) -> Story:
        """One passage answers; it tells of two people, often the same kind of thing."""
        who, other = self._draw.several(self._people, 2)
        asked, *names = self._chosen(2)
        facts = self._facts([asked, *names])
        again = (asked,) if self._draw.chance(0.7) else ()
        others = self._facts(self._chosen(2, *again))
        while others.get(asked) == facts[asked]:
            others = self._facts(list(others))
        question = f"What is the {asked} of {who}?"
        passage = self._tell((who, facts), (other, others))
        return Story((who, other), question, _fact(who, asked, facts[asked]), (passage,))

    def ordered(self) -> Story:
        """Three chapters, and the town of one of them by its number."""
        who = self._draw.one(self._people)
        towns: list[str] = []
        while len(towns) < len(ORDER):
            town = self._value((TOWNS,))
            towns += [] if town in towns else [town]
        place = self._draw.below(len(ORDER))
        parts = [f"The town of {who} was {town}." for town in towns]
        question = f"What was the {ORDER[place]} town of {who}?"
        answer = f"The {ORDER[place]} town of {who} was {towns[place]}."
        return Story((who,), question, answer, tuple(parts))

    def coupled(self) -> Story:
        """One passage names the boss of somebody, another tells of the boss."""
        who, boss = self._draw.several(self._people, 2)
        asked, *others = self._chosen(3)
        facts = self._facts([asked, others[0]])
        question = f"What is the {asked} of the boss of {who}?"
        told = f"The boss of {who} is {boss}."
        parts = (self._tell((who, self._facts(others[1:])), also=[told]), self._tell((boss, facts)))
        answer = _fact(f"the boss of {who}", asked, facts[asked])
        return Story((who,), question, answer, parts)

    def mixed(self) -> Story:
        """A question of any kind, with one passage that is enough."""
        make: Callable[[], Story]
        for make in (self.ordered, self.coupled):
            if self._draw.chance(JOINED):
                story = make()
                return story._replace(parts=(" ".join(story.parts),))
        return self.single()

    def among(self, story: Story, contexts: int) -> Row:
        """The question with its passage at a random place among those of other people."""
        others: list[str] = []
        while len(others) < contexts - 1:
            other = self.single()
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
    writer = Writer(split, f"{VERSION}/passages/{split}/{seed}")
    make = {"train": writer.mixed, "ordered": writer.ordered, "coupled": writer.coupled}
    tell = make.get(split, writer.single)
    for number in range(size):
        story = tell()
        if split in ("ordered", "coupled"):
            yield Row(story.question, story.answer, (story.answer,), story.parts)
        else:
            others = Writer(split, f"{VERSION}/passages/{split}/{seed}/{number}")
            yield others.among(story, contexts)


def _fact(who: str, name: str, value: str) -> str:
    return f"The {name} of {who} is {value}."
