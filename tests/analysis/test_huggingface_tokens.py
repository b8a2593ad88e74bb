"""Tokens of several kinds of tokenizers, spelled out and grouped in words."""

from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from helpers import pretrained
from hypothesis import given
from hypothesis import strategies as st

from attnkit.analysis.huggingface_tokens import Speller, encode, readable
from attnkit.analysis.maps import Token
from attnkit.huggingface import quiet

KINDS = ["byte-level", "metaspace", "wordpiece", "suffix"]
TEXT = "The old mill, didn't it?"


def words(tokens: tuple[Token, ...]) -> list[str]:
    """The texts of each word, one string a word, without the mark of a space."""
    grouped: dict[int, str] = {}
    for token in tokens:
        if token.word is not None:
            grouped[token.word] = grouped.get(token.word, "") + token.text
    assert list(grouped) == list(range(len(grouped)))
    return [word.lstrip("\u2581") for word in grouped.values()]


def axis(kind: str, text: str = TEXT, known: bool = True) -> tuple[Token, ...]:
    tokenizer = pretrained.tokenizer(kind, "<s> $A </s>")
    return Speller(tokenizer).tokens_of(encode(tokenizer, text), text if known else None)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("byte-level", ["The", "old", "mill", ",", "didn", "'t", "it", "?"]),
        ("metaspace", ["The", "old", "mill,", "didn't", "it<unk>"]),
        ("wordpiece", ["the", "old", "mill", ",", "didn", "'", "t", "it", "<unk>"]),
        ("suffix", ["The", "old", "mill", ",", "didn", "'", "t", "it", "<unk>"]),
    ],
)
def test_words_are_those_of_the_tokenizer(kind: str, expected: list[str]) -> None:
    tokens = axis(kind)
    assert words(tokens) == expected
    assert [token.special for token in tokens] == [
        place in (0, len(tokens) - 1) for place in range(len(tokens))
    ]
    assert tokens[0] == Token("<s>", 1, None, special=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mark_stands_where_the_text_has_a_space(kind: str) -> None:
    """Metaspace also puts one before the first word, as its vocabulary does."""
    text = "The old mill runs"
    spelled = "".join(token.text for token in axis(kind, text) if not token.special)
    spelled = spelled.removeprefix("\u2581") if kind == "metaspace" else spelled
    assert spelled.lower() == text.replace(" ", "\u2581").lower()


@pytest.mark.parametrize("kind", ["metaspace", "wordpiece", "suffix"])
def test_words_of_an_unknown_text_are_told_by_its_marks(kind: str) -> None:
    text = "The old mill runs behind"
    assert words(axis(kind, text, known=False)) == words(axis(kind, text))
    marked = [token.text.startswith("\u2581") for token in axis(kind, text, known=False)]
    assert marked == [token.text.startswith("\u2581") for token in axis(kind, text)]


def test_words_are_told_by_marks_where_the_text_is_another() -> None:
    tokenizer = pretrained.tokenizer("byte-level")
    ids = encode(tokenizer, "The old, old mill")
    assert words(Speller(tokenizer).tokens_of(ids, "another text")) == [
        "The",
        "old,",
        "old",
        "mill",
    ]
    assert words(Speller(tokenizer).tokens_of(ids, "The old, old mill")) == [
        "The", "old", ",", "old", "mill"
    ]  # fmt: skip


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_bytes_are_text_again(text: str) -> None:
    tokenizer = pretrained.tokenizer("byte-level")
    pieces = tokenizer.backend_tokenizer.encode(text).tokens
    joined = "".join(pieces)
    if not any(name in text for name in pretrained.SPECIAL):
        assert readable(joined) == text
    assert all("\u0120" not in readable(piece) or "\u0120" in text for piece in pieces)


def test_a_line_break_parts_words_of_an_unknown_text() -> None:
    tokenizer = pretrained.tokenizer("byte-level")
    ids = encode(tokenizer, "old\nmill")
    assert words(Speller(tokenizer).tokens_of(ids)) == ["old", "\n", "mill"]
    assert words(Speller(tokenizer).tokens_of(ids, "old\nmill")) == ["old", "\n", "mill"]


def test_bytes_that_are_no_character_are_numbers() -> None:
    tokenizer = pretrained.tokenizer("byte-level")
    tokens = Speller(tokenizer).tokens_of(encode(tokenizer, "a\U0001f600"), "a\U0001f600")
    assert "".join(token.text for token in tokens) == "a<0xF0><0x9F><0x98><0x80>"
    assert readable("\u00e4\u00bd\u0142") == "\u4f60"
    assert readable("x\u00e4") == "x<0xE4>"
    assert readable("<|im_end|>\u4f60") == "<|im_end|>\u4f60"  # an added token, not bytes


def test_special_tokens_are_those_that_stand_for_no_text() -> None:
    """An unknown word and a mask are places of the text."""
    made = pretrained.tokenizer("wordpiece", "<s> $A </s>")
    tokens = Speller(made).tokens_of(encode(made, "The <mask> \u2603"), "The <mask> \u2603")
    assert [(token.text, token.special) for token in tokens] == [
        ("<s>", True), ("the", False), ("\u2581<mask>", False), ("\u2581<unk>", False),
        ("</s>", True),
    ]  # fmt: skip
    made.unk_token = "<s>"  # one token for all, as GPT-2 has
    assert 1 in Speller(made).special
    made.add_special_tokens({"extra_special_tokens": ["<lang>"]})
    assert made.convert_tokens_to_ids("<lang>") in Speller(made).special


def test_continuation_marks_of_subword_nmt_are_taken_off() -> None:
    vocabulary = {"un@@": 4, "break@@": 5, "able": 6, "river": 7, "s@@": 8}
    speller = Speller(Slow(vocabulary))
    assert [(t.text, t.word) for t in speller.tokens_of([4, 5, 6, 7])] == [
        ("un", 0), ("break", 0), ("able", 0), ("\u2581river", 1)
    ]  # fmt: skip


def test_plain_vocabularies_have_a_word_a_token() -> None:
    speller = Speller(Slow({"the": 4, "river": 5}))
    assert [(t.text, t.word) for t in speller.tokens_of([4, 5])] == [("the", 0), ("\u2581river", 1)]


def test_characters_are_grouped_between_spaces() -> None:
    made = transformers.ByT5Tokenizer()
    tokens = Speller(made).tokens_of(encode(made, "ab cd"), "ab cd")
    assert [(t.text, t.word) for t in tokens[:-1]] == [
        ("a", 0), ("b", 0), ("\u2581", 1), ("c", 1), ("d", 1)
    ]  # fmt: skip
    assert tokens[-1].special


class Slow:
    """What Speller needs of a tokenizer that is not of the tokenizers library."""

    is_fast = False
    added_tokens_decoder: dict[int, Any] = {}
    all_special_ids = [0, 1, 2, 3]
    bos_token_id, eos_token_id, pad_token_id, unk_token_id = 1, 2, 0, 3
    sep_token_id = cls_token_id = mask_token_id = None

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        named = {id_: piece for piece, id_ in self.vocabulary.items()}
        return [named[id_] for id_ in ids]


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a sentencepiece model, for all that read one."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(pretrained.TEXTS),
        model_prefix=str(folder / "spiece"),
        vocab_size=55,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return folder


def test_a_sentencepiece_file_alone_is_read(sentences: Path) -> None:
    """T5 has such directories; transformers needs protobuf for them."""
    (sentences / "config.json").write_text('{"model_type": "t5"}')
    with quiet():
        made = transformers.AutoTokenizer.from_pretrained(sentences)
    text = "The old mill, and nobody"
    tokens = Speller(made).tokens_of(encode(made, text), text)
    assert words(tokens) == ["The", "old", "mill,", "and", "nobody"]
    assert tokens[0].text.startswith("\u2581")
    assert tokens[-1].special


def test_source_and_target_may_have_two_vocabularies(sentences: Path, tmp_path: Path) -> None:
    """Marian encodes targets with another sentencepiece model."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(sentences / "spiece.model"))
    pieces = [model.id_to_piece(id_) for id_ in range(len(model))]
    vocabulary = tmp_path / "vocab.json"
    listed = ", ".join(f'"{piece}": {id_}' for id_, piece in enumerate(pieces) if piece != '"')
    vocabulary.write_text("{" + listed + "}", encoding="utf-8")
    source = sentences / "spiece.model"
    target = tmp_path / "target.spm"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(pretrained.TEXTS), model_prefix=str(tmp_path / "target"),
        vocab_size=45, model_type="char", minloglevel=2,
    )  # fmt: skip
    (tmp_path / "target.model").rename(target)
    with quiet():
        made = transformers.MarianTokenizer(
            vocab=str(vocabulary), source_spm=str(source), target_spm=str(target)
        )
    text = "The old mill"
    own, other = (encode(made, text, target=side) for side in (False, True))
    assert len(own) < len(other)
    for ids, side in ((own, False), (other, True)):
        tokens = Speller(made).tokens_of(ids, text, target=side)
        assert words(tokens) == ["The", "old", "mill"]
        assert tokens[-1].text == "</s>"
        assert tokens[-1].special
