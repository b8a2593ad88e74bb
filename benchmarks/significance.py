"""How often differences are judged wrongly, over other sentences and other training seeds.

    python benchmarks/significance.py [--trials 2000]

Scores are made up: of equal systems (how often does p < 0.05 call two of them different?), and of
systems that differ (how often is it found, and how often does the 95 % interval hold the truth?).
A sentence's value is the sum of its difficulty, of what the mechanism makes of it, of what the
trained model makes of it, and of how well that training went; other sentences and other trainings
are drawn for every trial.  In points of the score over all sentences: what a model makes of single
sentences moves it by 0.35, what the mechanism makes of them by 0.13 (as with BLEU on 1,000
sentences), how well training went by the spread in the tables.

The tests: `attnkit` is `attnkit.scoring.significance`; `Satterthwaite` has the same variance with
the degrees of freedom of Satterthwaite 1946; `sentences` is the paired bootstrap over
sentences of the mean over seeds (Koehn 2004); `randomised` the approximate randomisation within
sentences over all replicas (Clark et al. 2011), by its normal limit; `two-level` the bootstrap that
draws seeds and sentences; `t` Student's test of the scores of two systems (equal variances).
Writes results/significance.md.
"""

import argparse
import math
from collections.abc import Sequence

import numpy as np
from common import command, load_before, publish, say, table, versions

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import Difference, Score, ScoreRow, side_by_side
from attnkit.scoring.results import System
from attnkit.scoring.significance import PairedTest
from attnkit.scoring.student_t import two_sided

SENTENCES, RESAMPLES = 300, 300
SETTINGS = EvalConfig(bootstrap=RESAMPLES)
MODEL, MECHANISM, DIFFICULTY = 0.35, 0.13, 20.0
"""In points of the score; the last of one sentence."""
TESTS = ("sentences", "randomised", "two-level", "t", "Satterthwaite", "attnkit")

Values = np.ndarray  # [seeds, sentences] of one system


def systems(
    draw: np.random.Generator, seeds: Sequence[int], spread: Sequence[float], gains: Sequence[float]
) -> list[Values]:
    """Values of every system."""
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


def scores(system: Values) -> list[Score]:
    """One score a seed: the mean over sentences."""
    ones = np.ones(SENTENCES)
    return [Score.of("exact-match", np.stack([row / 100, ones], 1), "") for row in system]


def significant(draw: np.random.Generator, made: list[Values]) -> dict[str, bool]:
    """Whether each test calls two systems different at 5 %."""
    a, b = made
    difference = a.mean() - b.mean()
    out: dict[str, bool] = {}
    test = PairedTest([scores(system) for system in made], SETTINGS)
    of_seeds = [drawn.T for drawn in test.resamples]  # [resamples, seeds]
    out["sentences"] = beyond(of_seeds[0].mean(1) - of_seeds[1].mean(1), difference)
    share, degrees = 1 / len(a) + 1 / len(b), len(a) + len(b) - 2
    if len(a) > 1 and len(b) > 1:
        within = np.concatenate([a, b]).var(0, ddof=1).mean() * share / SENTENCES
        out["randomised"] = abs(difference) > 1.96 * math.sqrt(within)
        parts = [np.take_along_axis(some, draw.integers(0, some.shape[1], some.shape), 1).mean(1) for some in of_seeds]
        out["two-level"] = beyond(parts[0] - parts[1], difference)
    if degrees:
        spread = test.spread(0, 1)
        of_seeds_alone = share * spread.variance
        error = test._noise(0, 1).error
        out["t"] = two_sided(difference / math.sqrt(of_seeds_alone), degrees) < 0.05
        free = degrees * (error**2 / of_seeds_alone) ** 2
        out["Satterthwaite"] = two_sided(difference / error, free) < 0.05
    out["attnkit"] = test.compare(0, 1).p < 0.05
    return out


