"""Tests of tokens of Hugging Face tokenizers: texts, words, special tokens."""

import json
from pathlib import Path

import pytest
import sentencepiece
import transformers
from helpers import pretrained, sentencepiece_models
from hypothesis import given
from hypothesis import strategies as st

from attnkit.analysis import huggingface_tokens
from attnkit.analysis.huggingface_tokens import encode, special_ids, tokens_of
from attnkit.analysis.maps import Token
from attnkit.huggingface import quiet

KINDS = ["byte-level", "metaspace", "wordpiece", "suffix"]


def words(tokens: tuple[Token, ...]) -> list[str]:
    """Return each word as one string, without the mark of a space."""
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
def test_words_are_those_of_the_decoded_text(kind: str, expected: list[str]) -> None:
    tokens = axis(kind, "The old mill, didn't it?")
    assert words(tokens) == expected
    assert [token.special for token in tokens] == [True, *[False] * (len(tokens) - 2), True]
    assert tokens[0] == Token("<s>", 1, None, special=True)


@pytest.mark.parametrize("kind", KINDS)
def test_space_marks_are_the_spaces_of_the_text(kind: str) -> None:
    text = "The old mill runs"
    spelled = "".join(token.text for token in axis(kind, text) if not token.special)
    assert spelled.lower() == text.replace(" ", "\u2581").lower()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_bytes_are_decoded_to_text(text: str) -> None:
    if not any(name in text for name in pretrained.SPECIAL):
        found = "".join(token.text for token in axis("byte-level", text)[1:-1])
        assert found == text.replace(" ", "\u2581")


@pytest.mark.parametrize("kind", ["byte-level", "metaspace", "wordpiece"])
def test_long_texts_are_decoded_in_chunks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The old mill, Gr\u00fc\u00dfe \u4f60! " * 9
    whole = axis(kind, text)
    monkeypatch.setattr(huggingface_tokens, "CHUNK", 7)
    assert axis(kind, text) == whole


def test_line_break_separates_words() -> None:
    assert words(axis("byte-level", "old\nmill")) == ["old", "\n", "mill"]


def test_unknown_words_and_masks_are_not_special() -> None:
    tokenizer = pretrained.tokenizer("wordpiece", "<s> $A </s>")
    tokens = tokens_of(tokenizer, encode(tokenizer, "The <mask> \u2603"))
    assert [token.text for token in tokens] == ["<s>", "the", "\u2581<mask>", "\u2581<unk>", "</s>"]
    assert [token.special for token in tokens] == [True, False, False, False, True]
    tokenizer.unk_token = "<s>"  # one token for several roles, as in GPT-2
    assert 1 in special_ids(tokenizer)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<lang>"]})
    assert tokenizer.convert_tokens_to_ids("<lang>") in special_ids(tokenizer)


def test_characters_are_grouped_by_spaces() -> None:
    tokenizer = transformers.ByT5Tokenizer()
    tokens = tokens_of(tokenizer, encode(tokenizer, "ab cd"))
    assert [(t.text, t.word) for t in tokens[:-1]] == [("a", 0), ("b", 0), ("\u2581", 1), ("c", 1), ("d", 1)]
    assert tokens[-1].special


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a sentencepiece model."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    (folder / "spiece.model").write_bytes(sentencepiece_models.train(pretrained.TEXTS, 55, **ids))
    return folder


def test_directory_with_a_sentencepiece_file_only(sentences: Path) -> None:
    """T5 has such directories; transformers needs protobuf for them."""
    (sentences / "config.json").write_text('{"model_type": "t5"}')
    with quiet():
        tokenizer = transformers.AutoTokenizer.from_pretrained(sentences)
    tokens = tokens_of(tokenizer, encode(tokenizer, "The old mill, and nobody"))
    assert words(tokens) == ["The", "old", "mill,", "and", "nobody"]
    assert tokens[-1].special


def test_source_and_target_may_have_two_vocabularies(sentences: Path, tmp_path: Path) -> None:
    """Marian encodes targets with another sentencepiece model."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(sentences / "spiece.model"))
    pieces = [model.id_to_piece(id_) for id_ in range(len(model))]
    files = {name: str(tmp_path / name) for name in ("vocab", "target_spm")}
    Path(files["vocab"]).write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    Path(files["target_spm"]).write_bytes(sentencepiece_models.train(pretrained.TEXTS, 45, model_type="char"))
    with quiet():
        tokenizer = transformers.MarianTokenizer(source_spm=str(sentences / "spiece.model"), **files)
    source, target = (encode(tokenizer, "The old mill", target=side) for side in (False, True))
    assert len(source) < len(target)
    for ids in (source, target):
        tokens = tokens_of(tokenizer, ids)
        assert words(tokens) == ["The", "old", "mill"]
        assert (tokens[-1].text, tokens[-1].special) == ("</s>", True)
