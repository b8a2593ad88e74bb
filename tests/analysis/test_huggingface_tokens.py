"""Tokens of several kinds of tokenizers, spelled out and grouped in words."""

from pathlib import Path

import pytest
import sentencepiece
import transformers
from helpers import pretrained
from hypothesis import given
from hypothesis import strategies as st

from attnkit.analysis import huggingface_tokens
from attnkit.analysis.huggingface_tokens import encode, special_ids, tokens_of
from attnkit.analysis.maps import Token
from attnkit.huggingface import quiet

KINDS = ["byte-level", "metaspace", "wordpiece", "suffix"]


def words(tokens: tuple[Token, ...]) -> list[str]:
    """The texts of each word, one string a word, without the mark of a space."""
    grouped: dict[int, str] = {}
    for token in tokens:
        if token.word is not None:
            grouped[token.word] = grouped.get(token.word, "") + token.text
    assert list(grouped) == list(range(len(grouped)))
    return [word.lstrip("\u2581") for word in grouped.values()]


def axis(kind: str, text: str) -> tuple[Token, ...]:
    tokenizer = pretrained.tokenizer(kind, "<s> $A </s>")
    return tokens_of(tokenizer, encode(tokenizer, text))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("byte-level", ["The", "old", "mill,", "didn't", "it?"]),
        ("metaspace", ["The", "old", "mill,", "didn't", "it<unk>"]),
        ("wordpiece", ["the", "old", "mill,", "didn", "'", "t", "it", "<unk>"]),
        ("suffix", ["The", "old", "mill", ",", "didn", "'", "t", "it", "<unk>"]),
    ],
)
def test_words_are_what_stands_between_spaces_of_the_decoded_text(kind: str, expected: list[str]) -> None:
    tokens = axis(kind, "The old mill, didn't it?")
    assert words(tokens) == expected
    assert [token.special for token in tokens] == [place in (0, len(tokens) - 1) for place in range(len(tokens))]
    assert tokens[0] == Token("<s>", 1, None, special=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mark_stands_where_the_text_has_a_space(kind: str) -> None:
    text = "The old mill runs"
    spelled = "".join(token.text for token in axis(kind, text) if not token.special)
    assert spelled.lower() == text.replace(" ", "\u2581").lower()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_bytes_are_text_again(text: str) -> None:
    if not any(name in text for name in pretrained.SPECIAL):
        found = "".join(token.text for token in axis("byte-level", text)[1:-1])
        assert found == text.replace(" ", "\u2581")


@pytest.mark.parametrize("kind", ["byte-level", "metaspace", "wordpiece"])
def test_long_texts_are_decoded_in_stretches(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The old mill, Gr\u00fc\u00dfe \u4f60! " * 9
    whole = axis(kind, text)
    monkeypatch.setattr(huggingface_tokens, "CHUNK", 7)
    assert axis(kind, text) == whole


def test_a_line_break_parts_words() -> None:
    assert words(axis("byte-level", "old\nmill")) == ["old", "\n", "mill"]


def test_special_tokens_are_those_that_stand_for_no_text() -> None:
    """An unknown word and a mask are places of the text."""
    made = pretrained.tokenizer("wordpiece", "<s> $A </s>")
    tokens = tokens_of(made, encode(made, "The <mask> \u2603"))
    assert [(token.text, token.special) for token in tokens] == [
        ("<s>", True),
        ("the", False),
        ("\u2581<mask>", False),
        ("\u2581<unk>", False),
        ("</s>", True),
    ]
    made.unk_token = "<s>"  # one token for all, as GPT-2 has
    assert 1 in special_ids(made)
    made.add_special_tokens({"extra_special_tokens": ["<lang>"]})
    assert made.convert_tokens_to_ids("<lang>") in special_ids(made)


def test_characters_are_grouped_between_spaces() -> None:
    made = transformers.ByT5Tokenizer()
    tokens = tokens_of(made, encode(made, "ab cd"))
    assert [(t.text, t.word) for t in tokens[:-1]] == [("a", 0), ("b", 0), ("\u2581", 1), ("c", 1), ("d", 1)]
    assert tokens[-1].special


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
    tokens = tokens_of(made, encode(made, text))
    assert words(tokens) == ["The", "old", "mill,", "and", "nobody"]
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
        sentence_iterator=iter(pretrained.TEXTS),
        model_prefix=str(tmp_path / "target"),
        vocab_size=45,
        model_type="char",
        minloglevel=2,
    )
    (tmp_path / "target.model").rename(target)
    with quiet():
        made = transformers.MarianTokenizer(vocab=str(vocabulary), source_spm=str(source), target_spm=str(target))
    text = "The old mill"
    own, other = (encode(made, text, target=side) for side in (False, True))
    assert len(own) < len(other)
    for ids in (own, other):
        tokens = tokens_of(made, ids)
        assert words(tokens) == ["The", "old", "mill"]
        assert tokens[-1].text == "</s>"
        assert tokens[-1].special
