"""Tests of the significance of differences: interval, p-value and verdict over sentences and seeds.

References are closed forms, exact permutations, an implementation with loops, and the rate of false
positives, which `benchmarks/significance.py` measures with more trials.
"""

import itertools
import math
import random
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.errors import DataError
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import Score, compare, corrected, score, significance
from attnkit.scoring.significance import PairedTest
from attnkit.scoring.student_t import critical_value

System = list[Score]


def sentences(count: int, seed: int) -> list[str]:
    """Return lines of 1 to 19 words."""
    draw = random.Random(seed)
    words = [f"{letter}{number}" for letter in "abc" for number in range(4)]
    return [" ".join(draw.choices(words, k=draw.randrange(1, 20))) for _ in range(count)]


def damaged(lines: list[str], every: int) -> list[str]:
    """Return the lines with every n-th word replaced."""
    words = (enumerate(line.split(), 1) for line in lines)
    return [" ".join("x" if number % every == 0 else word for number, word in line) for line in words]


def means(values: np.ndarray) -> Score:
    """Return a score that is the mean of one value per sentence."""
    return Score.of("exact-match", np.stack([values, np.ones_like(values)], 1), "")


def systems_of(seeds: Sequence[int], seed: int, lines: int = 12, spread: float = 0.3) -> list[System]:
    """Return equal systems with these numbers of seeds, which share the difficulty of the sentences."""
    draw = np.random.default_rng(seed)
    shared = draw.normal(0.5, 0.3, lines)
    return [
        [means(shared + draw.normal(0, 0.2, lines) + draw.normal(0, spread)) for _ in range(count)] for count in seeds
    ]


CASES = st.builds(
    systems_of,
    st.lists(st.integers(1, 3), min_size=2, max_size=4),
    st.integers(0, 10**6),
    st.integers(2, 14),
    st.sampled_from([0.0, 0.05, 0.5]),
)


def reference_interval(systems: list[System], resamples: int) -> tuple[float, float]:
    """Return difference and half the interval of two systems by loops over resamples, systems and seeds."""
    values = [[seed.statistics[:, 0].tolist() for seed in system] for system in systems]
    lines = len(values[0][0])
    generator = np.random.default_rng(significance.SEED)
    drawn = [generator.integers(0, lines, lines).tolist() for _ in range(resamples)]

    def score_on(rows: Sequence[int], value: list[float]) -> float:
        return 100 * sum(value[row] for row in rows) / len(rows)

    whole = [[score_on(range(lines), seed) for seed in system] for system in values]
    again = [[[score_on(rows, seed) for seed in system] for system in values] for rows in drawn]
    difference = statistics.mean(whole[0]) - statistics.mean(whole[1])
    gaps = [statistics.mean(first) - statistics.mean(second) for first, second in again]
    of_sentences = statistics.pvariance(gaps) * lines / (lines - 1)
    degrees = sum(len(scores) - 1 for scores in whole)
    if not degrees:
        return difference, math.sqrt(of_sentences) * critical_value(0.05, lines - 1)
    share = sum(1 / len(scores) for scores in whole)
    squares, both = 0.0, 0.0
    for at, scores in enumerate(whole):
        squares += sum((x - statistics.mean(scores)) ** 2 for x in scores)
        usual = [statistics.mean(r[at][i] for r in again) for i in range(len(scores))]
        for r in again:
            noise = [x - y for x, y in zip(r[at], usual, strict=True)]
            both += sum((x - statistics.mean(noise)) ** 2 for x in noise) / resamples
    of_seeds = share * squares / degrees
    sentences_alone = max(0.0, of_sentences - share * both / degrees)
    total = of_seeds + sentences_alone
    if not total:
        return difference, 0.0
    limits = critical_value(0.05, degrees), critical_value(0.05, lines - 1)
    return difference, math.sqrt(total) * (of_seeds * limits[0] + sentences_alone * limits[1]) / total


