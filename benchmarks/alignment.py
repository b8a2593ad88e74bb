"""How well cross attention aligns the words of the embedded translation corpus.

    python benchmarks/alignment.py RUN [--links FOLDER]

RUN was trained on toy-translation (such as runs/quickstart/scaled-dot/seed-1).  The gold comes
from the lexicon that makes the sentences: nouns, adjectives, verbs, numbers, adverbs and articles
with one counterpart are sure links, auxiliaries, prepositions, pronouns and repeated words only
possible ones.  The head is chosen on 200 sentences of valid and scored on 300 of test.  Writes
results/alignment.md; --links keeps the texts and gold alignments.
"""

import argparse
import csv
import io
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from common import attnkit, command, environment, load_before, publish, say, table, versions

from attnkit.analysis.word_alignment import Gold
from attnkit.data.rows import Row
from attnkit.data.synthetic import lexicon, translation

ENDINGS = ("e", "en", "er", "es", "em")
SMALL = {
    "because": "weil",
    "although": "obwohl",
    "while": "w\u00e4hrend",
    "when": "als wenn wann",
    "why": "warum",
    "where": "wo",
    "what": "was",
    "who": "wer wen wem",
    "yesterday": "gestern",
    "today": "heute",
    "tomorrow": "morgen",
    "next": "n\u00e4chste",
    "last": "letzte",
    "every": "jeden",
    "week": "Woche",
    "day": "Tag",
    "in": "in im vor",
    "behind": "hinter",
    "front": "vor",
    "of": "vor",
    "on": "am",
    "to": "",
}
"""Words without forms."""
LOOSE = {"in", "front", "of", "on", "who", "when"}
"""Those of them whose links are only possible."""
HELPING = {"hat", "haben", "ist", "sind", "wird", "werden"}
AUXILIARY = {"will", "did", "does", "do"}
ARTICLES = {form for table in lexicon.ARTICLES.values() for forms in table.values() for form in forms.split()}
SIZES = (200, 300)
"""Sentences of valid and of test."""
NOUNS = (*lexicon.PERSONS, *lexicon.THINGS, *lexicon.PLACES)
VERBS = [verb for verbs in lexicon.VERBS.values() for verb in verbs]


@cache
def meanings() -> dict[str, set[str]]:
    """What each English word can be in German."""
    out: dict[str, set[str]] = {word: set(forms.split()) for word, forms in SMALL.items()}
    for noun in NOUNS:
        for word in (noun.english, f"{noun.english}'s", noun.plural):
            out.setdefault(word, set()).update(noun.forms.values())
    for word, stem in lexicon.ADJECTIVES.items():
        out[word] = {stem + ending for ending in ENDINGS}
    for verb in VERBS:
        forms = {verb.plural, verb.singular, verb.participle}
        forms |= {verb.particle + form for form in (verb.plural, verb.singular)}
        for english in (verb.base, verb.third, verb.past):
            word, _, behind = english.partition(" ")
            out.setdefault(word, set()).update(forms)
            if behind:
                out.setdefault(behind, set()).update(forms | {verb.particle})
    for word, (month, _) in lexicon.MONTHS.items():
        out[word] = {month}
    return out


def german_of(word: str) -> set[str]:
    """What an English word, or a number, can be in German."""
    if word.isdigit():
        value = int(word)
        known = {lexicon.number(value)} if value > 1 else set()
        known |= {lexicon.ordinal(value)} if value < 32 else set()
        return known | ({lexicon.year(value)} if 1500 <= value < 2000 else set())
    return meanings().get(word, set())


def links(row: Row) -> Gold:
    """Sure links of words with one counterpart, and of articles by their nouns; else possible."""
    english, german = ([word.strip(".,?") for word in side.split()] for side in (row.source, row.target))
    english[0] = english[0] if english[0] in meanings() else english[0].lower()
    german[0] = german[0] if german[0][:1].isdigit() else german[0]
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
    verbs = [form for verb in VERBS for form in (verb.plural, verb.singular, verb.participle)]
    ours = [i for i, w in enumerate(english) if w in AUXILIARY or german_of(w) & set(verbs)]
    theirs = [j for j, w in enumerate(low) if w in HELPING or w in verbs]
    possible = match | sure | {(i, j) for i in ours for j in theirs}
    starts = [j + 1 for j, word in enumerate(row.target.split()[:-1]) if word.endswith(",")]
    possible |= {(i, j) for i, w in enumerate(english) if w in ("that", "who") for j in starts}
    possible |= {(i, j) for i, w in enumerate(english[:-1]) if w == "to" for a, j in sure if a == i + 1}
    return Gold(frozenset(sure), frozenset(possible))


def rows(split: str, size: int) -> Iterator[tuple[Row, Gold]]:
    """Rows of a split that training does not see, with their gold."""
    for row in translation.rows(split, size, 0):
        yield row, links(row)


def line(gold: Gold) -> str:
    """Gold in Pharaoh format, possible links with ?."""
    return " ".join(f"{i}{'-' if (i, j) in gold.sure else '?'}{j}" for i, j in sorted(gold.possible))


def write(folder: Path, split: str, size: int) -> list[Path]:
    """The files split.en, split.de and split.links."""
    made = list(rows(split, size))
    texts = {
        "en": [row.source for row, _ in made],
        "de": [row.target for row, _ in made],
        "links": [line(gold) for _, gold in made],
    }
    paths = [folder / f"{split}.{name}" for name in texts]
    for path, lines in zip(paths, texts.values(), strict=True):
        path.write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")
    return paths


def scores(run: str, *words: str | Path) -> list[dict[str, str]]:
    """The rows that `attnkit align` prints."""
    done = subprocess.run(
        attnkit("align", run, *words, "--format", "csv"),
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return list(csv.DictReader(io.StringIO(done.stdout)))


def cells(row: dict[str, str]) -> list[str]:
    """Head, step and rates of one row."""
    rates = [f"{float(row[name]):.1f}" for name in ("precision", "recall", "aer")]
    return [row["layer"], row["head"], row["step"], *rates]


def main() -> None:
    """Write the gold, choose on valid, score on test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--links", type=Path)
    options = parser.parse_args()
    before = load_before()
    head = ["layer", "head", "step", "precision", "recall", "AER"]
    with tempfile.TemporaryDirectory() as empty:
        folder = options.links or Path(empty)
        folder.mkdir(parents=True, exist_ok=True)
        valid, test = write(folder, "valid", SIZES[0]), write(folder, "test", SIZES[1])
        say("valid: all layers and heads")
        body = [f"valid, {SIZES[0]} sentences, argmax:", ""]
        found = scores(options.run, *valid[:2], "--gold", valid[2])
        body += table(head, map(cells, found), 3)
        body += ["", f"test, {SIZES[1]} sentences, the head chosen on valid:", ""]
        chosen = []
        for method in ("argmax", "mutual", "threshold"):
            say(f"test: {method}")
            given = (*test[:2], "--gold", test[2], "--dev", *valid, "--method", method)
            (row,) = scores(options.run, *given)
            chosen.append([method, *cells(row)])
        body += table(["method", *head], chosen, 4)
    facts = {
        "command": command(options, run="runs/quickstart/scaled-dot/seed-1"),
        "versions": versions("attnkit", "torch"),
        "load": before,
    }
    publish("alignment", "Word alignments from cross attention", facts, body)


if __name__ == "__main__":
    main()
