"""The embedded corpus of translation: same bytes, unseen combinations, beyond a bag of words."""

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
import sacrebleu

from attnkit.data.draw import Draw, split_of
from attnkit.data.rows import Row
from attnkit.data.synthetic import lexicon, translation
from attnkit.data.synthetic.clauses import Clause, Phrase

DIGESTS = {"train": "1261e72bbc393e8d", "valid": "71fda2d3e32fac35", "test": "eeb03dcfbcb56396"}
FIRST = (
    "A brother invited the queens that the baker visited on 15 April 1830.",
    "Ein Bruder hat die Königinnen eingeladen, die der Bäcker am fünfzehnten April"
    " achtzehnhundertdreißig besucht hat.",
)
Combination = tuple[str, ...]


def with_combinations(split: str) -> list[tuple[Row, Sequence[Combination]]]:
    """The rows of a split in its usual size, each with the combinations that it uses."""
    sentences = translation.SentenceWriter(split, Draw(f"{translation.VERSION}/{split}/1"))
    rows = list[tuple[Row, Sequence[Combination]]]()
    for _ in range(translation.SIZES[split]):
        english, german, used = sentences.sentence()
        rows.append((Row(english, german), used))
    return rows


class Made(NamedTuple):
    """All splits of the corpus in their usual sizes."""

    splits: dict[str, list[tuple[Row, Sequence[Combination]]]]

    def rows(self, split: str) -> list[Row]:
        return [row for row, _ in self.splits[split]]


@pytest.fixture(scope="module")
def made() -> Made:
    return Made({split: with_combinations(split) for split in translation.SIZES})


def test_the_same_bytes_everywhere() -> None:
    """Golden values: a change of them needs a new VERSION, or stored results compare unlike text.

    They also hold the grammar: numbers, dates, cases, the places of verbs.

    Every run of the tests has other hash seeds, so sets and hashes cannot leak into the rows.
    """
    for split, digest in DIGESTS.items():
        rows = list(translation.rows(split, 100, 1))
        text = "\n".join("\t".join((row.source, row.target, *row.references)) for row in rows)
        assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest, split
        assert split != "train" or rows[0][:2] == FIRST


@pytest.mark.slow
def test_rows_do_not_depend_on_how_many_are_asked_for(made: Made) -> None:
    assert list(translation.rows("valid", 20, 1)) == made.rows("valid")[:20]


@pytest.mark.slow
def test_seed_and_split_change_the_rows(made: Made) -> None:
    drawn = [
        tuple(translation.rows(split, 20, seed)) for split in translation.SIZES for seed in (1, 2)
    ]
    assert len(set(drawn)) == 6


@pytest.mark.slow
def test_the_global_generator_is_left_alone(made: Made) -> None:
    before = random.getstate()
    list(translation.rows("train", 10, 1))
    assert random.getstate() == before


@pytest.mark.slow
def test_each_split_has_its_size_and_whole_lines_of_text(made: Made) -> None:
    for split, size in translation.SIZES.items():
        rows = made.rows(split)
        assert len(rows) == size
        for row in rows:
            for text in (row.source, row.target, *row.references):
                assert text
                assert text == " ".join(text.split())


@pytest.mark.slow
def test_a_source_has_one_answer(made: Made) -> None:
    answers = defaultdict(set)
    for split in made.splits:
        for row in made.rows(split):
            answers[row.source].add(row.references or (row.target,))
    assert all(len(found) == 1 for found in answers.values())


@pytest.mark.slow
def test_no_held_out_source_occurs_in_train(made: Made) -> None:
    train = {row.source for row in made.rows("train")}
    for split in ("valid", "test"):
        assert train.isdisjoint(row.source for row in made.rows(split))


@pytest.mark.slow
def test_no_combination_occurs_in_two_splits(made: Made) -> None:
    found = {
        split: {combination for _, used in rows for combination in used}
        for split, rows in made.splits.items()
    }
    assert found["train"].isdisjoint(found["valid"] | found["test"])
    assert found["valid"].isdisjoint(found["test"])


@pytest.mark.slow
def test_each_held_out_row_has_a_combination(made: Made) -> None:
    for split in ("valid", "test"):
        assert all(used for _, used in made.splits[split])


@pytest.mark.slow
def test_each_held_out_word_occurs_in_train(made: Made) -> None:
    """Only combinations are new: digits are words of their own here."""

    def words(rows: Sequence[Row]) -> set[str]:
        return {word for row in rows for word in re.findall(r"\d|[^\W\d]+", row.source)}

    assert words(made.rows("test")) | words(made.rows("valid")) <= words(made.rows("train"))


