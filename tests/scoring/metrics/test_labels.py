"""Tests of metrics of labels against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.scoring.metrics import label_scores, reducer

TWO, THREE = ("no", "yes"), ("a", "b", "c")
pairs = st.lists(st.tuples(st.sampled_from(THREE), st.sampled_from(THREE)), min_size=2, max_size=40)


def scored(answers: list[str], right: list[str], labels: tuple[str, ...]) -> dict[str, float]:
    found = label_scores(["label-accuracy", "matthews", "f1"], answers, right, labels)
    return {name: score.value for name, score in found.items()}


def correlation(answers: list[str], right: list[str], labels: tuple[str, ...]) -> float:
    """Return the correlation of indicator matrices (Gorodkin 2004, equation 2)."""
    x, y = (np.array([[float(t == label) for label in labels] for t in side]) for side in (answers, right))
    x, y = x - x.mean(0), y - y.mean(0)
    spread = math.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / spread) if spread > 1e-12 else 0.0


def f_measure(answers: list[str], right: list[str], label: str) -> float:
    """Return the harmonic mean of precision and recall."""
    hits = sum(a == r == label for a, r in zip(answers, right, strict=True))
    if not hits:
        return 0.0
    precision, recall = hits / answers.count(label), hits / right.count(label)
    return 2 * precision * recall / (precision + recall)


@given(pairs)
def test_three_labels(both: list[tuple[str, str]]) -> None:
    answers, right = ([*side] for side in zip(*both, strict=True))
    found = scored(answers, right, THREE)
    assert found["matthews"] == pytest.approx(100 * correlation(answers, right, THREE), abs=1e-6)
    assert found["f1"] == pytest.approx(100 * np.mean([f_measure(answers, right, label) for label in THREE]))


@given(pairs)
def test_two_labels(both: list[tuple[str, str]]) -> None:
    answers, right = ([TWO[t == "a"] for t in side] for side in zip(*both, strict=True))
    found = scored(answers, right, TWO)
    x, y = (np.array([t == "yes" for t in side], float) for side in (answers, right))
    expected = 100 * np.corrcoef(x, y)[0, 1] if x.std() * y.std() else 0.0
    assert found["matthews"] == pytest.approx(expected, abs=1e-6)
    assert found["f1"] == pytest.approx(100 * f_measure(answers, right, "yes"))
    assert found["label-accuracy"] == pytest.approx(100 * (x == y).mean())


def test_answer_outside_the_labels_is_a_class_of_its_own() -> None:
    right = ["yes", "yes", "no", "no"]
    found = scored(["yes", "", "no", "perhaps"], right, TWO)
    assert found["label-accuracy"] == 50
    assert found["f1"] == pytest.approx(100 * 2 / 3)  # precision 1, recall 1/2
    answers = ["yes", "other", "no", "other"]
    assert found["matthews"] == pytest.approx(100 * correlation(answers, right, (*TWO, "other")))
    assert 0 < found["matthews"] < 100


def test_resampled_statistics_give_the_score_of_resampled_lines() -> None:
    draw = np.random.default_rng(0)
    answers, right = ([str(t) for t in draw.choice(THREE, 60)] for _ in range(2))
    rows = draw.integers(0, 60, 60)
    again = scored([answers[r] for r in rows], [right[r] for r in rows], THREE)
    for name, score in label_scores(list(again), answers, right, THREE).items():
        assert score.resampled
        assert reducer(name)(score.statistics[rows].sum(0).tolist()) == pytest.approx(again[name])


def test_signature_names_the_labels_and_the_positive_one() -> None:
    found = label_scores(["f1"], ["no"], ["no"], TWO)["f1"].signature
    assert found.startswith("labels:no,yes|positive:yes|version:")
    macro = label_scores(["f1"], ["a"], ["a"], THREE)["f1"].signature
    assert "|average:macro|" in macro
