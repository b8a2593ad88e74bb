"""Tests of the passages that are read with a question, in training and in question answering."""

import json
from pathlib import Path

import pytest

from attnkit.data.corpus import Corpus
from attnkit.data.questions import QuestionSet, training_row
from attnkit.data.rows import Row
from attnkit.errors import DataError
from attnkit.recipe.schema import DataConfig

ROWS = [Row(f"Where is {n}?", f"town{n}", (), (f"{n} is in town{n}.", f"other {n}"), 0) for n in range(12)]
PAIR = Row("Which?", "b", ("b",), ("first a", "then b"), None)


def test_passages_have_the_shares_of_the_data_section() -> None:
    def sources(split: str) -> list[str]:
        data = DataConfig(gold=0.5, other=0.3)
        return [training_row(ROWS[3], data, split, number).source for number in range(2000)]

    train = sources("train")
    kinds = ("3 is in town3. Where is 3?", "other 3 Where is 3?", "Where is 3?")
    shares = [train.count(kind) / len(train) for kind in kinds]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.04)
    assert sum(shares) == 1
    assert sources("train") == train != sources("valid")


def test_other_passage_never_contains_the_answer() -> None:
    row = Row("q", "Oslo", (), ("in Oslo", "OSLO, too", "elsewhere"), 0)
    sources = {training_row(row, DataConfig(gold=0, other=1), "train", n).source for n in range(50)}
    assert sources == {"elsewhere q"}


def test_question_without_gold_is_read_with_all_passages() -> None:
    assert training_row(PAIR, DataConfig(gold=1, other=0), "train", 0).source == "first a then b Which?"


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_only_one_of_the_contexts_has_the_answer(count: int) -> None:
    questions = QuestionSet(ROWS, 1)
    for number, row in enumerate(ROWS):
        contexts = questions.contexts(number, count)
        assert contexts is not None
        assert len(contexts) == len(set(contexts)) == count
        assert sum(row.target in text.rstrip(".").split() for text in contexts) == 1
        assert count < 2 or f"other {number}" in contexts  # those of the row come first


def test_contexts_include_those_of_smaller_counts_and_gold_has_no_fixed_place() -> None:
    questions = QuestionSet(ROWS, 1)
    places = set()
    for number, row in enumerate(ROWS):
        few, many = questions.contexts(number, 3), questions.contexts(number, 9)
        assert few is not None
        assert many is not None
        assert set(few) < set(many)
        places.add(many.index(row.contexts[0]))
    assert len(places) > 3


def test_contexts_that_are_needed_together_keep_their_order() -> None:
    questions = QuestionSet([PAIR, *ROWS], 1)
    assert questions.contexts(0, 1) == ("first a then b",)
    for count in (2, 4, 8):
        contexts = questions.contexts(0, count)
        assert contexts is not None
        assert [text for text in contexts if text in PAIR.contexts] == list(PAIR.contexts)
    three = PAIR._replace(contexts=("a", "b", "c"))
    assert QuestionSet([three, *ROWS], 1).contexts(0, 2) is None


def test_too_few_passages_give_none() -> None:
    assert QuestionSet(ROWS, 1).contexts(0, 20) is None
    with pytest.raises(DataError, match="no row has contexts"):
        QuestionSet([Row("q", "a")], 1)


GOOD = {"source": "q", "target": "a", "contexts": ["x a", "y"], "gold": 0, "references": ["a"]}


def corpus_of(folder: Path, *rows: dict[str, object]) -> Corpus:
    path = folder / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Corpus.open(DataConfig(test=str(path), gold=1, other=0), "question-answering")


def test_questions_have_all_contexts_and_rows_have_one(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, GOOD)
    assert corpus.questions("test", 2) == [Row("q", "a", ("a",), ("x a", "y"), 0)]
    assert [row.source for row in corpus.rows("test")] == ["x a q"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gold": 2}, r"q.jsonl:2: field 'gold' must be from 0 to 1, got 2"),
        ({"gold": -1}, "'gold' must be from 0 to 1, got -1"),
        ({"gold": "0"}, "'gold' must be an index, not a string"),
        ({"gold": True}, "'gold' must be an index, not true or false"),
        ({"gold": 0.0}, "'gold' must be an index, not a number"),
        ({"contexts": "x a"}, "'contexts' must be a list of strings, not a string"),
        ({"contexts": ["x", 3]}, r"'contexts\[1\]' must be a string, not a number"),
    ],
)
def test_malformed_questions_raise(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        corpus_of(tmp_path, GOOD, GOOD | change).questions("test", 2)


def test_generated_questions_have_any_number_of_contexts() -> None:
    corpus = Corpus.open(DataConfig(corpus="toy-passages", size=20), "question-answering")
    assert {len(row.contexts) for row in corpus.questions("test", 7)} == {7}
    other = Corpus.open(DataConfig(corpus="toy-passages", size=20, gold=0.1), "question-answering")
    assert corpus.fingerprint("train") != other.fingerprint("train")
