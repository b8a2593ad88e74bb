"""Tests that tokenizers read and restore any text: markers, special symbols, normal forms, foreign models."""

import re
import unicodedata
from functools import cache
from typing import Any

import pytest
import sentencepiece
from helpers import sentencepiece_models
from hypothesis import example, given
from hypothesis import strategies as st

from attnkit.data.rows import Row
from attnkit.data.text_form import clean, from_model, normal_form, to_model
from attnkit.data.tokenizer import UNK, Tokenizer, Vocabulary, unknown_note
from attnkit.recipe.schema import TokenizerConfig
from attnkit.text import RESERVED

TYPES = ("unigram", "bpe", "word", "char")
MARKERS = (*RESERVED, "<mask>", "<extra_id_0>", "__eot__", "\u2581\u2581</s>", "<0x41>", "\u2047")
ODD = ("\0", "\u2585", "\u2581", "\ufdd0", "\ufffe", "\ufeff", "\u200b", "\u200d", "\ufffd", "\x85")

PARTS = st.characters(exclude_categories=["Cs"]) | st.sampled_from((*MARKERS, *ODD, " ", "a", "ab"))
TEXTS = st.lists(PARTS, min_size=1, max_size=12).map("".join)


def train(kind: str, lines: list[str], shared: bool = True, **settings: object) -> Tokenizer:
    """Train a tokenizer of these lines as sources and, reversed, as targets."""
    spec = TokenizerConfig.model_validate({"type": kind, "size": 3000, "shared": shared, **settings})
    return Tokenizer.train(spec, [Row(line, line[::-1]) for line in lines], controls=("<mask>",))


def lines_between(left: str, right: str) -> list[str]:
    texts = ["two red cats", "a dog", "five very old red dogs", "cats and a dog", "old"]
    return [f"{left} {texts[i % 5]} {right}" for i in range(40)]


@pytest.mark.parametrize("kind", TYPES)
@given(lines=st.lists(TEXTS, min_size=1, max_size=4))
@example(lines=["a \u2585 b"])
@example(lines=["\0"])
def test_training_text_is_encoded_and_restored(kind: str, lines: list[str]) -> None:
    if not any(map(clean, lines)):
        return
    vocabulary = train(kind, [*lines, "a"]).source
    ids = vocabulary.encode(lines)
    assert vocabulary.decode(ids) == [clean(line) for line in lines]
    assert not any(id_ <= 3 for row in ids for id_ in row)
    assert not vocabulary.unknown(lines)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("marker", MARKERS)
def test_markers_in_a_text_are_ordinary_text(kind: str, shared: bool, marker: str) -> None:
    lines = lines_between(marker, marker)
    tokenizer = train(kind, lines, shared)
    for vocabulary, texts in ((tokenizer.source, lines), (tokenizer.target, [x[::-1] for x in lines])):
        ids = vocabulary.encode(texts)
        assert vocabulary.decode(ids) == [clean(text) for text in texts]
        assert min(map(min, ids)) > 3
    assert tokenizer.target.encode(["<mask>"])[0] != [tokenizer.target.id_of("<mask>")]


@pytest.mark.parametrize("kind", TYPES)
def test_reserved_spellings_have_as_many_pieces_as_other_letters(kind: str) -> None:
    """The same text with another letter in its markers has equally many pieces."""
    texts = [line[4:-5].replace("s", "") for line in lines_between("<s>", "</s>")]
    reserved, other = ([f"<{x}> {text} </{x}>" for text in texts] for x in "sq")
    sizes = [[*map(len, train(kind, lines, size=40).source.encode(lines))] for lines in (reserved, other)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("word", ["Schal", "ha", "hahaman", "Mannha", "mahan", "harmanha"])
@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_special_symbols_are_one_piece_anywhere(kind: str, word: str) -> None:
    """Even where a unigram model knows more probable pieces that overlap them."""
    lines = ["Schal Schule al mann man ha hat Mannha", "Sch al ma han harm"] * 30
    vocabulary = train(kind, lines, size=80, special=("man", "ha")).source
    text, spans = "", set()
    for piece in vocabulary.pieces(vocabulary.encode([f"al {word} al"])[0]):
        spans.add((len(text), len(text) + len(piece)))
        text += piece.replace("\u2581", " ")
    assert text == f" al {word} al"
    assert {match.span() for match in re.finditer("man|ha", text)} <= spans
    assert vocabulary.decode(vocabulary.encode([word])) == [word]


def test_word_model_keeps_words_that_contain_special_symbols() -> None:
    lines = ["Schal Schule mann man ha hat"] * 3
    vocabulary = train("word", lines, size=80, special=("man", "ha", "__rare__")).source
    pieces = vocabulary.pieces(vocabulary.encode(["Schal ha __rare__"])[0])
    assert pieces == ["\u2581Schal", "\u2581ha", "\u2581__rare__"]
    assert vocabulary.id_of("ha") == vocabulary.encode(["ha"])[0][0]


def test_small_word_model_includes_special_symbols() -> None:
    lines = [f"w{i} w{i} w{i}" for i in range(200)]
    vocabulary = train("word", lines, size=20, special=("__rare__",)).source
    assert len(vocabulary) <= 20
    assert vocabulary.encode(["__rare__"]) == [[vocabulary.id_of("__rare__")]]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_to_model_is_inverted_by_from_model(text: str) -> None:
    converted = to_model(clean(text))
    assert from_model(converted) == clean(text)
    assert not {"\0", "\u2585"} & set(converted)


@pytest.mark.parametrize("form", ["nfc", "nfkc"])
@given(text=st.text())
def test_normal_forms_are_those_of_unicodedata(form: str, text: str) -> None:
    assert normal_form(text, form) == unicodedata.normalize(form.upper(), text)  # type: ignore[arg-type]
    assert normal_form(text, "none") == text


@cache
def vocabulary_of_form(form: str) -> Vocabulary:
    lines = [unicodedata.normalize("NFC", line) for line in ("größe déjà", "weiße Männer", "한국")]
    spec = TokenizerConfig(type="bpe", size=60)
    return Tokenizer.train(spec, [Row(x, x) for x in lines * 9], form=form).source  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["größe", "déjà", "weiße", "Männer", "한국", "ﬁ ½"])
