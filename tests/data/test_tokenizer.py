"""Vocabularies: what goes in comes out, what is wrong is said, and nothing depends on chance."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import sentencepiece_models
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data.rows import Row
from attnkit.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, Vocabulary, clean, subsample
from attnkit.errors import DataError, MissingInputError, RecipeError
from attnkit.recipe import schema
from attnkit.text import RESERVED

WORDS = ["the", "old", "cat", "dog", "house", "tree", "runs", "sleeps", "sees", "red", "green"]
WORDS += ["and", "in", "of", "seventeen", "garden"]
TYPES = ("unigram", "bpe", "word", "char")


def rows(number: int = 300, seed: int = 0) -> list[Row]:
    """Pairs of made-up sentences; the target is upper case."""
    generator = random.Random(seed)
    lines = [" ".join(generator.choices(WORDS, k=generator.randint(2, 9))) for _ in range(number)]
    return [Row(line, line.upper()) for line in lines]


def trained(**settings: object) -> Tokenizer:
    """A small tokenizer."""
    values = {"size": 120} | settings
    return Tokenizer.train(schema.TokenizerConfig.model_validate(values), rows())


@pytest.fixture(scope="module", params=TYPES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(type=request.param)


def test_reserved_tokens_have_fixed_ids(tokenizer: Tokenizer) -> None:
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert tuple(tokenizer.source.pieces([PAD, UNK, BOS, EOS])) == RESERVED


def test_text_comes_back_with_white_space_collapsed(tokenizer: Tokenizer) -> None:
    texts = ["the cat sees\u3000the  red\u00a0dog ", "", " \t ", "OLD\u2028TREE\r\nRUNS"]
    ids = tokenizer.source.encode(texts)
    assert tokenizer.source.decode(ids) == ["the cat sees the red dog", "", "", "OLD TREE RUNS"]
    assert ids[1] == ids[2] == []


def test_text_is_not_rewritten_by_unicode_normalisation() -> None:
    text = "ﬁne … ｆｕｌｌ x² e\u0301 é №"
    tokenizer = Tokenizer.train(schema.TokenizerConfig(size=60), [Row(text, text)] * 5)
    assert tokenizer.target.decode(tokenizer.target.encode([text])) == [text]


@given(st.lists(st.text(), max_size=20))
def test_any_lines_give_as_many_lines(texts: list[str]) -> None:
    ids = UNIGRAM.encode(texts)
    assert ids == [UNIGRAM.encode([text])[0] for text in texts]
    decoded = UNIGRAM.decode(ids)
    assert decoded == [UNIGRAM.decode([row])[0] for row in ids]
    assert len(decoded) == len(texts)
    assert all(len(line.splitlines()) <= 1 and "\n" not in line for line in decoded)


@given(st.lists(st.lists(st.integers(0, 60), max_size=12), max_size=20))
def test_any_ids_give_as_many_lines(ids: list[list[int]]) -> None:
    decoded = UNIGRAM.decode(ids)
    assert len(decoded) == len(ids)
    assert all(line == clean(line) for line in decoded)


UNIGRAM = trained(size=61).source


def test_a_piece_with_a_line_break_decodes_to_one_line() -> None:
    """An existing model may have been trained on text with line breaks inside."""
    vocabulary = Vocabulary(sentencepiece_models.train(["a b", "b a"] * 9, 20, user_defined_symbols=["\n", "\u2028"]))
    broken = [4, 5, *vocabulary.encode(["a"])[0], 4]
    assert vocabulary.pieces(broken[:2]) == ["\n", "\u2028"]
    assert vocabulary.decode([broken]) == ["a"]


def test_lone_surrogates_and_the_space_mark_are_repaired() -> None:
    assert clean("a\udc80b\u2581c") == "a\ufffdb c"
    assert UNIGRAM.decode(UNIGRAM.encode(["the\u2581cat \ud800"])) == ["the cat \u2047"]


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(IndexError):
        UNIGRAM.decode([[4, 10_000]])
    with pytest.raises(IndexError):
        UNIGRAM.decode([[4]] * 20 + [[10_000]])


def test_shared_means_one_vocabulary_and_separate_two(tmp_path: Path) -> None:
    shared, separate = trained(), trained(shared=False)
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


def test_language_modelling_has_one_vocabulary() -> None:
    lines = [Row("", row.target) for row in rows()]
    tokenizer = Tokenizer.train(schema.TokenizerConfig(size=80, shared=False), lines)
    assert tokenizer.shared


@pytest.mark.parametrize("kind", TYPES)
def test_special_text_is_one_token(kind: str) -> None:
    tokenizer = trained(type=kind, special=["__eot__", "<p>,\"'"], size=150)
    text = "cat __eot__ dog <p>,\"' tree"
    (ids,) = tokenizer.source.encode([text])
    pieces = [piece.lstrip("\u2581") for piece in tokenizer.source.pieces(ids)]
    assert "__eot__" in pieces
    assert "<p>,\"'" in pieces
    assert tokenizer.source.decode([ids]) == [text]


def test_a_size_below_the_alphabet_names_the_smallest_one() -> None:
    with pytest.raises(RecipeError) as caught:
        trained(size=20)
    words = str(caught.value).split()
    least = int(words[words.index("least") + 1].rstrip(","))
    assert str(caught.value) == (
        f"tokenizer.size: 20 is smaller than the alphabet of the text: use at least {least}, or lower "
        "tokenizer.coverage"
    )
    assert len(trained(size=least).source) == least
    with pytest.raises(RecipeError, match="at least"):
        trained(size=least - 1)


def test_a_coverage_that_no_tokenizer_has_names_the_lowest_one() -> None:
    with pytest.raises(RecipeError, match=r"^tokenizer.coverage: must be from 0.98 to 1 to train .*, got 0.9$"):
        trained(coverage=0.9)


def test_rare_characters_become_unknown_with_a_lower_coverage() -> None:
    spec = schema.TokenizerConfig(size=60, coverage=0.9995)
    tokenizer = Tokenizer.train(spec, [*rows(), Row("\u6f22", "\u6f22")])
    ids = tokenizer.source.encode(["\u6f22 cat"])
    assert ids[0].count(UNK) == 1
    assert tokenizer.source.decode(ids) == ["\u2047 cat"]


def test_no_text_at_all_is_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match="cannot be trained: the text is empty"):
        Tokenizer.train(schema.TokenizerConfig(), [Row(" ", "\u2028")])


@pytest.mark.parametrize("kind", TYPES)
def test_very_long_lines_and_words_are_learned_from(kind: str) -> None:
    """sentencepiece alone takes minutes for such a line, and fails on such a word."""
    long = [Row("cat dog " * 30_000, "x" * 70_000)]
    tokenizer = Tokenizer.train(schema.TokenizerConfig.model_validate({"type": kind}), rows(9) + long)
    assert tokenizer.source.decode(tokenizer.source.encode(["cat dog"])) == ["cat dog"]


def test_an_existing_model_serves_both_sides(tmp_path: Path) -> None:
    own = trained(special=["__eot__"])
    own.save(tmp_path)
    spec = schema.TokenizerConfig(model=str(tmp_path / "tokenizer.model"), special=("__eot__",))
    tokenizer = Tokenizer.train(spec, [])
    assert tokenizer.shared
    assert tokenizer.digest == own.digest == trained(special=["__eot__"]).digest
    with pytest.raises(MissingInputError, match=r"none\.model: no such file"):
        Tokenizer.train(schema.TokenizerConfig(model=str(tmp_path / "none.model")), [])


def test_an_existing_model_without_a_special_token_is_refused(tmp_path: Path) -> None:
    trained().save(tmp_path)
    spec = schema.TokenizerConfig(model=str(tmp_path / "tokenizer.model"), special=("__eot__",))
    with pytest.raises(DataError, match=r"tokenizer\.model: has no piece '__eot__'"):
        Tokenizer.train(spec, [])


def test_an_existing_model_with_other_ids_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.model"
    ids = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2}  # sentencepiece's own
    path.write_bytes(sentencepiece_models.train([row.source for row in rows()], 60, **ids))
    with pytest.raises(DataError) as caught:
        Tokenizer.train(schema.TokenizerConfig(model=str(path)), [])
    assert str(caught.value) == (
        f"{path}: the ids of pad, unk, bos, eos are -1, 0, 1, 2; attnkit needs 0, 1, 2, 3: train the "
        "model with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
    )


@pytest.mark.parametrize("content", [b"", b"\0", b"not a model", b"\n\x05hello"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.model: "):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sampling_is_a_pure_function_of_its_arguments(kind: str) -> None:
    vocabulary = trained(type=kind).source
    texts = [row.source for row in rows(50, seed=3)]
    first = vocabulary.sample(texts, alpha=0.3, seed=7)
    vocabulary.sample(texts[:9], alpha=0.9, seed=1)
    assert vocabulary.sample(texts, alpha=0.3, seed=7) == first
    assert vocabulary.sample(texts, alpha=0.3, seed=8) != first
    assert vocabulary.decode(first) == texts


@pytest.mark.slow
def test_sampling_is_the_same_in_every_process(tmp_path: Path) -> None:
    """sentencepiece's own generator is salted in each process: a resumed run saw other data."""
    trained().save(tmp_path)
    code = (
        "import sys, pathlib; from attnkit.data.tokenizer import Tokenizer;"
        "print(Tokenizer.load(pathlib.Path(sys.argv[1])).source.sample(['the old cat'] * 20,"
        " alpha=0.2, seed=5))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2)
    }
    expected = Tokenizer.load(tmp_path).source.sample(["the old cat"] * 20, alpha=0.2, seed=5)
    assert outputs == {f"{expected}\n".encode()}


@pytest.mark.parametrize("kind", ["word", "char"])
def test_models_with_one_segmentation_refuse_to_sample(kind: str) -> None:
    with pytest.raises(RecipeError, match=r"tokenizer\.sampling: only unigram and bpe"):
        trained(type=kind).source.sample(["the cat"], alpha=0.5, seed=1)


def test_a_model_that_leaves_the_first_word_unmarked_refuses_to_sample(tmp_path: Path) -> None:
    model = sentencepiece_models.train([row.source for row in rows()], 60, add_dummy_prefix=False)
    (tmp_path / "tokenizer.model").write_bytes(model)
    vocabulary = Tokenizer.load(tmp_path).source
    with pytest.raises(RecipeError, match="does not mark the start of every word"):
        vocabulary.sample(["the cat"], alpha=0.5, seed=1)


def test_a_subsample_is_evenly_spread_rows_within_the_budget() -> None:
    lines = [Row(f"{i:04}", f"{i:04}") for i in range(1000)]
    assert subsample(lines, 8000) == (lines, 1000)
    assert subsample(iter(lines), 1000) == (lines[::8], 1000)
    assert len(subsample([Row("x" * 99, "y")] * 3, 10)[0]) == 1
