"""Words of the toy translation corpus: English and German forms, agreement, numbers.

The German is plain correct German of a small grammar: three genders, four cases, weak, mixed and
strong adjectives, separable verbs, verbs that govern the dative or take `sein`, and numbers with
the units before the tens.
"""

from typing import NamedTuple

CASES = ("nom", "acc", "dat", "gen")


class Noun(NamedTuple):
    """A noun with its forms; `gender` is m, f or n."""

    english: str
    plural: str
    gender: str
    forms: dict[str, str]
    """German forms by case, `nom` ... `gen`, and `pl`, `pl-dat`."""


class Verb(NamedTuple):
    """A verb; `kind` says what it takes, `case` the case of its direct object."""

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
    """Nouns of lines: english, plural, gender, nominative, oblique, genitive, plural, dative."""
    nouns = []
    for line in table.split("\n"):
        english, plural, gender, nominative, oblique, *rest = line.split()
        forms = (nominative, oblique, oblique, *rest)
        nouns.append(
            Noun(english, plural, gender, dict(zip((*CASES, "pl", "pl-dat"), forms, strict=True)))
        )
    return tuple(nouns)


def _verbs(table: str) -> dict[str, list[Verb]]:
    """Verbs by kind: kind, English forms / particle plural singular participle auxiliary case."""
    verbs: dict[str, list[Verb]] = {}
    for line in table.split("\n"):
        english, german = line.split(" / ")
        kind, *forms = (form.replace("_", " ") for form in english.split())
        particle, *rest = german.split()
        verb = Verb._make([kind, *forms, particle.strip("-"), *rest])
        verbs.setdefault(kind, []).append(verb)
    return verbs


PERSONS = _nouns("""\
king kings m König König Königs Könige Königen
doctor doctors m Arzt Arzt Arztes Ärzte Ärzten
baker bakers m Bäcker Bäcker Bäckers Bäcker Bäckern
farmer farmers m Bauer Bauern Bauern Bauern Bauern
prince princes m Prinz Prinzen Prinzen Prinzen Prinzen
brother brothers m Bruder Bruder Bruders Brüder Brüdern
uncle uncles m Onkel Onkel Onkels Onkel Onkeln
queen queens f Königin Königin Königin Königinnen Königinnen
woman women f Frau Frau Frau Frauen Frauen
sister sisters f Schwester Schwester Schwester Schwestern Schwestern
aunt aunts f Tante Tante Tante Tanten Tanten
nun nuns f Nonne Nonne Nonne Nonnen Nonnen
child children n Kind Kind Kindes Kinder Kindern
girl girls n Mädchen Mädchen Mädchens Mädchen Mädchen""")
KIN = tuple(
    noun for noun in PERSONS if noun.english in {"brother", "sister", "uncle", "aunt", "child"}
)
"""Persons that can belong to another person."""
THINGS = _nouns("""\
letter letters m Brief Brief Briefes Briefe Briefen
ring rings m Ring Ring Ringes Ringe Ringen
apple apples m Apfel Apfel Apfels Äpfel Äpfeln
hat hats m Hut Hut Hutes Hüte Hüten
key keys m Schlüssel Schlüssel Schlüssels Schlüssel Schlüsseln
flower flowers f Blume Blume Blume Blumen Blumen
lamp lamps f Lampe Lampe Lampe Lampen Lampen
clock clocks f Uhr Uhr Uhr Uhren Uhren
bag bags f Tasche Tasche Tasche Taschen Taschen
book books n Buch Buch Buches Bücher Büchern
picture pictures n Bild Bild Bildes Bilder Bildern
boat boats n Boot Boot Bootes Boote Booten
knife knives n Messer Messer Messers Messer Messern
egg eggs n Ei Ei Eies Eier Eiern""")
PLACES = _nouns("""\
garden gardens m Garten Garten Gartens Gärten Gärten
tower towers m Turm Turm Turmes Türme Türmen
church churches f Kirche Kirche Kirche Kirchen Kirchen
mill mills f Mühle Mühle Mühle Mühlen Mühlen
house houses n Haus Haus Hauses Häuser Häusern
castle castles n Schloss Schloss Schlosses Schlösser Schlössern""")

ADJECTIVES = {
    "old": "alt", "small": "klein", "big": "groß", "beautiful": "schön", "new": "neu",
    "red": "rot", "green": "grün", "white": "weiß", "young": "jung", "rich": "reich",
    "poor": "arm", "clever": "klug", "tired": "müd",
}  # fmt: skip
OF_PERSONS = ("old", "small", "big", "beautiful", "young", "rich", "poor", "clever", "tired")
OF_THINGS = ("old", "small", "big", "beautiful", "new", "red", "green", "white")

