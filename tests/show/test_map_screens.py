"""Tests of attention maps on terminals of any width and colors: one map, all heads, several models."""

import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from helpers.screens import COLORS, TEXTS, WIDTHS, capture, cross_maps, render, render_checked, tokens
from hypothesis import given
from hypothesis import strategies as st

from attnkit.analysis.maps import AttentionMaps, Capture, MapLayer, Token
from attnkit.errors import UsageError
from attnkit.show.attention_matrix import AttentionMatrix, axes_difference, matrix_of
from attnkit.show.color import Scale
from attnkit.show.heatmap import Heatmap
from attnkit.show.map_screens import MapComparison, MapGrid


def plain_matrix(queries: str, keys: str, matrix: object, **options: object) -> AttentionMatrix:
    array = np.array(matrix, np.float32)
    return AttentionMatrix(array, tokens(queries), tokens(keys), "cross attention", **options)


SMALL = plain_matrix("\u2581ein Hund .", "\u2581a dog !", [[1, 0, 0], [0, 0.5, 0.5], [0, 0.2, 0.8]])


def test_small_map_is_squares_with_all_labels() -> None:
    assert render(Heatmap(SMALL), 50).splitlines() == [
        "cross attention",
        "       d",
        "     ▁ o",
        "     a g !",
        "▁ein ██    ",
        "Hund   ▒▒▒▒",
        "   .   ░░██",
        "",
        "0        ░░░░░░▒▒▒▒▒▒▓▓▓▓▓▓███████ 1",
        "weight, linear; rows: queries, columns: keys",
    ]


def test_colors_of_cells() -> None:
    true_colors, colors = (render(Heatmap(SMALL), 50, system).splitlines()[4] for system in ("truecolor", "256"))
    assert true_colors == "▁ein \x1b[48;2;252;232;56m  \x1b[0m\x1b[48;2;0;35;79m    \x1b[0m"
    assert re.sub(r"48;5;\d+", "N", colors) == "▁ein \x1b[Nm  \x1b[0m\x1b[Nm    \x1b[0m"


def numbered(count: int) -> tuple[Token, ...]:
    return tuple(Token(f"t{at}", at, at) for at in range(count))


def test_long_maps_are_half_blocks_with_numbered_tokens() -> None:
    names = numbered(70)
    matrix = AttentionMatrix(np.eye(70, dtype=np.float32), names, names, "map")
    lines = render_checked(Heatmap(matrix), 80, "256").split("\n")
    assert lines[1] == " " * 7 + "".join(f"{at:<10}" for at in range(0, 70, 10)).rstrip()
    assert lines[2] == "  0 t0 " + "▀" * 70
    assert lines[36] == "68 t68 " + "▀" * 70
    assert "a line is 2 queries, labeled by the first" in " ".join(" ".join(lines).split())


def test_maps_wider_than_the_screen_are_pooled() -> None:
    names = numbered(400)
    found = render(Heatmap(AttentionMatrix(np.eye(8, 400, dtype=np.float32), names[:8], names, "map")), 80)
    assert "a cell is the highest of 1 x 6 (queries x keys)" in " ".join(found.split())


def test_map_with_large_negative_weights_explains_its_colors() -> None:
    names = numbered(3)
    matrix = AttentionMatrix(np.diag([1.0, -0.5, 0.1]).astype(np.float32), names, names, "map")
    assert "weight (-, =: negative, +, #: positive), linear" in render(Heatmap(matrix), 80)
    assert "weight (blue: negative, orange: positive), linear" in render(Heatmap(matrix), 80, "256")
    assert "(blue: less, orange: more)" in render(Heatmap(matrix.minus(matrix)), 80, "256")
    wide = replace(matrix, weights=np.tile(matrix.weights, 200), keys=names * 200)
    assert "a cell is the value farthest from 0 of 1 x" in " ".join(render(Heatmap(wide), 80).split())


