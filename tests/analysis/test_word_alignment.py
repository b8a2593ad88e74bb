"""Links, the Pharaoh format, and the alignment error rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.analysis.word_alignment import METHODS, Gold, LinkCounts, gold, links, pharaoh
from attnkit.errors import DataError

WEIGHTS = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.0, 0.0, 0.0]], np.float32)
LINKS = st.frozensets(st.tuples(st.integers(0, 6), st.integers(0, 6)))


@pytest.mark.parametrize(
    ("method", "least", "expected"),
    [
        ("argmax", 0.0, "0-0 0-1"),
        ("argmax", 0.65, "0-0"),
        ("mutual", 0.0, "0-0"),
        ("threshold", 0.2, "0-0 0-1 1-0 1-1"),
        ("threshold", 0.0, "0-0 0-1 1-0 1-1 2-0 2-1"),
    ],
)
def test_links_follow_the_largest_weights(method: str, least: float, expected: str) -> None:
    """The third target word sees nothing, and the source word comes first."""
    assert pharaoh(links(WEIGHTS, method, least)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_without_words_there_are_no_links(method: str, shape: tuple[int, int]) -> None:
    assert links(np.zeros(shape, np.float32), method) == frozenset()  # type: ignore[arg-type]


def test_weights_below_zero_never_link() -> None:
    assert links(np.array([[-0.5, -0.1]], np.float32)) == frozenset()


def test_the_rates_are_those_counted_by_hand() -> None:
    """A = {00, 11, 12, 20}, S = {00, 11, 22}, P = S and {12}: |A and S| 2, |A and P| 3."""
    right = gold("0-0 1-1 2-2 1?2", "gold:1", 3, 3)
    counts = LinkCounts.of(frozenset({(0, 0), (1, 1), (1, 2), (2, 0)}), right)
    assert counts == LinkCounts(made=4, sure=3, made_sure=2, made_possible=3)
    assert counts.precision == pytest.approx(100 * 3 / 4)
    assert counts.recall == pytest.approx(100 * 2 / 3)
    assert counts.error == pytest.approx(100 * (1 - 5 / 7))
    assert counts.plus(LinkCounts(1, 0, 0, 1)).error == pytest.approx(100 * (1 - 6 / 8))


def test_nothing_made_where_nothing_is_wanted_is_no_error() -> None:
    nothing = LinkCounts()
    assert (nothing.precision, nothing.recall, nothing.error) == (100, 100, 0)


@given(LINKS, LINKS, LINKS)
def test_rates_are_percentages_and_the_gold_itself_is_right(
    made: frozenset[tuple[int, int]],
    sure: frozenset[tuple[int, int]],
    more: frozenset[tuple[int, int]],
) -> None:
    counts = LinkCounts.of(made, Gold(sure, sure | more))
    assert all(0 <= rate <= 100 for rate in (counts.precision, counts.recall, counts.error))
    assert LinkCounts.of(sure, Gold(sure, sure | more)).error == 0


@given(LINKS)
def test_what_is_written_is_read_back(made: frozenset[tuple[int, int]]) -> None:
    assert gold(pharaoh(made), "gold:1", 7, 7) == Gold(made, made)


def test_possible_links_are_marked_in_two_ways() -> None:
    assert gold("0-1 1?0 1p1", "gold:1", 2, 2) == Gold(
        frozenset({(0, 1)}), frozenset({(0, 1), (1, 0), (1, 1)})
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0-0 1:1", "gold:3: '1:1' is no link: write 0-0"),
        ("0-0 -1-1", "gold:3: '-1-1' is no link"),
        ("0-0 2-1", "gold:3: 2-1: the source has 2 words and the target 2, counted from 0"),
        ("0?2", "gold:3: 0[?]2: the source has 2 words"),
        ("1 1 S", "gold:3: '1' is no link"),
    ],
)
def test_malformed_gold_is_refused_with_its_place(line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        gold(line, "gold:3", 2, 2)
