"""Error rates of significance tests, over other sentences and other training seeds.

    python benchmarks/significance.py [--trials 2000]

Scores are simulated: of equal systems (how often is p < 0.05?), and of systems that differ (how often is the
difference found, and how often does the 95 % interval contain the true difference?). The value of a sentence is the
sum of its difficulty, an effect of the mechanism, an effect of the trained model, and the quality of that training;
every trial draws other sentences and other trainings. In points of the score over all sentences, the effect of the
model on single sentences has a standard deviation of 0.35, that of the mechanism 0.13 (as with BLEU on 1,000
sentences), and the quality of training the spread in the tables.

The tests: `attnkit` is `attnkit.scoring.significance`; `Satterthwaite` has the same variance with the degrees of
freedom of Satterthwaite 1946; `sentences` is the paired bootstrap over sentences of the mean over seeds (Koehn 2004);
`randomized` the approximate randomization within sentences over all replicas (Clark et al. 2011), by its normal limit;
`two-level` the bootstrap that draws seeds and sentences; `t` Student's test of the scores of two systems (equal
variances). Writes results/significance.md.
"""

import math
from collections.abc import Sequence

import numpy as np
from common import arguments, facts, publish, say, table

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import Difference, Score, ScoreRow, side_by_side
from attnkit.scoring.results import System
from attnkit.scoring.significance import PairedTest
from attnkit.scoring.student_t import two_sided

SENTENCES, RESAMPLES = 300, 300
SETTINGS = EvalConfig(bootstrap=RESAMPLES)
MODEL, MECHANISM, DIFFICULTY = 0.35, 0.13, 20.0
"""Standard deviations in points of the score; the last of one sentence."""
TESTS = ("sentences", "randomized", "two-level", "t", "Satterthwaite", "attnkit")
CASES: dict[str, tuple[list[int], float | list[float]]] = {
    "one seed against three": ([1, 3], 0.4),
    "one seed against five": ([1, 5], 0.4),
    "two seeds against five": ([2, 5], 0.4),
    "two seeds each, spreads 0.2 and 0.8": ([2, 2], [0.2, 0.8]),
    "three seeds each, spreads 0.2 and 0.8": ([3, 3], [0.2, 0.8]),
    "five seeds each, spreads 0.2 and 0.8": ([5, 5], [0.2, 0.8]),
    "two seeds with spread 0.8 against five with 0.2": ([2, 5], [0.8, 0.2]),
    "two seeds with spread 0.2 against five with 0.8": ([2, 5], [0.2, 0.8]),
}
"""Comparisons with unequal numbers of seeds or spreads."""
GROUPS = {
    "all equal": [0.0] * 10,
    "nine equal, one 3 points below": [0.0] * 9 + [-3.0],
    "two equal, eight 1 to 8 points below": [0.0, 0.0, *[-float(x) for x in range(1, 9)]],
    "best by 0.5, nine equal": [0.5] + [0.0] * 9,
    "best by 2, nine equal": [2.0] + [0.0] * 9,
}
"""True scores of ten systems."""
EQUAL_NOTE = """\
It should be 5; two standard errors of {trials} trials are {error:.1f}. With one seed each, nothing is known about
other trainings: the hypothesis that can be tested is that these two models are equal on other sentences, which is the
row with a spread of 0. The other rows of one seed show how often a mechanism is called better because its training was
lucky."""
INTERVALS_NOTE = """\
How often the 95 % interval contains the true difference in percent, of a score and of a perplexity; half its width in
points (median); how often each verdict occurs, in percent. The margin is 1 point: a true difference of 1 point or more
must be called level in at most 2.5 of 100. Spread over seeds 0.3; with one seed 0. A quarter of the trials."""

Values = np.ndarray  # [seeds, sentences] of one system


def systems(
    draw: np.random.Generator, seeds: Sequence[int], spread: Sequence[float], gains: Sequence[float]
) -> list[Values]:
    """Draw the values of every system."""
    root = math.sqrt(SENTENCES)
    shared = 40 + draw.normal(0, DIFFICULTY, SENTENCES)
    return [
        shared
        + gain
        + draw.normal(0, MECHANISM * root, SENTENCES)
        + draw.normal(0, MODEL * root, (count, SENTENCES))
        + draw.normal(0, width, (count, 1))
        for count, width, gain in zip(seeds, spread, gains, strict=True)
    ]


def scores(system: Values, metric: str = "exact-match") -> list[Score]:
    """Return one score a seed: the mean over sentences; a point of perplexity is a nat per hundred tokens."""
    return [Score.of(metric, np.stack([row / 100, np.ones(SENTENCES)], 1), "") for row in system]


def significant(draw: np.random.Generator, drawn: list[Values]) -> dict[str, bool]:
    """Return whether each test calls two systems different at 5 %."""
    a, b = drawn
    difference = a.mean() - b.mean()
    found: dict[str, bool] = {}
    test = PairedTest([scores(system) for system in drawn], SETTINGS)
    of_seeds = [resamples.T for resamples in test.resamples]  # [resamples, seeds]
    found["sentences"] = beyond(of_seeds[0].mean(1) - of_seeds[1].mean(1), difference)
    share, degrees = 1 / len(a) + 1 / len(b), len(a) + len(b) - 2
    if len(a) > 1 and len(b) > 1:
        within = np.concatenate([a, b]).var(0, ddof=1).mean() * share / SENTENCES
        found["randomized"] = abs(difference) > 1.96 * math.sqrt(within)
        parts = [np.take_along_axis(some, draw.integers(0, some.shape[1], some.shape), 1).mean(1) for some in of_seeds]
        found["two-level"] = beyond(parts[0] - parts[1], difference)
    if degrees:
        of_seeds_alone = share * test.spread(0, 1).variance
        error = test._noise(0, 1).error
        found["t"] = two_sided(difference / math.sqrt(of_seeds_alone), degrees) < 0.05
        free = degrees * (error**2 / of_seeds_alone) ** 2
        found["Satterthwaite"] = two_sided(difference / error, free) < 0.05
    found["attnkit"] = test.compare(0, 1).p < 0.05
    return found


