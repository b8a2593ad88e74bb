"""Word alignments from maps, and from a run."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.trained import make_run

from attnkit.analysis.capture import capture
from attnkit.analysis.maps import AttentionMaps, MapLayer, Token
from attnkit.analysis.sentence_alignment import (
    Head,
    LinkRule,
    align,
    best,
    heads,
    quality,
    usual,
    word_weights,
    words,
)
from attnkit.analysis.word_alignment import Gold, LinkCounts, links
from attnkit.errors import UsageError
from attnkit.runs import Run

BEGIN, END = Token("<s>", 2, None, True), Token("</s>", 3, None, True)
PAIRS = [
    ("one red dog", "ein roter hund"),
    ("", "hund"),
    ("a dog and a cat", "ein hund"),
    ("a", ""),
]


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
    reading = word_weights(made, "reading", (2, 2))[0, 0]
    writing = word_weights(made, "writing", (2, 2))[0, 0]
    assert reading.tolist() == [[4 + 5, 6], [(8 + 9 + 12 + 13) / 2, (10 + 14) / 2]]
    assert writing.tolist() == [[0 + 1, 2], [(4 + 5 + 8 + 9) / 2, (6 + 10) / 2]]


def test_special_pieces_of_the_recipe_are_words_of_the_line() -> None:
    """Digits or separators are no words of a map, but the line has them: `x 10 y`."""
    ten = [Token("\u2581", 6, 1), Token("1", 5, None, True), Token("0", 4, None, True)]
    keys = [Token("\u2581x", 9, 0), *ten, Token("\u2581y", 8, 2), END]
    made = cross([BEGIN, Token("\u2581z", 9, 0)], keys)
    found = word_weights(made, "reading", (3, 1))
    assert found[0, 0].tolist() == [[6, 7 + 8 + 9, 10]]


def test_a_word_without_a_token_gets_no_weight() -> None:
    made = cross([BEGIN, Token("\u2581z", 9, 0)], [Token("\u2581x", 9, 0), END])
    assert word_weights(made, "reading", (2, 1))[0, 0].tolist() == [[2, 0]]


def test_words_are_what_stands_between_spaces() -> None:
    assert words("  a\u3000b\tc\u2581d ") == ["a", "b", "c", "d"]


def test_each_pair_gets_the_links_of_its_own_map(run: Run) -> None:
    """In batches and beside empty lines as from the map of the pair alone."""
    wanted = heads(run)
    found = list(align(run, PAIRS, wanted))
    assert [len(one) for one in found] == [len(wanted)] * len(PAIRS)
    assert [set(one.values()) for one in (found[1], found[3])] == [{frozenset()}] * 2
    for pair, made in zip(PAIRS, found, strict=True):
        if not all(pair):
            continue
        maps = capture(run, pair[0], target=pair[1], kinds=["cross"]).maps["cross"]
        sizes = (len(pair[0].split()), len(pair[1].split()))
        for head in wanted:
            of_layer = word_weights(maps, head.step, sizes)[head.layer]
            weights = of_layer.mean(0) if head.head is None else of_layer[head.head]
            assert made[head] == links(weights)


def test_heads_are_those_of_the_decoder_and_their_mean(run: Run) -> None:
    assert heads(run) == [
        Head(0, head, step) for head in (0, 1, None) for step in ("writing", "reading")
    ]
    assert str(heads(run)[0]) == "layer 0, head 0, writing"


@pytest.mark.parametrize(("layers", "layer"), [(1, 0), (2, 1), (3, 1), (6, 4)])
def test_without_gold_a_late_layer_is_taken(run: Run, layers: int, layer: int) -> None:
    model = run.recipe.model
    depth = model.layers.model_copy(update={"decoder": layers})
    deep = run.recipe.model_copy(update={"model": model.model_copy(update={"layers": depth})})
    assert usual(SimpleNamespace(recipe=deep)) == Head(layer, None, "writing")  # type: ignore[arg-type]


def test_a_layer_or_head_that_is_not_there_is_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="layer 3, head 0, writing: .* layers 0 to 0 with heads 0"):
        list(align(run, PAIRS, [Head(3, 0, "writing")]))


def test_a_model_without_cross_attention_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a model of shape decoder has none of"):
        heads(make_run(tmp_path, task="language-modeling"))


def test_the_best_head_has_the_lowest_error_rate() -> None:
    one, two = Head(0, 0, "writing"), Head(0, 1, "writing")
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