def beyond(differences: np.ndarray, difference: float) -> bool:
    """Two-sided p of resampled differences below 0.05."""
    chance = np.abs(differences - differences.mean())
    return bool(((chance >= abs(difference)).sum() + 1) / (RESAMPLES + 1) < 0.05)


def rates(trials: int, seeds: Sequence[int], spread: float | Sequence[float], gain: float = 0.0) -> list[str]:
    """Share of significant results of each test, in percent."""
    widths = [spread] * 2 if isinstance(spread, float) else list(spread)
    draw = np.random.default_rng([*seeds, *(int(100 * x) for x in (*widths, gain))])
    found = [significant(draw, systems(draw, seeds, widths, [gain, 0.0])) for _ in range(trials)]
    say(f"{seeds} {spread} {gain}")
    return [f"{100 * np.mean([one[name] for one in found]):.1f}" if name in found[0] else "-" for name in TESTS]


def perplexities(system: Values) -> list[Score]:
    """Of each seed a perplexity: a point of the score is a nat per hundred tokens."""
    ones = np.ones(SENTENCES)
    return [Score.of("perplexity", np.stack([row / 100, ones], 1), "") for row in system]


def holds(found: Difference, truth: float) -> bool:
    """Whether the interval holds the true difference; of perplexities the true ratio."""
    if found.percent is None:
        return found.low <= truth <= found.high
    return found.percent[1] <= 100 * math.expm1(truth / 100) <= found.percent[2]


def intervals(trials: int, seeds: int, spread: float, gain: float) -> list[str]:
    """How often the interval holds the truth, half its width, and how often each verdict comes."""
    draw = np.random.default_rng([seeds, int(10 * gain)])
    held, halves, verdicts, ratios = 0, list[float](), list[str | None](), 0
    for _ in range(trials):
        made = systems(draw, [seeds] * 2, [spread] * 2, [gain, 0.0])
        found = PairedTest([scores(one) for one in made], SETTINGS).compare(0, 1)
        ratio = PairedTest([perplexities(one) for one in made], SETTINGS).compare(0, 1)
        held += holds(found, gain)
        ratios += holds(ratio, gain)
        halves.append((found.high - found.low) / 2)
        verdicts.append(found.verdict)
    say(f"intervals of {seeds} seeds, {gain}")
    shares = [f"{100 * verdicts.count(one) / trials:.1f}" for one in ("better", "worse", "level", "undecided")]
    held_text, ratio_text = (f"{100 * count / trials:.1f}" for count in (held, ratios))
    return [held_text, ratio_text, f"{np.median(halves):.2f}", *shares]


def best_group(trials: int, seeds: int, gains: Sequence[float]) -> tuple[str, str]:
    """How often the truly best system is not marked, in percent, and the mean size of the group."""
    draw, missed, sizes = np.random.default_rng(2), 0, []
    top = int(np.argmax(gains))
    for _ in range(trials):
        made = systems(draw, [seeds] * len(gains), [0.3] * len(gains), gains)
        entries = [
            ScoreRow(System("r", str(at)), "test", {"exact-match": score}, SENTENCES, "same")
            for at, system in enumerate(made)
            for score in scores(system)
        ]
        (best,) = side_by_side(entries, {}, SETTINGS).best
        group = {row.variant for row in best.inseparable}
        missed += str(top) not in group
        sizes.append(len(group))
    say(f"best of {gains}")
    return f"{100 * missed / trials:.1f}", f"{np.mean(sizes):.1f}"


