"""Tests of metrics of short answers against values computed by hand from SQuAD's rules."""

import pytest

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import context_found, score
from attnkit.scoring.metrics.answers import answer_f1, answer_match
from attnkit.text import answer_words, contains_answer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Cat, a dog; and an owl!", ["cat", "dog", "and", "owl"]),
        ("U.S.A.", ["usa"]),  # punctuation is removed without a space
        ("an-other", ["another"]),
        ("  theatre \t Athens ", ["theatre", "athens"]),  # only whole words are articles
        ("the", []),
    ],
)
def test_case_punctuation_and_articles_are_removed(text: str, words: list[str]) -> None:
    assert answer_words(text) == words


@pytest.mark.parametrize(
    ("answer", "reference", "match", "f1"),
    [
        ("The green watch.", "green watch", 1, 1),
        ("watch", "green watch", 0, 2 / 3),
        ("green green watch", "green watch", 0, 4 / 5),
        ("red key", "green watch", 0, 0),
        ("", "green watch", 0, 0),
    ],
)
def test_match_and_f1_equal_those_of_squad(answer: str, reference: str, match: int, f1: float) -> None:
    assert answer_match(answer, reference) == match
    assert answer_f1(answer, reference) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("answer", "references", "expected"),
    [
        ("It flows through Rome, the capital.", ["Rome"], 100),
        ("It was THE green watch!", ["a green watch"], 100),
        ("It was green, the watch", ["watch green"], 0),
        ("a party", ["art"], 0),
        ("in Oslo", ["Rome", "oslo."], 100),
        ("", ["Rome"], 0),
        ("Rome", ["the"], 0),
    ],
)
def test_answer_contained_in_a_sentence(answer: str, references: list[str], expected: float) -> None:
    found = score(["answer-contained"], [answer], [references], EvalConfig())["answer-contained"]
    assert found.value == expected
    assert found.signature.startswith("refs:max|norm:squad-1.1|")


def test_best_reference_of_a_line_counts() -> None:
    found = score(["answer-match", "answer-f1"], ["Oslo", "red key"], [["Rome", "oslo."], ["a key"]], EvalConfig())
    assert found["answer-match"].value == 50
    assert found["answer-f1"].value == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert found["answer-f1"].statistics.tolist()[1] == pytest.approx([2 / 3, 1])


@pytest.mark.parametrize(
    ("context", "answers", "expected"),
    [
        ("He lives in Oslo.", ["oslo"], True),
        ("He lives in Osloby.", ["oslo"], False),
        ("A green, old watch", ["green watch"], False),
        ("A green watch", ["the", "watch"], True),
        ("anything", ["a"], False),  # an article is not an answer
    ],
)
def test_context_contains_an_answer_by_words(context: str, answers: list[str], expected: bool) -> None:
    assert contains_answer(context, answers) == expected


def test_context_found_is_the_share_of_chosen_contexts_with_an_answer() -> None:
    found = context_found(["in Oslo", "in Rome", "Rome"], [["Oslo"], ["Oslo"], ["Oslo", "Rome"]])
    assert found.value == pytest.approx(200 / 3)
    assert found.statistics.tolist() == [[1, 1], [0, 1], [1, 1]]
