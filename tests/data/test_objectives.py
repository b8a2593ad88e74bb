"""Masked tokens and span corruption against a plain reading of their descriptions."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data import objectives
from attnkit.data.batch import collate
from attnkit.data.encoded import Blocks, Encoded, Ragged
from attnkit.data.objectives import MASK, apply_objective, corrupt_spans, mask_tokens, noise_of, sentinels
from attnkit.data.rows import Counts, Row
from attnkit.data.tokenizer import EOS, PAD, Tokenizer
from attnkit.errors import DataError
from attnkit.recipe.schema import TokenizerConfig
from attnkit.text import RESERVED

LENGTH = 40
ROWS = [Row("", "abcdefghijklmnopqrstuvwxyz0123456789 ABCDEFGHIJ")]
MASKING = Tokenizer.train(TokenizerConfig(type="char", size=60, special=(MASK,)), ROWS).target
HOLE = MASKING.id_of(MASK)
VOCABULARY = Tokenizer.train(
    TokenizerConfig(type="word", size=40, special=sentinels(LENGTH)), [Row("", "a b c d e f g h")]
).target
MARKS = [VOCABULARY.id_of(piece) for piece in sentinels(LENGTH)]
FIRST = max(MARKS) + 1  # ids from here on are text


def random_text(tokens: int, length: int = 8) -> Encoded:
    """Random text with ends of paragraphs."""
    ids = np.random.default_rng(tokens).integers(HOLE + 1, len(MASKING), tokens)
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


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 9), st.integers(0, 9))
def test_windows_of_any_length_hide_the_same_tokens(tokens: int, length: int, seed: int, epoch: int) -> None:
    text = random_text(tokens)
    seen, wanted = parts(mask_tokens(text, MASKING, length, (seed, epoch)))
    assert (seen, wanted) == parts(mask_tokens(text, MASKING, tokens, (seed, epoch)))
    for token, shown, hidden in zip(text.target.ids.tolist(), seen, wanted, strict=True):
        assert hidden in (PAD, token)
        assert hidden != EOS
        assert shown == token or hidden == token
        assert shown >= len(RESERVED) or shown == EOS


def test_shares_are_those_of_the_paper() -> None:
    text = random_text(60_000, 64)
    seen, wanted = map(np.array, parts(mask_tokens(text, MASKING, 64)))
    ids = text.target.ids
    chosen, words = wanted != PAD, ids != EOS
    assert abs(chosen[words].mean() - 0.15) < 0.006
    assert abs((seen[chosen] == HOLE).mean() - 0.8) < 0.02
    kept = (seen == ids) & chosen
    assert abs(kept.sum() / chosen.sum() - 0.1) < 0.02
    other = seen[chosen & ~kept & (seen != HOLE)]
    assert {*other.tolist()} == {*range(len(RESERVED), len(MASKING))} - {HOLE}


def test_every_epoch_hides_other_tokens() -> None:
    text = random_text(600)
    first, again, other = (parts(mask_tokens(text, MASKING, 64, noise)) for noise in ((1, 1), (1, 1), (1, 2)))
    assert first == again != other


def stream(tokens: int, *, ends: bool = False) -> Encoded:
    """Tokens that are all different, with paragraph ends between some of them."""
    ids = list(range(FIRST, FIRST + tokens))
    if ends:
        ids = [i for token in ids for i in ([token, EOS] if token % 5 == 0 else [token])]
    blocks = Blocks(np.array(ids, np.uint16), LENGTH)
    return Encoded(None, blocks, Counts(), "", Path())


def rows_of(encoded: Encoded) -> list[tuple[list[int], list[int]]]:
    assert isinstance(encoded.source, Ragged)
    return [(encoded.source[row].tolist(), encoded.target[row].tolist()) for row in range(len(encoded))]


def restored(source: list[int], target: list[int]) -> list[int]:
    """The text: each sentinel of the source replaced by what follows it in the target."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in MARKS:
            spans[token] = current = []
        else:
            current.append(token)
    return [t for token in source for t in (spans[token] if token in MARKS else [token])]