@given(CASES)
def test_difference_and_interval_equal_the_reference(systems: list[System]) -> None:
    ours = PairedTest(systems, EvalConfig(bootstrap=60)).compare(0, 1)
    difference, half = reference_interval(systems[:2], 60)
    assert ours.value == pytest.approx(difference, abs=1e-9)
    assert (ours.low, ours.high) == pytest.approx((difference - half, difference + half), rel=1e-4, abs=1e-6)


def test_one_seed_gives_the_paired_t_test() -> None:
    """Student 1908, the sleep of ten patients by two drugs: t = 4.0621, p = 0.00283."""
    first = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]) / 100
    second = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]) / 100
    found = compare([means(first)], [means(second)], EvalConfig(bootstrap=20_000))
    assert found.value == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001, 2.4599), abs=0.02)
    assert found.p == pytest.approx(0.00283, abs=0.0003)
    assert found.seeds == (1, 1)
    assert found.provisional


def test_p_over_sentences_is_near_that_of_the_permutation_test() -> None:
    """The outputs of each of ten lines may be exchanged: 1,024 permutations."""
    draw = np.random.default_rng(5)
    gaps = draw.normal(0.3, 0.5, 10)
    base = draw.random(10)
    ours = compare([means(base + gaps)], [means(base)], EvalConfig(bootstrap=5000)).p
    signs = np.array(list(itertools.product((1, -1), repeat=10)))
    exact = float(np.mean(np.abs((signs * gaps).mean(1)) >= abs(gaps.mean()) - 1e-12))
    assert 0.02 < exact < 0.5
    assert ours == pytest.approx(exact, abs=0.02)


def distinct(*values: float) -> System:
    """Return a system whose scores are not resampled, one per seed."""
    return [Score.of("distinct-1", np.array([[value, 100.0]]), "") for value in values]


def test_score_without_resampling_is_tested_over_seeds() -> None:
    """1, 2, 3 against 4, 5, 6: t = 3 / sqrt(2 / 3) with 4 degrees of freedom, p = 0.0213."""
    test = PairedTest([distinct(4, 5, 6), distinct(1, 2, 3), distinct(9)])
    found = test.against(1)
    assert found[0].value == pytest.approx(3)
    assert found[0].p == pytest.approx(0.02131, abs=1e-5)
    assert (found[0].low, found[0].high) == pytest.approx((0.733, 5.267), abs=1e-3)
    assert found[2].provisional  # the variance is that of the other row
    assert test.against(2).keys() == {0, 1}
    assert PairedTest([distinct(1), distinct(2)]).against(0) == {}


def test_interval_of_one_system_is_that_of_students_t() -> None:
    """Seeds 4, 5, 6: 5 +- 4.303 / sqrt(3).  Sentences 0, 1, ..., 9: 4.5 +- 2.262 s / sqrt(10)."""
    test = PairedTest([distinct(4, 5, 6), distinct(9)])
    assert test.interval(0) == pytest.approx((5, 2.516, 7.484), abs=1e-3)
    assert test.interval(1) == (9, -math.inf, math.inf)
    found = PairedTest([[means(np.arange(10) / 100)]], EvalConfig(bootstrap=20_000)).interval(0)
    assert found == pytest.approx((4.5, 2.334, 6.666), abs=0.03)


def test_seeds_needed_for_significance() -> None:
    """By the formula of power for two groups: half a standard deviation of trainings takes 64 seeds."""
    base = distinct(4, 5, 6)
    enough = [n for n in range(2, 100) if (2 / n) ** 0.5 * (critical_value(0.05, 2 * n - 2) + 0.84) <= 0.5]
    assert compare(base, distinct(4.5, 5.5, 6.5)).seeds_needed == enough[0] == 64
    assert compare(base, distinct(4.1, 5.1, 6.1)).seeds_needed is None  # more than a hundred
    assert compare(base, distinct(1, 2, 3)).seeds_needed is None  # it is significant already


