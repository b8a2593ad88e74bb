"""Tests of CIDEr-D against coco-caption's program, where it is installed, and values computed by hand."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import score

WORDS = ["the", "dog", "cat", "runs", "over", "a", "red", "bridge", "and", "stops"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)


def cider(hypotheses: list[str], references: list[list[str]]) -> float:
    return score(["cider"], hypotheses, references, EvalConfig())["cider"].value


def test_cider_equals_that_of_pycocoevalcap() -> None:
    package = pytest.importorskip("pycocoevalcap.cider.cider")
    draw = random.Random(1)

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randrange(15)))

    references = [[text() for _ in range(draw.randrange(1, 4))] for _ in range(200)]
    hypotheses = [line[0] if n % 3 == 0 else text() for n, line in enumerate(references)]
    theirs, _ = package.Cider().compute_score(
        dict(enumerate(references)), {n: [line] for n, line in enumerate(hypotheses)}
    )
    assert cider(hypotheses, references) == pytest.approx(100 * theirs, abs=1e-9)


def test_worked_example() -> None:
    """With two lines, the weight of a word of one line is log 2, and that of a word of both is 0.

    Line 1, "a b" for "a c": a is in both lines, weight 0; b and c have log 2 each; nothing is shared.
    Line 2, "a d" for "a d e": of unigrams d and d, e the cosine is 1 / sqrt 2; of bigrams ad and
    ad, de the same; the lengths differ by one, and there are four orders.
    """
    second = 2 / math.sqrt(2) / 4 * math.exp(-1 / 72)
    found = cider(["a b", "a d"], [["a c"], ["a d e"]])
    assert found == pytest.approx(1000 * (0 + second) / 2)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=6))
def test_cider_is_in_0_to_1000_and_independent_of_the_order(lines: list[tuple[str, str, str]]) -> None:
    def scored(rows: list[tuple[str, str, str]]) -> float:
        return cider([row[0] for row in rows], [list(row[1:]) for row in rows])

    value = scored(lines)
    assert 0 <= value <= 1000 + 1e-9
    assert scored(lines[::-1]) == pytest.approx(value)


def test_signature() -> None:
    found = score(["cider"], ["a", "b"], [["a", "b"], ["b"]], EvalConfig())["cider"]
    assert found.signature.startswith(
        "nrefs:var|refs:mean|case:lc|tok:13a|punctuation:no|n:4|sigma:6|idf:references|version:"
    )
