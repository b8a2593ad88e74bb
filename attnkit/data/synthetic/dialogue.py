"""toy-dialogue: personas with facts, and conversations that ask for them.

The source is a persona, ` __eop__ `, and the last turns joined by ` __eot__ `; the target is the
reply.  Which fact it needs depends on the question, and often on an earlier turn: `what is his
name ?` asks for the dog or for the brother, whichever came up last.  Replies have several
wordings, all of them references.  Valid and test use only combinations (job and city, animal and
name, relative and name or job, question and answer) that train never shows; `draw.share` says
which.
"""

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

from attnkit.data.rows import Row
from attnkit.data.synthetic.draw import SPLITS, Draw, share

__all__ = ["SIZES", "SPLITS", "VERSION", "Conversation", "conversations", "rows"]

VERSION = 1
SIZES = {"train": 12000, "valid": 300, "test": 500}

PERSONA_END, TURN_END = " __eop__ ", " __eot__ "


class Topic(NamedTuple):
    """A kind of fact about the speaker; `{}` stands for its value."""

    values: tuple[str, ...]
    wordings: tuple[str, ...]
    """How the speaker says it, in the persona and in replies."""
    questions: tuple[str, ...]
    """How the partner asks for it."""
    check: str
    """How the partner asks whether it is a certain value."""


TOPICS = {
    "job": Topic(
        ("baker", "carpenter", "cook", "dancer", "dentist", "doctor", "driver", "farmer",
         "gardener", "lawyer", "nurse", "painter", "pilot", "singer", "tailor", "teacher"),
        ("i am a {} .", "i work as a {} ."),
        ("what do you do for a living ?", "what is your job ?", "where do you get your money ?"),
        "are you a {} ?",
    ),
    "city": Topic(
        ("athens", "berlin", "cairo", "delhi", "dublin", "lima", "lisbon", "london", "madrid",
         "oslo", "paris", "prague", "riga", "rome", "tokyo", "vienna"),
        ("i live in {} .", "my home is in {} ."),
        ("where do you live ?", "which city is your home ?", "where can i find you ?"),
        "do you live in {} ?",
    ),
    "hobby": Topic(
        ("chess", "cooking", "cycling", "dancing", "fishing", "football", "gardening", "hiking",
         "music", "painting", "reading", "sailing", "sewing", "skiing", "swimming", "tennis"),
        ("my hobby is {} .", "i spend my free time on {} ."),
        ("what do you do in your free time ?", "do you have a hobby ?", "what do you do for fun ?"),
        "is your hobby {} ?",
    ),
    "food": Topic(
        ("beans", "bread", "cake", "cheese", "chicken", "curry", "eggs", "fish", "noodles",
         "pasta", "pizza", "rice", "salad", "sausages", "soup", "steak"),
        ("my favorite food is {} .", "i love to eat {} ."),
        ("what do you like to eat ?", "what is your favorite food ?", "what should i cook ?"),
        "do you love to eat {} ?",
    ),
}  # fmt: skip
ANIMALS = ("cat", "dog", "goat", "hamster", "horse", "parrot", "rabbit", "snake")
RELATIVES = {
    "she": ("sister", "daughter", "niece", "grandma"),
    "he": ("brother", "son", "nephew", "grandpa"),
}
NAMES = {
    "she": (
        "bella",
        "daisy",
        "emma",
        "lily",
        "lucy",
        "maggie",
        "molly",
        "nora",
        "poppy",
        "rosie",
        "ruby",
        "stella",
    ),
    "he": (
        "bruno",
        "charlie",
        "felix",
        "henry",
        "jack",
        "leo",
        "louis",
        "max",
        "oscar",
        "sam",
        "toby",
        "walter",
    ),
}
"""Names of animals and people alike."""
POSSESSIVE = {"she": "her", "he": "his"}
GREETINGS = (
    ("hi ! how are you ?", ("i am fine , thanks .", "very well , thank you .")),
    ("hello ! nice to meet you .", ("nice to meet you too .", "hi ! nice to meet you .")),
    ("good morning !", ("good morning ! how are you ?", "hello !")),
)


CLOSINGS = (
    ("topic", 35), ("pronoun", 40), ("kind", 10), ("name", 7), ("animal", 4), ("family", 4),
)  # fmt: skip
TURNS = 5
"""Turns that the source keeps, the last ones."""


