"""Tests of warnings: suspicious outputs, and metrics whose words do not fit the script of the references."""

import pytest

from attnkit.recipe.metrics import METRICS
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.answers import unicode_answer_words
from attnkit.scoring.metrics.tokenizers import unicode_words
from attnkit.scoring.output_warnings import unread_text, warnings

GERMAN = "Ein Mann f\u00e4hrt mit dem Rad durch die Stadt und sieht einen kleinen Hund am Weg"
RUSSIAN = "\u041a\u043e\u0442 2024"  # 3 of 7 letters are Cyrillic
UNSPACED = {
    "Chinese": "\u6211\u4eec\u4eca\u5929\u53bb\u5317\u4eac\u5927\u5b66\u3002",
    "Japanese": "\u732b\u304c\u9053\u3092\u8d70\u3063\u3066\u3044\u308b\u3002",
    "Thai": "\u0e41\u0e21\u0e27\u0e19\u0e31\u0e48\u0e07\u0e2d\u0e22\u0e39\u0e48",
    "Lao": "\u0e82\u0ec9\u0ead\u0e8d\u0eae\u0eb1\u0e81",
    "Khmer": "\u1781\u17d2\u1789\u17bb\u17c6\u179f\u17d2\u179a\u17a1\u17b6\u1789\u17cb",
    "Burmese": "\u1000\u103b\u103d\u1014\u103a\u1010\u1031\u102c\u103a",
    "Tibetan": "\u0f56\u0f7c\u0f51\u0f0b\u0f66\u0f90\u0f51\u0f0b\u0f61\u0f72\u0f42\u0f0d",
}


def unread(text: str, *metrics: str, **settings: object) -> list[str]:
    return unread_text([[text]], metrics, EvalConfig.model_validate(settings))


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (RUSSIAN, "57.1 %"),
        ("\u0441\u043e\u0431\u0430\u043a\u0430", "0.0 %"),
        ("\u03bf \u03c3\u03ba\u03cd\u03bb\u03bf\u03c2 1999", "36.4 %"),  # Greek, 4 of 11
        ("\u0642\u0637\u0629 12", "40.0 %"),  # Arabic
        ("\u72d7 ab", "66.7 %"),
        (GERMAN, "98.4 %"),  # 62 of 63
        ("Ba\u0308r", "75.0 %"),  # decomposed: the mark is lost
    ],
)
def test_rouge_warns_with_the_share_of_letters_kept(text: str, share: str) -> None:
    (warning,) = unread(text, "rouge1", "rougeL", "chrf")
    assert warning.startswith("ROUGE-1, ROUGE-L: ")
    assert f": {share} of the letters and digits " in warning
    assert warning.endswith("; use --words unicode (eval.words)")
    assert unread(text, "rouge1", words="unicode") == []


@pytest.mark.parametrize(
    "text", ["The dog's tail; 12 %!", "", "...", "\u201cIt\u2019s 5 \u20ac \u2013 no more\u201d", "a" * 200 + "\u00e9"]
)
def test_english_text_has_no_warning(text: str) -> None:
    assert unread(text, *METRICS) == []


@pytest.mark.parametrize("text", UNSPACED.values(), ids=UNSPACED)
def test_text_without_spaces_warns(text: str) -> None:
    bleu, classic = unread(text, "bleu", "chrf", "length-ratio", "ter", "answer-f1", "answer-match")
    assert bleu.startswith("BLEU, length ratio: tokenizer 13a does not split text without spaces into words, but ")
    assert classic.startswith("TER, ")
    assert classic.endswith("; use --words unicode (eval.words)")
    assert unread(text, "ter", "answer-f1", words="unicode") == []
    assert unread(text, "bleu", tokenize="char") == []


def test_single_word_of_another_script_has_no_warning() -> None:
    assert unread("the city of \u5317\u4eac is large and old", "bleu", "ter") == []


def test_tokenizer_none_has_no_warning() -> None:
    split = "\u732b \u304c \u8d70\u3063\u3066 \u3044\u308b"
    assert unread(split, "bleu", "ter", tokenize=("char", "none")) == []


@pytest.mark.parametrize("text", UNSPACED.values(), ids=UNSPACED)
def test_unicode_words_keep_every_letter(text: str) -> None:
    """`unread_text` relies on it."""
    letters = [c for c in text if c.isalpha()]
    assert [c for word in unicode_words(text) for c in word if c.isalpha()] == letters
    assert [c for word in unicode_answer_words(text) for c in word if c.isalpha()] == letters
    assert len(unicode_words(text)) > 2
    assert unicode_answer_words(text) == unicode_words(text)


@pytest.mark.parametrize(
    ("outputs", "references", "expected"),
    [
        (["a cat .", "x @ y"], ["a dog .", "x ## y"], None),
        (["", " ", "a"], ["a", "b", ""], "empty outputs: 2 of 3"),
        (["", "a"], ["", "b"], None),  # right where the reference is empty
        (["a", "a"], ["b", "c"], "all 2 outputs are the same text"),
        (["a"], ["b"], None),
        (
            ["\u2581a \u2581cat", "a c@@ at", "a c ##at", "ends c@@", "a@@b"],
            [*"abcde"],
            "outputs with subword marks (U+2581, @@ or ##): 4 of 5; scores",
        ),
        (["a c@@ at"], ["a c@@ at"], None),  # the references carry them as well
        (
            ["a cat .", "a dog ."],
            ["a cat.", "a dog."],
            "outputs with a separate full stop, unlike the references: 2 of 2; scores",
        ),
    ],
)
def test_suspicious_outputs_are_counted(outputs: list[str], references: list[str], expected: str | None) -> None:
    found = warnings(outputs, [[text] for text in references], ["rouge1", "bleu"], EvalConfig())
    assert [warning.startswith(str(expected)) for warning in found] == [True] * (expected is not None)
