"""Tests of the context that an answer is from: worked examples and properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.nbce.sources import Source, named_source

LOGS = st.floats(-60, 0) | st.just(-math.inf)
ROWS = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.lists(LOGS, min_size=n, max_size=n), max_size=4),
        st.lists(LOGS, min_size=n, max_size=n) | st.just([]),
    )
)


def logs(*parts: float) -> list[float]:
    return [math.log(part) if part else -math.inf for part in parts]


def test_tokens_have_weights_by_the_disagreement_of_contexts() -> None:
    """The first token is equally likely under both, so its weight is 0; 3 : 1 has less weight than certainty."""
    certain, likely = math.log(2), math.log(2) + 0.75 * math.log(0.75) + 0.25 * math.log(0.25)
    found = named_source(2, [logs(0.4, 0.4), logs(0, 0.1), logs(0.3, 0.1)])
    share = likely * 0.75 / (certain + likely)
    assert found.shares == pytest.approx((share, 1 - share))
    assert (found.context, found.leading) == (1, 1)


def test_question_and_answer_have_equal_weights_if_both_are_certain() -> None:
    assert named_source(3, [logs(0, 0.2, 0)], logs(0.5, 0, 0)) == Source(None, (0.5, 0.5, 0))
    mixed = named_source(2, [logs(0, 1), logs(1, 0), logs(1, 0)], logs(0, 1))
    assert mixed.context == 1  # the answer is from both, the question from one


def test_no_context_is_named_without_a_difference() -> None:
    for tokens in ([], [()], [logs(0.2, 0.2)], [logs(0, 0)]):
        assert named_source(2, tokens) == Source(None, (0.5, 0.5))
    assert named_source(1, []) == Source(0, (1.0,))


@given(ROWS)
def test_shares_sum_to_1_and_the_named_context_leads(row: tuple[int, list[list[float]], list[float]]) -> None:
    count, tokens, prompt = row
    found = named_source(count, tokens, prompt)
    assert sum(found.shares) == pytest.approx(1)
    assert min(found.shares) >= 0
    assert found.context in (None, found.leading)
    swapped = named_source(count, [row[::-1] for row in tokens], prompt[::-1])
    assert swapped.shares[::-1] == pytest.approx(found.shares)
