"""What training reads of a question, and with which passages it is asked."""

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


def test_passages_are_read_in_the_shares_that_the_data_section_asks_for() -> None:
    row, data = ROWS[3], DataConfig(gold=0.5, other=0.3)
    read = [training_row(row, data, "train", number).source for number in range(2000)]
    kinds = ("3 is in town3. Where is 3?", "other 3 Where is 3?", "Where is 3?")
    shares = [read.count(kind) / len(read) for kind in kinds]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.04)
    assert sum(shares) == 1
    again = [training_row(row, data, "train", number).source for number in range(2000)]
    assert read == again
    assert read != [training_row(row, data, "valid", number).source for number in range(2000)]


def test_a_passage_with_the_answer_is_no_other_passage() -> None:
    row = Row("q", "Oslo", (), ("in Oslo", "OSLO, too", "elsewhere"), 0)
    read = {training_row(row, DataConfig(gold=0, other=1), "train", n).source for n in range(50)}
    assert read == {"elsewhere q"}


def test_a_question_without_gold_is_read_with_all_it_has() -> None:
    assert training_row(PAIR, DataConfig(gold=1, other=0), "train", 0).source == "first a then b Which?"


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_the_right_passage_is_among_others_that_have_no_answer(count: int) -> None:
    asked = QuestionSet(ROWS, 1)
    for number, row in enumerate(ROWS):
        contexts = asked.contexts(number, count)
        assert contexts is not None
        assert len(contexts) == len(set(contexts)) == count
        assert sum(row.target in text.rstrip(".").split() for text in contexts) == 1
        assert count < 2 or f"other {number}" in contexts  # its own ones come first


def test_fewer_contexts_are_among_more_and_the_right_one_has_no_fixed_place() -> None:
    asked = QuestionSet(ROWS, 1)
    places = set()
    for number in range(len(ROWS)):
        few, many = asked.contexts(number, 3), asked.contexts(number, 9)
        assert few is not None
        assert many is not None
        assert set(few) < set(many)
        places.add(many.index(ROWS[number].contexts[0]))
    assert len(places) > 3


def test_contexts_that_are_needed_together_keep_their_order() -> None:
    asked = QuestionSet([PAIR, *ROWS], 1)
    assert asked.contexts(0, 1) == ("first a then b",)
    for count in (2, 4, 8):
        contexts = asked.contexts(0, count)
        assert contexts is not None
        assert [text for text in contexts if text in PAIR.contexts] == list(PAIR.contexts)
    three = PAIR._replace(contexts=("a", "b", "c"))
    assert QuestionSet([three, *ROWS], 1).contexts(0, 2) is None


def test_too_few_passages_are_none() -> None:
    assert QuestionSet(ROWS, 1).contexts(0, 20) is None
    with pytest.raises(DataError, match="no row has contexts"):
        QuestionSet([Row("q", "a")], 1)


def written(folder: Path, *rows: dict[str, object]) -> Path:
    path = folder / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


GOOD = {"source": "q", "target": "a", "contexts": ["x a", "y"], "gold": 0, "references": ["a"]}


def opened(path: Path) -> Corpus:
    return Corpus.open(DataConfig(test=str(path), gold=1, other=0), "question-answering")


def test_questions_come_from_jsonl_with_all_and_are_read_with_one(tmp_path: Path) -> None:
    corpus = opened(written(tmp_path, GOOD))
    assert corpus.questions("test", 2) == [Row("q", "a", ("a",), ("x a", "y"), 0)]
    assert [row.source for row in corpus.rows("test")] == ["x a q"]


@pytest.mark.parametrize(
    ("change", "text"),
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
def test_bad_rows_are_refused_with_file_and_line(tmp_path: Path, change: dict[str, object], text: str) -> None:
    corpus = opened(written(tmp_path, GOOD, GOOD | change))
    with pytest.raises(DataError, match=text):
        corpus.questions("test", 2)


def test_the_generator_gives_as_many_contexts_as_are_asked_for() -> None:
    corpus = Corpus.open(DataConfig(corpus="toy-passages", size=20), "question-answering")
    rows = corpus.questions("test", 7)
    assert {len(row.contexts) for row in rows} == {7}
    some = DataConfig(corpus="toy-passages", size=20, gold=0.1)
    other = Corpus.open(some, "question-answering")
    assert corpus.fingerprint("train") != other.fingerprint("train")
