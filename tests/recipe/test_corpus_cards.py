"""Corpus cards: complete, consistent, and true of the files that they describe."""

import hashlib
from pathlib import Path, PurePosixPath

import pytest

from attnkit.errors import RecipeError
from attnkit.recipe import corpus_cards

NAMED = (
    "multi30k", "multi30k-official", "wmt14-en-de", "wmt14-en-fr", "cnn-dailymail", "personachat",
    "wikitext-2", "toy-translation", "toy-summarization", "toy-dialogue",
)  # fmt: skip


def test_the_promised_corpora_have_cards() -> None:
    assert set(NAMED) <= set(corpus_cards.names())


@pytest.mark.parametrize("name", corpus_cards.names())
def test_a_card_is_complete_and_consistent(name: str) -> None:
    card = corpus_cards.load(name)
    assert card.name == name
    assert card.downloads or card.obtain
    paths = [PurePosixPath(file.path) for file in card.files()]
    assert len(set(paths)) == len(paths)
    assert not any(path.is_absolute() or ".." in path.parts for path in paths)
    assert all("\n" not in text for text in (card.title, card.obtain or "", card.note or ""))
    sides = {"lines": {*card.languages}, "generated": set()}.get(card.format, {"rows"})
    for files in card.splits.values():
        assert files.keys() == sides
        assert len({len(parts) for parts in files.values()}) <= 1
    assert (card.task == "classification") == bool(card.labels)
    assert (card.task == "recall" or card.marked is not None) == (card.length is not None)
    for file in card.files():
        assert file.archive is None or file.archive in card.archives
        assert (file.archive is None) == (file.member is None)
        assert not (file.archive and file.url)


def test_an_unknown_corpus_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RecipeError) as caught:
        corpus_cards.load("mutli30k")
    assert str(caught.value) == "no corpus is called 'mutli30k'; did you mean multi30k?"
    with pytest.raises(RecipeError, match="no corpus is called '../cards/multi30k'"):
        corpus_cards.load("../cards/multi30k")


@pytest.mark.parametrize("name", corpus_cards.names())
def test_prepared_files_have_the_sizes_and_hashes_of_their_card(corpora: Path, name: str) -> None:
    for file in corpus_cards.load(name).files():
        path = corpora / name / file.path
        if file.sha256 is None or not path.is_file():
            continue
        content = path.read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)
