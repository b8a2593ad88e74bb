"""Word alignments from maps and runs, the Pharaoh format, and the alignment error rate."""

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
    """One head, whose weights are numbered row by row."""
    weights = np.arange(len(queries) * len(keys), dtype=np.float32)
    shape = (1, 1, len(queries), len(keys))
    layers = (MapLayer(0, "dot"),)
    return AttentionMaps("cross", weights.reshape(shape), layers, (0,), tuple(queries), tuple(keys))


def test_the_step_says_which_row_is_that_of_a_word() -> None:
    """Columns: "a" in two pieces, "b", end; rows: begin, "x", "y" in two pieces."""
    keys = [Token("\u2581a", 9, 0), Token("a", 8, 0), Token("\u2581b", 7, 1), END]
    queries = [BEGIN, Token("\u2581x", 9, 0), Token("\u2581y", 8, 1), Token("y", 7, 1)]
    made = cross(queries, keys)
    reading = word_weights(made, "input", (2, 2))[0, 0]
    writing = word_weights(made, "output", (2, 2))[0, 0]
    assert reading.tolist() == [[4 + 5, 6], [(8 + 9 + 12 + 13) / 2, (10 + 14) / 2]]
    assert writing.tolist() == [[0 + 1, 2], [(4 + 5 + 8 + 9) / 2, (6 + 10) / 2]]


def test_special_pieces_of_the_recipe_are_words_of_the_line() -> None:
    """Digits or separators are no words of a map, but the line has them: `x 10 y`."""
    ten = [Token("\u2581", 6, 1), Token("1", 5, None, True), Token("0", 4, None, True)]
    keys = [Token("\u2581x", 9, 0), *ten, Token("\u2581y", 8, 2), END]
    made = cross([BEGIN, Token("\u2581z", 9, 0)], keys)
    found = word_weights(made, "input", (3, 1))
    assert found[0, 0].tolist() == [[6, 7 + 8 + 9, 10]]


def test_a_word_without_a_token_gets_no_weight() -> None:
    made = cross([BEGIN, Token("\u2581z", 9, 0)], [Token("\u2581x", 9, 0), END])
    assert word_weights(made, "input", (2, 1))[0, 0].tolist() == [[2, 0]]


def test_words_are_what_stands_between_spaces() -> None:
    assert words("  a\u3000b\tc\u2581d ") == ["a", "b", "c", "d"]


def test_links_are_the_maxima_of_the_map_that_is_shown(run: Run) -> None:
    """`align` and `visualize-attn` agree on which row belongs to a word."""
    source, target = PAIRS[0]
    for head in (Head(0, 0, "output"), Head(0, 1, "input")):
        (found,) = align(run, [PAIRS[0]], [head])
        maps = capture(run, source, target=target, kinds=["cross"], step=head.step).maps["cross"]
        shown = maps.by_word().without(special=True)
        assert shown.weights.shape[2:] == (len(target.split()), len(source.split()))
        best = shown.weights[0, head.head].argmax(1)
        assert found[head] == {(int(column), row) for row, column in enumerate(best)}
    assert capture(run, source, target=target, kinds=["cross"]).maps["cross"].step == "output"


def test_each_pair_gets_the_links_of_its_own_map(run: Run) -> None:
    """In batches and beside empty lines as from the map of the pair alone."""
    wanted = heads(run)
    found = list(align(run, PAIRS, wanted))
    assert [len(one) for one in found] == [len(wanted)] * len(PAIRS)
    assert [set(one.values()) for one in (found[1], found[3])] == [{frozenset()}] * 2
    for pair, made in zip(PAIRS, found, strict=True):
        if not all(pair):
            continue
        maps = capture(run, pair[0], target=pair[1], kinds=["cross"], step="input").maps["cross"]
        sizes = (len(pair[0].split()), len(pair[1].split()))
        for head in wanted:
            of_layer = word_weights(maps, head.step, sizes)[head.layer]
            weights = of_layer.mean(0) if head.head is None else of_layer[head.head]
            assert made[head] == links(weights)


def test_heads_are_those_of_the_decoder_and_their_mean(run: Run) -> None:
    assert heads(run) == [Head(0, head, step) for head in (0, 1, None) for step in ("output", "input")]
    assert str(heads(run)[0]) == "layer 0, head 0, output"


@pytest.mark.parametrize(("layers", "layer"), [(1, 0), (2, 1), (3, 1), (6, 4)])
def test_without_gold_a_late_layer_is_taken(run: Run, layers: int, layer: int) -> None:
    model = run.recipe.model
    depth = model.layers.model_copy(update={"decoder": layers})
    deep = run.recipe.model_copy(update={"model": model.model_copy(update={"layers": depth})})
    assert default_head(SimpleNamespace(recipe=deep)) == Head(layer, None, "output")  # type: ignore[arg-type]


def test_the_best_head_has_the_lowest_error_rate() -> None:
    one, two = Head(0, 0, "output"), Head(0, 1, "output")
    right = Gold(frozenset({(0, 0)}), frozenset({(0, 0)}))
    found = [{one: frozenset({(1, 0)}), two: frozenset({(0, 0)})}] * 2
    scores = quality(found, [right, right])
    assert scores == {one: LinkCounts(2, 2, 0, 0), two: LinkCounts(2, 2, 2, 2)}
    assert best(scores) == two


def test_the_rule_reaches_the_links(run: Run) -> None:
    (head, *_), pair = heads(run), PAIRS[:1]
    (strict,) = align(run, pair, [head], LinkRule("threshold", 2.0))
    (loose,) = align(run, pair, [head], LinkRule("threshold", 0.0))
    assert (len(strict[head]), len(loose[head])) == (0, 9)


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
    assert counts == LinkCounts(predicted=4, sure=3, predicted_sure=2, predicted_possible=3)
    assert counts.precision == pytest.approx(100 * 3 / 4)
    assert counts.recall == pytest.approx(100 * 2 / 3)
    assert counts.error == pytest.approx(100 * (1 - 5 / 7))
    assert counts.plus(LinkCounts(1, 0, 0, 1)).error == pytest.approx(100 * (1 - 6 / 8))


def test_nothing_made_where_nothing_is_wanted_is_no_error() -> None:
    nothing = LinkCounts()
    assert (nothing.precision, nothing.recall, nothing.error) == (100, 100, 0)


@given(LINKS, LINKS, LINKS)
def test_rates_are_percentages_and_the_gold_itself_is_right(
    made: frozenset[tuple[int, int]], sure: frozenset[tuple[int, int]], more: frozenset[tuple[int, int]]
) -> None:
    counts = LinkCounts.of(made, Gold(sure, sure | more))
    assert all(0 <= rate <= 100 for rate in (counts.precision, counts.recall, counts.error))
    assert LinkCounts.of(sure, Gold(sure, sure | more)).error == 0


@given(LINKS)
def test_what_is_written_is_read_back(made: frozenset[tuple[int, int]]) -> None:
    assert gold(pharaoh(made), "gold:1", 7, 7) == Gold(made, made)


def test_possible_links_are_marked_in_two_ways() -> None:
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
def test_malformed_gold_is_refused_with_its_place(line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        gold(line, "gold:3", 2, 2)
