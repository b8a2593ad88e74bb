"""toy-summarization: reports of events with a headline, which names what counts.

A report has three entries with an amount each, in any order; the largest makes the headline.  It
often mentions a still larger amount of another year or place, which the headline must leave out.
Valid and test use only combinations (event, city and day; the two largest amounts; job and thing)
that train never shows; `draw.split_of` says which.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from attnkit.data.draw import Draw, split_of
from attnkit.data.rows import Row
from attnkit.data.synthetic import word_tables

VERSION = 2
SIZES = {"train": 10000, "valid": 200, "test": 400}
WORDS = word_tables("summarization")
EVENTS: dict[str, dict[str, Any]] = WORDS["events"]
"""Wordings of an opening, an entry and something elsewhere; the headline, and what it is about."""
AMOUNTS = tuple(range(150, 950, 50))
Owned = Mapping[str, Sequence[Any]]
"""Combinations of a kind that a split owns."""


def rows(split: str, size: int, seed: int) -> Iterator[Row]:
    """`size` rows of a split (train, valid or test); the same seed gives the same rows."""
    combined: dict[str, Any] = {
        "event": product(EVENTS, WORDS["cities"], WORDS["days"]),
        "amounts": combinations(AMOUNTS[:0:-1][1:], 2),
    }
    combined |= {event: product(WORDS["jobs"], WORDS[EVENTS[event]["things"]]) for event in EVENTS}
    owned = {
        kind: [one for one in every if split_of("summarization", kind, *map(str, one)) == split]
        for kind, every in combined.items()
    }
    draw = Draw(f"{VERSION}/{split}/{seed}")
    for _ in range(size):
        yield _report(draw, owned)


def _report(draw: Draw, owned: Owned) -> Row:
    event, city, day = draw.choice(owned["event"])
    first, second = draw.choice(owned["amounts"])
    third = draw.choice([amount for amount in AMOUNTS if amount < second])
    larger = draw.choice([amount for amount in AMOUNTS if amount > first])
    job, thing = draw.choice(owned[event])
    told = EVENTS[event]

    def beside(items: Sequence[str], one: str) -> list[str]:
        return [one, *draw.sample([item for item in items if item != one], 3)]

    jobs, things = beside(WORDS["jobs"], job), beside(WORDS[told["things"]], thing)
    firsts, lasts = draw.sample(WORDS["first_names"], 3), draw.sample(WORDS["last_names"], 3)
    entries = [
        {"job": job, "thing": thing, "name": f"{one} {two}", "amount": amount, "city": city}
        for job, thing, one, two, amount in zip(
            jobs[:3], things[:3], firsts, lasts, (first, second, third), strict=True
        )
    ]
    middle = [draw.choice(told["entry"]).format(**entry) for entry in entries]
    middle += draw.sample(WORDS["asides"], 1 + draw.randrange(2))
    if draw.chance(0.7):
        middle.append(told["elsewhere"].format(thing=things[3], amount=larger))
    opening = draw.choice(told["opening"]).format(city=city, day=day)
    headline = told["headline"].format(**entries[0])
    return Row(" ".join([opening, *draw.sample(middle)]), headline[0].upper() + headline[1:])