@given(st.integers(2, 200), st.integers(0, 9), st.integers(0, 9))
def test_a_text_is_its_source_with_the_spans_of_its_target(tokens: int, seed: int, epoch: int) -> None:
    rows = rows_of(corrupt_spans(stream(tokens), VOCABULARY, LENGTH, (seed, epoch)))
    texts = [restored(source[:-1], target) for source, target in rows]
    whole = [token for text in texts for token in text]
    # one token left over has nothing beside it that could be kept
    assert whole == list(range(FIRST, FIRST + tokens))[: len(whole)]
    assert tokens - len(whole) == (tokens % LENGTH == 1)
    for (source, target), text in zip(rows, texts, strict=True):
        noise, spans = noise_of(len(text))
        used = [token for token in source if token in MARKS]
        assert used == MARKS[:spans]  # each once, in order
        assert [token for token in target if token in MARKS] == MARKS[: spans + 1]
        assert target[0] == MARKS[0] and target[-1] == MARKS[spans]  # noqa: PT018
        assert len(target) == noise + spans + 1
        assert source[0] not in MARKS  # a text begins with a gap
        assert source[-1] == EOS
        places = [place for place, token in enumerate(source) if token in MARKS]
        assert all(b - a > 1 for a, b in zip(places, places[1:], strict=False))
        assert len(source) <= LENGTH


def test_the_noise_is_that_of_the_paper() -> None:
    """15 % of the tokens, spans of 3 on average; T5's own numbers for 512 tokens."""
    assert noise_of(512) == (77, 26)
    assert noise_of(2) == (1, 1)
    assert len(sentinels(512)) == 27
    assert sentinels(20)[0] == "<extra_id_0>"


def test_places_between_the_first_and_the_last_span_are_masked_about_equally_often() -> None:
    """Spans are drawn anew in each row and epoch; a text begins with a gap and ends with a span."""
    gaps = np.zeros(LENGTH)
    epochs, rows = 20, 50
    for epoch in range(epochs):
        made = rows_of(corrupt_spans(stream(LENGTH * rows), VOCABULARY, LENGTH, (1, epoch)))
        for number, (_, target) in enumerate(made):
            gone = [t - FIRST - number * LENGTH for t in target if t not in MARKS]
            gaps[gone] += 1
    share = gaps / (epochs * rows)
    assert share[0] == 0
    assert share[-1] == 1
    assert abs(share.mean() - 0.15) < 1e-9
    assert share[3:-6].min() > 0.05  # the last span, of 3 tokens on average, is left out
    assert share[3:-6].max() < 0.13


def test_noise_is_a_function_of_seed_and_epoch() -> None:
    one, again, other, later = (
        rows_of(corrupt_spans(stream(400), VOCABULARY, LENGTH, noise)) for noise in ((1, 1), (1, 1), (2, 1), (1, 2))
    )
    assert one == again
    assert one != other
    assert one != later


def test_ends_of_paragraphs_are_left_out() -> None:
    assert rows_of(corrupt_spans(stream(200, ends=True), VOCABULARY, LENGTH)) == rows_of(
        corrupt_spans(stream(200), VOCABULARY, LENGTH)
    )


def test_a_text_of_one_token_is_refused() -> None:
    with pytest.raises(DataError, match="1 tokens; span corruption needs at least 2"):
        corrupt_spans(stream(1), VOCABULARY, LENGTH)


def test_a_tokenizer_without_sentinels_is_refused() -> None:
    plain = Tokenizer.train(TokenizerConfig(type="word", size=40), ROWS).target
    with pytest.raises(DataError, match="no piece '<extra_id_0>'"):
        corrupt_spans(stream(50), plain, LENGTH)


@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("objective", ["masked", "span-corruption"])
def test_noise_is_the_same_made_in_chunks(objective: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    special = (MASK, *sentinels(16))
    vocabulary = Tokenizer.train(TokenizerConfig(type="char", size=60, special=special), ROWS).target
    whole = apply_objective(random_text(600), vocabulary, objective, 16, (1, 1))
    monkeypatch.setattr(objectives, "CHUNK", chunk)
    parts = apply_objective(random_text(600), vocabulary, objective, 16, (1, 1))
    for side in ("source", "target"):
        one, other = getattr(whole, side), getattr(parts, side)
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.starts, other.starts)
