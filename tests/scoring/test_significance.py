"""The paired bootstrap agrees with sacrebleu's, is calibrated once corrected, and is fast."""

import random
import time

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import Score, compare, corrected, score, significance


def sentences(count: int, seed: int) -> list[str]:
    """Lines of 1 to 19 words."""
    draw = random.Random(seed)
    words = [f"{letter}{number}" for letter in "abc" for number in range(4)]
    return [" ".join(draw.choices(words, k=draw.randrange(1, 20))) for _ in range(count)]


def damaged(lines: list[str], every: int) -> list[str]:
    """The lines with every n-th word replaced."""
    return [
        " ".join(
            "x" if number % every == 0 else word for number, word in enumerate(line.split(), 1)
        )
        for line in lines
    ]


def means(values: np.ndarray) -> Score:
    """A score that is the mean of a value for each sentence."""
    return Score.of("exact-match", np.stack([values, np.ones_like(values)], 1), "")


def test_p_is_that_of_sacrebleus_paired_test(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest

    monkeypatch.setenv("SACREBLEU_SEED", str(significance.SEED))
    references = sentences(120, 1)
    systems = {"base": damaged(references, 4), "near": damaged(references[:50], 3)
               + damaged(references[50:], 5), "far": damaged(references, 3)}  # fmt: skip
    metrics = {"BLEU": BLEU(force=True), "CHRF": CHRF(), "TER": TER()}
    test = PairedTest(list(systems.items()), metrics, [references], "bs", n_samples=400)
    _, expected = test()
    lines = [[line] for line in references]
    scores = {name: score(["bleu", "chrf", "ter"], text, lines, EvalConfig())
              for name, text in systems.items()}  # fmt: skip
    for name, metric in (("BLEU", "bleu"), ("chrF2", "chrf"), ("TER", "ter")):
        for row, system in enumerate(("near", "far"), 1):
            ours = compare([scores[system][metric]], [scores["base"][metric]], resamples=400)
            # sacrebleu sums in float32: a resample at the very edge may fall to the other side
            assert ours.p == pytest.approx(expected[name][row].p_value, abs=2 / 401)
            difference = expected[name][row].score - expected[name][0].score
            assert ours.difference == pytest.approx(difference, abs=1e-9)


def test_resamples_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    system, base = (means(np.random.default_rng(seed).random(37)) for seed in (1, 2))
    whole = compare([system], [base], resamples=50)
    monkeypatch.setattr(significance, "CELLS", 37 * 7)
    assert compare([system], [base], resamples=50) == whole


def test_resampled_sums_are_those_of_the_drawn_rows() -> None:
    table = np.random.default_rng(0).random((9, 3))
    drawn = np.random.default_rng(5).integers(0, 9, size=(4, 9))
    (sums,) = significance._resample([table], 4, 5)
    np.testing.assert_allclose(sums, table[drawn].sum(1), rtol=1e-14)


def test_a_system_never_differs_from_itself() -> None:
    system = means(np.random.default_rng(3).random(50))
    result = compare([system], [system])
    assert result.difference == 0
    assert result.p == 1
    assert result.interval == (0, 0)


def test_seeds_are_averaged_on_the_same_resampled_sentences() -> None:
    """For a mean of sentence values, averaging scores is averaging the values."""
    draw = np.random.default_rng(4)
    system, base = draw.random((3, 80)), draw.random((2, 80))
    seeds = compare([means(v) for v in system], [means(v) for v in base], resamples=200)
    one = compare([means(system.mean(0))], [means(base.mean(0))], resamples=200)
    assert seeds.p == one.p
    assert seeds.difference == pytest.approx(one.difference, abs=1e-12)
    assert seeds.interval == pytest.approx(one.interval, abs=1e-12)


def test_the_interval_holds_the_true_difference_about_19_times_in_20() -> None:
    draw = np.random.default_rng(6)
    trials, held, called = 300, 0, 0
    for trial in range(trials):
        values = draw.normal(0.5, 1, (2, 120))
        result = compare([means(values[0])], [means(values[1])], resamples=400, seed=trial)
        held += result.interval[0] <= 0 <= result.interval[1]
        called += corrected([result.p])[0] < 0.05
    # equal systems: 95 % and 5 %, three standard deviations of 300 trials aside
    assert 0.91 < held / trials < 0.985
    assert called / trials < 0.09


def test_holm_by_hand() -> None:
    """Doubled: 0.02, 0.08, 0.04; times 3, 1, 2 in rising order: 0.06, 0.08, 0.08."""
    assert corrected([0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.08, 0.08])
    assert corrected([0.4, 0.6]) == [1.0, 1.0]
    assert corrected([]) == []


def test_scores_that_measure_different_things_are_not_compared() -> None:
    with pytest.raises(DataError, match="cannot be compared: 3 lines, exact-match.*; 4 lines"):
        compare([means(np.ones(3))], [means(np.ones(4))])


def test_a_thousand_resamples_of_a_thousand_sentences_take_less_than_a_second() -> None:
    draw = np.random.default_rng(7)
    statistics = [draw.integers(0, 30, (1000, 10)).astype(float) for _ in range(2)]
    system, base = (Score.of("bleu", table, "") for table in statistics)
    start = time.perf_counter()
    compare([system], [base], resamples=1000)
    assert time.perf_counter() - start < 1
