"""Tests of masked tokens and span corruption against plain implementations of their descriptions."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data import objectives
from attnkit.data.batch import collate
from attnkit.data.encoded import Blocks, Encoded, Ragged
from attnkit.data.objectives import FIXED, MASK, apply_objective, corrupt_spans, mask_tokens, noise_of, sentinels
from attnkit.data.rows import Counts, Row
from attnkit.data.tokenizer import EOS, PAD, Tokenizer
from attnkit.errors import DataError
from attnkit.recipe.schema import TokenizerConfig
from attnkit.text import RESERVED

LENGTH = 40
ROWS = [Row("", "abcdefghijklmnopqrstuvwxyz0123456789 ABCDEFGHIJ")]
CHARACTERS = Tokenizer.train(TokenizerConfig(type="char", size=60, special=(MASK,)), ROWS).target
MASK_ID = CHARACTERS.id_of(MASK)
VOCABULARY = Tokenizer.train(
    TokenizerConfig(type="word", size=40, special=sentinels(LENGTH)), [Row("", "a b c d e f g h")]
).target
SENTINELS = [VOCABULARY.id_of(piece) for piece in sentinels(LENGTH)]
FIRST = max(SENTINELS) + 1  # first id of text

Ids = tuple[list[int], list[int]]


def random_text(tokens: int, length: int = 8) -> Encoded:
    """Return random text with ends of paragraphs."""
    ids = np.random.default_rng(tokens).integers(MASK_ID + 1, len(CHARACTERS), tokens)
    ids[5::6] = EOS
    return Encoded(None, Blocks(ids.astype(np.uint16), length), Counts(), "", Path())


def masked(text: Encoded, length: int, noise: tuple[int, int] = FIXED) -> Ids:
    """Return the source and target ids of all masked rows, concatenated."""
    encoded = mask_tokens(text, CHARACTERS, length, noise)
    assert isinstance(encoded.source, Ragged)
    sources, targets = [], []
    for row in range(len(encoded)):
        batch = collate(encoded, np.array([row]))
        assert batch.source is not None
        assert batch.source.shape == batch.output.shape
        sources += batch.source[0].tolist()
        targets += batch.output[0].tolist()
        assert batch.tokens == max(1, int((batch.output != PAD).sum()))
    return sources, targets


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 9), st.integers(0, 9))
def test_masked_tokens_do_not_depend_on_the_length_of_rows(tokens: int, length: int, seed: int, epoch: int) -> None:
    text = random_text(tokens)
    sources, targets = masked(text, length, (seed, epoch))
    assert (sources, targets) == masked(text, tokens, (seed, epoch))
    for token, source, target in zip(text.target.ids.tolist(), sources, targets, strict=True):
        assert target in (PAD, token)
        assert target != EOS
        assert token in (source, target)
        assert source >= len(RESERVED) or source == EOS


def test_masking_has_the_proportions_of_the_paper() -> None:
    text = random_text(60_000, 64)
    sources, targets = map(np.array, masked(text, 64))
    ids = text.target.ids
    chosen, words = targets != PAD, ids != EOS
    assert abs(chosen[words].mean() - 0.15) < 0.006
    assert abs((sources[chosen] == MASK_ID).mean() - 0.8) < 0.02
    kept = (sources == ids) & chosen
    assert abs(kept.sum() / chosen.sum() - 0.1) < 0.02
    random = sources[chosen & ~kept & (sources != MASK_ID)]
    assert {*random.tolist()} == {*range(len(RESERVED), len(CHARACTERS))} - {MASK_ID}


def test_every_epoch_masks_other_tokens() -> None:
    first, again, other = (masked(random_text(600), 64, noise) for noise in ((1, 1), (1, 1), (1, 2)))
    assert first == again != other


def stream(tokens: int, *, ends: bool = False) -> Encoded:
    """Return distinct tokens, with ends of paragraphs after some of them."""
    ids = list(range(FIRST, FIRST + tokens))
    if ends:
        ids = [i for token in ids for i in ([token, EOS] if token % 5 == 0 else [token])]
    return Encoded(None, Blocks(np.array(ids, np.uint16), LENGTH), Counts(), "", Path())


def corrupted(text: Encoded, noise: tuple[int, int] = FIXED) -> list[Ids]:
    """Return the source and target ids of each row after span corruption."""
    encoded = corrupt_spans(text, VOCABULARY, LENGTH, noise)
    assert isinstance(encoded.source, Ragged)
    return [(encoded.source[row].tolist(), encoded.target[row].tolist()) for row in range(len(encoded))]


def restored(source: list[int], target: list[int]) -> list[int]:
    """Return the text: each sentinel of the source replaced by what follows it in the target."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in SENTINELS:
            spans[token] = current = []
        else:
            current.append(token)
    return [t for token in source for t in (spans[token] if token in SENTINELS else [token])]


