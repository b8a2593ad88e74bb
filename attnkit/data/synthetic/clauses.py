"""Phrases and clauses of the toy translation corpus, in English and in German."""

from typing import NamedTuple

from attnkit.data.synthetic import lexicon
from attnkit.data.synthetic.lexicon import Noun, Verb

Combination = tuple[str, ...]
"""A kind and its parts, such as (adjective, red, apple), which belongs to one split."""


def join(*parts: str | None) -> str:
    """Join the nonempty parts with spaces."""
    return " ".join(filter(None, parts))


def digits(value: int) -> tuple[Combination, ...]:
    """Return the combination of the last two digits of a number; none if they form one word (at most 20)."""
    return (("digits", str(value % 100)),) if value % 100 > 20 else ()


class Adverbial(NamedTuple):
    """An adverbial of time or place."""

    english: str
    german: str
    combinations: tuple[Combination, ...] = ()


class Phrase(NamedTuple):
    """A noun phrase; `article` is the, a or empty (then the noun is plural)."""

    noun: Noun
    article: str
    plural: bool = False
    adjective: str = ""
    counted: int = 0
    owner: Noun | None = None

    @property
    def gender(self) -> str:
        """Row of the tables of endings: m, f, n or pl."""
        return "pl" if self.plural else self.noun.gender

    @property
    def combinations(self) -> tuple[Combination, ...]:
        """Adjective with noun, and digits of the count."""
        described = ("adjective", self.adjective, self.noun.english)
        return (*((described,) if self.adjective else ()), *digits(self.counted))

    def english(self) -> str:
        noun = self.noun.plural if self.plural else self.noun.english
        rest = join(str(self.counted or ""), self.adjective, noun)
        if self.owner:
            return f"the {self.owner.english}'s {rest}"
        if self.article == "a" and rest[0] in "aeiou":
            return f"an {rest}"
        return f"{self.article} {rest}".strip()

    def german(self, case: str) -> str:
        words = [lexicon.number(self.counted)] if self.counted else []
        if self.article:
            words.append(lexicon.column(lexicon.ARTICLES, self.article, self.gender, case))
        if self.adjective:
            ending = lexicon.column(lexicon.ENDINGS, self.article, self.gender, case)
            words.append(lexicon.ADJECTIVES[self.adjective] + ending)
        plural = "pl-dat" if case == "dat" else "pl"
        words.append(self.noun.forms[plural if self.plural else case])
        if self.owner:
            words.append(Phrase(self.owner, "the").german("gen"))
        return " ".join(words)


class Clause(NamedTuple):
    """A clause: who does what, to whom, where and when.

    A part that a question asks for is None; `gap` is the part (subject or direct) that a relative pronoun replaces,
    which still decides agreement and case.
    """

    verb: Verb
    tense: str
    subject: Phrase | None
    direct: Phrase | None = None
    recipient: Phrase | None = None
    place: Adverbial | None = None
    time: Adverbial | None = None
    gap: str = ""

    @property
    def nouns(self) -> tuple[Noun, ...]:
        """Nouns of the subject and of the objects."""
        return tuple(part.noun for part in (self.subject, self.direct, self.recipient) if part)

    @property
    def plural(self) -> bool:
        return self.subject is not None and self.subject.plural

    @property
    def combinations(self) -> tuple[Combination, ...]:
        """Combinations of the parts, and the verb with its object (or its subject, if it takes no object)."""
        shown = (self.shown("subject"), self.shown("direct"), self.recipient, self.place, self.time)
        noun = self.subject if self.verb.kind == "alone" else self.direct
        governed = (("verb", self.verb.base, noun.noun.english),) if noun else ()
        return (*governed, *(combination for part in shown if part for combination in part.combinations))

    def shown(self, part: str) -> Phrase | None:
        """Return the subject or the direct object, or None if it is missing or replaced by a pronoun."""
        return None if self.gap == part else getattr(self, part)

    def english_rest(self) -> str:
        """Return the English words after the verb: objects, place, time."""
        direct = self.shown("direct")
        return join(
            direct and direct.english(),
            self.recipient and f"to {self.recipient.english()}",
            self.place and self.place.english,
            self.time and self.time.english,
        )

    def english_question(self) -> str:
        """Return the clause as an English question, without its question word."""
        subject = self.shown("subject")
        english = subject and subject.english()
        auxiliary = {"past": "did", "present": "do" if self.plural else "does", "future": "will"}
        return join(auxiliary[self.tense], english, self.verb.base, self.english_rest())

    def german(self, order: str) -> str:
        """Return the clause in German, with its finite verb second, first (after another part) or last."""
        verb, particle = self.verb, self.verb.particle
        if self.tense == "past":
            forms = {"haben": ("hat", "haben"), "sein": ("ist", "sind")}[verb.auxiliary]
            finite, rest = forms[self.plural], verb.participle
        elif self.tense == "future":
            finite, rest = ("wird", "werden")[self.plural], particle + verb.plural
        else:
            finite, rest = (verb.singular, verb.plural)[self.plural], particle
        # German word order: time, dative, place, accusative.
        phrase, direct = self.shown("subject"), self.shown("direct")
        subject, text = phrase and phrase.german("nom"), direct and direct.german(verb.case)
        place = self.place and self.place.german
        dative = self.recipient and self.recipient.german("dat")
        last = (text, place) if verb.case == "dat" else (place, text)
        middle = join(self.time and self.time.german, dative, *last)
        if order == "second":
            return join(subject, finite, middle, rest)
        if order == "first":
            return join(finite, subject, middle, rest)
        joined = rest + finite if self.tense == "present" else join(rest, finite)
        return join(subject, middle, joined)

    def english(self) -> str:
        subject = self.shown("subject")
        present = self.verb.base if self.plural else self.verb.third
        verb = {"past": self.verb.past, "present": present, "future": f"will {self.verb.base}"}
        return join(subject and subject.english(), verb[self.tense], self.english_rest())
