"""The lists of ListOps and their answers."""

from statistics import median

import pytest

from attnkit.data.synthetic import listops


def test_rows_are_within_the_lengths_of_the_source_and_have_its_words() -> None:
    rows = list(listops.rows("test", 20, 1))
    for row in rows:
        words = row.source.split()
        length = len(words) + sum(not word.isdigit() for word in words)
        assert 500 < length < 2000
        assert {*words} <= {*listops.words.split()}
        assert row.target in listops.words.split()[4:]
    assert rows == list(listops.rows("test", 20, 1))
    assert rows[0] != next(listops.rows("valid", 1, 1))


@pytest.mark.parametrize(
    ("operator", "values", "answer"),
    [("MIN", [4, 2, 9], 2), ("MAX", [4, 2, 9], 9), ("MED", [1, 9, 4, 5], 4), ("SM", [9, 9], 8)],
)
def test_operators(operator: str, values: list[int], answer: int) -> None:
    assert listops.OPERATORS[operator](values) == answer


def test_lists_in_lists_have_their_value_as_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listops, "DEPTH", 3)
    monkeypatch.setattr(listops, "ARGUMENTS", 2)
    monkeypatch.setattr(listops, "SHORTEST", 0)
    known = {"MIN": min, "MAX": max, "MED": lambda both: int(median(both)),
             "SM": lambda both: sum(both) % 10}  # fmt: skip

    def value(words: list[str]) -> int:  # every list has two arguments: prefix notation
        word = words.pop(0)
        return int(word) if word.isdigit() else known[word]([value(words), value(words)])

    rows = list(listops.rows("train", 200, 1))
    assert any(sum(not word.isdigit() for word in row.source.split()) > 2 for row in rows)
    for row in rows:
        words = row.source.split()
        assert value(words) == int(row.target)
        assert words == []
