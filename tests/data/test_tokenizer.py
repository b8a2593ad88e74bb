"""Tests of tokenizers: round trips, sizes, existing models, sampling, subsamples, errors."""

import random
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from helpers import sentencepiece_models
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data.rows import Row
from attnkit.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, Vocabulary, clean, subsample
from attnkit.errors import DataError, MissingInputError, RecipeError
from attnkit.recipe.schema import TokenizerConfig
from attnkit.text import RESERVED

WORDS = ["the", "old", "cat", "dog", "house", "tree", "runs", "sleeps", "sees", "red", "green"]
WORDS += ["and", "in", "of", "seventeen", "garden"]
TYPES = ("unigram", "bpe", "word", "char")


def make_rows(number: int = 300, seed: int = 0) -> list[Row]:
    """Return pairs of random sentences; the target is the source in upper case."""
    generator = random.Random(seed)
    lines = [" ".join(generator.choices(WORDS, k=generator.randint(2, 9))) for _ in range(number)]
    return [Row(line, line.upper()) for line in lines]


ROWS = make_rows()
SOURCES = [row.source for row in ROWS]


def train(rows: Iterable[Row] = ROWS, **settings: Any) -> Tokenizer:
    return Tokenizer.train(TokenizerConfig.model_validate({"size": 120} | settings), rows)


UNIGRAM = train(size=61).source


@pytest.fixture(scope="module", params=TYPES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train(type=request.param)


def test_reserved_tokens_have_fixed_ids(tokenizer: Tokenizer) -> None:
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert tuple(tokenizer.source.pieces([PAD, UNK, BOS, EOS])) == RESERVED


def test_decoded_text_has_single_spaces(tokenizer: Tokenizer) -> None:
    texts = ["the cat sees\u3000the  red\u00a0dog ", "", " \t ", "OLD\u2028TREE\r\nRUNS"]
    ids = tokenizer.source.encode(texts)
    assert tokenizer.source.decode(ids) == ["the cat sees the red dog", "", "", "OLD TREE RUNS"]
    assert ids[1] == ids[2] == []


def test_text_is_not_normalized() -> None:
    text = "ﬁne … ｆｕｌｌ x² e\u0301 é №"
    tokenizer = train([Row(text, text)] * 5, size=60)
    assert tokenizer.target.decode(tokenizer.target.encode([text])) == [text]


@given(st.lists(st.text(), max_size=20))
def test_any_texts_are_encoded_and_decoded_one_by_one(texts: list[str]) -> None:
    ids = UNIGRAM.encode(texts)
    assert ids == [UNIGRAM.encode([text])[0] for text in texts]
    decoded = UNIGRAM.decode(ids)
    assert decoded == [UNIGRAM.decode([row])[0] for row in ids]
    assert len(decoded) == len(texts)
    assert all(len(line.splitlines()) <= 1 and "\n" not in line for line in decoded)


@given(st.lists(st.lists(st.integers(0, 60), max_size=12), max_size=20))
def test_any_ids_are_decoded_to_one_line_each(ids: list[list[int]]) -> None:
    decoded = UNIGRAM.decode(ids)
    assert len(decoded) == len(ids)
    assert all(line == clean(line) for line in decoded)


def test_piece_with_a_line_break_is_decoded_to_one_line() -> None:
    """An existing model may have been trained on text with line breaks."""
    vocabulary = Vocabulary(sentencepiece_models.train(["a b", "b a"] * 9, 20, user_defined_symbols=["\n", "\u2028"]))
    assert vocabulary.pieces([4, 5]) == ["\n", "\u2028"]
    assert vocabulary.decode([[4, 5, *vocabulary.encode(["a"])[0], 4]]) == ["a"]


def test_lone_surrogates_and_the_space_mark_are_replaced() -> None:
    assert clean("a\udc80b\u2581c") == "a\ufffdb c"
    assert UNIGRAM.decode(UNIGRAM.encode(["the\u2581cat \ud800"])) == ["the cat \u2047"]


@pytest.mark.parametrize("ids", [[[4, 10_000]], [[4]] * 20 + [[10_000]]])
def test_ids_outside_the_vocabulary_raise(ids: list[list[int]]) -> None:
    with pytest.raises(IndexError):
        UNIGRAM.decode(ids)


def test_shared_and_separate_vocabularies_are_saved_and_loaded(tmp_path: Path) -> None:
    shared, separate = train(), train(shared=False)
    assert shared.source is shared.target
    assert separate.source.encode(["CAT"]) != separate.target.encode(["CAT"])
    for tokenizer, files in ((shared, 1), (separate, 2)):
        folder = tmp_path / str(files)
        folder.mkdir()
        tokenizer.save(folder)
        assert len(list(folder.iterdir())) == files
        loaded = Tokenizer.load(folder)
        assert loaded.digest == tokenizer.digest
        assert loaded.shared == tokenizer.shared
        assert loaded.target.encode(["OLD CAT"]) == tokenizer.target.encode(["OLD CAT"])


def test_language_modeling_has_one_vocabulary() -> None:
    assert train([Row("", row.target) for row in ROWS], size=80, shared=False).shared


@pytest.mark.parametrize("kind", TYPES)
def test_special_text_is_one_token(kind: str) -> None:
    vocabulary = train(type=kind, special=["__eot__", "<p>,\"'"], size=150).source
    text = "cat __eot__ dog <p>,\"' tree"
    (ids,) = vocabulary.encode([text])
    assert {"__eot__", "<p>,\"'"} <= {piece.lstrip("\u2581") for piece in vocabulary.pieces(ids)}
    assert vocabulary.decode([ids]) == [text]


def test_size_below_the_alphabet_names_the_minimum() -> None:
    with pytest.raises(RecipeError) as caught:
        train(size=20)
    words = str(caught.value).split()
    minimum = int(words[words.index("least") + 1].rstrip(","))
    assert str(caught.value) == (
        f"tokenizer.size: 20 is smaller than the alphabet of the text: use at least {minimum}, or lower "
        "tokenizer.coverage"
    )
    assert len(train(size=minimum).source) == minimum
    with pytest.raises(RecipeError, match="at least"):
        train(size=minimum - 1)


def test_too_low_coverage_names_the_minimum() -> None:
    with pytest.raises(RecipeError, match=r"^tokenizer.coverage: must be from 0.98 to 1 to train .*, got 0.9$"):
        train(coverage=0.9)


def test_rare_characters_are_unknown_with_lower_coverage() -> None:
    vocabulary = train([*ROWS, Row("\u6f22", "\u6f22")], size=60, coverage=0.9995).source
    ids = vocabulary.encode(["\u6f22 cat"])
    assert ids[0].count(UNK) == 1
    assert vocabulary.decode(ids) == ["\u2047 cat"]


def test_training_without_text_raises() -> None:
    with pytest.raises(DataError, match="cannot be trained: the text is empty"):
        train([Row(" ", "\u2028")])


@pytest.mark.parametrize("kind", TYPES)
def test_training_reads_very_long_lines_and_words(kind: str) -> None:
    """sentencepiece alone takes minutes for such a line, and fails on such a word."""
    rows = [*make_rows(9), Row("cat dog " * 30_000, "x" * 70_000)]
    vocabulary = Tokenizer.train(TokenizerConfig.model_validate({"type": kind}), rows).source
    assert vocabulary.decode(vocabulary.encode(["cat dog"])) == ["cat dog"]


def test_existing_model_serves_both_sides(tmp_path: Path) -> None:
    special = ("__eot__",)
    saved = train(special=special)
    saved.save(tmp_path)
    tokenizer = train([], model=str(tmp_path / "tokenizer.model"), special=special)
    assert tokenizer.shared
    assert tokenizer.digest == saved.digest == train(special=special).digest
    with pytest.raises(DataError, match=r"tokenizer\.model: has no piece '__eop__'"):
        train([], model=str(tmp_path / "tokenizer.model"), special=("__eop__",))
    with pytest.raises(MissingInputError, match=r"none\.model: no such file"):
        train([], model=str(tmp_path / "none.model"))


def test_existing_model_with_other_ids_raises(tmp_path: Path) -> None:
    path = tmp_path / "other.model"
    defaults = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2}  # of sentencepiece
    path.write_bytes(sentencepiece_models.train(SOURCES, 60, **defaults))
    with pytest.raises(DataError) as caught:
        train([], model=str(path))
    assert str(caught.value) == (
        f"{path}: the ids of pad, unk, bos, eos are -1, 0, 1, 2; attnkit needs 0, 1, 2, 3: train the "
        "model with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
    )


