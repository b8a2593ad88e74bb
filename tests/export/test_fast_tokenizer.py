"""Tests of exported tokenizers: transformers gives the ids and texts of the sentencepiece model."""

from functools import cache
from typing import Any

import pytest
from helpers.peers import peer
from helpers.trained import ROWS
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data.tokenizer import BOS, EOS, Tokenizer, Vocabulary
from attnkit.errors import DataError
from attnkit.recipe.schema import TokenizerConfig

peer("transformers")
fast_tokenizer = pytest.importorskip("attnkit.export.fast_tokenizer").fast_tokenizer
SPECIAL = ("<sep>", "<se", "[x]")


@cache
def tokenizers(kind: str, special: tuple[str, ...] = ()) -> tuple[Vocabulary, Any]:
    spec = TokenizerConfig(type=kind, size=70, special=special)
    vocabulary = Tokenizer.train(spec, ROWS).source
    return vocabulary, fast_tokenizer(vocabulary, "BOS $A EOS", model_max_length=1000)


parts = st.sampled_from([*"adeginotcz \t\n\u00a0\u2581\x1c\u2603", *SPECIAL, "katze", " rote"])
texts = st.lists(parts | st.characters(exclude_categories=["Cs"]), max_size=20).map("".join)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("special", [(), SPECIAL])
@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
@given(lines=st.lists(texts, min_size=1, max_size=3))
def test_ids_are_equal(kind: str, special: tuple[str, ...], lines: list[str]) -> None:
    vocabulary, fast = tokenizers(kind, special)
    expected = [[BOS, *ids, EOS] for ids in vocabulary.encode(lines)]
    assert fast(lines)["input_ids"] == expected


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_decoded_texts_are_equal(kind: str) -> None:
    vocabulary, fast = tokenizers(kind, SPECIAL)
    size = len(vocabulary)
    rows = [[*range(4, size)], [], [EOS], [size - 1, 4, 4, 5], vocabulary.encode([ROWS[4].target])[0]]
    assert fast.batch_decode(rows, skip_special_tokens=True) == vocabulary.decode(rows)


def test_whole_words_raise() -> None:
    with pytest.raises(DataError, match="use type unigram, bpe or char"):
        tokenizers("word")
