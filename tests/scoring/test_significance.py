"""The test of differences: over sentences like sacrebleu's, over seeds as an analysis of variance.

It is also checked against a plain form in loops, and for how often it calls equal systems
different; `benchmarks/significance.py` measures that at length.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnkit.errors import DataError
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import Score, compare, corrected, score, significance
from attnkit.scoring.significance import Comparison, PairedTest

System = list[Score]


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


def systems_of(
    seeds: Sequence[int], seed: int, lines: int = 12, spread: float = 0.3
) -> list[System]:
    """Equal systems with so many seeds each, which share the difficulty of the sentences."""
    draw = np.random.default_rng(seed)
    shared = draw.normal(0.5, 0.3, lines)
    return [
        [means(shared + draw.normal(0, 0.2, lines) + draw.normal(0, spread)) for _ in range(count)]
        for count in seeds
    ]


CASES = st.builds(
    systems_of,
    st.lists(st.integers(1, 3), min_size=2, max_size=4),
    st.integers(0, 10**6),
    st.integers(2, 14),
    st.sampled_from([0.0, 0.05, 0.5]),
)


def plain(systems: list[System], first: int, second: int, resamples: int) -> Comparison:
    """The test written out: loops over resamples, systems and seeds."""
    values = [[one.statistics[:, 0].tolist() for one in system] for system in systems]
    lines = len(values[0][0])
    generator = np.random.default_rng(significance.SEED)
    drawn = [generator.integers(0, lines, lines).tolist() for _ in range(resamples)]

    def score_on(rows: Sequence[int], value: list[float]) -> float:
        return 100 * sum(value[row] for row in rows) / len(rows)

    whole = [[score_on(range(lines), seed) for seed in system] for system in values]
    again = [[[score_on(rows, seed) for seed in system] for system in values] for rows in drawn]
    mean = [sum(scores) / len(scores) for scores in whole]
    difference = mean[first] - mean[second]
    gaps = [sum(r[first]) / len(r[first]) - sum(r[second]) / len(r[second]) for r in again]
    center = sum(gaps) / resamples
    chance = [gap - center for gap in gaps]
    own = {
        at: sum((x - mean[at]) ** 2 for x in scores) / (len(scores) - 1)
        for at, scores in enumerate(whole)
        if len(scores) > 1
    }
    alike = [at for at in own if own[at] <= 25 * statistics.median(own.values())]
    pair = [at for at in (first, second) if at in own]
    pooled = alike if set(pair) <= set(alike) else pair
    degrees = sum(len(whole[at]) - 1 for at in pooled)
    if degrees:
        variance = sum((x - mean[at]) ** 2 for at in pooled for x in whole[at]) / degrees
        explained = 0.0
        for at in pooled:
            scores = whole[at]
            usual = [sum(r[at][i] for r in again) / resamples for i in range(len(scores))]
            for r in again:
                noise = [r[at][i] - usual[i] for i in range(len(scores))]
                middle = sum(noise) / len(noise)
                explained += sum((x - middle) ** 2 for x in noise) / resamples
        beyond = max(0.0, variance - explained / degrees)
        share = 1 / len(whole[first]) + 1 / len(whole[second])
        of_lines = sum(x * x for x in chance) / (resamples - 1)
        if of_lines > 0 and variance > 0:
            total = of_lines + share * beyond
            free = max(degrees, total**2 / ((share * variance) ** 2 / degrees))
            chi = np.random.default_rng((significance.SEED, 1)).chisquare(free, resamples)
            chance = [
                x * math.sqrt(total / of_lines * free / c) for x, c in zip(chance, chi, strict=True)
            ]
    beyond_it = sum(abs(x) >= abs(difference) - 1e-9 for x in chance)
    low, high = np.percentile(chance, [2.5, 97.5]) + difference
    return Comparison(difference, (beyond_it + 1) / (resamples + 1), (low, high))


@settings(max_examples=25, deadline=None)
@given(CASES)
def test_it_is_the_plain_form(systems: list[System]) -> None:
    ours = PairedTest(systems, resamples=60).compare(0, 1)
    expected = plain(systems, 0, 1, 60)
    assert ours.difference == pytest.approx(expected.difference, abs=1e-9)
    assert ours.interval == pytest.approx(expected.interval, abs=1e-6)
    assert ours.p == pytest.approx(expected.p, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(CASES)
def test_exchanging_two_systems_exchanges_signs_alone(systems: list[System]) -> None:
    test = PairedTest(systems, resamples=60)
    one, other = test.compare(0, 1), test.compare(1, 0)
    assert one.difference == -other.difference
    assert one.p == other.p
    assert one.interval == pytest.approx([-other.interval[1], -other.interval[0]], abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(CASES, st.floats(0.1, 50), st.floats(-3, 3))
def test_p_does_not_depend_on_scale_shift_and_order_of_seeds(
    systems: list[System], scale: float, shift: float
) -> None:
    def changed(change: Callable[[np.ndarray], np.ndarray]) -> list[System]:
        return [[means(change(one.statistics[:, 0])) for one in s[::-1]] for s in systems]

    plain_test = PairedTest(systems, resamples=60).compare(0, 1)
    moved = PairedTest(changed(lambda x: scale * x + shift), resamples=60).compare(0, 1)
    assert moved.difference == pytest.approx(scale * plain_test.difference, abs=1e-6)
    assert moved.p == pytest.approx(plain_test.p, abs=1.1 / 61)  # a tie may fall to either side


@settings(max_examples=25, deadline=None)
@given(CASES)
def test_a_system_never_differs_from_itself(systems: list[System]) -> None:
    result = PairedTest([systems[0], systems[0], *systems], resamples=60).compare(0, 1)
    assert result.difference == 0
    assert result.p == 1
    assert result.interval == (0, 0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_is_never_below_p_never_above_bonferroni_and_keeps_the_order(p: list[float]) -> None:
    out = corrected(p)
    assert all(a <= b <= min(1.0, len(p) * a) for a, b in zip(p, out, strict=True))
    order = sorted(range(len(p)), key=p.__getitem__)
    assert [out[at] for at in order] == sorted(out)


def test_the_resamples_are_those_of_sacrebleus_paired_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its p-value follows from ours by its own formula: fold the differences, then centre them."""
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest as SacrebleuTest

    monkeypatch.setenv("SACREBLEU_SEED", str(significance.SEED))
    references = sentences(120, 1)
    systems = {"base": damaged(references, 4), "near": damaged(references[:50], 3)
               + damaged(references[50:], 5), "far": damaged(references, 3)}  # fmt: skip
    metrics = {"BLEU": BLEU(force=True), "CHRF": CHRF(), "TER": TER()}
    test = SacrebleuTest(list(systems.items()), metrics, [references], "bs", n_samples=400)
    _, expected = test()
    lines = [[line] for line in references]
    scores = {name: score(["bleu", "chrf", "ter"], text, lines, EvalConfig())
              for name, text in systems.items()}  # fmt: skip
    for name, metric in (("BLEU", "bleu"), ("chrF2", "chrf"), ("TER", "ter")):
        ours = PairedTest([[scores[system][metric]] for system in systems], resamples=400)
        for row in (1, 2):
            result = ours.compare(row, 0)
            folded = np.abs(ours.drawn[row].mean(0) - ours.drawn[0].mean(0))
            beyond = int((folded - folded.mean() > abs(result.difference)).sum())
            # sacrebleu sums in float32: a resample at the very edge may fall to the other side
            sacrebleu = expected[name][row].p_value
            assert (beyond + 1) / 401 == pytest.approx(sacrebleu, abs=2 / 401)
            assert result.p >= sacrebleu - 2 / 401
            difference = expected[name][row].score - expected[name][0].score
            assert result.difference == pytest.approx(difference, abs=1e-9)


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


