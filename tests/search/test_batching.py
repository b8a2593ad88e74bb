"""The plan of decoding batches."""

from hypothesis import given
from hypothesis import strategies as st

from attnkit.search.batching import SHORTEST, batches


@given(st.lists(st.integers(1, 300), max_size=200), st.integers(1, 12), st.integers(1, 20_000))
def test_every_sentence_is_in_one_batch_within_the_budget(
    lengths: list[int], beams: int, budget: int
) -> None:
    plan = list(batches(lengths, beams=beams, budget=budget))
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    for batch in plan:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or len(batch) * beams * max(longest, SHORTEST) <= budget


@given(st.lists(st.integers(1, 300), max_size=100))
def test_batches_go_from_long_to_short_and_keep_the_order_of_equals(lengths: list[int]) -> None:
    order = [index for batch in batches(lengths, beams=2, budget=900) for index in batch]
    assert order == sorted(order, key=lambda index: (-lengths[index], index))
