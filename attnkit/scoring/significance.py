"""The difference between two systems, with its 95 % interval over test sentences and seeds.

This is the one protocol of all comparisons (docs/comparing.md).  Scores are sums over sentences, so
what other sentences would give is known from the paired bootstrap (Koehn 2004, "Statistical
Significance Tests for Machine Translation Evaluation"), with the resamples of sacrebleu's
`PairedTest`.  What other trainings would give is known from the scores of several seeds.

Seeds and sentences are crossed, so the variance of a difference is the two-way variance
V(sentences) + V(seeds) - V(both) (Cameron, Gelbach and Miller 2011): what a training makes of
single sentences is in the first and in the second.  Resampling seeds as well as sentences counts it
twice (McCullagh 2000, "no bootstrap is exact"; Owen 2007, "The pigeonhole bootstrap").

V(seeds) has few degrees of freedom, V(sentences) - V(both) many. The limit of the interval is the mean of Student's
limits of both parts, weighted by their variances (Cochran and Cox 1950, "Experimental Designs"; Cochran 1964), which
is a little wider than need be. The degrees of freedom of Welch and Satterthwaite, taken from the estimated variances,
are too many with two seeds: up to 8 % false alarms instead of 5 %. `benchmarks/significance.py` measures it.

Holm (1979) corrects for several systems against one.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.recipe.metrics import base_metric, metric_facts
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics import Score, reducer
from attnkit.scoring.student_t import degrees_of, limit, two_sided

SEED = 12345
"""sacrebleu's own default, so that the resamples are the same."""
LEVEL = 0.05
"""A corrected p below this is called significant."""
POWER, MOST_SEEDS = 0.84, 100
"""Standard errors beyond the limit with which 4 of 5 comparisons tell a difference; a bound."""
CELLS = 4_000_000
"""Random draws held at a time: bounds memory to about 100 MB."""
ROUNDING = 1e-9
"""Differences of scores below this are rounding."""
RATIOS = ("perplexity", "word-perplexity")
"""Metrics that are compared by their ratio."""

DEFAULTS = EvalConfig()
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Verdict = Literal["better", "worse", "level", "undecided"]


@dataclass(frozen=True)
class Difference:
    """System minus baseline on the same sentences, each the mean over its seeds."""

    value: float
    """In points of the metric."""
    low: float
    """Lower end of the 95 % interval, not corrected; -inf where nothing bounds it."""
    high: float
    """Upper end."""
    p: float
    """Two-sided p-value of no difference, not corrected: below 0.05 where the interval is beside
    0."""
    p_holm: float
    """p after Holm's correction over all systems that are compared with the baseline."""
    seeds: tuple[int, int]
    """How many of the system, and of the baseline."""
    margin: float
    """Of equivalence: points, of perplexity percent."""
    within_margin: bool
    """Whether the whole interval is within the margin."""
    better: Literal["higher", "lower", "neither"]
    """Which scores of the metric are better."""
    seed_degrees: int
    """Degrees of freedom of the spread over seeds; 0 where this speaks of sentences alone."""
    percent: tuple[float, float, float] | None = None
    """Of perplexity: by how much it is higher, and the interval of that."""
    seeds_needed: int | None = None
    """Seeds of each system with which a difference of this size, now not told from 0, would be in 4 of 5 comparisons
    (p below 0.05, not corrected); None where no `MOST_SEEDS` would do, or the spread over seeds is not known."""

    @property
    def verdict(self) -> Verdict | None:
        """level: the interval is within the margin; better, worse: `p_holm` is below 0.05.

        None where of the metric neither higher nor lower is better.
        """
        if self.better == "neither":
            return None
        if self.within_margin:
            return "level"
        if not self.significant:
            return "undecided"
        return "better" if (self.value > 0) == (self.better == "higher") else "worse"

    @property
    def significant(self) -> bool:
        """Whether `p_holm` is below 0.05."""
        return self.p_holm < LEVEL

    @property
    def interval(self) -> tuple[float, float] | None:
        """`low` and `high`; None where an end is not finite."""
        ends = (self.low, self.high)
        return ends if all(map(math.isfinite, ends)) else None

    @property
    def provisional(self) -> bool:
        """Whether one side has one seed: nothing is known of its other trainings."""
        return min(self.seeds) == 1

    def json(self) -> dict[str, Any]:
        """What comparisons say of it beside `difference`; an end that is not finite is null."""
        low, high = map(_finite, (self.low, self.high))
        percent = {"percent": list(map(_finite, self.percent))} if self.percent else {}
        return {
            "p": self.p,
            "p_corrected": self.p_holm,
            "interval": [low, high],
            "low": low,
            "high": high,
            "verdict": self.verdict,
            "provisional": self.provisional,
            "margin": self.margin,
            "seed_degrees": self.seed_degrees,
            "seeds_needed": self.seeds_needed,
            **percent,
        }