def test_columns_keep_their_numbers_where_the_first_is_hidden() -> None:
    names, weights = numbered(70), np.eye(70, dtype=np.float32)[None, None]
    maps = AttentionMaps("encoder", weights, (MapLayer(0, "dot"),), (0,), names, names).without(first=True)
    heatmap = Heatmap(matrix_of(maps))
    for width in (80, 200):
        assert "first column hidden: t0" in render(heatmap, width)
    lines = render_checked(heatmap, 100, "256").split("\n")
    assert lines[1].split()[:2] == ["1", "11"]


def test_titles_have_layer_heads_and_mechanism() -> None:
    axis = tokens("a b")
    weights = np.stack([np.eye(2), np.ones((2, 2)) / 2])[None].astype(np.float32)
    layer = MapLayer(3, "performer", exact=False, distance=(0.25, 0.125))
    maps = AttentionMaps("encoder", weights, (layer,), (0, 5), axis, axis)
    head, mean = matrix_of(maps.choose([3], [5])), matrix_of(maps)
    assert head.title == "encoder self-attention, layer 3, head 5: performer (effective)"
    assert head.notes[-1] == "half the L1 distance from exact softmax attention: mean 0.125"
    assert mean.title == "encoder self-attention, layer 3, mean of heads 0, 5: performer (effective)"
    assert mean.weights.tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_differences_need_equal_axes() -> None:
    other = plain_matrix("x y z", "a b c", np.zeros((3, 3)))
    assert axes_difference(SMALL, other) == "the queries are different tokens"
    zero = SMALL.minus(SMALL)
    assert zero.signed
    assert not zero.weights.any()


@st.composite
def views(draw: st.DrawFn) -> AttentionMatrix:
    sizes = [draw(st.integers(0, 12) | st.integers(0, 150)) for _ in range(2)]
    texts = draw(st.lists(TEXTS, min_size=1, max_size=8))
    axes = [tuple(Token(texts[at % len(texts)], at, at, at == 3) for at in range(size)) for size in sizes]
    scale = draw(st.sampled_from((1.0, 0.0, -3.0, 1e-9, 1e9, np.nan, np.inf)))
    with np.errstate(all="ignore"):
        matrix = np.random.default_rng(draw(st.integers(0, 99))).normal(size=sizes).astype(np.float32) * scale
    title = draw(TEXTS)
    return AttentionMatrix(matrix.astype(np.float32), *axes, title, (title,), draw(st.booleans()))


@given(views(), WIDTHS, st.sampled_from(COLORS), st.sampled_from(get_args(Scale)))
def test_no_map_is_wider_than_the_screen(shown: AttentionMatrix, width: int, color: str | None, scale: str) -> None:
    render_checked(Heatmap(shown, scale=scale), width, color)


def test_grid_has_a_small_map_for_each_head() -> None:
    assert render(MapGrid(cross_maps("ein Hund .", "a dog !", 1, 2)), 80).splitlines() == [
        "cross attention, all heads: scaled-dot (exact)",
        "L0 H0  H1",
        "   ██   ██",
        "     █ █  ",
        "",
        "0        ░░░░░░▒▒▒▒▒▒▓▓▓▓▓▓███████ 1",
        "weight, linear; L layer, H head; rows: token read (queries), columns: source ",
        "(keys); a cell is the highest of 2 x 1 (queries x keys)",
    ]


def test_heads_wrap_at_the_screen_width() -> None:
    found = render(MapGrid(cross_maps("a b c d e f g h", "a b c d e f g h", 1, 12)), 40)
    heads = [line.split() for line in found.splitlines() if line.startswith("L0")]
    assert [name for line in heads for name in line[1:]] == [f"H{at}" for at in range(12)]
    assert len(heads) == 3


def test_heads_share_one_color_scale() -> None:
    maps = cross_maps("a b", "a b", 1, 2)
    maps.weights[0, 1] /= 2
    assert render(MapGrid(maps), 80).splitlines()[2] == "   █   ▒"


