"""toy-translation: English to German in a small grammar.

A sentence has one correct translation, but the translation of a word depends on its context: its role decides the
case, gender and number decide articles and adjectives, the clause decides the position of the verb and whether it
splits, `when` depends on the tense, and a number swaps its last two digits.  Valid and test use only combinations
(adjective and noun, verb and object, last two digits, day and month) that train never contains; see `draw.split_of`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from attnkit.data.draw import Draw, split_of
from attnkit.data.rows import Row
from attnkit.data.synthetic import lexicon
from attnkit.data.synthetic.clauses import Adverbial, Clause, Combination, Phrase, digits
from attnkit.data.synthetic.lexicon import Noun, Verb

VERSION = 1
SIZES = {"train": 16000, "valid": 400, "test": 600}

PREPOSITIONS = (("in", "in"), ("behind", "hinter"), ("in front of", "vor"))
TIMES = {
    "past": (Adverbial("yesterday", "gestern"), Adverbial("last week", "letzte Woche")),
    "present": (Adverbial("today", "heute"), Adverbial("every day", "jeden Tag")),
    "future": (Adverbial("tomorrow", "morgen"), Adverbial("next week", "nächste Woche")),
}
CONJUNCTIONS = {"because": "weil", "although": "obwohl", "while": "während", "when": "wenn"}
TENSES = (("past", 45), ("present", 35), ("future", 20))
KINDS = (("thing", 45), ("person", 25), ("both", 15), ("alone", 15))
SIMPLE_KINDS = KINDS[:2]
ARTICLES = ((("the", False), 45), (("a", False), 25), (("the", True), 30))
COUNTS = (((2, 20), 20), ((21, 99), 35), ((100, 999), 30), ((1000, 9999), 15))


class Sentence(NamedTuple):
    """A sentence pair and the combinations that it uses."""

    english: str
    german: str
    combinations: tuple[Combination, ...]


class SentenceWriter:
    """Writer of the sentences of one split, from combinations that only this split uses."""

    def __init__(self, split: str, draw: Draw) -> None:
        self._split, self._draw = split, draw

    def _owns(self, *combination: str) -> bool:
        return split_of("translation", *combination) == self._split

    def _adjective(self, noun: Noun, probability: float) -> str:
        """Return an adjective that may go with the noun, or ""."""
        if not self._draw.chance(probability):
            return ""
        words = lexicon.OF_PERSONS if noun in lexicon.PERSONS else lexicon.OF_THINGS
        allowed = [word for word in words if self._owns("adjective", word, noun.english)]
        return self._draw.choice(allowed) if allowed else ""

    def _verb(self, kind: str, noun: Noun) -> Verb | None:
        """Return a verb of a kind that may go with the noun, or None."""
        verbs = lexicon.VERBS[kind]
        allowed = [verb for verb in verbs if self._owns("verb", verb.base, noun.english)]
        return self._draw.choice(allowed) if allowed else None

    def _number(self, low: int, high: int) -> int:
        """Return a number not ending in 01 whose last two digits are below 21 or belong to the split."""
        value = self._draw.randint(low, high)
        while not all(self._owns(*combination) for combination in digits(value)):
            value += self._draw.randint(21, 99) - value % 100
        return value + 1 if value % 100 == 1 else value

    def _person(self, noun: Noun) -> Phrase:
        if noun in lexicon.KIN and self._draw.chance(0.2):
            owner = self._draw.choice([person for person in lexicon.PERSONS if person not in lexicon.KIN])
            return Phrase(noun, "the", False, self._adjective(noun, 0.3), owner=owner)
        article, plural = self._draw.weighted_choice(ARTICLES)
        return Phrase(noun, article, plural, self._adjective(noun, 0.4))

    def _thing(self, noun: Noun) -> Phrase:
        if self._draw.chance(0.25):
            count = self._number(*self._draw.weighted_choice(COUNTS))
            return Phrase(noun, "", True, self._adjective(noun, 0.3), count)
        if self._draw.chance(0.2):
            owner = self._draw.choice(lexicon.PERSONS)
            plural = self._draw.chance(0.4)
            return Phrase(noun, "the", plural, self._adjective(noun, 0.3), owner=owner)
        article, plural = self._draw.weighted_choice((*ARTICLES, (("", True), 15)))
        return Phrase(noun, article, plural, self._adjective(noun, 0.4))

    def _place(self) -> Adverbial:
        """Return an adverbial of place: a preposition and a place, with `in dem` contracted."""
        noun = self._draw.choice(lexicon.PLACES)
        english, preposition = self._draw.choice(PREPOSITIONS)
        article = self._draw.weighted_choice((("the", 3), ("a", 1)))
        phrase = Phrase(noun, article, False, self._adjective(noun, 0.3))
        german = f"{preposition} {phrase.german('dat')}".replace("in dem ", "im ")
        return Adverbial(f"{english} {phrase.english()}", german, phrase.combinations)

    def _time(self, tense: str) -> Adverbial:
        """Return an adverbial of time that fits the tense, or a date."""
        words = self._draw.choice(TIMES[tense])
        if tense == "present" or self._draw.chance(0.6):
            return words
        day = self._draw.randint(1, 31)
        allowed = [
            month for month, (_, days) in lexicon.MONTHS.items() if day <= days and self._owns("date", str(day), month)
        ]
        if not allowed:
            return words
        month = self._draw.choice(allowed)
        english, used = f"on {day} {month}", ("date", str(day), month)
        german = f"am {lexicon.ordinal(day)} {lexicon.MONTHS[month][0]}"
        if tense == "future":
            return Adverbial(english, german, (used,))
        year = self._number(1500, 1999)
        german = f"{german} {lexicon.year(year)}"
        return Adverbial(f"{english} {year}", german, (used, *digits(year)))

    def _clause(
        self,
        tense: str,
        *,
        kinds: Sequence[tuple[str, int]] = KINDS,
        extras: bool = True,
        beside: Clause | None = None,
    ) -> Clause:
        """Return a clause; `extras` are time and place; none of its nouns is in the clause `beside`."""
        kind = self._draw.weighted_choice(kinds)
        taken = beside.nouns if beside else ()
        nouns = lexicon.THINGS if kind in ("thing", "both") else lexicon.PERSONS
        noun = self._draw.choice([candidate for candidate in nouns if candidate not in taken])
        verb = self._verb(kind, noun)
        if verb is None:
            return self._clause(tense, kinds=kinds, extras=extras, beside=beside)
        others = [candidate for candidate in lexicon.PERSONS if candidate not in (noun, *taken)]
        who, whom = self._draw.sample(others, 2)
        subject = self._person(noun if kind == "alone" else who)
        direct = None
        if kind != "alone":
            direct = self._person(noun) if kind == "person" else self._thing(noun)
        recipient = self._person(whom) if kind == "both" else None
        place = self._place() if extras and self._draw.chance(0.25) else None
        time = self._time(tense) if extras and self._draw.chance(0.35) else None
        return Clause(verb, tense, subject, direct, recipient, place, time)

    def _statement(self) -> Sentence:
        """Return a main clause; after an initial time, the German verb comes before the subject."""
        clause = self._clause(self._draw.weighted_choice(TENSES))
        used, time = clause.combinations, clause.time
        if time and self._draw.chance(0.5):
            rest = clause._replace(time=None)
            english, german = f"{time.english} {rest.english()}.", rest.german("first")
            return Sentence(english, f"{time.german} {german}.", used)
        return Sentence(f"{clause.english()}.", f"{clause.german('second')}.", used)

    def _question(self) -> Sentence:
        clause = self._clause(self._draw.weighted_choice(TENSES))
        german = clause.german("first")
        return Sentence(f"{clause.english_question()}?", f"{german}?", clause.combinations)

    def _open_question(self) -> Sentence:
        clause = self._clause(self._draw.weighted_choice(TENSES))
        if not clause.plural and self._draw.chance(0.2):
            rest = clause._replace(subject=None)
            english, german = f"who {rest.english()}?", f"wer {rest.german('first')}?"
            return Sentence(english, german, rest.combinations)
        questions = [("why", "warum", clause)]
        if not clause.place:
            questions.append(("where", "wo", clause))
        if not clause.time:
            questions.append(("when", "wann", clause))
        if clause.verb.kind == "person":
            who = {"acc": "wen", "dat": "wem"}[clause.verb.case]
            questions.append(("who", who, clause._replace(direct=None)))
        elif clause.direct:
            questions.append(("what", "was", clause._replace(direct=None)))
        question, frage, rest = self._draw.choice(questions)
        english = f"{question} {rest.english_question()}?"
        return Sentence(english, f"{frage} {rest.german('first')}?", rest.combinations)

    def _subordinate(self) -> Sentence:
        """Return two clauses and a conjunction, in either order."""
        conjunction = self._draw.choice(tuple(CONJUNCTIONS))
        tense, other = self._draw.weighted_choice(TENSES), self._draw.weighted_choice(TENSES)
        if conjunction in ("while", "when"):
            tense = other = self._draw.choice(("past", "present"))
        german = CONJUNCTIONS[conjunction]
        if conjunction == "when" and tense == "past":
            german = "als"
        main = self._clause(tense, extras=False)
        inner = self._clause(other, extras=False, beside=main)
        used = main.combinations + inner.combinations
        clause = f"{german} {inner.german('last')}"
        if self._draw.chance(0.5):
            english = f"{conjunction} {inner.english()}, {main.english()}."
            return Sentence(english, f"{clause}, {main.german('first')}.", used)
        english = f"{main.english()} {conjunction} {inner.english()}."
        return Sentence(english, f"{main.german('second')}, {clause}.", used)

    def _reported(self) -> Sentence:
        tense = self._draw.choice(("past", "present"))
        subject = self._person(self._draw.choice(lexicon.PERSONS))
        main = Clause(self._draw.choice(lexicon.VERBS["clause"]), tense, subject)
        later = "past" if tense == "past" else self._draw.weighted_choice(TENSES)
        inner = self._clause(later, beside=main)
        english = f"{main.english()} that {inner.english()}."
        german = f"{main.german('second')}, dass {inner.german('last')}."
        return Sentence(english, german, main.combinations + inner.combinations)

    def _relative(self) -> Sentence | None:
        """Return a main clause with a relative clause on its subject or, at the end, on its object."""
        tense = self._draw.choice(("past", "present"))
        on_subject = self._draw.chance(0.5)
        main = self._clause(tense, kinds=SIMPLE_KINDS, extras=on_subject)
        head = main.subject if on_subject else main.direct
        inner = head and self._described(head, main, extras=not on_subject)
        if not (head and inner):
            return None
        used = main.combinations + inner.combinations
        if not on_subject:
            english = f"{main.english()} {inner.english}."
            return Sentence(english, f"{main.german('second')}, {inner.german}.", used)
        rest = main._replace(gap="subject")
        english = f"{head.english()} {inner.english} {rest.english()}."
        german = f"{head.german('nom')}, {inner.german}, {rest.german('first')}."
        return Sentence(english, german, used)

    def _described(self, head: Phrase, main: Clause, *, extras: bool) -> Sentence | None:
        """Return a relative clause whose subject or direct object is the head, a part of `main`."""
        person = head.noun in lexicon.PERSONS
        clause = self._clause(main.tense, kinds=SIMPLE_KINDS, extras=extras, beside=main)
        if person and self._draw.chance(0.6):
            clause = clause._replace(subject=head, gap="subject")
            case, pronoun = "nom", "who"
        else:
            verb = self._verb("person" if person else "thing", head.noun)
            if verb is None:
                return None
            clause = clause._replace(verb=verb, direct=head, gap="direct")
            case, pronoun = verb.case, "that"
        german = lexicon.column(lexicon.ARTICLES, "relative", head.gender, case)
        english = f"{pronoun} {clause.english()}"
        return Sentence(english, f"{german} {clause.german('last')}", clause.combinations)

    def sentence(self) -> Sentence:
        """Return a sentence pair; outside train it has at least one combination."""
        kinds = (
            (self._statement, 40),
            (self._question, 12),
            (self._open_question, 14),
            (self._subordinate, 14),
            (self._reported, 8),
            (self._relative, 12),
        )
        while True:
            pair = self._draw.weighted_choice(kinds)()
            if pair and (pair.combinations or self._split == "train"):
                english, german = (side[0].upper() + side[1:] for side in pair[:2])
                return Sentence(english, german, pair.combinations)


def rows(split: str, size: int, seed: int) -> Iterator[Row]:
    """Yield `size` rows of a split (train, valid or test); the same seed gives the same rows."""
    writer = SentenceWriter(split, Draw(f"{VERSION}/{split}/{seed}"))
    for _ in range(size):
        english, german, _combinations = writer.sentence()
        yield Row(english, german)
