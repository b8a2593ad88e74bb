"""How often tests of differences are wrong, over other sentences and other training seeds.

    python benchmarks/significance.py [--trials 600]

Scores are made up: of equal systems (how often does p < 0.05 call two of them different?), and of
systems that differ (how often is it found?).  A sentence's value is the sum of its difficulty, of
what the mechanism makes of it, of what the trained model makes of it, and of how well that training
went; other sentences and other trainings are drawn for every trial.  In points of the score over
all sentences: what a model makes of single sentences moves it by 0.35, what the mechanism makes of
them by 0.13 (as with BLEU on 1,000 sentences), how well training went by the spread in the tables.

The tests: `attnkit` is `attnkit.scoring.significance`; `sentences` the paired bootstrap over
sentences of the mean over seeds (Koehn 2004); `randomised` the approximate randomisation within
sentences over all replicas (Clark et al. 2011), by its normal limit; `two-level` the bootstrap that
draws seeds and sentences, `corrected` with deviations of seed means times sqrt(n / (n - 1));
`t` Student's test of the two systems' scores (equal variances).  Writes results/significance.md.
"""

import argparse
import math
from collections.abc import Sequence

import numpy as np
from common import command, load_before, publish, say, table, versions

from attnkit.scoring import Entry, Score, side_by_side
from attnkit.scoring.significance import PairedTest

SENTENCES, RESAMPLES = 300, 300
MODEL, MECHANISM, DIFFICULTY = 0.35, 0.13, 20.0
"""In points of the score; the last of one sentence."""
T_LIMITS = {2: 4.303, 4: 2.776, 8: 2.306}
"""Student's t: two-sided 5 % limits by degrees of freedom."""
TESTS = ("sentences", "randomised", "two-level", "two-level corrected", "t", "attnkit")

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
    """Whether each test calls the first two systems different at 5 %."""
    a, b = made[:2]
    difference = a.mean() - b.mean()
    out: dict[str, bool] = {}
    counts = draw.multinomial(SENTENCES, np.full(SENTENCES, 1 / SENTENCES), RESAMPLES) / SENTENCES
    of_seeds = [counts @ system.T for system in (a, b)]  # [resamples, seeds]
    out["sentences"] = beyond(of_seeds[0].mean(1) - of_seeds[1].mean(1), difference)
    share = 1 / len(a) + 1 / len(b)
    if len(a) > 1 and len(b) > 1:
        within = np.concatenate([a, b]).var(0, ddof=1).mean() * share / SENTENCES
        out["randomised"] = abs(difference) > 1.96 * math.sqrt(within)
        for name, exact in (("two-level", False), ("two-level corrected", True)):
            parts = []
            for resampled in of_seeds:
                count = resampled.shape[1]
                middle = resampled.mean(1, keepdims=True)
                factor = math.sqrt(count / (count - 1)) if exact else 1
                chosen = draw.integers(0, count, resampled.shape)
                moved = middle + factor * (resampled - middle)
                parts.append(np.take_along_axis(moved, chosen, 1).mean(1))
            out[name] = beyond(parts[0] - parts[1], difference)
        degrees = len(a) + len(b) - 2
        squares = sum(((x.mean(1) - x.mean()) ** 2).sum() for x in (a, b))
        limit = T_LIMITS[degrees] * math.sqrt(share * squares / degrees)
        out["t"] = abs(difference) > limit
    test = PairedTest([scores(system) for system in made], resamples=RESAMPLES)
    out["attnkit"] = test.compare(0, 1).p < 0.05
    return out


def beyond(differences: np.ndarray, difference: float) -> bool:
    """Two-sided p of resampled differences below 0.05."""
    chance = np.abs(differences - differences.mean())
    return bool(((chance >= abs(difference)).sum() + 1) / (RESAMPLES + 1) < 0.05)


def rates(
    trials: int,
    seeds: Sequence[int],
    spread: float | Sequence[float],
    gain: float = 0.0,
) -> list[str]:
    """Share of significant results of each test, in percent."""
    draw = np.random.default_rng(1)
    widths = [spread] * len(seeds) if isinstance(spread, float) else list(spread)
    gains = [gain, *[0.0] * (len(seeds) - 1)]
    found = [significant(draw, systems(draw, seeds, widths, gains)) for _ in range(trials)]
    say(f"{seeds} {spread} {gain}")
    return [
        f"{100 * np.mean([one[name] for one in found]):.1f}" if name in found[0] else "-"
        for name in TESTS
    ]