def beyond(differences: np.ndarray, difference: float) -> bool:
    """Whether the two-sided p of resampled differences is below 0.05."""
    chance = np.abs(differences - differences.mean())
    return bool(((chance >= abs(difference)).sum() + 1) / (RESAMPLES + 1) < 0.05)


def rates(trials: int, seeds: Sequence[int], spread: float | Sequence[float], gain: float = 0.0) -> list[str]:
    """Return the share of significant results of each test, in percent."""
    widths = [spread] * 2 if isinstance(spread, float) else list(spread)
    draw = np.random.default_rng([*seeds, *(int(100 * x) for x in (*widths, gain))])
    found = [significant(draw, systems(draw, seeds, widths, [gain, 0.0])) for _ in range(trials)]
    say(f"{seeds} {spread} {gain}")
    return [f"{100 * np.mean([one[name] for one in found]):.1f}" if name in found[0] else "-" for name in TESTS]


def contains(found: Difference, truth: float) -> bool:
    """Whether the interval contains the true difference, or for perplexities the true ratio."""
    if found.percent is None:
        return found.low <= truth <= found.high
    return found.percent[1] <= 100 * math.expm1(truth / 100) <= found.percent[2]


def intervals(trials: int, seeds: int, spread: float, gain: float) -> list[str]:
    """Return how often the interval contains the truth, half its width, and how often each verdict occurs."""
    draw = np.random.default_rng([seeds, int(10 * gain)])
    held, halves, verdicts = np.zeros(2), list[float](), list[str | None]()
    for _ in range(trials):
        drawn = systems(draw, [seeds] * 2, [spread] * 2, [gain, 0.0])
        found, ratio = (
            PairedTest([scores(system, metric) for system in drawn], SETTINGS).compare(0, 1)
            for metric in ("exact-match", "perplexity")
        )
        held += contains(found, gain), contains(ratio, gain)
        halves.append((found.high - found.low) / 2)
        verdicts.append(found.verdict)
    say(f"intervals of {seeds} seeds, {gain}")
    counts = [*held, *map(verdicts.count, ("better", "worse", "level", "undecided"))]
    shares = [f"{100 * count / trials:.1f}" for count in counts]
    return [*shares[:2], f"{np.median(halves):.2f}", *shares[2:]]


def best_group(trials: int, seeds: int, gains: Sequence[float]) -> tuple[str, str]:
    """Return how often the truly best system is not marked, in percent, and the mean size of the group."""
    draw, missed, sizes = np.random.default_rng(2), 0, []
    for _ in range(trials):
        entries = [
            ScoreRow(System("r", str(at)), "test", {"exact-match": score}, SENTENCES, "same")
            for at, system in enumerate(systems(draw, [seeds] * len(gains), [0.3] * len(gains), gains))
            for score in scores(system)
        ]
        (best,) = side_by_side(entries, {}, SETTINGS).best
        group = {row.variant for row in best.inseparable}
        missed += str(int(np.argmax(gains))) not in group
        sizes.append(len(group))
    say(f"best of {gains}")
    return f"{100 * missed / trials:.1f}", f"{np.mean(sizes):.1f}"


def main() -> None:
    options = arguments(__doc__, trials=2000)
    trials, about = options.trials, facts(options, "numpy") | {"sentences, resamples": f"{SENTENCES}, {RESAMPLES}"}
    header, seeds = ["seeds each", "spread over seeds", *TESTS], (1, 2, 3, 5)
    spreads = (0.0, 0.2, 0.4, 0.8)
    equal = [(n, f"{spread:.1f}", *rates(trials, [n] * 2, spread)) for n in seeds for spread in spreads]
    power = [(n, "0.3", *rates(trials, [n] * 2, 0.3, 1.0)) for n in (*seeds, 10)]
    unequal = [(name, *rates(trials, *case)) for name, case in CASES.items()]
    held = [
        (n, f"{gain:.1f}", *intervals(max(trials // 4, 1), n, 0.3 if n > 1 else 0.0, gain))
        for gain in (0.0, 1.0, 2.0)
        for n in seeds
    ]
    groups = [(name, n, *best_group(max(trials // 8, 1), n, gains)) for name, gains in GROUPS.items() for n in (2, 3)]
    verdicts = "better | worse | level | undecided"
    body = [
        "## Equal systems called different at p < 0.05, percent",
        EQUAL_NOTE.format(trials=trials, error=100 * 2 * math.sqrt(0.05 * 0.95 / trials)),
        table(header, equal, left=0),
        "The same if the rows have different numbers of seeds (spread 0.4), or different spreads, which the test "
        "assumes to be equal:",
        table(["rows", *TESTS], unequal),
        "## A difference of 1 point found, percent",
        "The first system is 1 point better. Tests whose error above is far from 5 find more or less for that reason.",
        table(header, power, left=0),
        "## Intervals and verdicts",
        INTERVALS_NOTE,
        table(
            f"seeds each | true difference | contains the score | contains the perplexity | half width | {verdicts}",
            held,
            left=0,
        ),
        "## The group that is not separable from the best",
        "Ten systems, spread over seeds 0.3, an eighth of the trials. The best must be in the group 95 times in 100.",
        table("systems | seeds each | best one left out, percent | size of the group", groups),
    ]
    publish("significance", "Tests of differences", about, body)


if __name__ == "__main__":
    main()
