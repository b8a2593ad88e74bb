"""Tests of ROUGE, TER and F1 in other scripts against other libraries, and of white space in all metrics."""

import re
import string
import sys
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, TER

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import TEXT, score

UNICODE = EvalConfig(words="unicode")
RUSSIAN = (
    [
        "\u0412 2024 \u0433\u043e\u0434\u0443 \u043a\u043e\u0442 \u0441\u043f\u0438\u0442.",
        "\u0421\u043e\u0431\u0430\u043a\u0430 \u0431\u0435\u0436\u0438\u0442",
    ],
    [
        "\u0412 2024 \u0433\u043e\u0434\u0443 \u043c\u0430\u043c\u0430 \u0438\u0434\u0451\u0442!",
        "\u0421\u043e\u0431\u0430\u043a\u0430, \u0441\u043f\u0438\u0442",
    ],
)
GREEK = (
    ["\u03bf \u03c3\u03ba\u03cd\u03bb\u03bf\u03c2 \u03c4\u03bf 1999", "\u03bc\u03af\u03b1 \u03b3\u03ac\u03c4\u03b1"],
    ["\u03b7 \u03b3\u03ac\u03c4\u03b1 \u03c4\u03bf 1999", "\u03bc\u03af\u03b1 \u03b3\u03ac\u03c4\u03b1."],
)
ARABIC = (
    ["\u0643\u0644\u0628 \u0641\u064a 2020", "\u0642\u0637\u0629"],
    ["\u0642\u0637\u0629 \u0641\u064a 2020", "\u0642\u0637\u0629 \u0643\u0628\u064a\u0631\u0629"],
)
GERMAN = (["Der B\u00e4r h\u00f6rt T\u00f6ne", "sch\u00f6n"], ["Der B\u00f6r h\u00e4rt T\u00fcne", "sch\u00fcn"])
CHINESE = (
    ["\u6211\u4eec\u4eca\u5929\u53bb\u5317\u4eac\u5927\u5b66\u3002", "\u4ed6\u5728\u770b\u4e66\u3002"],
    ["\u6211\u4eec\u660e\u5929\u53bb\u4e0a\u6d77\u5927\u5b66\u3002", "\u5979\u5728\u5199\u5b57\u3002"],
)
JAPANESE = (
    ["\u732b\u304c\u9053\u3092\u8d70\u3063\u3066\u3044\u308b\u3002", "\u6771\u4eac\u306f\u5927\u304d\u3044\u3002"],
    ["\u72ac\u304c\u9053\u3092\u8d70\u3063\u3066\u3044\u308b\u3002", "\u5927\u962a\u306f\u5927\u304d\u3044\u3002"],
)
THAI = (["\u0e1b\u0e25\u0e32\u0e14\u0e33", "\u0e21\u0e32"], ["\u0e1b\u0e25\u0e32\u0e02\u0e32\u0e27", "\u0e21\u0e32"])
SPACED, UNSPACED = (RUSSIAN, GREEK, ARABIC, GERMAN), (CHINESE, JAPANESE, THAI)
Pair = tuple[list[str], list[str]]


class PlainTokenizer:
    """A tokenizer for rouge-score: words without punctuation, or characters where no spaces are used."""

    def __init__(self, spaced: bool) -> None:
        self.spaced = spaced

    def tokenize(self, text: str) -> list[str]:
        words = [word.strip(".,!\u3002") for word in text.lower().split()]
        return words if self.spaced else [c for word in words for c in word]


@pytest.mark.parametrize("pair", [*SPACED, *UNSPACED])
def test_rouge_equals_that_of_rouge_score(pair: Pair) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    names = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    scorer = RougeScorer(names, tokenizer=PlainTokenizer(pair in SPACED))
    ours = score(["rouge"], pair[1], [[text] for text in pair[0]], UNICODE)
    for name in names:
        expected = [scorer.score(r, h)[name].fmeasure for r, h in zip(*pair, strict=True)]
        assert ours[name].value == pytest.approx(50 * sum(expected))
        assert "|stemmer:no|words:unicode|" in ours[name].signature