@given(
    st.lists(st.integers(0, 6) | st.integers(0, 70), min_size=2, max_size=2),
    st.integers(1, 3),
    st.integers(1, 13),
    st.lists(TEXTS, min_size=1, max_size=4),
    WIDTHS,
    st.sampled_from(COLORS),
    st.sampled_from(get_args(Scale)),
)
def test_no_grid_is_wider_than_the_screen(
    sizes: list[int], layers: int, heads: int, pieces: list[str], width: int, color: str | None, scale: str
) -> None:
    axes = [tuple(Token(pieces[at % len(pieces)], at, at) for at in range(n)) for n in sizes]
    weights = np.random.default_rng(1).normal(size=(layers, heads, *sizes)).astype(np.float32)
    known = tuple(MapLayer(at * 7, pieces[0], at > 0, at > 1) for at in range(layers))
    grid = MapGrid(AttentionMaps("cross", weights, known, tuple(range(heads)), *axes), scale=scale)
    render_checked(grid, width, color)


ONE = capture(cross_maps("ein Hund .", "a dog !"), "vanilla")
OTHER = capture(cross_maps("ein Hund .", "a dog !", word="dot"), "dense")
OTHER_TOKENS = capture(cross_maps("ein Tier .", "a dog !"), "random", "ein Tier .")


def one_head(*captures: Capture, layer: int, head: int) -> list[Capture]:
    """Return the captures with one layer and head only."""
    return [
        replace(whole, maps={kind: maps.choose([layer], [head]) for kind, maps in whole.maps.items()})
        for whole in captures
    ]


def test_comparison_shows_both_maps_and_their_difference() -> None:
    text = render(MapComparison(one_head(ONE, OTHER, layer=1, head=0), "cross"), 50)
    lines = [line.strip() for line in text.splitlines()]
    assert lines.index("vanilla") < lines.index("dense") < lines.index("dense minus vanilla")
    assert lines.count("output (greedy): ein Hund .") == 2


def test_maps_of_different_tokens_have_no_difference() -> None:
    text = render(MapComparison(one_head(ONE, OTHER_TOKENS, layer=1, head=0), "cross"), 120)
    assert "no difference map of random and vanilla: the queries are different tokens" in text
    assert "minus" not in text


def test_signs_show_differences_without_colors() -> None:
    other = capture(cross_maps("ein Hund .", "a dog !"), "shifted")
    other.maps["cross"].weights[:] = other.maps["cross"].weights[:, :, ::-1]
    lines = render(MapComparison(one_head(ONE, other, layer=0, head=0), "cross"), 40).splitlines()
    at = lines.index("shifted minus vanilla")
    assert lines[at + 4 : at + 7] == [" ein ==  ##", "Hund       ", "   . ##  =="]


def test_compared_maps_share_one_color_scale() -> None:
    half = capture(cross_maps("ein Hund .", "a dog !"), "half")
    half.maps["cross"].weights[:] /= 2
    lines = render(MapComparison(one_head(ONE, half, layer=0, head=0), "cross"), 90).splitlines()
    rows = [line for line in lines if line.startswith(" ein")]
    assert ["██" in rows[0], "▒▒" in rows[1]] == [True, True]


def test_comparison_of_a_missing_kind_raises() -> None:
    with pytest.raises(UsageError, match="--kind encoder: vanilla has no encoder self-attention"):
        MapComparison([ONE, OTHER], "encoder")


@given(TEXTS, st.integers(1, 3), st.integers(1, 30), WIDTHS, st.sampled_from(COLORS))
def test_no_comparison_is_wider_than_the_screen(
    piece: str, count: int, size: int, width: int, color: str | None
) -> None:
    maps = cross_maps(" ".join("x" * size), " ".join("y" * (size + 3)))
    captures = [capture(maps, piece + str(at), piece) for at in range(count)]
    render_checked(MapComparison(captures, "cross"), width, color)
