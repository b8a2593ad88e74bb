"""Tests of statistics of heads against values computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.analysis.map_statistics import HeadStatistics, attention_sink, statistics
from attnkit.analysis.maps import AttentionMaps, Kind, MapLayer, Token

A, B, BEGIN, END = (Token("a", 5, 0), Token("b", 6, 1), Token("<s>", 2, None, True), Token("</s>", 3, None, True))


def maps(kind: Kind, rows: list[list[float]], queries: list[Token], keys: list[Token]) -> AttentionMaps:
    weights = np.array([[rows]], np.float32)
    return AttentionMaps(kind, weights, (MapLayer(0, "dot"),), (0,), tuple(queries), tuple(keys))


def numbers(kind: Kind, rows: list[list[float]], queries: list[Token], keys: list[Token]) -> HeadStatistics:
    return statistics(maps(kind, rows, queries, keys))[0][0]


def test_encoder_head_by_hand() -> None:
    rows = [[0.5, 0.5, 0, 0], [0, 0, 0, 1], [0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0]]
    expected = HeadStatistics(
        entropy=(1 + 0 + 2 + 0) / 4,
        spread=(0.5 + 0 + 1 + 0) / 4,
        distance=(0.5 + 2 + (2 + 1 + 0 + 1) / 4 + 3) / 4,
        first=(0.5 + 0 + 0.25 + 1) / 4,
        last=(0 + 0 + 0.25 + 0) / 4,
        end=(0 + 1 + 0.25 + 0) / 4,
        special=(0 + 1 + 0.25 + 0) / 4,
    )
    assert numbers("encoder", rows, [A, B, B, END], [A, B, B, END]) == pytest.approx(expected)


def test_decoder_head_by_hand() -> None:
    rows = [[1, 0, 0], [0.5, 0.5, 0], [0.5, 0.25, 0.25]]
    expected = HeadStatistics(
        entropy=(0 + 1 + 1.5) / 3,
        spread=(1 + 1.5 / np.log2(3)) / 2,
        distance=(0 + 0.5 + 1.25) / 3,
        first=2 / 3,
        last=(1 + 0.5 + 0.25) / 3,
        end=None,
        special=2 / 3,
    )
    assert numbers("decoder", rows, [BEGIN, A, B], [BEGIN, A, B]) == pytest.approx(expected)


def test_distance_of_cross_attention_is_of_relative_positions() -> None:
    found = numbers("cross", [[1, 0, 0, 0], [0, 0, 0, 1]], [BEGIN, A], [A, B, A, END])
    assert found.distance == pytest.approx(((1 / 4 - 1 / 8) + (7 / 8 - 3 / 4)) / 2)
    assert (found.first, found.last, found.end) == (0.5, 0, 0.5)


@pytest.mark.parametrize("rows", [[[0.5, 0.4], [0, 1]], [[1.5, -0.5], [0, 1]], [[0, 0], [0, 1]]])
def test_rows_that_are_not_distributions_have_no_entropy(rows: list[list[float]]) -> None:
    found = numbers("encoder", rows, [A, B], [A, B])
    assert (found.entropy, found.spread) == (None, None)
    assert found.distance is not None


def test_key_with_most_of_the_attention_is_a_sink() -> None:
    """In a decoder only queries that see several keys count."""
    keys = [BEGIN, A, B, A, END]
    rows = [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25, 0]]
    assert attention_sink(maps("decoder", rows, keys[:4], keys)) is None
    assert attention_sink(maps("cross", rows, keys[:4], keys)) == (0, BEGIN, 3.25 / 4)
    assert attention_sink(maps("cross", [[1, -1, 1, -1, 1]] * 4, keys[:4], keys)) is None
    assert attention_sink(maps("cross", [[3, 1, 0, 0, 0]] * 4, keys[:4], keys)) == (0, BEGIN, 0.75)
    rows[3] = [0.2, 0, 0.75, 0.05, 0]
    assert attention_sink(maps("decoder", rows, keys[:4], keys)) == (2, B, pytest.approx(0.75))
    assert attention_sink(maps("cross", [row[:3] for row in rows], keys[:4], keys[:3])) is None
    assert attention_sink(maps("decoder", rows[:2], keys[:2], keys)) is None


def test_empty_axes_and_rows_have_no_statistics() -> None:
    empty = maps("encoder", [[1]], [END], [END]).without(special=True)
    assert statistics(empty)[0][0] == HeadStatistics(None, None, None, 0, None, None, 0)
    assert numbers("encoder", [[0, 0]], [A], [A, B]).distance is None
    assert numbers("encoder", [[1]], [END], [END]).last is None


def test_single_key_has_entropy_zero_and_no_spread() -> None:
    found = numbers("decoder", [[1]], [BEGIN], [BEGIN])
    assert str(found.entropy) == "0.0"
    assert (found.spread, found.end) == (None, None)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_statistics_are_in_their_ranges(rows: int, columns: int, seed: int) -> None:
    drawn = np.random.default_rng(seed).dirichlet([0.3] * columns, rows)
    found = numbers("cross", drawn.tolist(), [A] * rows, [*[A] * (columns - 1), END])
    assert found.entropy is not None
    assert -1e-6 <= found.entropy <= np.log2(columns) + 1e-6
    assert found.spread is None or -1e-6 <= found.spread <= 1 + 1e-6
    assert found.distance is not None
    assert 0 <= found.distance < 1
    if columns > 1:
        assert found.end == pytest.approx(found.special)


def test_all_layers_and_heads_have_statistics() -> None:
    weights = np.random.default_rng(0).dirichlet([1, 1, 1], (2, 3, 4)).astype(np.float32)
    layers = (MapLayer(0, "dot"), MapLayer(4, "linear", exact=False))
    found = statistics(AttentionMaps("cross", weights, layers, (0, 1, 5), (A, A, B, B), (A, B, END)))
    assert [len(row) for row in found] == [3, 3]
    assert found[1][2].first == pytest.approx(float(weights[1, 2, :, 0].mean()), abs=1e-6)
