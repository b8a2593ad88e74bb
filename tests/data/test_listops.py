"""Tests of generated ListOps rows and their answers."""

from collections.abc import Iterator
from statistics import median

import pytest

from attnkit.data.synthetic import listops


def test_rows_have_the_published_lengths_and_words() -> None:
    rows = list(listops.rows("test", 20, 1))
    for row in rows:
        words = row.source.split()
        assert 500 < len(words) < 2000
        assert {*words} <= {*listops.words.split()}
        assert row.target.isdigit()
    assert rows == list(listops.rows("test", 20, 1))
    assert rows[0] != next(listops.rows("valid", 1, 1))


@pytest.mark.parametrize(
    ("operator", "values", "answer"),
    [("MIN", [4, 2, 9], 2), ("MAX", [4, 2, 9], 9), ("MED", [1, 9, 4, 5], 4), ("SM", [9, 9], 8)],
)
def test_operators(operator: str, values: list[int], answer: int) -> None:
    assert listops.OPERATORS[operator](values) == answer


def test_target_is_the_value_of_nested_lists() -> None:
    functions = {"MIN": min, "MAX": max, "MED": lambda x: int(median(x)), "SM": lambda x: sum(x) % 10}

    def value(words: Iterator[str]) -> int | None:
        """Return the value of the next digit or list, or None at the end of a list."""
        if (word := next(words)) not in functions:
            return None if word == "X" else int(word)
        return functions[word]([*iter(lambda: value(words), None)])

    for row in listops.rows("train", 20, 1):
        words = iter(row.source.split())
        assert value(words) == int(row.target)
        assert [*words] == []
