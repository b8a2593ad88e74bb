"""Corpus cards: complete, consistent, and true of the files that they describe."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from attnkit.errors import RecipeError
from attnkit.recipe import corpus_cards

NAMED = (
    "multi30k", "multi30k-official", "wmt14-en-de", "wmt14-en-fr", "cnn-dailymail", "personachat",
    "wikitext-2", "toy-translation", "toy-summarization", "toy-dialogue",
)  # fmt: skip

CARD: dict[str, Any] = {
    "name": "x", "title": "X", "task": "translation", "format": "lines", "languages": ["a", "b"],
    "licence": "none", "citation": "none", "homepage": None,
    "splits": {"train": {"a": {"path": "train.a"}, "b": {"path": "train.b"}}},
}  # fmt: skip


def test_the_promised_corpora_have_cards() -> None:
    assert set(NAMED) <= set(corpus_cards.names())


def test_a_card_that_lacks_a_key_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "mine.yaml").write_text("title: Mine\n", encoding="utf-8")
    monkeypatch.setattr(corpus_cards, "files", lambda package: tmp_path)
    monkeypatch.setattr(corpus_cards, "names", lambda: ("mine",))
    load = getattr(corpus_cards.load, "__wrapped__", corpus_cards.load)
    with pytest.raises(RecipeError, match="corpus card mine: task: Field required"):
        load("mine")


@pytest.mark.parametrize("name", corpus_cards.names())
def test_a_card_is_complete(name: str) -> None:
    card = corpus_cards.load(name)
    assert card.name == name
    assert card.downloads or card.obtain
    paths = [file.path for file in card.files()]
    assert len(set(paths)) == len(paths)
    assert all("\n" not in text for text in (card.title, card.obtain or "", card.note or ""))


def test_an_unknown_corpus_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RecipeError) as caught:
        corpus_cards.load("mutli30k")
    assert str(caught.value) == "no corpus is called 'mutli30k'; did you mean multi30k?"
    with pytest.raises(RecipeError, match="no corpus is called '../cards/multi30k'"):
        corpus_cards.load("../cards/multi30k")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "extra"),
        ({"splits": {"train": {"a": {"path": "train.a"}}}}, "must have files for"),
        ({"splits": {"train": {"a": {"path": "../a"}, "b": {"path": "b"}}}}, "below the folder"),
        ({"splits": {"train": {"a": {"path": "/a"}, "b": {"path": "b"}}}}, "below the folder"),
        (
            {"splits": {"train": {"a": {"path": "a", "url": "http://x/a"}, "b": {"path": "b"}}}},
            "https",
        ),
        ({"splits": {"train": {"a": {"path": "a", "sha256": "1f"}, "b": {"path": "b"}}}}, "sha256"),
        (
            {
                "splits": {
                    "train": {"a": {"path": "a", "archive": "y", "member": "a"}, "b": {"path": "b"}}
                }
            },
            "no archive y",
        ),
        (
            {"splits": {"train": {"a": [{"path": "a"}, {"path": "c"}], "b": {"path": "b"}}}},
            "as many files",
        ),
    ],
)
def test_an_inconsistent_card_is_refused(change: dict[str, Any], message: str) -> None:
    assert corpus_cards.Card.model_validate(CARD).files()[1].path == "train.b"
    with pytest.raises(ValidationError, match=message):
        corpus_cards.Card.model_validate({**CARD, **change})


@pytest.mark.parametrize("name", corpus_cards.names())
def test_prepared_files_have_the_sizes_and_hashes_of_their_card(corpora: Path, name: str) -> None:
    for file in corpus_cards.load(name).files():
        path = corpora / name / file.path
        if file.sha256 is None or not path.is_file():
            continue
        content = path.read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)
