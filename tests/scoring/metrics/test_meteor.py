"""Tests of METEOR against nltk, by hand, and without WordNet."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.wordnet import only_wordnet, write_wordnet

from attnkit.errors import UnavailableError
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import check_available, score


@pytest.fixture
def wordnet(tmp_path: Path) -> Iterator[None]:
    """Provide a WordNet of one pair of synonyms."""
    with only_wordnet(tmp_path, "dog", "hound"):
        yield


def meteor(text: str, *references: str) -> float:
    return score(["meteor"], [text], [references], EvalConfig())["meteor"].value / 100


def by_hand(matches: int, chunks: int, words: int, reference: int) -> float:
    """Return the score by Lavie and Agarwal 2007, section 2: alpha 0.9, beta 3, gamma 0.5."""
    precision, recall = matches / words, matches / reference
    mean = precision * recall / (0.9 * precision + 0.1 * recall)
    return mean * (1 - 0.5 * (chunks / matches) ** 3)


@pytest.mark.usefixtures("wordnet")
def test_words_match_by_form_stem_and_synonym() -> None:
    assert meteor("the red dog", "The red dog") == pytest.approx(by_hand(3, 1, 3, 3))
    assert meteor("two red dogs", "two red dog") == pytest.approx(by_hand(3, 1, 3, 3))
    assert meteor("the red hound", "the red dog") == pytest.approx(by_hand(3, 1, 3, 3))
    assert meteor("the red cat", "the red dog") == pytest.approx(by_hand(2, 1, 3, 3))
    assert meteor("dog red the", "the red dog") == pytest.approx(by_hand(3, 3, 3, 3))
    assert meteor("the dog", "the very red dog") == pytest.approx(by_hand(2, 2, 2, 4))
    assert meteor("nothing", "the red dog") == meteor("", "the red dog") == 0


@pytest.mark.usefixtures("wordnet")
def test_meteor_equals_that_of_nltk() -> None:
    import nltk
    from nltk.translate.meteor_score import meteor_score

    text, reference = "Dogs ran , as a hound runs .", "A hound runs , as dogs ran !"
    expected = meteor_score([reference.split()], text.split(), wordnet=nltk.corpus.wordnet)
    assert meteor(text, reference) == pytest.approx(expected)


def test_without_wordnet_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    for call in (lambda: meteor("a", "a"), lambda: check_available(["meteor"], EvalConfig())):
        with only_wordnet(tmp_path), pytest.raises(UnavailableError, match="^.*python -m nltk.downloader wordnet.*$"):
            call()


def test_damaged_wordnet_raises(tmp_path: Path) -> None:
    write_wordnet(tmp_path / "written", ["dog"])
    (tmp_path / "written" / "corpora" / "wordnet" / "lexnames").unlink()
    with only_wordnet(tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setattr("nltk.data.path", [str(tmp_path / "written")])
        with pytest.raises(UnavailableError, match="nltk's copy is damaged: .*lexnames"):
            meteor("a", "a")