VERBS = _verbs("""\
thing buy buys bought / - kaufen kauft gekauft haben acc
thing sell sells sold / - verkaufen verkauft verkauft haben acc
thing find finds found / - finden findet gefunden haben acc
thing paint paints painted / - malen malt gemalt haben acc
thing steal steals stole / - stehlen stiehlt gestohlen haben acc
thing carry carries carried / - tragen trägt getragen haben acc
thing pick_up picks_up picked_up / auf heben hebt aufgehoben haben acc
thing bring_back brings_back brought_back / zurück bringen bringt zurückgebracht haben acc
person see sees saw / - sehen sieht gesehen haben acc
person visit visits visited / - besuchen besucht besucht haben acc
person love loves loved / - lieben liebt geliebt haben acc
person invite invites invited / ein laden lädt eingeladen haben acc
person help helps helped / - helfen hilft geholfen haben dat
person thank thanks thanked / - danken dankt gedankt haben dat
both give gives gave / - geben gibt gegeben haben acc
both show shows showed / - zeigen zeigt gezeigt haben acc
both send sends sent / - schicken schickt geschickt haben acc
alone sleep sleeps slept / - schlafen schläft geschlafen haben acc
alone laugh laughs laughed / - lachen lacht gelacht haben acc
alone work works worked / - arbeiten arbeitet gearbeitet haben acc
alone stay stays stayed / - bleiben bleibt geblieben sein acc
alone come_back comes_back came_back / zurück kommen kommt zurückgekommen sein acc
clause say says said / - sagen sagt gesagt haben acc
clause believe believes believed / - glauben glaubt geglaubt haben acc
clause know knows knew / - wissen weiß gewusst haben acc""")
"""Verbs by what they take: a thing, a person, a thing and a person who gets it (both), nothing
(alone), or a clause."""

ARTICLES = {
    "the": {"m": "der den dem des", "f": "die die der der", "n": "das das dem des",
            "pl": "die die den der"},
    "a": {"m": "ein einen einem eines", "f": "eine eine einer einer", "n": "ein ein einem eines"},
    "relative": {"m": "der den dem dessen", "f": "die die der deren", "n": "das das dem dessen",
                 "pl": "die die denen deren"},
}  # fmt: skip
ENDINGS = {
    "the": {"m": "e en en en", "f": "e e en en", "n": "e e en en", "pl": "en en en en"},
    "a": {"m": "er en en en", "f": "e e en en", "n": "es es en en"},
    "": {"pl": "e e en er"},
}
"""Adjective endings after `the`, after `a`, and without an article (strong plural)."""

MONTHS = {
    "January": ("Januar", 31), "February": ("Februar", 28), "March": ("März", 31),
    "April": ("April", 30), "May": ("Mai", 31), "June": ("Juni", 30), "July": ("Juli", 31),
    "August": ("August", 31), "September": ("September", 30), "October": ("Oktober", 31),
    "November": ("November", 30), "December": ("Dezember", 31),
}  # fmt: skip
"""German name and days of each month."""
_SMALL = {
    1: "ein", 2: "zwei", 3: "drei", 4: "vier", 5: "fünf", 6: "sechs", 7: "sieben", 8: "acht",
    9: "neun", 10: "zehn", 11: "elf", 12: "zwölf", 13: "dreizehn", 14: "vierzehn", 15: "fünfzehn",
    16: "sechzehn", 17: "siebzehn", 18: "achtzehn", 19: "neunzehn",
}  # fmt: skip
_TENS = {
    2: "zwanzig", 3: "dreißig", 4: "vierzig", 5: "fünfzig", 6: "sechzig", 7: "siebzig",
    8: "achtzig", 9: "neunzig",
}  # fmt: skip
_ORDINALS = {1: "ersten", 3: "dritten", 7: "siebten", 8: "achten"}


def column(table: dict[str, dict[str, str]], row: str, gender: str, case: str) -> str:
    """The form of a case in a table of forms, `gender` being m, f, n or pl."""
    return table[row][gender].split()[CASES.index(case)]


def number(value: int) -> str:
    """A count of 2 to 9999 in words, the units before the tens.

    347 -> dreihundertsiebenundvierzig.  Counts that end in 01 are not used: they inflect.
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
    """A day of the month in words, dative: 3 -> dritten, 21 -> einundzwanzigsten."""
    return _ORDINALS.get(day, number(day) + ("ten" if day < 20 else "sten"))


def year(value: int) -> str:
    """A year of 1100 to 1999 in words: 1985 -> neunzehnhundertfünfundachtzig."""
    rest = value % 100
    return number(value // 100) + "hundert" + (number(rest) if rest else "")
