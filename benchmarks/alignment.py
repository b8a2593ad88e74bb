"""Word alignments from the cross attention of a run on the embedded translation corpus, against gold alignments.

    python benchmarks/alignment.py RUN [--links FOLDER]

RUN was trained on toy-translation (runs/quickstart/scaled-dot/seed-1). The gold alignments follow from the lexicon
that generates the sentences: nouns, adjectives, verbs, numbers, adverbs and articles with exactly one counterpart are
sure links; auxiliaries, prepositions, pronouns and repeated words are only possible links. The head is chosen on 200
sentences of valid and scored on 300 of test. Writes results/alignment.md; --links keeps the texts and gold alignments.
"""

import csv
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from common import arguments, facts, output, publish, table

from attnkit.analysis.word_alignment import Gold
from attnkit.data.rows import Row
from attnkit.data.synthetic import lexicon, translation

ENDINGS = ("e", "en", "er", "es", "em")
UNINFLECTED = """
because weil; although obwohl; while w\u00e4hrend; when als wenn wann; why warum; where wo; what was; who wer wen wem;
yesterday gestern; today heute; tomorrow morgen; next n\u00e4chste; last letzte; every jeden; week Woche; day Tag;
in in im vor; behind hinter; front vor; of vor; on am; to
"""
"""English words without forms, each with its German words."""
LOOSE = {"in", "front", "of", "on", "who", "when"}
"""Uninflected words whose links are only possible."""
HELPING = {"hat", "haben", "ist", "sind", "wird", "werden"}
AUXILIARY = {"will", "did", "does", "do"}
ARTICLES = {form for table in lexicon.ARTICLES.values() for forms in table.values() for form in forms.split()}
NOUNS = (*lexicon.PERSONS, *lexicon.THINGS, *lexicon.PLACES)
VERBS = [verb for verbs in lexicon.VERBS.values() for verb in verbs]
VERB_FORMS = {form for verb in VERBS for form in (verb.plural, verb.singular, verb.participle)}


@cache
def meanings() -> dict[str, set[str]]:
    """Return the German forms that each English word can have."""
    german = {words[0]: set(words[1:]) for entry in UNINFLECTED.split(";") if (words := entry.split())}
    for noun in NOUNS:
        for word in (noun.english, f"{noun.english}'s", noun.plural):
            german.setdefault(word, set()).update(noun.forms.values())
    german |= {word: {stem + ending for ending in ENDINGS} for word, stem in lexicon.ADJECTIVES.items()}
    for verb in VERBS:
        forms = {verb.plural, verb.singular, verb.participle}
        forms |= {verb.particle + form for form in (verb.plural, verb.singular)}
        for english in (verb.base, verb.third, verb.past):
            word, _, particle = english.partition(" ")
            german.setdefault(word, set()).update(forms)
            if particle:
                german.setdefault(particle, set()).update(forms | {verb.particle})
    return german | {word: {month} for word, (month, _) in lexicon.MONTHS.items()}


def german_of(word: str) -> set[str]:
    """Return the German forms of an English word or a number."""
    if not word.isdigit():
        return meanings().get(word, set())
    value = int(word)
    forms = {lexicon.number(value)} if value > 1 else set()
    forms |= {lexicon.ordinal(value)} if value < 32 else set()
    return forms | ({lexicon.year(value)} if 1500 <= value < 2000 else set())


def links(row: Row) -> Gold:
    """Return sure links of words with one counterpart and of articles by their nouns, and possible links."""
    english, german = ([word.strip(".,?") for word in side.split()] for side in (row.source, row.target))
    english[0] = english[0] if english[0] in meanings() else english[0].lower()
    low = [german[0].lower(), *german[1:]]
    match = {
        (i, j) for i, word in enumerate(english) for j in range(len(german)) if german_of(word) & {german[j], low[j]}
    }
    sure = {
        (i, j)
        for i, j in match
        if sum(a == i for a, _ in match) == sum(b == j for _, b in match) == 1 and english[i] not in LOOSE
    }
    nouns = {i: j for i, j in sure if german[j][:1].isupper()}
    for i, word in enumerate(english):
        noun = next((k for k in range(i + 1, min(i + 4, len(english))) if k in nouns), None)
        if word in ("the", "a", "an") and noun is not None:
            before = [j for j in range(max(0, nouns[noun] - 3), nouns[noun]) if low[j] in ARTICLES]
            sure |= {(i, before[-1])} if before else set()
    english_verbs = [i for i, word in enumerate(english) if word in AUXILIARY or german_of(word) & VERB_FORMS]
    german_verbs = [j for j, word in enumerate(low) if word in HELPING | VERB_FORMS]
    possible = match | sure | {(i, j) for i in english_verbs for j in german_verbs}
    starts = [j + 1 for j, word in enumerate(row.target.split()[:-1]) if word.endswith(",")]
    possible |= {(i, j) for i, word in enumerate(english) if word in ("that", "who") for j in starts}
    possible |= {(i, j) for i, word in enumerate(english[:-1]) if word == "to" for a, j in sure if a == i + 1}
    return Gold(frozenset(sure), frozenset(possible))


def write(folder: Path, split: str, size: int) -> list[Path]:
    """Write the files split.en, split.de and split.links (Pharaoh format, possible links with ?)."""
    rows = list(translation.rows(split, size, 0))
    texts = {"en": [row.source for row in rows], "de": [row.target for row in rows], "links": []}
    for gold in map(links, rows):
        pairs = (f"{i}{'-' if (i, j) in gold.sure else '?'}{j}" for i, j in sorted(gold.possible))
        texts["links"].append(" ".join(pairs))
    for name, lines in texts.items():
        (folder / f"{split}.{name}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [folder / f"{split}.{name}" for name in texts]


def align(*words: object) -> Iterable[list[str]]:
    """Return head, step and scores of each row that `attnkit align` prints."""
    for row in csv.DictReader(output("align", *words, "--format", "csv").splitlines()):
        rates = [f"{float(row[name]):.1f}" for name in ("precision", "recall", "aer")]
        yield [row["layer"], row["head"], row["step"], *rates]


def main() -> None:
    options = arguments(__doc__, "run", links=Path)
    about = facts(options)
    header = "layer | head | step | precision | recall | AER"
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.links or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        valid, test = write(folder, "valid", 200), write(folder, "test", 300)
        scores = align(options.run, *valid[:2], "--gold", valid[2])
        body = ["valid, 200 sentences, argmax:", table(header, scores, 3)]
        chosen = []
        for method in ("argmax", "mutual", "threshold"):
            gold = ("--method", method, "--gold")
            layer, head, step, *_ = min(
                align(options.run, *valid[:2], *gold, valid[2]), key=lambda row: float(row[-1])
            )
            words = ["--layer", layer, "--step", step, *(["--head", head] if head != "mean" else [])]
            (row,) = align(options.run, *test[:2], *gold, test[2], *words)
            chosen.append([method, *row])
        body += ["test, 300 sentences, the head chosen on valid:", table(f"method | {header}", chosen, 4)]
    publish("alignment", "Word alignments from cross attention", about, body)


if __name__ == "__main__":
    main()
