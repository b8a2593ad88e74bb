"""Masked tokens against a plain reading of their description."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attnkit.data.batch import collate
from attnkit.data.encoded import Blocks, Encoded, Ragged
from attnkit.data.masking import MASK, masked
from attnkit.data.rows import Counts, Row
from attnkit.data.tokenizer import EOS, PAD, Tokenizer
from attnkit.recipe.schema import TokenizerConfig
from attnkit.text import RESERVED

VOCABULARY = Tokenizer.train(
    TokenizerConfig(type="char", size=60, special=(MASK,)),
    [Row("", "abcdefghijklmnopqrstuvwxyz0123456789 ABCDEFGHIJ")],
).target
HOLE = VOCABULARY.id_of(MASK)


def stream(tokens: int, length: int = 8) -> Encoded:
    """Random text with ends of paragraphs."""
    ids = np.random.default_rng(tokens).integers(HOLE + 1, len(VOCABULARY), tokens)
    ids[5::6] = EOS
    return Encoded(None, Blocks(ids.astype(np.uint16), length), Counts(), "", Path())


def parts(encoded: Encoded) -> tuple[list[int], list[int]]:
    """What is seen and what is to be predicted, row after row."""
    assert isinstance(encoded.source, Ragged)
    seen, wanted = [], []
    for row in range(len(encoded)):
        batch = collate(encoded, np.array([row]))
        assert batch.source is not None
        assert batch.source.shape == batch.output.shape
        seen += batch.source[0].tolist()
        wanted += batch.output[0].tolist()
        assert batch.tokens == max(1, sum(token != PAD for token in batch.output[0].tolist()))
    return seen, wanted


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 9), st.integers(0, 9))
def test_windows_of_any_length_hide_the_same_tokens(
    tokens: int, length: int, seed: int, epoch: int
) -> None:
    text = stream(tokens)
    seen, wanted = parts(masked(text, VOCABULARY, length, (seed, epoch)))
    assert (seen, wanted) == parts(masked(text, VOCABULARY, tokens, (seed, epoch)))
    for token, shown, hidden in zip(text.target.ids.tolist(), seen, wanted, strict=True):
        assert hidden in (PAD, token)
        assert hidden != EOS
        assert shown == token or hidden == token
        assert shown >= len(RESERVED) or shown == EOS


def test_shares_are_those_of_the_paper() -> None:
    text = stream(60_000, 64)
    seen, wanted = map(np.array, parts(masked(text, VOCABULARY, 64)))
    ids = text.target.ids
    chosen, words = wanted != PAD, ids != EOS
    assert abs(chosen[words].mean() - 0.15) < 0.006
    assert abs((seen[chosen] == HOLE).mean() - 0.8) < 0.02
    kept = (seen == ids) & chosen
    assert abs(kept.sum() / chosen.sum() - 0.1) < 0.02
    other = seen[chosen & ~kept & (seen != HOLE)]
    assert {*other.tolist()} == {*range(len(RESERVED), len(VOCABULARY))} - {HOLE}


def test_every_epoch_hides_other_tokens() -> None:
    text = stream(600)
    first, again, other = (
        parts(masked(text, VOCABULARY, 64, noise)) for noise in ((1, 1), (1, 1), (1, 2))
    )
    assert first == again != other