def best_group(trials: int, seeds: int, gains: Sequence[float]) -> tuple[str, str]:
    """How often the truly best system is not marked, in percent, and the mean size of the group."""
    draw, missed, sizes = np.random.default_rng(2), 0, []
    top = int(np.argmax(gains))
    for _ in range(trials):
        made = systems(draw, [seeds] * len(gains), [0.3] * len(gains), gains)
        entries = [
            Entry(
                {"recipe": "r", "variant": str(at), "split": "test", "metrics": {}},
                {"exact-match": score},
                "same",
            )
            for at, system in enumerate(made)
            for score in scores(system)
        ]
        (best,) = side_by_side(entries, {}, resamples=RESAMPLES)["best"]
        level = {best["variant"], *(one["variant"] for one in best["others"] if one["level"])}
        missed += str(top) not in level
        sizes.append(len(level))
    say(f"best of {gains}")
    return f"{100 * missed / trials:.1f}", f"{np.mean(sizes):.1f}"


def main() -> None:
    """Measure, and write results/significance.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=600)
    options = parser.parse_args()
    trials, before = options.trials, load_before()
    head = ["seeds each", "spread over seeds", *TESTS]
    equal = [
        (count, f"{spread:.1f}", *rates(trials, [count] * 5, spread))
        for count in (1, 2, 3, 5)
        for spread in (0.0, 0.2, 0.4, 0.8)
    ]
    power = [(count, "0.3", *rates(trials, [count] * 5, 0.3, 1.0)) for count in (1, 2, 3, 5)]
    cases: dict[str, tuple[list[int], float | list[float]]] = {
        "two systems alone, 2 seeds each": ([2, 2], 0.4),
        "two systems alone, 3 seeds each": ([3, 3], 0.4),
        "one seed against three": ([1, 3, 3, 3, 3], 0.4),
        "three seeds against one, no other has several": ([3, 1, 1, 1, 1], 0.4),
        "one of five systems has twice the spread": ([3] * 5, [0.8, 0.4, 0.4, 0.4, 0.4]),
    }
    other = [(name, *rates(trials, *case)) for name, case in cases.items()]
    steps = {
        "all equal": [0.0] * 10,
        "nine level, one 3 points below": [0.0] * 9 + [-3.0],
        "two level, eight 1 to 8 points below": [0.0, 0.0, *[-float(x) for x in range(1, 9)]],
        "best by 0.5, nine level": [0.5] + [0.0] * 9,
        "best by 2, nine level": [2.0] + [0.0] * 9,
    }
    groups = [
        (name, seeds, *best_group(trials, seeds, gains))
        for name, gains in steps.items()
        for seeds in (2, 3)
    ]
    error = 100 * 2 * math.sqrt(0.05 * 0.95 / trials)
    body = [
        "## Equal systems called different at p < 0.05, percent",
        "",
        f"It should be 5; two standard errors of {trials} trials are {error:.1f}. Five systems, of "
        "which the first two are compared. With one seed `sentences` and `attnkit` are one test "
        "and speak of these trained models alone.",
        "",
        *table(head, equal, left=0),
        "",
        "The same with a spread over seeds of 0.4, where seeds are fewer or unequal:",
        "",
        *table(["systems", *TESTS], other),
        "",
        "## A difference of 1 point found, percent",
        "",
        "The first system is 1 point better. Tests whose error above is far from 5 find more or "
        "less for that reason.",
        "",
        *table(head, power, left=0),
        "",
        "## The group that is level with the best",
        "",
        "Ten systems, spread over seeds 0.3. The best must be in the group 95 times in 100.",
        "",
        *table(["systems", "seeds each", "best one left out, percent", "size of the group"],
               groups),
    ]  # fmt: skip
    facts = {
        "command": f"`{command(options)}`",
        "versions": versions("attnkit", "numpy"),
        "load of the machine": before,
        "sentences, resamples": f"{SENTENCES}, {RESAMPLES}",
    }
    publish("significance", "Tests of differences", facts, body)


if __name__ == "__main__":
    main()