def test_with_one_seed_each_other_systems_change_nothing() -> None:
    systems = systems_of([1, 1, 1, 1], 3)
    assert PairedTest(systems, resamples=80).spread().degrees == 0
    assert PairedTest(systems, resamples=80).compare(0, 1) == compare(*systems[:2], resamples=80)


def test_one_sentence_tells_nothing_of_others() -> None:
    assert compare([means(np.ones(1))], [means(np.zeros(1))], resamples=50).p == 1


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_the_spread_over_seeds_is_found_and_parted_from_that_of_the_sentences(
    spread: float,
) -> None:
    """40 systems of 3 seeds: sentences alone move a seed's score by 20 / sqrt(60) = 2.6."""
    found = [
        PairedTest(systems_of([3] * 4, seed, lines=60, spread=spread), resamples=100).spread()
        for seed in range(10)
    ]
    assert {one.degrees for one in found} == {8}
    sentences_alone = 20**2 / 60
    assert np.mean([one.variance for one in found]) == pytest.approx(
        sentences_alone + (100 * spread) ** 2, rel=0.3
    )
    beyond = np.mean([one.beyond_sentences for one in found])
    assert beyond == pytest.approx((100 * spread) ** 2, rel=0.3, abs=2)


def test_equal_systems_are_called_different_one_time_in_twenty() -> None:
    """By sentences, and by sentences and seeds; and the 95 % interval holds the truth as often."""
    for seeds in ([1, 1], [3, 3, 3, 3]):
        trials, held, called = 200, 0, 0
        for trial in range(trials):
            systems = systems_of(seeds, trial, lines=80, spread=0.05 if seeds[0] > 1 else 0)
            result = PairedTest(systems, resamples=200, seed=trial).compare(0, 1)
            held += result.interval[0] <= 0 <= result.interval[1]
            called += result.p < 0.05
        # three standard deviations of 200 trials
        assert 0.90 < held / trials <= 0.995
        assert 0.005 <= called / trials < 0.1