def test_p_over_seeds_is_near_that_of_the_permutation_test() -> None:
    """Ten trainings can be divided into five and five in 252 ways."""
    values = np.random.default_rng(8).normal(0, 1, 10) + np.repeat([1.2, 0], 5)
    ours = compare(distinct(*values[:5]), distinct(*values[5:])).p
    parts = itertools.combinations(range(10), 5)
    gaps = [abs(values[list(part)].mean() - np.delete(values, part).mean()) for part in parts]
    exact = float(np.mean(np.array(gaps) >= gaps[0] - 1e-12))
    assert 0.02 < exact < 0.5
    assert ours == pytest.approx(exact, abs=0.03)


@given(CASES)
def test_exchanging_two_systems_changes_the_sign_only(systems: list[System]) -> None:
    test = PairedTest(systems, EvalConfig(bootstrap=60))
    found, exchanged = test.compare(0, 1), test.compare(1, 0)
    assert found.value == -exchanged.value
    assert found.p == pytest.approx(exchanged.p, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((-exchanged.high, -exchanged.low), abs=1e-9)
    opposite = {"better": "worse", "worse": "better"}
    assert found.verdict == opposite.get(str(exchanged.verdict), exchanged.verdict)


@given(CASES)
def test_system_does_not_differ_from_itself(systems: list[System]) -> None:
    result = PairedTest([systems[0], systems[0], *systems], EvalConfig(bootstrap=60)).compare(0, 1)
    assert (result.value, result.p, result.verdict) == (0, 1, "level" if result.high < 1 else "undecided")
    assert result.low == -result.high


def test_equal_outputs_of_one_seed_each_have_no_interval() -> None:
    system = systems_of([1], 0)
    result = PairedTest([*system, *system], EvalConfig(bootstrap=60)).compare(0, 1)
    assert (result.low, result.high, result.p, result.verdict) == (0, 0, 1, "level")


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_lies_between_p_and_bonferroni_and_keeps_the_order(p: list[float]) -> None:
    out = corrected(p)
    assert all(a <= b <= min(1.0, len(p) * a) for a, b in zip(p, out, strict=True))
    order = sorted(range(len(p)), key=p.__getitem__)
    assert [out[at] for at in order] == sorted(out)


def test_resamples_equal_those_of_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    """sacrebleu's formula gives its p-value from our resamples: take absolute differences, then center them."""
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest as SacrebleuTest

    monkeypatch.setenv("SACREBLEU_SEED", str(significance.SEED))
    references = sentences(120, 1)
    near = damaged(references[:50], 3) + damaged(references[50:], 5)
    systems = {"base": damaged(references, 4), "near": near, "far": damaged(references, 3)}
    metrics = {"BLEU": BLEU(force=True), "CHRF": CHRF(), "TER": TER()}
    _, expected = SacrebleuTest(list(systems.items()), metrics, [references], "bs", n_samples=400)()
    lines = [[line] for line in references]
    scores = [score(["bleu", "chrf", "ter"], texts, lines, EvalConfig()) for texts in systems.values()]
    for name, metric in (("BLEU", "bleu"), ("chrF2", "chrf"), ("TER", "ter")):
        ours = PairedTest([[system[metric]] for system in scores], EvalConfig(bootstrap=400))
        for row in (1, 2):
            result = ours.compare(row, 0)
            folded = np.abs(ours.resamples[row].mean(0) - ours.resamples[0].mean(0))
            beyond = int((folded - folded.mean() > abs(result.value)).sum())
            # sacrebleu sums in float32, so a resample at the limit may be counted otherwise
            assert (beyond + 1) / 401 == pytest.approx(expected[name][row].p_value, abs=2 / 401)
            difference = expected[name][row].score - expected[name][0].score
            assert result.value == pytest.approx(difference, abs=1e-9)


def test_one_sentence_has_an_infinite_interval() -> None:
    found = compare([means(np.ones(1))], [means(np.zeros(1))], EvalConfig(bootstrap=50))
    assert (found.p, found.low, found.high) == (1, -math.inf, math.inf)
    assert found.verdict == "undecided"
    assert found.json()["interval"] == [None, None]
    several = compare(*([means(np.full(1, value)) for value in values] for values in ((1, 2), (0, 1))))
    assert (several.p, several.seeds_needed) == (1, None)
    ratio = compare([perplexity(np.ones(1))], [perplexity(np.ones(1))]).json()
    assert (ratio["high"], ratio["percent"]) == (None, [0, -100, None])


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_variance_over_seeds_is_separated_from_that_of_sentences(spread: float) -> None:
    """40 systems of 3 seeds; of sentences alone a seed's score has standard deviation 20 / sqrt(60) = 2.6."""
    systems = (systems_of([3] * 4, seed, lines=60, spread=spread) for seed in range(10))
    found = [PairedTest(four, EvalConfig(bootstrap=100)).spread(0, 1, 2, 3) for four in systems]
    assert {result.degrees for result in found} == {8}
    sentences_alone = 20**2 / 60
    variance = np.mean([result.variance for result in found])
    assert variance == pytest.approx(sentences_alone + (100 * spread) ** 2, rel=0.3)
    beyond = np.mean([result.variance - result.interaction for result in found])
    assert beyond == pytest.approx((100 * spread) ** 2, rel=0.3, abs=2)


@pytest.mark.slow
def test_false_positives_are_five_percent() -> None:
    """By sentences, and by sentences and seeds; the 95 % interval contains the truth as often."""
    for seeds in ([1, 1], [2, 2], [3, 3]):
        trials, contained, significant = 200, 0, 0
        for trial in range(trials):
            systems = systems_of(seeds, trial, lines=80, spread=0.05 if seeds[0] > 1 else 0)
            result = PairedTest(systems, EvalConfig(bootstrap=200), seed=trial).compare(0, 1)
            contained += result.low <= 0 <= result.high
            significant += result.p < 0.05
        # three standard deviations of 200 trials
        assert 0.90 < contained / trials <= 0.995
        assert 0.005 <= significant / trials < 0.1


def test_difference_smaller_than_the_spread_of_seeds_is_not_significant() -> None:
    """Over sentences alone it would be: the two seeds of a system are 6 points apart."""
    draw = np.random.default_rng(2)
    lines = draw.random(2000)
    better, base = ([means(lines + x) for x in moves] for moves in ((0.06, 0.0), (0.02, -0.04)))
    noise = [[means(s.statistics[:, 0] + draw.normal(0, 0.1, 2000)) for s in y] for y in (better, base)]
    assert compare(noise[0][:1], noise[1][:1]).p < 0.01
    assert compare(*noise).p > 0.1


def test_only_seeds_count_where_all_lines_differ_equally() -> None:
    right, wrong = (means(np.full(50, value)) for value in (1.0, 0.0))
    steady, shaky = [right] * 3, [right, right, wrong]
    result = PairedTest([steady, shaky], EvalConfig(bootstrap=4000)).compare(1, 0)
    # t = (2/3 - 1) / sqrt((1/3 + 1/3) (0 + 1/3) / 2) = -1 with the 4 degrees of both
    assert result.p == pytest.approx(0.374, abs=0.001)
    assert result.low < result.value < 0 < result.high
    assert PairedTest([shaky, [wrong, right, right]], EvalConfig(bootstrap=200)).compare(1, 0).p == 1
    assert PairedTest([steady, [wrong] * 3], EvalConfig(bootstrap=200)).compare(1, 0).p < 0.01


def spread_evenly(gain: float, width: float, lines: int = 400) -> System:
    """Return a system better than zeros by `gain` points, with a standard error of `width` points."""
    gaps = np.resize([1.0, -1.0], lines) * width * math.sqrt(lines - 1) / 100
    return [means(gaps + gain / 100)]


@pytest.mark.parametrize(
    ("gain", "width", "verdict"),
    [
        (0.3, 0.2, "level"),
        (0.9, 0.2, "better"),
        (-0.9, 0.2, "worse"),
        (0.9, 0.6, "undecided"),
        (0.1, 0.6, "undecided"),
        (0.5, 0.2, "level"),
        (3, 0.2, "better"),
    ],
)
def test_interval_within_the_margin_is_level(gain: float, width: float, verdict: str) -> None:
    """The limits are 1.97 standard errors away; the margin is 1 point."""
    zeros = [means(np.zeros(400))]
    found = compare(spread_evenly(gain, width), zeros, EvalConfig(bootstrap=4000))
    assert (found.low, found.high) == pytest.approx((gain - 1.966 * width, gain + 1.966 * width), abs=0.06)
    assert found.verdict == verdict
    assert compare(spread_evenly(gain, width), zeros, EvalConfig(margin=5)).verdict == "level"
    assert compare(spread_evenly(gain, width), zeros, EvalConfig(margin=0)).verdict != "level"


def perplexity(logs: np.ndarray) -> Score:
    """Return the perplexity of lines of ten tokens with these mean negative log-likelihoods."""
    return Score.of("perplexity", np.stack([10 * logs, np.full_like(logs, 10.0)], 1), "")


def test_perplexities_are_compared_by_their_ratio() -> None:
    """Twice the perplexity is 100 % more, whatever the baseline; lower is better."""
    logs = np.random.default_rng(0).normal(3, 0.5, 500)
    noise = np.random.default_rng(1).normal(0, 0.1, 500)
    noise -= noise.mean()
    found = compare([perplexity(logs + math.log(2) + noise)], [perplexity(logs)])
    assert found.percent is not None
    error = 0.1 / math.sqrt(500)
    expected = [100 * math.expm1(math.log(2) + z * error) for z in (0, -1.965, 1.965)]
    assert found.percent == pytest.approx(expected, abs=0.5)
    base = math.exp(logs.mean())
    assert found.value == pytest.approx(base)
    assert (found.low, found.high) == pytest.approx([base * x / 100 for x in found.percent[1:]])
    assert (found.verdict, found.margin) == ("worse", 3.0)
    near = perplexity(logs + math.log(1.005) + noise)
    forward, backward = compare([near], [perplexity(logs)]), compare([perplexity(logs)], [near])
    assert forward.verdict == backward.verdict == "level"
    assert backward.p == pytest.approx(forward.p)


def test_verdict_follows_the_corrected_p() -> None:
    """A difference that is significant alone is undecided among five."""
    zeros = means(np.zeros(400))
    rows = [[zeros], *(spread_evenly(1.2, 0.55 + at / 100) for at in range(5))]
    found = PairedTest(rows).against(0).values()
    assert all(difference.p < 0.05 for difference in found)
    assert {difference.verdict for difference in found} == {"undecided"}
    assert PairedTest(rows[:2]).against(0)[1].verdict == "better"


def test_holm_by_hand() -> None:
    """0.01, 0.04, 0.02 times 3, 1, 2 in rising order: 0.03, 0.04, 0.04."""
    assert corrected([0.01, 0.04, 0.02]) == pytest.approx([0.03, 0.04, 0.04])
    assert corrected([0.4, 0.6]) == [0.8, 0.8]
    assert corrected([]) == []


def test_scores_of_different_lines_raise() -> None:
    with pytest.raises(DataError, match="cannot be compared: 3 lines, exact-match.*; 4 lines"):
        compare([means(np.ones(3))], [means(np.ones(4))])


def test_spread_of_a_row_does_not_affect_other_pairs() -> None:
    """A row that fails with some seeds does not hide a difference between others."""
    systems = systems_of([3] * 3, 1, lines=60, spread=0.05)
    broken = [means(draws) for draws in np.random.default_rng(2).normal((0, 40, 90), 1, (60, 3)).T]
    better = [means(np.asarray(score.statistics[:, 0]) + 1) for score in systems[0]]
    test = PairedTest([systems[1], better, broken], EvalConfig(bootstrap=200))
    assert test.compare(1, 0).p < 0.05 < test.compare(2, 0).p