@given(st.integers(2, 200), st.integers(0, 9), st.integers(0, 9))
def test_source_and_spans_of_the_target_restore_the_text(tokens: int, seed: int, epoch: int) -> None:
    rows = corrupted(stream(tokens), (seed, epoch))
    texts = [restored(source[:-1], target) for source, target in rows]
    whole = [token for text in texts for token in text]
    # a single token at the end is dropped: nothing beside it could be kept
    assert whole == list(range(FIRST, FIRST + tokens))[: len(whole)]
    assert tokens - len(whole) == (tokens % LENGTH == 1)
    for (source, target), text in zip(rows, texts, strict=True):
        noise, spans = noise_of(len(text))
        places = [place for place, token in enumerate(source) if token in SENTINELS]
        assert [source[place] for place in places] == SENTINELS[:spans]  # each once, in order
        assert [token for token in target if token in SENTINELS] == SENTINELS[: spans + 1]
        assert target[0] == SENTINELS[0] and target[-1] == SENTINELS[spans]  # noqa: PT018
        assert len(target) == noise + spans + 1
        assert source[0] not in SENTINELS  # a text begins with a gap
        assert source[-1] == EOS
        assert all(b - a > 1 for a, b in zip(places, places[1:], strict=False))
        assert len(source) <= LENGTH


def test_amount_of_noise_is_that_of_the_paper() -> None:
    """15 % of the tokens, spans of 3 on average; T5's own numbers for 512 tokens."""
    assert noise_of(512) == (77, 26)
    assert noise_of(2) == (1, 1)
    assert len(sentinels(512)) == 27
    assert sentinels(20)[0] == "<extra_id_0>"


def test_places_between_the_first_and_the_last_span_are_masked_about_equally_often() -> None:
    """Spans differ between rows and epochs; a text begins with a gap and ends with a span."""
    masked_count = np.zeros(LENGTH)
    epochs, rows = 20, 50
    for epoch in range(epochs):
        for number, (_, target) in enumerate(corrupted(stream(LENGTH * rows), (1, epoch))):
            places = [t - FIRST - number * LENGTH for t in target if t not in SENTINELS]
            masked_count[places] += 1
    share = masked_count / (epochs * rows)
    assert share[0] == 0
    assert share[-1] == 1
    assert abs(share.mean() - 0.15) < 1e-9
    assert share[3:-6].min() > 0.05  # without the last span, of 3 tokens on average
    assert share[3:-6].max() < 0.13


def test_span_corruption_is_a_function_of_seed_and_epoch() -> None:
    first, again, *others = (corrupted(stream(400), noise) for noise in ((1, 1), (1, 1), (2, 1), (1, 2)))
    assert first == again
    assert first not in others


def test_span_corruption_ignores_ends_of_paragraphs() -> None:
    assert corrupted(stream(200, ends=True)) == corrupted(stream(200))


def test_span_corruption_of_one_token_raises() -> None:
    with pytest.raises(DataError, match="1 token; span corruption needs at least 2"):
        corrupt_spans(stream(1), VOCABULARY, LENGTH)


def test_tokenizer_without_sentinels_raises() -> None:
    vocabulary = Tokenizer.train(TokenizerConfig(type="word", size=40), ROWS).target
    with pytest.raises(DataError, match="no piece '<extra_id_0>'"):
        corrupt_spans(stream(50), vocabulary, LENGTH)


@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("objective", ["masked", "span-corruption"])
def test_noise_does_not_depend_on_the_size_of_chunks(
    objective: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    special = (MASK, *sentinels(16))
    vocabulary = Tokenizer.train(TokenizerConfig(type="char", size=60, special=special), ROWS).target
    whole = apply_objective(random_text(600), vocabulary, objective, 16, (1, 1))
    monkeypatch.setattr(objectives, "CHUNK", chunk)
    chunked = apply_objective(random_text(600), vocabulary, objective, 16, (1, 1))
    for side in ("source", "target"):
        first, second = getattr(whole, side), getattr(chunked, side)
        assert np.array_equal(first.ids, second.ids)
        assert np.array_equal(first.starts, second.starts)
