"""Tests of heads ranked by the attention of one word to another."""

import numpy as np
import pytest

from attnkit.analysis.maps import AttentionMaps, MapLayer, Token
from attnkit.analysis.word_attention import HeadReading, has_word, rank_heads
from attnkit.errors import UsageError
from attnkit.show.probe_tables import reading_table

TOKENS = (
    Token("\u2581It", 1, 0),
    Token("\u2581ani", 2, 1),
    Token("mal", 3, 1),
    Token(".", 4, 1),
    Token("</s>", 5, None, special=True),
)
WEIGHTS = np.array(
    [[[[0.1, 0.5, 0.2, 0.1, 0.1]] + [[0.2] * 5] * 4, [[0.8, 0.1, 0.0, 0.0, 0.1]] + [[0.2] * 5] * 4]], np.float32
)
MAPS = AttentionMaps("encoder", WEIGHTS, (MapLayer(0, "dot"),), (0, 1), TOKENS, TOKENS)


def test_heads_are_ranked_by_the_sum_over_the_tokens_of_a_word() -> None:
    first, second = rank_heads(MAPS, "it", "Animal")
    assert first[:2] == (0, 0)
    assert first.weight == pytest.approx(0.8)
    assert second == HeadReading(0, 1, pytest.approx(0.1), "It", pytest.approx(0.8))
    assert has_word(TOKENS, "animal")
    assert not has_word(TOKENS, "ani")


def test_missing_word_raises_with_the_words_of_the_text() -> None:
    with pytest.raises(UsageError, match=r"--to cat: .*'cat'; the words are It, animal\.$"):
        rank_heads(MAPS, "it", "cat")


def test_table_of_heads() -> None:
    table = reading_table(MAPS, "it", "animal")
    assert [cell.text for cell in table.rows[0]] == ["0", "0", "0.80", "animal.", "0.80"]
    assert "choose a head first" in table.notes[-1]