UNTESTED = dict.fromkeys(
    ("p", "p_corrected", "interval", "low", "high", "verdict", "provisional", "margin", "seed_degrees", "seeds_needed")
)
"""The keys of `Difference.json` where nothing was tested."""


class SeedSpread(NamedTuple):
    """How far training with another seed moves a score."""

    variance: float = 0.0
    """Of the scores of one system on these sentences over its seeds."""
    interaction: float = 0.0
    """The part of it that other sentences would change."""
    degrees: int = 0
    """Degrees of freedom: seeds less systems; 0 where each system has one seed."""


class _Noise(NamedTuple):
    """What chance does to a difference."""

    error: float
    """Standard error."""
    degrees: float
    """Degrees of freedom of Student's t; 0 where the error is unknown."""


class PairedTest:
    """The differences between systems by one metric, all on the same resamples of the sentences.

    Seeds of two systems are taken as trainings of their own.  Two ways of asking one model share
    them: intervals are then wider than need be.

    Perplexities are compared by their ratio: everything below is done to their logarithms.

    Time for 1,000 resamples of 1,000 sentences: about 0.03 s a score.
    """

    def __init__(self, systems: Sequence[Sequence[Score]], settings: EvalConfig = DEFAULTS, seed: int = SEED) -> None:
        """Resample the systems' scores; each system has one score per training seed.

        `settings` have the number of resamples, and within what margins systems are level.

        A metric that is no function of sums over sentences cannot be resampled: its differences are over seeds alone.

        Raises DataError: they were not scored on the same number of sentences, or not alike.
        """
        scores = [score for system in systems for score in system]
        if len({(score.metric, score.signature, len(score.statistics)) for score in scores}) != 1:
            parts = sorted({f"{len(s.statistics)} lines, {s.metric}|{s.signature}" for s in scores})
            raise DataError(f"these scores cannot be compared: {'; '.join(parts)}")
        facts = metric_facts(scores[0].metric)
        self.better, self.resampled = facts.better, facts.resampled
        self.ratio = base_metric(scores[0].metric) in RATIOS
        self.margin = settings.perplexity_margin if self.ratio else settings.margin
        self.sentences = len(scores[0].statistics)
        self.values = [np.array([score.value for score in system]) for system in systems]
        drawn = np.concatenate(self.values)[:, None]  # as if other sentences changed nothing
        if self.resampled:
            drawn = resampled_scores(scores, settings.bootstrap, seed)
        self.drawn: list[Matrix] = np.split(  # [seeds, resamples] of each system
            drawn, np.cumsum([len(system) for system in systems])[:-1]
        )

    def against(self, baseline: int) -> dict[int, Difference]:
        """The differences of all other systems to one of them, by their places.

        Systems of which nothing can be said are left out: those with one seed, and a baseline with
        one, by a metric that is not resampled.
        """
        found = {
            place: self.compare(place, baseline)
            for place in range(len(self.values))
            if place != baseline and (self.resampled or self.spread(place, baseline).degrees)
        }
        p_values = corrected([one.p for one in found.values()])
        return {place: replace(one, p_holm=p) for (place, one), p in zip(found.items(), p_values, strict=True)}

    def compare(self, system: int, baseline: int) -> Difference:
        """The difference between two of the systems, by their places; no correction of p."""
        first, second = (float(self.values[place].mean()) for place in (system, baseline))
        moved = math.log(first) - math.log(second) if self.ratio else first - second
        low, high, p = _judged(moved, self._noise(system, baseline))
        bound = math.log1p(self.margin / 100) if self.ratio else self.margin
        within, percent = max(-low, high) <= bound, None
        if self.ratio:
            percent = (_percent(moved), _percent(low), _percent(high))
            low, high = (second * end / 100 for end in percent[1:])
        return Difference(
            first - second,
            low,
            high,
            p,
            p,
            (len(self.values[system]), len(self.values[baseline])),
            self.margin,
            within,
            self.better,
            self.spread(system, baseline).degrees,
            percent,
            self._seeds_needed(moved, system, baseline) if p >= LEVEL else None,
        )

    def _seeds_needed(self, moved: float, *systems: int) -> int | None:
        """See `Difference.seeds_needed`."""
        if not self.spread(*systems).degrees or not math.isfinite(moved):
            return None
        if not self._noise(*systems).degrees:  # one sentence: no seeds tell of others
            return None

        def shown(seeds: int) -> bool:
            noise = self._noise(*systems, seeds=seeds)
            return abs(moved) >= noise.error * (limit(LEVEL, noise.degrees) + POWER)

        counts = range(2, MOST_SEEDS + 1)
        place = bisect_left(counts, True, key=shown)
        return counts[place] if place < len(counts) else None

    def interval(self, system: int) -> tuple[float, float, float]:
        """The mean over the seeds of one system, and its 95 % interval over sentences and seeds.

        Its ends are infinite where nothing bounds it: one seed, and a metric of whole test sets.
        """
        value = float(self._scaled(self.values[system]).mean())
        known = self.resampled or len(self.values[system]) > 1
        low, high, _ = _judged(value, self._noise(system) if known else _Noise(0.0, 0))
        ends = (value, low, high)
        value, low, high = (math.exp(end) for end in ends) if self.ratio else ends
        return value, low, high

    def spread(self, *systems: int) -> SeedSpread:
        """The spread over seeds of these systems together, weighted by their degrees of freedom."""
        squares, shared, degrees = 0.0, 0.0, 0
        for place in systems:
            scores, resampled = self._scaled(self.values[place]), self._scaled(self.drawn[place])
            noise = resampled - resampled.mean(1, keepdims=True)  # [seeds, resamples]
            squares += float(((scores - scores.mean()) ** 2).sum())
            shared += float(((noise - noise.mean(0)) ** 2).sum(0).mean())
            degrees += len(scores) - 1
        return SeedSpread(squares / degrees, shared / degrees, degrees) if degrees else SeedSpread()

    def _noise(self, system: int, *baseline: int, seeds: int | None = None) -> _Noise:
        """How far a score, or the difference to a baseline, would move with other sentences and
        seeds; with so many `seeds` of each where they are given.
        """
        systems = (system, *baseline)
        spread = self.spread(*systems)
        gaps = self._scaled(self.drawn[system].mean(0))
        for place in baseline:
            gaps = gaps - self._scaled(self.drawn[place].mean(0))
        if self.sentences == 1 and self.resampled:  # which tells nothing of others
            return _Noise(0.0, 0)
        others = max(self.sentences - 1, 1)
        of_sentences = float(gaps.var()) * self.sentences / others
        if not spread.degrees:
            return _Noise(math.sqrt(of_sentences), others)
        share = sum(1 / len(self.values[place]) for place in systems)
        alone = max(0.0, of_sentences - share * spread.interaction)
        free = spread.degrees
        if seeds is not None:
            share, free = len(systems) / seeds, len(systems) * (seeds - 1)
        of_seeds = share * spread.variance
        total = of_seeds + alone
        weight = of_seeds / total if total else 0.0
        # with these degrees of freedom the limit is that of Cochran and Cox at 95 %
        mixed = weight * limit(LEVEL, free) + (1 - weight) * limit(LEVEL, others)
        return _Noise(math.sqrt(total), degrees_of(mixed, LEVEL, *sorted((free, others))))

    def _scaled(self, scores: np.ndarray) -> np.ndarray:
        return np.log(scores) if self.ratio else scores


