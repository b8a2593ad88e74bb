"""Tests of word alignments from maps and runs, the Pharaoh format, and the alignment error rate."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.trained import make_run
from hypothesis import given
from hypothesis import strategies as st

from attnkit.analysis.capture import capture
from attnkit.analysis.maps import AttentionMaps, MapLayer, Token
from attnkit.analysis.word_alignment import (
    METHODS,
    Gold,
    Head,
    LinkCounts,
    LinkRule,
    align,
    best,
    default_head,
    gold,
    heads,
    links,
    pharaoh,
    quality,
    word_weights,
    words,
)
from attnkit.errors import DataError
from attnkit.runs import Run

BEGIN, END = Token("<s>", 2, None, True), Token("</s>", 3, None, True)
PAIRS = [("one red dog", "ein roter hund"), ("", "hund"), ("a dog and a cat", "ein hund"), ("a", "")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("alignments"))


def cross(queries: list[Token], keys: list[Token]) -> AttentionMaps:
    """Return the map of one head whose weights are 0, 1, 2, ... by row."""
    weights = np.arange(len(queries) * len(keys), dtype=np.float32).reshape(1, 1, len(queries), len(keys))
    return AttentionMaps("cross", weights, (MapLayer(0, "dot"),), (0,), tuple(queries), tuple(keys))


def test_rows_of_words_depend_on_the_step() -> None:
    """Columns: "a" in two pieces, "b", end; rows: begin, "x", "y" in two pieces."""
    keys = [Token("\u2581a", 9, 0), Token("a", 8, 0), Token("\u2581b", 7, 1), END]
    queries = [BEGIN, Token("\u2581x", 9, 0), Token("\u2581y", 8, 1), Token("y", 7, 1)]
    by_input, by_output = (word_weights(cross(queries, keys), step, (2, 2))[0, 0] for step in ("input", "output"))
    assert by_input.tolist() == [[4 + 5, 6], [(8 + 9 + 12 + 13) / 2, (10 + 14) / 2]]
    assert by_output.tolist() == [[0 + 1, 2], [(4 + 5 + 8 + 9) / 2, (6 + 10) / 2]]


def test_special_pieces_of_the_recipe_are_words_of_the_line() -> None:
    """Digits and separators are words of the line `x 10 y`, although not of the map."""
    ten = [Token("\u2581", 6, 1), Token("1", 5, None, True), Token("0", 4, None, True)]
    keys = [Token("\u2581x", 9, 0), *ten, Token("\u2581y", 8, 2), END]
    maps = cross([BEGIN, Token("\u2581z", 9, 0)], keys)
    assert word_weights(maps, "input", (3, 1))[0, 0].tolist() == [[6, 7 + 8 + 9, 10]]


def test_word_without_a_token_has_no_weight() -> None:
    maps = cross([BEGIN, Token("\u2581z", 9, 0)], [Token("\u2581x", 9, 0), END])
    assert word_weights(maps, "input", (2, 1))[0, 0].tolist() == [[2, 0]]


def test_words_are_separated_by_spaces() -> None:
    assert words("  a\u3000b\tc\u2581d ") == ["a", "b", "c", "d"]


def test_links_are_the_maxima_of_the_shown_map(run: Run) -> None:
    """`align` and `visualize-attn` agree on the row of a word."""
    source, target = PAIRS[0]
    for head in (Head(0, 0, "output"), Head(0, 1, "input")):
        (found,) = align(run, [PAIRS[0]], [head])
        maps = capture(run, source, target=target, kinds=["cross"], step=head.step).maps["cross"]
        shown = maps.by_word().without(special=True)
        assert shown.weights.shape[2:] == (len(target.split()), len(source.split()))
        best = shown.weights[0, head.head].argmax(1)
        assert found[head] == {(int(column), row) for row, column in enumerate(best)}
    assert capture(run, source, target=target, kinds=["cross"]).maps["cross"].step == "output"


def test_links_in_batches_equal_those_of_single_pairs(run: Run) -> None:
    """Also next to empty lines."""
    all_heads = heads(run)
    aligned = list(align(run, PAIRS, all_heads))
    assert [[*found] for found in aligned] == [all_heads] * len(PAIRS)
    assert [set(found.values()) for found in (aligned[1], aligned[3])] == [{frozenset()}] * 2
    for pair, found in zip(PAIRS, aligned, strict=True):
        if not all(pair):
            continue
        maps = capture(run, pair[0], target=pair[1], kinds=["cross"], step="input").maps["cross"]
        sizes = (len(pair[0].split()), len(pair[1].split()))
        for head in all_heads:
            of_layer = word_weights(maps, head.step, sizes)[head.layer]
            assert found[head] == links(of_layer.mean(0) if head.head is None else of_layer[head.head])


def test_heads_of_a_run_and_their_mean(run: Run) -> None:
    assert heads(run) == [Head(0, head, step) for head in (0, 1, None) for step in ("output", "input")]
    assert str(heads(run)[0]) == "layer 0, head 0, output"


@pytest.mark.parametrize(("layers", "layer"), [(1, 0), (2, 1), (3, 1), (6, 4)])
def test_default_head_is_the_mean_of_a_late_layer(run: Run, layers: int, layer: int) -> None:
    model = run.recipe.model
    depth = model.layers.model_copy(update={"decoder": layers})
    deep = run.recipe.model_copy(update={"model": model.model_copy(update={"layers": depth})})
    assert default_head(SimpleNamespace(recipe=deep)) == Head(layer, None, "output")  # type: ignore[arg-type]


def test_best_head_has_the_lowest_error_rate() -> None:
    wrong, right = Head(0, 0, "output"), Head(0, 1, "output")
    found = [{wrong: frozenset({(1, 0)}), right: frozenset({(0, 0)})}] * 2
    scores = quality(found, [Gold(frozenset({(0, 0)}), frozenset({(0, 0)}))] * 2)
    assert scores == {wrong: LinkCounts(2, 2, 0, 0), right: LinkCounts(2, 2, 2, 2)}
    assert best(scores) == right


def test_align_follows_the_rule(run: Run) -> None:
    (head, *_), pair = heads(run), PAIRS[:1]
    (strict,) = align(run, pair, [head], LinkRule("threshold", 2.0))
    (loose,) = align(run, pair, [head], LinkRule("threshold", 0.0))
    assert (len(strict[head]), len(loose[head])) == (0, 9)


WEIGHTS = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.0, 0.0, 0.0]], np.float32)
Links = frozenset[tuple[int, int]]
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
    """The third target word has no weights; the source word comes first in a link."""
    assert pharaoh(links(WEIGHTS, method, least)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_without_words_there_are_no_links(method: str, shape: tuple[int, int]) -> None:
    assert links(np.zeros(shape, np.float32), method) == frozenset()  # type: ignore[arg-type]


def test_negative_weights_give_no_links() -> None:
    assert links(np.array([[-0.5, -0.1]], np.float32)) == frozenset()


def test_rates_by_hand() -> None:
    """A = {00, 11, 12, 20}, S = {00, 11, 22}, P = S and {12}: |A and S| 2, |A and P| 3."""
    right = gold("0-0 1-1 2-2 1?2", "gold:1", 3, 3)
    counts = LinkCounts.of(frozenset({(0, 0), (1, 1), (1, 2), (2, 0)}), right)
    assert counts == LinkCounts(predicted=4, sure=3, predicted_sure=2, predicted_possible=3)
    assert counts.precision == pytest.approx(100 * 3 / 4)
    assert counts.recall == pytest.approx(100 * 2 / 3)
    assert counts.error == pytest.approx(100 * (1 - 5 / 7))
    assert counts.plus(LinkCounts(1, 0, 0, 1)).error == pytest.approx(100 * (1 - 6 / 8))


def test_no_links_without_gold_links_are_no_error() -> None:
    empty = LinkCounts()
    assert (empty.precision, empty.recall, empty.error) == (100, 100, 0)


@given(LINKS, LINKS, LINKS)
def test_rates_are_percentages_and_gold_links_have_no_error(predicted: Links, sure: Links, more: Links) -> None:
    counts = LinkCounts.of(predicted, Gold(sure, sure | more))
    assert all(0 <= rate <= 100 for rate in (counts.precision, counts.recall, counts.error))
    assert LinkCounts.of(sure, Gold(sure, sure | more)).error == 0


@given(LINKS)
def test_pharaoh_format_round_trip(written: Links) -> None:
    assert gold(pharaoh(written), "gold:1", 7, 7) == Gold(written, written)


def test_two_marks_of_possible_links() -> None:
    assert gold("0-1 1?0 1p1", "gold:1", 2, 2) == Gold(frozenset({(0, 1)}), frozenset({(0, 1), (1, 0), (1, 1)}))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0-0 1:1", "gold:3: '1:1' is not a valid link: write 0-0"),
        ("0-0 -1-1", "gold:3: '-1-1' is not a valid link"),
        ("0-0 2-1", "gold:3: 2-1: the source has 2 words and the target 2, counted from 0"),
        ("0?2", "gold:3: 0[?]2: the source has 2 words"),
        ("1 1 S", "gold:3: '1' is not a valid link"),
    ],
)
def test_malformed_gold_raises_with_its_line(line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        gold(line, "gold:3", 2, 2)