def main() -> None:
    """Measure, and write results/significance.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=2000)
    options = parser.parse_args()
    trials, before = options.trials, load_before()
    head = ["seeds each", "spread over seeds", *TESTS]
    equal = [
        (count, f"{spread:.1f}", *rates(trials, [count] * 2, spread))
        for count in (1, 2, 3, 5)
        for spread in (0.0, 0.2, 0.4, 0.8)
    ]
    power = [(count, "0.3", *rates(trials, [count] * 2, 0.3, 1.0)) for count in (1, 2, 3, 5, 10)]
    cases: dict[str, tuple[list[int], float | list[float]]] = {
        "one seed against three": ([1, 3], 0.4),
        "one seed against five": ([1, 5], 0.4),
        "two seeds against five": ([2, 5], 0.4),
        "two seeds each, spreads 0.2 and 0.8": ([2, 2], [0.2, 0.8]),
        "three seeds each, spreads 0.2 and 0.8": ([3, 3], [0.2, 0.8]),
        "five seeds each, spreads 0.2 and 0.8": ([5, 5], [0.2, 0.8]),
        "two seeds with spread 0.8 against five with 0.2": ([2, 5], [0.8, 0.2]),
        "two seeds with spread 0.2 against five with 0.8": ([2, 5], [0.2, 0.8]),
    }
    other = [(name, *rates(trials, *case)) for name, case in cases.items()]
    held = [
        (count, f"{gain:.1f}", *intervals(max(trials // 4, 1), count, 0.3 if count > 1 else 0.0, gain))
        for gain in (0.0, 1.0, 2.0)
        for count in (1, 2, 3, 5)
    ]
    steps = {
        "all equal": [0.0] * 10,
        "nine equal, one 3 points below": [0.0] * 9 + [-3.0],
        "two equal, eight 1 to 8 points below": [0.0, 0.0, *[-float(x) for x in range(1, 9)]],
        "best by 0.5, nine equal": [0.5] + [0.0] * 9,
        "best by 2, nine equal": [2.0] + [0.0] * 9,
    }
    groups = [
        (name, seeds, *best_group(max(trials // 8, 1), seeds, gains))
        for name, gains in steps.items()
        for seeds in (2, 3)
    ]
    error = 100 * 2 * math.sqrt(0.05 * 0.95 / trials)
    body = [
        "## Equal systems called different at p < 0.05, percent",
        "",
        f"It should be 5; two standard errors of {trials} trials are {error:.1f}. With one seed "
        "each, nothing can be known of other trainings: the hypothesis that can be tested is that "
        "these two models are equal on other sentences, which is the row with a spread of 0. The "
        "other rows of one seed show how often a mechanism is called better for the luck of its "
        "training.",
        "",
        *table(head, equal, left=0),
        "",
        "The same where the rows have different numbers of seeds (spread 0.4), or where their "
        "spreads differ, which the test takes as equal:",
        "",
        *table(["rows", *TESTS], other),
        "",
        "## A difference of 1 point found, percent",
        "",
        "The first system is 1 point better. Tests whose error above is far from 5 find more or less for that reason.",
        "",
        *table(head, power, left=0),
        "",
        "## Intervals and verdicts",
        "",
        "How often the 95 % interval holds the true difference in percent, of a score and of a "
        "perplexity; half its width in points (median); how often each verdict comes, in percent. "
        "The margin is 1 point: a true difference of 1 point or more must be called level in at "
        "most 2.5 of 100. Spread over seeds 0.3; with one seed 0. A quarter of the trials.",
        "",
        *table(
            [
                "seeds each",
                "true difference",
                "holds the score",
                "holds the perplexity",
                "half width",
                "better",
                "worse",
                "level",
                "undecided",
            ],
            held,
            left=0,
        ),
        "",
        "## The group that is not separable from the best",
        "",
        "Ten systems, spread over seeds 0.3, an eighth of the trials. The best must be in the group 95 times in 100.",
        "",
        *table(["systems", "seeds each", "best one left out, percent", "size of the group"], groups),
    ]
    facts = {
        "command": f"`{command(options)}`",
        "versions": versions("attnkit", "numpy"),
        "load of the machine": before,
        "sentences, resamples": f"{SENTENCES}, {RESAMPLES}",
    }
    publish("significance", "Tests of differences", facts, body)


if __name__ == "__main__":
    main()