def _judged(value: float, noise: _Noise) -> tuple[float, float, float]:
    """The ends of the 95 % interval, and p."""
    if not noise.degrees or not math.isfinite(value + noise.error):
        return -math.inf, math.inf, 1.0
    half = noise.error * limit(LEVEL, noise.degrees)
    if noise.error < ROUNDING:
        return value - half, value + half, float(abs(value) < ROUNDING)
    return value - half, value + half, two_sided(value / noise.error, noise.degrees)


def _percent(log_ratio: float) -> float:
    """A ratio as a change in percent; infinite where nothing bounds it."""
    return 100 * math.expm1(log_ratio if math.isinf(log_ratio) else min(log_ratio, 700))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def compare(
    system: Sequence[Score], baseline: Sequence[Score], settings: EvalConfig = DEFAULTS, seed: int = SEED
) -> Difference:
    """Compare a system with a baseline; each is one score per training seed.  See `PairedTest`.

    With one seed each, it speaks of other test sentences for these trained models.  With several it
    speaks of other trainings too.

    Raises DataError: the systems were not scored on the same number of sentences, or not alike.
    """
    return PairedTest([system, baseline], settings, seed).compare(0, 1)


def corrected(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the chance that any of equal systems is called different stays the level.

    The smallest p is multiplied by their number, the next by one less, and so on; none gets
    smaller than the one before it.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    out = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        out[index] = largest
    return out


def resampled_scores(scores: Sequence[Score], resamples: int, seed: int = SEED) -> Matrix:
    """Scores [scores, resamples] by one metric, all on the same resamples of the sentences.

    Sentences are drawn with replacement, as by sacrebleu's test with the same seed. A resample is a vector of counts,
    so its sums of statistics are one matrix product: no [resamples, sentences, k] array is made.
    """
    value, generator = reducer(scores[0].metric), np.random.default_rng(seed)
    sentences = len(scores[0].statistics)
    block = max(1, CELLS // sentences)
    out: list[list[float]] = [[] for _ in scores]
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(0, sentences, size=(rows, sentences))
        drawn += sentences * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * sentences)
        weights = counts.reshape(rows, sentences).astype(np.float64)
        for found, score in zip(out, scores, strict=True):
            found += map(value, (weights @ score.statistics).tolist())
    return np.array(out)
