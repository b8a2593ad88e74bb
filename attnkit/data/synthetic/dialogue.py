"""toy-dialogue: personas with facts, and conversations that ask for these facts.

The source is a persona, ` __eop__ `, and the last turns joined by ` __eot__ `; the target is the reply.  The fact that
it needs depends on the question, and often on an earlier turn: `what is his name ?` asks for the dog or the brother,
whichever was mentioned last.  A reply has several wordings, all of which are references.  Valid and test use only
combinations (job and city, animal and name, relative and name or job, question and answer) that train never contains;
see `draw.split_of`.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from attnkit.data.draw import Draw, split_of
from attnkit.data.formats import join_dialogue
from attnkit.data.rows import Row
from attnkit.data.synthetic import word_tables

VERSION = 1
SIZES = {"train": 12000, "valid": 300, "test": 500}


class Topic(NamedTuple):
    """A kind of fact about the speaker; `{}` is the placeholder for its value."""

    values: list[str]
    wordings: list[str]
    """Statements by the speaker, in the persona and in replies."""
    questions: list[str]
    """Questions by the partner."""
    check: str
    """Yes-no question by the partner about a certain value."""


WORDS = word_tables("dialogue")
TOPICS = {name: Topic(**topic) for name, topic in WORDS["topics"].items()}
ANIMALS: list[str] = WORDS["animals"]
RELATIVES: dict[str, list[str]] = WORDS["relatives"]
NAMES: dict[str, list[str]] = WORDS["names"]
"""Names of both animals and people, by pronoun."""
POSSESSIVE = {"she": "her", "he": "his"}
GREETINGS: list[tuple[str, list[str]]] = WORDS["greetings"]
CLOSINGS = (("topic", 35), ("pronoun", 40), ("kind", 10), ("name", 7), ("animal", 4), ("family", 4))
TURNS = 5
"""Maximum number of turns in the source, the last ones."""


class Exchange(NamedTuple):
    """A question or remark of the partner, all good replies, and their subject."""

    question: str
    replies: Sequence[str]
    about: str


class Being(NamedTuple):
    """An animal or a relative of the speaker; animals have no job."""

    kind: str
    name: str
    pronoun: str
    job: str = ""

    @property
    def combinations(self) -> tuple[tuple[str, ...], ...]:
        """The kind with the name, and the name with the job."""
        named = ("being", self.kind, self.name)
        return (named, ("being", self.name, self.job)) if self.job else (named,)


class Persona(NamedTuple):
    facts: dict[str, str]
    """Topic -> value."""
    beings: tuple[Being, ...]
    """An animal, a relative, one of each, or two relatives; often with the same pronoun."""


class ConversationWriter:
    """Writer of the conversations of one split, from combinations that only this split uses."""

    def __init__(self, split: str, draw: Draw) -> None:
        self._split, self._draw = split, draw
        facts = [(name, value) for name, topic in TOPICS.items() for value in topic.values]
        self._facts = [(a, b) for a, b in combinations(facts, 2) if a[0] != b[0] and self._owns("self", *a, *b)]
        beings = [
            Being(kind, name, pronoun, job)
            for pronoun, names in NAMES.items()
            for kind in (*ANIMALS, *RELATIVES[pronoun])
            for name in names
            for job in (("",) if kind in ANIMALS else TOPICS["job"].values)
        ]
        usable = [being for being in beings if all(self._owns(*parts) for parts in being.combinations)]
        self._animals = [being for being in usable if not being.job]
        self._relatives = [being for being in usable if being.job]

    def _owns(self, *combination: str) -> bool:
        return split_of("dialogue", *combination) == self._split

    def _persona(self) -> Persona:
        facts = self._draw.choice(self._facts)
        first = self._draw.choice(self._animals if self._draw.chance(0.4) else self._relatives)
        others = [
            other
            for other in self._relatives
            if other.kind != first.kind and other.name != first.name and other.job != first.job
        ]
        second = (self._draw.choice(others),) if self._draw.chance(0.6) else ()
        return Persona(dict(facts), (first, *second))

    def _sentences(self, persona: Persona) -> list[str]:
        sentences = [self._draw.choice(TOPICS[topic].wordings).format(value) for topic, value in persona.facts.items()]
        for kind, name, pronoun, job in persona.beings:
            named = f"my {kind} is called {name} ."
            if job:
                wordings = (f"my {kind} {name} is a {job} .", f"{named} {pronoun} is a {job} .")
            else:
                wordings = (f"i have a {kind} called {name} .", named)
            sentences.append(self._draw.choice(wordings))
        return self._draw.sample(sentences)

    def _topic(self, persona: Persona) -> Exchange | None:
        """Return a question about the speaker, or a remark that returns it; None if the split owns none."""
        options = [
            (name, kind, value)
            for name, value in persona.facts.items()
            for kind in (*TOPICS[name].questions, "and you", "check")
            if self._owns("asked", name, kind, value)
        ]
        if not options:
            return None
        name, kind, value = self._draw.choice(options)
        topic = TOPICS[name]
        replies = tuple(wording.format(value) for wording in topic.wordings)
        other = self._draw.choice([item for item in topic.values if item != value])
        if kind == "and you":
            remark = self._draw.choice(topic.wordings).format(other)
            back = self._draw.choice(("and you ?", "what about you ?"))
            return Exchange(f"{remark} {back}", replies, name)
        if kind != "check":
            return Exchange(kind, replies, name)
        guess, answer = self._draw.choice(((value, "yes"), (other, "no")))
        answers = tuple(f"{answer} , {reply}" for reply in replies)
        return Exchange(topic.check.format(guess), answers, name)

    def _animal(self, persona: Persona) -> Exchange:
        other = self._draw.choice(ANIMALS)
        question = self._draw.choice(("do you have a pet ?", f"do you have a {other} ?"))
        replies: tuple[str, ...] = ("no , i have no pet .", "no , i do not have a pet .")
        for being in persona.beings:
            if not being.job:
                right = "pet" in question or other == being.kind
                replies = (f"{'yes ,' if right else 'no , but'} i have a {being.kind} .",)
        return Exchange(question, replies, "animal")

    def _family(self, persona: Persona) -> Exchange:
        question = self._draw.choice(("do you have a family ?", "tell me about your family ."))
        kinds = [being.kind for being in persona.beings if being.job]
        if not kinds:
            return Exchange(question, ("i have no family .", "i do not have a family ."), "family")
        orders = (kinds, kinds[::-1])[: len(kinds)]
        replies = tuple(f"i have a {' and a '.join(order)} ." for order in orders)
        return Exchange(question, replies, "family")

    def _about(self, being: Being, who: str, whose: str) -> Exchange:
        """Return a question for a being's name or job; the question calls the being `who` and `whose`."""
        he, his = being.pronoun, POSSESSIVE[being.pronoun]
        if being.job and self._draw.chance(0.5):
            question = self._draw.choice((f"what does {who} do ?", f"and {whose} job ?"))
            jobs = (f"{he} is a {being.job} .", f"{he} works as a {being.job} .")
            return Exchange(question, jobs, being.kind)
        question = self._draw.choice((f"what is {whose} name ?", f"and {whose} name ?"))
        names = (f"{his} name is {being.name} .", f"{he} is called {being.name} .")
        return Exchange(question, names, being.kind)

    def _closing(self, persona: Persona) -> list[Exchange | None]:
        """Return the exchange that ends a conversation, after the one that it refers to."""
        kind = self._draw.weighted_choice(CLOSINGS)
        being = self._draw.choice(persona.beings)
        if kind == "topic":
            return [self._topic(persona)]
        if kind == "pronoun":
            relative = f"do you have a {being.kind} ?", (f"yes , i have a {being.kind} .",)
            mention = Exchange(*relative, "family") if being.job else self._animal(persona)
            return [mention, self._about(being, being.pronoun, POSSESSIVE[being.pronoun])]
        if kind == "kind":
            return [self._about(being, f"your {being.kind}", f"your {being.kind} 's")]
        if kind == "name":
            answer = f"{being.name} is my {being.kind} ."
            return [Exchange(f"who is {being.name} ?", (answer,), being.kind)]
        return [(self._animal if kind == "animal" else self._family)(persona)]

    def _exchanges(self, persona: Persona) -> list[Exchange] | None:
        """Return exchanges in order, the last with the target, or None if the split owns none of some kind."""
        exchanges = self._closing(persona)
        if self._draw.chance(0.4):
            aside = self._draw.choice((self._topic, self._animal, self._family))(persona)
            if aside and aside.about not in [exchange.about for exchange in exchanges if exchange]:
                exchanges = [aside, *exchanges]
        elif self._draw.chance(0.2):
            exchanges = [Exchange(*self._draw.choice(GREETINGS), "greeting"), *exchanges]
        present = [exchange for exchange in exchanges if exchange]
        return present if len(present) == len(exchanges) else None

    def row(self) -> Row:
        """Return a persona with the conversation so far, and the reply."""
        exchanges = None
        while exchanges is None:
            persona = self._persona()
            exchanges = self._exchanges(persona)
        turns = [exchanges[0].question]
        for earlier, later in pairwise(exchanges):
            turns += [self._draw.choice(earlier.replies), later.question]
        source = join_dialogue(self._sentences(persona), turns[-TURNS:])
        replies = exchanges[-1].replies
        return Row(source, replies[0], tuple(replies))


def rows(split: str, size: int, seed: int) -> Iterator[Row]:
    """Yield `size` rows of a split (train, valid or test); the same seed gives the same rows."""
    writer = ConversationWriter(split, Draw(f"{VERSION}/{split}/{seed}"))
    for _ in range(size):
        yield writer.row()