@pytest.mark.parametrize("content", [b"", b"\0", b"not a model", b"\n\x05hello"])
def test_loading_other_than_a_model_raises(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.model: "):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sampling_is_a_function_of_its_arguments(kind: str) -> None:
    vocabulary = train(type=kind).source
    texts = [row.source for row in make_rows(50, seed=3)]
    first = vocabulary.sample(texts, alpha=0.3, seed=7)
    vocabulary.sample(texts[:9], alpha=0.9, seed=1)
    assert vocabulary.sample(texts, alpha=0.3, seed=7) == first
    assert vocabulary.sample(texts, alpha=0.3, seed=8) != first
    assert vocabulary.decode(first) == texts


@pytest.mark.slow
def test_sampling_is_the_same_in_every_process() -> None:
    """sentencepiece's own generator has another seed in each process: a resumed run read other data."""
    vocabulary, texts = train().source, ["the old cat"] * 20
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        sampled = pool.submit(vocabulary.sample, texts, alpha=0.2, seed=5).result()
    assert sampled == vocabulary.sample(texts, alpha=0.2, seed=5)


def test_sampling_without_marked_starts_of_words_raises(tmp_path: Path) -> None:
    model = sentencepiece_models.train(SOURCES, 60, add_dummy_prefix=False)
    (tmp_path / "tokenizer.model").write_bytes(model)
    vocabulary = Tokenizer.load(tmp_path).source
    with pytest.raises(RecipeError, match="does not mark the start of every word"):
        vocabulary.sample(["the cat"], alpha=0.5, seed=1)


def test_subsample_is_evenly_spread_and_within_the_budget() -> None:
    lines = [Row(f"{i:04}", f"{i:04}") for i in range(1000)]
    assert subsample(lines, 8000) == (lines, 1000)
    assert subsample(iter(lines), 1000) == (lines[::8], 1000)
    assert len(subsample([Row("x" * 99, "y")] * 3, 10)[0]) == 1
