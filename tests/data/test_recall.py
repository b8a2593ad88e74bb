"""Tests of generated recall tasks, whose answers are in their sources."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data.corpus import Corpus
from attnkit.data.rows import Row
from attnkit.data.synthetic.recall import ASK, BLANK, END, SCATTERED, TASKS
from attnkit.recipe import corpus_cards
from attnkit.recipe.schema import DataConfig


def rows_of(name: str, split: str = "test", length: int = 0, **keys: int) -> list[Row]:
    data = DataConfig.model_validate({"corpus": name, **keys})
    return list(Corpus.open(data, "recall").rows(split, length=length))


def length_of(name: str, source: list[str]) -> int:
    """Return the length of a row in the units of its card."""
    if name == "toy-associative-recall":
        return source.count(END)
    return len(source) - 2 * source.count(ASK)


def partners(source: list[str]) -> list[str]:
    *text, ask, word = source
    assert ask == ASK
    assert text[2::3] == [END] * (len(text) // 3)
    partner, answer = dict(zip(text[::3], text[1::3], strict=True)), [word]
    while len(answer) <= len(partner):
        answer.append(partner[answer[-1]])
    return answer[1:]


def followers(source: list[str]) -> list[str]:
    *text, ask, word = source
    assert ask == ASK
    return text[text.index(word) + 1 :]


ANSWERS: dict[str, Callable[[list[str]], list[str]]] = {
    "toy-copy": lambda source: source,
    "toy-selective-copy": lambda source: [word for word in source if word != BLANK],
    "toy-associative-recall": partners,
    "toy-induction": followers,
}
"""Functions that return the answer to a source."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", TASKS)
@given(length=st.integers(2, 128), seed=st.integers(0, 2**31 - 1))
def test_target_is_the_answer_in_the_source(name: str, length: int, seed: int) -> None:
    assert name in ANSWERS, "add a function that returns the answer to a source to ANSWERS"
    for row in rows_of(name, length=length, seed=seed)[:3]:
        source, target = row.source.split(" "), row.target.split(" ")
        assert length_of(name, source) == length
        assert target == ANSWERS[name](source)
        if name == "toy-associative-recall":
            assert len({*target}) == len(target) == length
        if name == "toy-selective-copy":
            assert len(target) == min(length, SCATTERED)


@pytest.mark.parametrize("name", TASKS)
def test_rows_have_exactly_the_lengths_of_the_card(name: str) -> None:
    lengths = corpus_cards.row_length(name)
    assert lengths is not None
    low, high = lengths.trained
    for split in ("train", "valid", "test"):
        rows = rows_of(name, split, size=400)
        assert {length_of(name, row.source.split(" ")) for row in rows} == {*range(low, high + 1)}
    longest = rows_of(name, length=lengths.most)[0].source.split(" ")
    assert length_of(name, longest) == lengths.most


@pytest.mark.parametrize("name", TASKS)
def test_rows_are_distinct_and_a_function_of_the_seed(name: str) -> None:
    splits = [rows_of(name, split, 16, size=200) for split in ("train", "valid", "test")]
    rows = [row for split in splits for row in split]
    assert len({*rows}) == len(rows) == 600
    assert rows_of(name, "test", 16) == splits[2]
    assert all(a != b for a, b in pairwise([rows_of(name, seed=seed) for seed in (1, 2, 3)]))