def test_rouge_lsum_cuts_chinese_sentences() -> None:
    text, reference = ("\u732b\u8dd1\u3002\u72d7\u53eb\uff01", [["\u72d7\u53eb\uff01\u732b\u8dd1\u3002"]])
    eval = UNICODE.model_copy(update={"sentences": "punctuation"})
    assert score(["rougeLsum"], [text], reference, UNICODE)["rougeLsum"].value == 50
    assert score(["rougeLsum"], [text], reference, eval)["rougeLsum"].value == 100


@pytest.mark.parametrize("pair", [*SPACED, *UNSPACED])
def test_ter_equals_that_of_sacrebleu(pair: Pair) -> None:
    for eval, metric in ((EvalConfig(), TER()), (UNICODE, TER(normalized=True, asian_support=True))):
        expected = metric.corpus_score(pair[1], [pair[0]]).score
        ours = score(["ter"], pair[1], [[line] for line in pair[0]], eval)["ter"]
        assert ours.value == pytest.approx(expected, abs=1e-12)
        assert ours.signature == str(metric.get_signature())


PUNCTUATION = {c for c in map(chr, range(sys.maxunicode)) if unicodedata.category(c)[0] == "P"}
PUNCTUATION |= {*string.punctuation}


def mlqa_words(text: str) -> list[str]:
    """Return the words of MLQA's evaluation script, for Chinese with the articles of English."""
    text = "".join(c for c in text.lower() if c not in PUNCTUATION)
    text = re.sub(r"\b(a|an|the)\b", " ", text)
    return re.sub("([\u4e00-\u9fa5])", r" \1 ", text).split()


def mlqa_f1(answer: str, expected: str) -> float:
    found, wanted = mlqa_words(answer), mlqa_words(expected)
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


ANSWERS = st.text(st.sampled_from("\u5317\u4eac\u5927a the\u3002\u300c\uff0c.-\u20191 $"))


@given(ANSWERS, ANSWERS)
def test_answers_equal_those_of_mlqa(answer: str, expected: str) -> None:
    found = score(["answer-f1", "answer-match"], [answer], [[expected]], UNICODE)
    assert found["answer-f1"].value == pytest.approx(100 * mlqa_f1(answer, expected))
    assert found["answer-match"].value == 100 * (mlqa_words(answer) == mlqa_words(expected))
    assert "|norm:squad-1.1|words:unicode|" in found["answer-f1"].signature


SPACES = ["\u00a0", "\u202f", "\u3000", "  ", "\t", "\u2003", " \u00a0", "\x85", "\u2028", "\u2581"]
WITHOUT_DATA = [name for name in TEXT if name != "meteor" and not name.startswith("embedding")]
"""Metrics that need no files; the others split text into words like CIDEr."""


@pytest.mark.parametrize("words", ["classic", "unicode"])
@given(spaces=st.lists(st.sampled_from(SPACES[:-1]), min_size=1, max_size=4), swap=st.booleans())
def test_all_kinds_of_white_space_score_the_same(words: str, spaces: list[str], swap: bool) -> None:
    eval = EvalConfig.model_validate({"words": words})
    texts = ["qui est l\u00e0 ?", "the dog's tail - 5 cats, no.", "a b", "\u732b \u304c", "don't go"]
    references = ["qui est l\u00e0 ?", "the dog's tail - 5 dogs, no.", "a b c", "\u732b \u304c", "do go"]
    expected = score(WITHOUT_DATA, texts, [[line] for line in references], eval)
    assert expected["exact-match"].value == pytest.approx(40)
    changed = texts if swap else references
    changed[:] = [line.replace(" ", spaces[n % len(spaces)]) for n, line in enumerate(changed)]
    for name, result in score(WITHOUT_DATA, texts, [[line] for line in references], eval).items():
        assert result.value == pytest.approx(expected[name].value)


@pytest.mark.parametrize("space", SPACES)
def test_bleu_with_other_spaces_equals_that_of_sacrebleu(space: str) -> None:
    texts, references = (["the red cat runs", "who is there ?"], [f"the{space}red cat", f"who is{space}there ?"])
    expected = BLEU().corpus_score(texts, [references]).score
    ours = score(["bleu"], texts, [[line] for line in references], EvalConfig())["bleu"]
    assert ours.value == pytest.approx(expected, abs=1e-12)