class Exchange(NamedTuple):
    """What the partner says, every good reply, what both are about, a combination if it has one."""

    asked: str
    replies: tuple[str, ...]
    about: str
    combination: tuple[str, ...] = ()


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
    """The facts about a speaker."""

    facts: dict[str, str]
    """Topic to value."""
    beings: tuple[Being, ...]
    """An animal, a relative, or both, or two relatives; often of one pronoun."""

    @property
    def relatives(self) -> tuple[Being, ...]:
        """The beings that are relatives."""
        return tuple(being for being in self.beings if being.job)

    @property
    def animals(self) -> tuple[Being, ...]:
        """The beings that are animals."""
        return tuple(being for being in self.beings if not being.job)


class Conversation(NamedTuple):
    """A row and the combinations that it uses."""

    row: Row
    combinations: tuple[tuple[str, ...], ...]


class ConversationWriter:
    """Makes the conversations of one split, from combinations that this split owns."""

    def __init__(self, split: str, draw: Draw) -> None:
        self._split, self._draw = split, draw
        facts = [(name, value) for name, topic in TOPICS.items() for value in topic.values]
        self._selves = [
            (one, two)
            for one, two in combinations(facts, 2)
            if one[0] != two[0] and self._free("self", *one, *two)
        ]
        animals = [
            Being(kind, name, pronoun)
            for pronoun, names in NAMES.items()
            for kind in ANIMALS
            for name in names
        ]
        relatives = [
            Being(kind, name, pronoun, job)
            for pronoun, names in NAMES.items()
            for kind in RELATIVES[pronoun]
            for name in names
            for job in TOPICS["job"].values
        ]
        self._animals = [being for being in animals if self._owned(being)]
        self._relatives = [being for being in relatives if self._owned(being)]

    def _free(self, *combination: str) -> bool:
        """True when the split owns the combination."""
        return share("dialogue", *combination) == self._split

    def _owned(self, being: Being) -> bool:
        """True when the split owns the combinations of an animal or relative."""
        return all(self._free(*combination) for combination in being.combinations)

    def _persona(self) -> Persona:
        """Two facts about the speaker, and one or two beings."""
        facts = self._draw.one(self._selves)
        one = self._draw.one(self._animals if self._draw.chance(0.4) else self._relatives)
        others = [
            other
            for other in self._relatives
            if other.kind != one.kind and other.name != one.name and other.job != one.job
        ]
        two = (self._draw.one(others),) if self._draw.chance(0.6) else ()
        return Persona(dict(facts), (one, *two))

    def _told(self, persona: Persona) -> str:
        """The persona in sentences, in random order."""
        told = [
            self._draw.one(TOPICS[topic].wordings).format(value)
            for topic, value in persona.facts.items()
        ]
        for being in persona.beings:
            if being.job:
                wordings = (
                    f"my {being.kind} {being.name} is a {being.job} .",
                    f"my {being.kind} is called {being.name} . {being.pronoun} is a {being.job} .",
                )
            else:
                wordings = (
                    f"i have a {being.kind} called {being.name} .",
                    f"my {being.kind} is called {being.name} .",
                )
            told.append(self._draw.one(wordings))
        return " ".join(self._draw.several(told, len(told)))

    def _topic(self, persona: Persona) -> Exchange | None:
        """A question about the speaker, or a remark that returns the question.

        Nothing when the split owns no way to ask for any of the facts.
        """
        owned = [
            ("asked", name, key, value)
            for name, value in persona.facts.items()
            for key in (*TOPICS[name].questions, "and you", "check")
            if self._free("asked", name, key, value)
        ]
        if not owned:
            return None
        chosen = self._draw.one(owned)
        _, name, key, value = chosen
        topic = TOPICS[name]
        replies = tuple(wording.format(value) for wording in topic.wordings)
        other = self._draw.one([one for one in topic.values if one != value])
        if key == "and you":
            remark = self._draw.one(topic.wordings).format(other)
            back = self._draw.one(("and you ?", "what about you ?"))
            return Exchange(f"{remark} {back}", replies, name, chosen)
        if key != "check":
            return Exchange(key, replies, name, chosen)
        guess, answer = self._draw.one(((value, "yes"), (other, "no")))
        answers = tuple(f"{answer} , {reply}" for reply in replies)
        return Exchange(topic.check.format(guess), answers, name, chosen)

    def _animal(self, persona: Persona) -> Exchange:
        """The question whether there is an animal."""
        other = self._draw.one(ANIMALS)
        asked = self._draw.one(("do you have a pet ?", f"do you have a {other} ?"))
        if not persona.animals:
            replies: tuple[str, ...] = ("no , i have no pet .", "no , i do not have a pet .")
            return Exchange(asked, replies, "animal")
        kind = persona.animals[0].kind
        right = "pet" in asked or other == kind
        return Exchange(asked, (f"{'yes ,' if right else 'no , but'} i have a {kind} .",), "animal")

    def _family(self, persona: Persona) -> Exchange:
        """The question for relatives."""
        asked = self._draw.one(("do you have a family ?", "tell me about your family ."))
        kinds = [relative.kind for relative in persona.relatives]
        if not kinds:
            return Exchange(asked, ("i have no family .", "i do not have a family ."), "family")
        orders = (kinds, kinds[::-1])[: len(kinds)]
        replies = tuple(f"i have a {' and a '.join(order)} ." for order in orders)
        return Exchange(asked, replies, "family")

    def _relative(self, being: Being) -> Exchange:
        """The question for one relative."""
        return Exchange(
            f"do you have a {being.kind} ?", (f"yes , i have a {being.kind} .",), "family"
        )

    def _about(self, being: Being, who: str, whose: str) -> Exchange:
        """A question for the name or the job of a being, called `who` and `whose`."""
        he, his = being.pronoun, POSSESSIVE[being.pronoun]
        if being.job and self._draw.chance(0.5):
            asked = self._draw.one((f"what does {who} do ?", f"and {whose} job ?"))
            jobs = (f"{he} is a {being.job} .", f"{he} works as a {being.job} .")
            return Exchange(asked, jobs, being.kind)
        asked = self._draw.one((f"what is {whose} name ?", f"and {whose} name ?"))
        names = (f"{his} name is {being.name} .", f"{he} is called {being.name} .")
        return Exchange(asked, names, being.kind)

    def _closing(self, persona: Persona) -> list[Exchange | None]:
        """The exchange that ends a conversation, after the one that it refers to."""
        kind = self._draw.weighted(CLOSINGS)
        being = self._draw.one(persona.beings)
        if kind == "topic":
            return [self._topic(persona)]
        if kind == "pronoun":
            mention = self._relative(being) if being.job else self._animal(persona)
            return [mention, self._about(being, being.pronoun, POSSESSIVE[being.pronoun])]
        if kind == "kind":
            return [self._about(being, f"your {being.kind}", f"your {being.kind} 's")]
        if kind == "name":
            answer = f"{being.name} is my {being.kind} ."
            return [Exchange(f"who is {being.name} ?", (answer,), being.kind)]
        return [(self._animal if kind == "animal" else self._family)(persona)]

    def _talk(self, persona: Persona) -> list[Exchange] | None:
        """Exchanges in order, up to the one that the target answers; nothing if one is missing."""
        talk = self._closing(persona)
        if self._draw.chance(0.4):
            aside = self._draw.one((self._topic, self._animal, self._family))(persona)
            if aside and aside.about not in [exchange.about for exchange in talk if exchange]:
                talk = [aside, *talk]
        elif self._draw.chance(0.2):
            asked, replies = self._draw.one(GREETINGS)
            talk = [Exchange(asked, replies, "greeting"), *talk]
        made = [exchange for exchange in talk if exchange]
        return made if len(made) == len(talk) else None

    def conversation(self) -> Conversation:
        """A persona, a conversation so far, and the reply."""
        talk = None
        while talk is None:
            persona = self._persona()
            talk = self._talk(persona)
        turns = [talk[0].asked]
        for earlier, later in pairwise(talk):
            turns += [self._draw.one(earlier.replies), later.asked]
        source = self._told(persona) + PERSONA_END + TURN_END.join(turns[-TURNS:])
        replies = talk[-1].replies
        one, two = persona.facts.items()
        used: list[tuple[str, ...]] = [("self", *one, *two)]
        used += [exchange.combination for exchange in talk if exchange.combination]
        used += [combination for being in persona.beings for combination in being.combinations]
        return Conversation(Row(source, replies[0], replies), tuple(used))


def conversations(split: str, size: int, seed: int) -> Iterator[Conversation]:
    """`size` conversations of a split with the combinations that each uses."""
    writer = ConversationWriter(split, Draw(f"{VERSION}/{split}/{seed}"))
    for _ in range(size):
        yield writer.conversation()


def rows(split: str, size: int, seed: int) -> Iterator[Row]:
    """`size` rows of a split (train, valid or test); the same seed gives the same rows."""
    for conversation in conversations(split, size, seed):
        yield conversation.row
