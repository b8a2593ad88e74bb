"""Tests of distinct n-grams and repetition, by hand and by their properties."""

from collections.abc import Sequence

import pytest
from helpers.score_rows import score_row
from hypothesis import given
from hypothesis import strategies as st

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import score, side_by_side

NAMES = ["distinct-1", "distinct-2", "seq-rep-4"]
LINES = st.lists(st.lists(st.sampled_from("abc"), max_size=12).map(" ".join), min_size=1, max_size=6)


def values(lines: Sequence[str], lowercase: bool = False) -> list[float]:
    found = score(NAMES, lines, [[""]] * len(lines), EvalConfig(lowercase=lowercase))
    return [found[name].value for name in NAMES]


def test_distinct_is_the_number_of_ngrams_per_word() -> None:
    """Of 6 words 4 are distinct, a b c d, and 3 bigrams, ab bc bd."""
    assert values(["a b c", "a b d"])[:2] == pytest.approx([100 * 4 / 6, 100 * 3 / 6])


def test_repetition_is_the_mean_share_of_repeated_4_grams() -> None:
    """Of abab baba abab baba two of four are repeated; outputs of fewer than four words have none."""
    assert values(["a b a b a b a", "a b c d e", "a a a", ""])[2] == pytest.approx(100 * 0.5 / 4)
    assert values(["a a a a a a"])[2] == pytest.approx(100 * 2 / 3)


def test_case_counts_unless_lowercase() -> None:
    assert values(["A a"])[0] == 100
    assert values(["A a"], lowercase=True)[0] == 50


@given(LINES)
def test_values_are_shares_independent_of_the_order(lines: list[str]) -> None:
    found = values(lines)
    assert values(lines[::-1]) == pytest.approx(found)
    assert all(0 <= value <= 100 for value in found)
    assert values(lines * 2)[0] == pytest.approx(found[0] / 2)


def test_only_repetition_is_tested_for_significance() -> None:
    outputs = {"one": ["a b c d e f", "a b"], "two": ["a a a a a a", "a"]}
    entries = [
        score_row(name, score(NAMES, lines, [["x"]] * 2, EvalConfig()), recipe=None) for name, lines in outputs.items()
    ]
    found = side_by_side(entries, {None: "one"}, EvalConfig(bootstrap=20)).json()["comparisons"]
    tested = {record["metric"]: record["p"] is not None for record in found}
    assert tested == {"distinct-1": False, "distinct-2": False, "seq-rep-4": True}
    assert all(record["difference"] is not None for record in found)
