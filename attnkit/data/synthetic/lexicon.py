"""Lexicon of the toy translation corpus: English and German forms, agreement, numbers.

The German is correct German of a small grammar: three genders, four cases, weak, mixed and strong adjectives,
separable verbs, verbs that govern the dative or take `sein`, and numbers with the units before the tens.
"""

from typing import NamedTuple

from attnkit.data.synthetic import word_tables

CASES = ("nom", "acc", "dat", "gen")
FORMS = (*CASES, "pl", "pl-dat")


class Noun(NamedTuple):
    """A noun with its forms; `gender` is m, f or n."""

    english: str
    plural: str
    gender: str
    forms: dict[str, str]
    """German forms by case, `nom` to `gen`, and by `pl` and `pl-dat`."""


class Verb(NamedTuple):
    """A verb; `kind` names the objects it takes, `case` is the case of its direct object."""

    kind: str
    base: str
    third: str
    past: str
    particle: str
    plural: str
    singular: str
    participle: str
    auxiliary: str
    case: str


def _nouns(table: str) -> tuple[Noun, ...]:
    """Parse lines of nouns: english, plural, gender, nominative, oblique, genitive, plural, dative plural."""
    return tuple(
        Noun(english, plural, gender, dict(zip(FORMS, (nom, oblique, oblique, *rest), strict=True)))
        for english, plural, gender, nom, oblique, *rest in map(str.split, table.split("\n"))
    )


def _verbs(table: str) -> dict[str, list[Verb]]:
    """Parse lines of verbs, by kind: kind, English forms / particle plural singular participle auxiliary case."""
    verbs: dict[str, list[Verb]] = {}
    for line in table.split("\n"):
        english, german = line.split(" / ")
        kind, *forms = (form.replace("_", " ") for form in english.split())
        particle, *rest = german.split()
        verb = Verb._make([kind, *forms, particle.strip("-"), *rest])
        verbs.setdefault(kind, []).append(verb)
    return verbs


WORDS = word_tables("translation")
PERSONS, THINGS, PLACES = (_nouns(WORDS[name]) for name in ("persons", "things", "places"))
KIN = tuple(noun for noun in PERSONS if noun.english in WORDS["kin"])
"""Persons that can belong to another person."""
ADJECTIVES: dict[str, str] = WORDS["adjectives"]
OF_PERSONS: list[str] = WORDS["of_persons"]
OF_THINGS: list[str] = WORDS["of_things"]
VERBS = _verbs(WORDS["verbs"])
"""Verbs by the objects they take: a thing, a person, a thing and a person who gets it (both), none (alone), or a
clause."""
ARTICLES: dict[str, dict[str, str]] = WORDS["articles"]
ENDINGS: dict[str, dict[str, str]] = WORDS["endings"]
"""Adjective endings after `the`, after `a`, and without an article (strong plural)."""
MONTHS: dict[str, tuple[str, int]] = WORDS["months"]
"""German name and number of days of each month."""
_SMALL: dict[int, str] = WORDS["small"]
_TENS: dict[int, str] = WORDS["tens"]
_ORDINALS: dict[int, str] = WORDS["ordinals"]


def column(table: dict[str, dict[str, str]], row: str, gender: str, case: str) -> str:
    """Return the form of a case in a table of forms; `gender` is m, f, n or pl."""
    return table[row][gender].split()[CASES.index(case)]


def number(value: int) -> str:
    """Return a count of 2 to 9999 in words, units before tens: 347 -> dreihundertsiebenundvierzig.

    Counts that end in 01 are not used, because they inflect.
    """
    if value >= 1000:
        return _SMALL[value // 1000] + "tausend" + (number(value % 1000) if value % 1000 else "")
    if value >= 100:
        return _SMALL[value // 100] + "hundert" + (number(value % 100) if value % 100 else "")
    if value < 20:
        return _SMALL[value]
    units = _SMALL[value % 10] + "und" if value % 10 else ""
    return units + _TENS[value // 10]


def ordinal(day: int) -> str:
    """Return a day of the month as an ordinal in the dative: 3 -> dritten, 21 -> einundzwanzigsten."""
    return _ORDINALS.get(day, number(day) + ("ten" if day < 20 else "sten"))


def year(value: int) -> str:
    """Return a year of 1100 to 1999 in words: 1985 -> neunzehnhundertfünfundachtzig."""
    rest = value % 100
    return number(value // 100) + "hundert" + (number(rest) if rest else "")