@pytest.mark.slow
def test_no_held_out_pair_stands_in_the_english_of_train() -> None:
    """Read from the text alone: adjective and noun, last two digits, day and month."""
    nouns = {
        form: noun.english
        for noun in lexicon.PERSONS + lexicon.THINGS + lexicon.PLACES
        for form in (noun.english, noun.plural)
    }

    def pairs(split: str) -> Iterator[Combination]:
        for row in translation.rows(split, translation.SIZES[split], 1):
            words = re.findall(r"\w+", row.source)
            for one, two in zip(words, words[1:], strict=False):
                if one in lexicon.ADJECTIVES and two in nouns:
                    yield "adjective", one, nouns[two]
                if two in lexicon.MONTHS:
                    yield "date", one, two
            for number in re.findall(r"\d\d+(?! [A-Z])", row.source):
                if int(number) % 100 > 20:
                    yield "digits", number[-2:]

    train, test = set(pairs("train")), set(pairs("test"))
    assert train.isdisjoint(test)
    assert {kind for kind, *_ in test} == {"adjective", "date", "digits"}


@pytest.mark.slow
def test_the_same_bag_of_words_has_several_translations() -> None:
    """The Markov chain of order zero, and any other model that ignores order, must fail."""
    bags = defaultdict(dict)
    for row in translation.rows("train", 16000, 1):
        bags[tuple(sorted(re.findall(r"\w+", row.source.lower())))][row.target] = row.source
    twins = [sorted(bag) for bag in bags.values() if len(bag) > 1]
    assert len(twins) >= 5
    noun = {one.english: one for one in lexicon.PERSONS}
    king, queen = Phrase(noun["king"], "the"), Phrase(noun["queen"], "the")
    see = lexicon.VERBS["person"][0]
    clause, other = Clause(see, "present", king, queen), Clause(see, "present", queen, king)
    assert sorted(clause.english().split()) == sorted(other.english().split())
    assert clause.german("second") == "der König sieht die Königin"
    assert other.german("second") == "die Königin sieht den König"


def word_by_word(rows: Sequence[Row]) -> dict[str, str]:
    """For each source word its likeliest target word, by IBM model 1 (Brown et al. 1993)."""
    pairs = [(row.source.split(), row.target.split()) for row in rows]
    table: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for _ in range(4):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        totals: dict[str, float] = defaultdict(float)
        for source, target in pairs:
            for theirs in target:
                norm = sum(table[ours, theirs] for ours in source)
                for ours in source:
                    part = table[ours, theirs] / norm
                    counts[ours, theirs] += part
                    totals[ours] += part
        table = defaultdict(float, {key: n / totals[key[0]] for key, n in counts.items()})
    best: dict[str, str] = {}
    for (ours, theirs), _ in sorted(table.items(), key=lambda item: item[1]):
        best[ours] = theirs
    return best


@pytest.mark.slow
def test_translating_word_by_word_scores_low() -> None:
    best = word_by_word(list(translation.rows("train", 3000, 1)))
    test = list(translation.rows("test", 300, 1))
    guesses = [" ".join(best.get(word, word) for word in row.source.split()) for row in test]
    assert sacrebleu.corpus_bleu(guesses, [[row.target for row in test]]).score < 25


def test_draws_stay_in_range_and_reach_both_ends() -> None:
    draw = Draw("test")
    assert {draw.randint(2, 4) for _ in range(100)} == {2, 3, 4}
    assert {draw.choice("ab") for _ in range(50)} == {"a", "b"}


def test_several_draws_each_item_once() -> None:
    draw = Draw("test")
    assert sorted(draw.sample("abcde", 5)) == list("abcde")
    assert len(set(draw.sample("abcde", 3))) == 3
    assert len({tuple(draw.sample("abc", 3)) for _ in range(200)}) == 6


def test_weights_decide_how_often_an_item_is_drawn() -> None:
    draw = Draw("test")
    counts = Counter(draw.weighted_choice((("often", 3), ("seldom", 1))) for _ in range(4000))
    assert 0.70 < counts["often"] / 4000 < 0.80  # 0.75 +- 7 standard deviations


def test_combinations_are_shared_out_once_and_for_all() -> None:
    """The hash is part of the corpora: 70, 10 and 20 percent."""
    counts = Counter(split_of("test", str(number)) for number in range(10000))
    assert 0.67 < counts["train"] / 10000 < 0.73
    assert 0.18 < counts["test"] / 10000 < 0.22
