"""toy-summarization: reports of events, as paragraphs, each with a headline.

A headline states the outcome: the winner, whom the report calls by a nickname (the guests, the baker), the
last number reported, or the largest of several amounts; never what happened last year or elsewhere, which a report
mentions as well.  Sentences come in varying order.  Valid and test use only combinations (event, city and day; first
and last name; the two largest amounts; building and thing, and so on) that train never contains; see `draw.split_of`.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product
from typing import NamedTuple

from attnkit.data.draw import Draw, split_of
from attnkit.data.rows import Row
from attnkit.data.synthetic import word_tables

VERSION = 1
SIZES = {"train": 10000, "valid": 200, "test": 400}

WORDS = word_tables("summarization")
CITIES, DAYS, LAST_NAMES, JOBS, BUILDINGS, THINGS, DAMAGED = (
    WORDS[table] for table in ("cities", "days", "last_names", "jobs", "buildings", "things", "damaged")
)
FIRST_NAMES: list[str] = [*WORDS["first_names"]["she"], *WORDS["first_names"]["he"]]
AMOUNTS = tuple(str(amount) for amount in range(150, 850, 50))
SCORES = tuple(combinations(("one", "two", "three", "four", "five", "six"), 2))
LARGER_AMOUNTS = (*AMOUNTS, "850", "900")


class Person(NamedTuple):
    """A person with a job; the pronoun is She or He."""

    name: str
    pronoun: str
    job: str


class EventStory(NamedTuple):
    """A headline, and the sentences of its report."""

    headline: str
    opening: str
    blocks: tuple[str, ...]
    """One or two sentences each, in any order after the opening."""
    aside: str
    """A similar event elsewhere or earlier, which the headline must leave out."""
    closing: str = ""


class ReportWriter:
    """Writer of the reports of one split, from combinations that only this split uses."""

    def __init__(self, split: str, draw: Draw) -> None:
        self._draw = draw
        events = (self._auction, self._election, self._fire, self._match, self._storm, self._theft)
        self._events = {event.__name__.strip("_"): event for event in events}
        combinations_of = {
            "event": product(self._events, CITIES, DAYS),
            "amounts": [(two, one) for one, two in combinations(AMOUNTS[1:], 2)],
            "auction": product(JOBS, THINGS),
            "election": product(JOBS, CITIES),
            "fire": product(BUILDINGS, CITIES),
            "match": permutations(CITIES, 2),
            "name": product(FIRST_NAMES, LAST_NAMES),
            "storm": product(DAMAGED, CITIES),
            "theft": product(THINGS, CITIES),
        }
        self._owned = {
            kind: [parts for parts in candidates if split_of("summarization", kind, *parts) == split]
            for kind, candidates in combinations_of.items()
        }
        # An event can be in any city of which the split owns a combination.
        cities = {kind: set(sum(self._owned[kind], ())) for kind in self._events}
        cities["auction"] = set(CITIES)
        self._owned["event"] = [event for event in self._owned["event"] if event[1] in cities[event[0]]]

    def _draw_owned(self, kind: str, containing: str = "") -> tuple[str, ...]:
        """Return a combination that the split owns; if `containing` is given, one that contains it."""
        return self._draw.choice([parts for parts in self._owned[kind] if containing in ("", *parts)])

    def _others(self, items: Sequence[str], count: int, taken: str) -> list[str]:
        """Return `count` different items, without `taken`."""
        return self._draw.sample([item for item in items if item != taken], count)

    def _with_others(self, item: str, items: Sequence[str], count: int) -> list[str]:
        """Return the item, followed by `count` other items."""
        return [item, *self._others(items, count, item)]

    def _people(self, count: int) -> list[Person]:
        """Return people with different names and jobs; the split owns the name of the first."""
        first, last = self._draw_owned("name")
        firsts = self._with_others(first, FIRST_NAMES, count - 1)
        lasts = self._with_others(last, LAST_NAMES, count - 1)
        jobs = self._draw.sample(JOBS, count)
        return [
            Person(f"{name} {surname}", "She" if name in WORDS["first_names"]["she"] else "He", job)
            for name, surname, job in zip(firsts, lasts, jobs, strict=True)
        ]

    def _amounts(self) -> tuple[str, str, str, str]:
        """Return three amounts of an event, the largest first, and one that is larger still."""
        first, second = self._draw_owned("amounts")
        third = self._draw.choice([amount for amount in AMOUNTS if int(amount) < int(second)])
        larger = self._draw.choice([amount for amount in LARGER_AMOUNTS if int(amount) > int(first)])
        return first, second, third, larger

    def _sentence(self, event: str, part: str, **words: object) -> str:
        """Return one of the wordings for a part of a report, filled in with `words`."""
        wording: str = self._draw.choice(WORDS["sentences"][event][part])
        return wording.format(**words)

    def _sentences(self, event: str, part: str, **words: Sequence[object]) -> tuple[str, ...]:
        """Return a sentence of this part for each row of `words`."""
        rows = zip(*words.values(), strict=True)
        return tuple(self._sentence(event, part, **dict(zip(words, row, strict=True))) for row in rows)

    def _auction(self, city: str, day: str) -> EventStory:
        """Return a sale of three pieces; the highest price counts."""
        job, thing = self._draw_owned("auction")
        jobs = self._with_others(job, JOBS, 2)
        *things, old = self._with_others(thing, THINGS, 3)
        *amounts, larger = self._amounts()
        blocks = self._sentences("auction", "sale", job=jobs, thing=things, amount=amounts)
        return EventStory(
            f"{job.capitalize()} pays {amounts[0]} crowns for {thing} in {city}",
            self._sentence("auction", "opening", city=city, day=day),
            blocks,
            f"Last year a {old} had brought {larger} crowns.",
        )

    def _election(self, city: str, day: str) -> EventStory:
        """Return an election with three candidates for mayor; the one with most votes wins."""
        people = self._people(3)
        job, _ = self._draw_owned("election", city)
        jobs = self._with_others(job, JOBS, 2)
        people = [person._replace(job=work) for person, work in zip(people, jobs, strict=True)]
        *amounts, larger = self._amounts()
        blocks = self._sentences("election", "votes", one=people, amount=amounts)
        return EventStory(
            f"{job.capitalize()} {people[0].name} elected mayor of {city}",
            self._sentence("election", "opening", city=city, day=day),
            blocks,
            f"Four years ago {larger} votes had been enough to win.",
            self._sentence("election", "closing"),
        )

    def _fire(self, city: str, day: str) -> EventStory:
        """Return a fire whose reported number of people hurt is corrected; the last number counts."""
        building, _ = self._draw_owned("fire", city)
        first, final, old = self._draw.sample(WORDS["counts"], 3)
        caller, other = self._people(1)[0], self._others(CITIES, 1, city)[0]
        numbers = self._sentence("fire", "hurt", first=first, final=final)
        call = f"{caller.name}, a {caller.job}, called for help. {caller.pronoun} had seen the smoke."
        return EventStory(
            f"{final.capitalize()} hurt in {building} fire in {city}",
            self._sentence("fire", "opening", building=building, city=city, day=day),
            (numbers, call),
            f"Last year a fire in {other} had left {old} people hurt.",
        )

    def _match(self, city: str, day: str) -> EventStory:
        """Return a football match, in which hosts and guests must be told apart."""
        winner, loser = self._draw_owned("match", city)
        guests = loser if winner == city else winner
        side, other = ("hosts", "guests") if winner == city else ("guests", "hosts")
        conceded, goals = self._draw.choice(SCORES)
        few, many = self._draw.choice(SCORES)
        scorer = self._people(1)[0]
        result = {"side": side, "other": other, "goals": goals, "conceded": conceded}
        return EventStory(
            f"{winner} beat {loser} {goals} to {conceded}",
            self._sentence("match", "opening", guests=guests, city=city, day=day),
            (
                self._sentence("match", "score", **result),
                f"{scorer.name}, who works as a {scorer.job}, scored the first goal. {scorer.pronoun} was very happy.",
            ),
            f"A year ago the {self._draw.choice((side, other))} had won {many} to {few}.",
        )

    def _storm(self, city: str, day: str) -> EventStory:
        """Return a storm that damages things of three kinds; the largest number counts."""
        thing, _ = self._draw_owned("storm", city)
        *things, old = self._with_others(thing, DAMAGED, 3)
        *amounts, larger = self._amounts()
        blocks = self._sentences("storm", "damage", thing=things, amount=amounts)
        other = self._others(CITIES, 1, city)[0]
        return EventStory(
            f"Storm damages {amounts[0]} {thing} in {city}",
            self._sentence("storm", "opening", city=city, day=day),
            blocks,
            f"In {other} the storm damaged {larger} {old}.",
            self._sentence("storm", "closing"),
        )

    def _theft(self, city: str, day: str) -> EventStory:
        """Return a theft with two suspects; the sentence on the arrest names the thief only by the job."""
        thing, _ = self._draw_owned("theft", city)
        building = self._draw.choice(BUILDINGS)
        thief, other = self._people(2)
        first, second = self._draw.sample((thief, other), 2)
        old = self._others(THINGS, 1, thing)[0]
        return EventStory(
            f"{thief.name} arrested for theft of {thing} in {city}",
            self._sentence("theft", "opening", thing=thing, building=building, city=city, day=day),
            (f"The police questioned {first.name}, a {first.job}, and {second.name}, a {second.job}.",),
            f"A year ago a {old} had been stolen there.",
            self._sentence("theft", "closing", thief=thief, other=other),
        )

    def row(self) -> Row:
        event, city, day = self._draw_owned("event")
        story = self._events[event](city, day)
        asides = self._draw.sample(WORDS["asides"], 1 + self._draw.randrange(2))
        middle = [*story.blocks, *asides]
        if self._draw.chance(0.7):
            middle.append(story.aside)
        parts = [story.opening, *self._draw.sample(middle), story.closing]
        return Row(" ".join(filter(None, parts)), story.headline)


def rows(split: str, size: int, seed: int) -> Iterator[Row]:
    """Yield `size` rows of a split (train, valid or test); the same seed gives the same rows."""
    writer = ReportWriter(split, Draw(f"{VERSION}/{split}/{seed}"))
    for _ in range(size):
        yield writer.row()