def test_a_difference_that_training_again_may_undo_is_not_significant() -> None:
    """Of sentences alone it would be: every seed of a system is 3 points off another way."""
    draw = np.random.default_rng(2)
    lines = draw.random(2000)
    better, base = ([means(lines + x) for x in moves] for moves in ((0.06, 0.0), (0.02, -0.04)))
    noise = [[means(s.statistics[:, 0] + draw.normal(0, 0.1, 2000)) for s in y]
             for y in (better, base)]  # fmt: skip
    assert compare(noise[0][:1], noise[1][:1]).p < 0.01
    assert compare(*noise).p > 0.1


def test_where_all_lines_differ_alike_only_seeds_count() -> None:
    """Right on every line or on none: other lines tell nothing, other seeds everything."""
    right, wrong = (means(np.full(50, value)) for value in (1.0, 0.0))
    steady, shaky = [right] * 3, [right, right, wrong]
    result = PairedTest([steady, shaky], resamples=4000).compare(1, 0)
    # t = (2/3 - 1) / sqrt((1/3 + 1/3) (0 + 1/3) / 2) = -1 with the 4 degrees of both
    assert result.p == pytest.approx(0.374, abs=0.03)
    assert result.interval[0] < result.difference < 0 < result.interval[1]
    assert PairedTest([shaky, [wrong, right, right]], resamples=200).compare(1, 0).p == 1
    assert PairedTest([steady, [wrong] * 3], resamples=200).compare(1, 0).p < 0.01


def test_holm_by_hand() -> None:
    """0.01, 0.04, 0.02 times 3, 1, 2 in rising order: 0.03, 0.04, 0.04."""
    assert corrected([0.01, 0.04, 0.02]) == pytest.approx([0.03, 0.04, 0.04])
    assert corrected([0.4, 0.6]) == [0.8, 0.8]
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


def test_a_system_that_fails_with_some_seeds_hides_no_difference_between_others() -> None:
    """Pooled over all, its spread made every other p of the table 1."""
    systems = systems_of([3] * 5, 1, lines=60, spread=0.05)
    broken = [means(draws) for draws in np.random.default_rng(2).normal((0, 40, 90), 1, (60, 3)).T]
    better = [means(np.asarray(one.statistics[:, 0]) + 1) for one in systems[0]]
    without = PairedTest([systems[1], better], resamples=200).compare(1, 0)
    test = PairedTest([*systems[1:], better, broken], resamples=200)
    assert test.compare(4, 0).p <= 2 * without.p < 0.05
    assert test.compare(5, 0).p > 0.05
    assert test.spread().degrees == 2 * 5
    assert test.spread(5, 0).degrees == 2 * 2