def test_decomposed_text_is_encoded_as_composed(word: str) -> None:
    composed, decomposed, compatible = (unicodedata.normalize(form, word) for form in ("NFC", "NFD", "NFKC"))
    nfc, nfkc, none = map(vocabulary_of_form, ("nfc", "nfkc", "none"))
    assert nfc.encode([composed]) == nfc.encode([decomposed])
    if decomposed != composed:
        assert UNK in none.encode([decomposed])[0]
    assert nfkc.encode([word]) == nfkc.encode([compatible])


def test_unknown_characters_and_words_are_counted() -> None:
    vocabulary = train("bpe", ["abc <s>"] * 5, special=("xyz",)).source
    unknown = vocabulary.unknown(["a\u03b1\u03b1 \u03b2 c", "abc xyz <s>", "\u03b1z"])
    assert unknown == {"\u03b1": 3, "\u03b2": 1, "z": 1}
    prefix = "the tokenizer has no piece for"
    assert unknown_note(unknown) == f"{prefix} 5 characters of the input, most often '\u03b1' (U+03B1), 3 times"
    assert unknown_note(vocabulary.unknown(["\u03b1"])) == f"{prefix} 1 character of the input: '\u03b1' (U+03B1)"
    words = train("word", ["abc def"] * 5).source
    assert words.unknown(["abc ghi def", "ghi jkl"]) == {"ghi": 2, "jkl": 1}
    assert unknown_note(words.unknown(["ghi"])) == f"{prefix} 1 word of the input: 'ghi'"
    assert unknown_note(words.unknown(["abc"])) == ""


def foreign_model(lines: list[str], size: int, **settings: object) -> tuple[Vocabulary, Any]:
    """Return a model trained by sentencepiece itself, and sentencepiece's processor of it."""
    model = sentencepiece_models.train(lines * 20, size, **settings)
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return Vocabulary(model), processor


def test_foreign_model_is_read_as_sentencepiece_reads_it() -> None:
    """These models put a space before a text, and control tokens are spelled plainly."""
    special = ["ha", "<mask>"]
    vocabulary, processor = foreign_model(["Schal man ha Schule", "ha al man"], 40, user_defined_symbols=special)
    for text in ("Schal ha man", "hahaSchal", "a </s> b"):
        assert vocabulary.encode([text])[0] == processor.encode(text)
    assert vocabulary.id_of("<mask>") == processor.piece_to_id("<mask>")
    assert vocabulary.pieces(range(4)) == [*RESERVED]


def test_word_for_unknown_words_is_one_piece_anywhere() -> None:
    spec = TokenizerConfig(type="bpe", size=40).model_copy(update={"special": ("\u2581<unk>",)})
    vocabulary = Tokenizer.train(spec, [Row("", "the <unk> cat"), Row("", "a <unk>")] * 9).target
    texts = ["<unk> the cat", "the <unk> cat", "<unk>"]
    assert not vocabulary.unknown(texts)
    ids = vocabulary.encode(texts)
    assert [vocabulary.pieces(row).count("\u2581<unk>") for row in ids] == [1, 1, 1]
    assert vocabulary.decode(ids) == texts


@pytest.mark.parametrize(
    "settings",
    [
        {"remove_extra_whitespaces": False},
        {"add_dummy_prefix": False},
        {"byte_fallback": True, "control_symbols": ["<ctl>"], "add_dummy_prefix": False},
    ],
    ids=str,
)
def test_settings_of_foreign_models_are_kept(settings: dict[str, Any]) -> None:
    """No spelling encodes to a control token or a byte, and ids are sentencepiece's own."""
    line = "the cat <q> dog < > 0 x 4 1 c t l A"
    options: Any = {"model_type": "bpe", "user_defined_symbols": ["<q>"], "normalization_rule_name": "identity"}
    vocabulary, processor = foreign_model([line], 400, **options, **settings)
    for text in ("the cat<q>dog", "a <ctl> <0x41> c", "<q>", "the cat"):
        assert vocabulary.encode([text])[0] == processor.encode(text)
