"""Distinct n-grams and repetition, by hand and by their properties."""

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


def test_distinct_counts_ngrams_of_all_outputs_per_word() -> None:
    """Words a b c d; bigrams ab bc, ab bd; of 6 words."""
    distinct_1, distinct_2, _ = values(["a b c", "a b d"])
    assert distinct_1 == pytest.approx(100 * 4 / 6)
    assert distinct_2 == pytest.approx(100 * 3 / 6)


def test_repetition_is_the_share_of_repeated_4_grams_averaged_over_outputs() -> None:
    """a b a b a b a: abab baba abab baba, two of four repeated; short outputs have none."""
    assert values(["a b a b a b a", "a b c d e", "a a a", ""])[2] == pytest.approx(100 * 0.5 / 4)
    assert values(["a a a a a a"])[2] == pytest.approx(100 * 2 / 3)


def test_case_counts_unless_the_recipe_says_otherwise() -> None:
    assert values(["A a"])[0] == 100
    assert values(["A a"], lowercase=True)[0] == 50


@given(LINES)
def test_the_order_of_outputs_does_not_matter_and_all_are_shares(lines: list[str]) -> None:
    found = values(lines)
    assert values(lines[::-1]) == pytest.approx(found)
    assert all(0 <= value <= 100 for value in found)
    assert values(lines * 2)[0] == pytest.approx(found[0] / 2)


def test_distinct_is_not_tested_for_significance_and_repetition_is() -> None:
    entries = []
    for name, lines in (("one", ["a b c d e f", "a b"]), ("two", ["a a a a a a", "a"])):
        scores = score(NAMES, lines, [["x"]] * 2, EvalConfig())
        entries.append(score_row(name, scores, recipe=None))
    result = side_by_side(entries, {None: "one"}, EvalConfig(bootstrap=20))
    found = result.json()["comparisons"]
    tested = {record["metric"]: record["p"] is not None for record in found}
    assert tested == {"distinct-1": False, "distinct-2": False, "seq-rep-4": True}
    assert all(record["difference"] is not None for record in found)
