"""Tests of operations on maps: selection, merging of pieces to words, hiding of tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.analysis.maps import AttentionMaps, MapLayer, Token
from attnkit.errors import UsageError

BEGIN, END = Token("<s>", 2, None, True), Token("</s>", 3, None, True)
QUERIES = (BEGIN, Token("\u2581tir", 5, 0), Token("ed", 6, 0), Token("\u2581cat", 7, 1))
KEYS = (Token("\u2581ka", 8, 0), Token("tze", 9, 0), Token("\u2581m\u00fcde", 4, 1), END)
ROWS = [[0, 0, 0, 1], [0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2], [1, 0, 0, 0]]


def maps(layers: tuple[int, ...] = (0,), heads: tuple[int, ...] = (0,)) -> AttentionMaps:
    rows = np.array(ROWS, np.float32)
    weights = np.stack([np.stack([rows * (10 * la + h + 1) for h in heads]) for la in layers])
    facts = tuple(MapLayer(la, "linear", distance=tuple(h / 8 for h in heads)) for la in layers)
    return AttentionMaps("cross", weights, facts, heads, QUERIES, KEYS)


def test_merging_sums_over_keys_and_averages_over_queries() -> None:
    merged = maps().by_word()
    expected = [[0, 0, 1], [(0.3 + 0.6) / 2, (0.3 + 0.2) / 2, (0.4 + 0.2) / 2], [1, 0, 0]]
    np.testing.assert_allclose(merged.weights[0, 0], expected, atol=1e-6)
    assert merged.weights.dtype == np.float32
    assert [token.text for token in merged.queries] == ["<s>", "\u2581tired", "\u2581cat"]
    assert [token.text for token in merged.keys] == ["\u2581katze", "\u2581m\u00fcde", "</s>"]
    assert [token.word for token in merged.keys] == [0, 1, None]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_merged_rows_sum_to_one_and_merging_is_idempotent(queries: list[int], keys: list[int]) -> None:
    axes = [
        tuple(Token("x", 5, word) for word, pieces in enumerate(sizes) for _ in range(pieces))
        for sizes in (queries, keys)
    ]
    drawn = np.random.default_rng(len(queries)).dirichlet(np.ones(len(axes[1])), len(axes[0]))
    whole = AttentionMaps("cross", drawn[None, None].astype(np.float32), (MapLayer(0, "dot"),), (0,), *axes)
    merged = whole.by_word()
    assert merged.weights.shape == (1, 1, len(queries), len(keys))
    np.testing.assert_allclose(merged.weights.sum(-1), 1, atol=1e-5)
    again = merged.by_word()
    np.testing.assert_allclose(again.weights, merged.weights, atol=1e-6)
    assert again.keys == merged.keys


def test_adjacent_special_tokens_are_not_merged() -> None:
    weights, axis = np.eye(3, dtype=np.float32)[None, None], (BEGIN, END, END)
    merged = AttentionMaps("encoder", weights, (MapLayer(0, "dot"),), (0,), axis, axis).by_word()
    assert merged.queries == axis
    assert np.array_equal(merged.weights, weights)


def test_hiding_special_tokens_keeps_values() -> None:
    text = maps().without(special=True)
    np.testing.assert_allclose(text.weights[0, 0], [row[:3] for row in ROWS[1:]])
    assert (text.queries, text.keys) == (QUERIES[1:], KEYS[:3])


def test_hiding_the_first_column_keeps_rows_and_values() -> None:
    shown = maps().without(first=True)
    np.testing.assert_allclose(shown.weights[0, 0], [row[1:] for row in ROWS])
    assert (shown.queries, shown.keys, shown.hidden) == (QUERIES, KEYS[1:], KEYS[:1])
    both = maps().without(first=True, special=True)
    np.testing.assert_allclose(both.weights[0, 0], [row[1:3] for row in ROWS[1:]])


def test_begin_token_is_hidden_once() -> None:
    """As a special token and as the first column, so that rows and columns remain equal."""
    square = AttentionMaps("decoder", np.ones((1, 1, 4, 4), np.float32), maps().layers, (0,), QUERIES, QUERIES)
    both = square.without(first=True, special=True)
    assert (both.queries, both.keys, both.hidden) == (QUERIES[1:], QUERIES[1:], ())


@pytest.mark.parametrize(
    ("shape", "most", "given", "expected"),
    [
        ((6, 8), 48, "", (6, 8)),
        ((12, 12), 48, "", (6, 8)),
        ((30, 9), 48, "", (6, 8)),
        ((30, 2), 48, "", (24, 2)),
        ((2, 40), 48, "", (2, 24)),
        ((1, 64), 48, "", (1, 48)),
        ((30, 9), 48, "layers", (30, 6)),
        ((30, 9), 48, "heads", (6, 9)),
        ((30, 9), 48, "layers heads", (30, 9)),
        ((2, 4), 1, "", (1, 1)),
    ],
)
def test_many_layers_and_heads_are_selected_evenly(
    shape: tuple[int, int], most: int, given: str, expected: tuple[int, int]
) -> None:
    whole = maps(tuple(range(shape[0])), tuple(range(shape[1])))
    part = whole.spread(most, all_layers="layers" in given, all_heads="heads" in given)
    assert part.weights.shape[:2] == expected
    assert part.chosen_from == (None if expected == shape else shape)
    for chosen, count in (([layer.number for layer in part.layers], shape[0]), (part.heads, shape[1])):
        assert sorted(set(chosen)) == list(chosen)
        assert len(chosen) == 1 or (chosen[0], chosen[-1]) == (0, count - 1)
    np.testing.assert_array_equal(part.weights[-1, -1], whole.weights[part.layers[-1].number, part.heads[-1]])


def test_selected_layers_and_heads_are_sorted_and_unique() -> None:
    whole = maps((0, 2, 5), (1, 4, 6))
    part = whole.choose([5, 0, 5], [6, 1])
    assert [layer.number for layer in part.layers] == [0, 5]
    assert part.heads == (1, 6)
    assert [layer.distance for layer in part.layers] == [(0.125, 0.75)] * 2
    assert np.array_equal(part.weights, whole.weights[[0, 2]][:, [0, 2]])
    assert np.array_equal(whole.choose().weights, whole.weights)


@pytest.mark.parametrize(
    ("layers", "heads", "message"),
    [
        ([1], [], "--layer 1: cross attention has layers 0, 2, 5"),
        ([], [3], "--head 3: cross attention has heads 0 to 2"),
        ([-1], [], "--layer -1: cross attention has layers 0, 2, 5"),
    ],
)
def test_missing_layer_or_head_raises(layers: list[int], heads: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        maps((0, 2, 5), (0, 1, 2)).choose(layers, heads)


def test_axes_that_do_not_fit_the_weights_raise() -> None:
    with pytest.raises(ValueError, match=r"weights of shape \(1, 1, 4, 4\) for axes of"):
        AttentionMaps("cross", maps().weights, (MapLayer(0, "dot"),), (0,), QUERIES, KEYS[:3])
