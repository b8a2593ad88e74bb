"""Differences between systems, with 95 % intervals over test sentences and seeds.

All comparisons follow this protocol (docs/comparing.md). Scores are functions of sums over sentences, so the variance
over test sentences is estimated by the paired bootstrap (Koehn 2004, "Statistical Significance Tests for Machine
Translation Evaluation"), with the resamples of sacrebleu's `PairedTest`. The variance over trainings is estimated from
the scores of several seeds.

Seeds and sentences are crossed, so the variance of a difference is the two-way variance
V(sentences) + V(seeds) - V(both) (Cameron, Gelbach and Miller 2011): the first two terms both contain the interaction
of seeds with sentences. Resampling seeds as well as sentences counts it twice (McCullagh 2000, "no bootstrap is
exact"; Owen 2007, "The pigeonhole bootstrap").

V(seeds) has few degrees of freedom, V(sentences) - V(both) many. The critical value of the interval is the mean of
Student's critical values of both parts, weighted by their variances (Cochran and Cox 1950, "Experimental Designs";
Cochran 1964), which is slightly conservative. The degrees of freedom of Welch and Satterthwaite, taken from the
estimated variances, are too many with two seeds: up to 8 % false positives instead of 5 %, as
`benchmarks/significance.py` measures.

Holm's method (1979) corrects for several systems against one.
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
from attnkit.scoring.student_t import critical_value, degrees_of, two_sided

SEED = 12345
"""Default seed of sacrebleu, so that the resamples are the same."""
LEVEL = 0.05
"""Significance level of corrected p-values."""
POWER, MAX_SEEDS = 0.84, 100
"""Standard errors beyond the critical value for a power of 80 %; maximum of `seeds_needed`."""
CELLS = 4_000_000
"""Maximum number of random draws in memory: about 100 MB."""
ROUNDING = 1e-9
"""Standard errors and differences below this are rounding errors."""
RATIOS = ("perplexity", "word-perplexity")
"""Metrics that are compared by their ratio."""

DEFAULTS = EvalConfig()
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Verdict = Literal["better", "worse", "level", "undecided"]


@dataclass(frozen=True)
class Difference:
    """Score of a system minus that of its baseline on the same sentences, each the mean over seeds."""

    value: float
    """Difference in points of the metric."""
    low: float
    """Lower end of the 95 % interval, not corrected; -inf: unbounded."""
    high: float
    p: float
    """Two-sided p-value, not corrected: below 0.05 if the interval excludes 0."""
    p_holm: float
    """p-value after Holm's correction over all systems that are compared with the baseline."""
    seeds: tuple[int, int]
    """Number of seeds of the system and of the baseline."""
    margin: float
    """Margin of equivalence in points, for perplexity in percent."""
    within_margin: bool
    """Whether the whole interval is within the margin."""
    better: Literal["higher", "lower", "neither"]
    seed_degrees: int
    """Degrees of freedom of the variance over seeds; 0: the interval is over sentences alone."""
    percent: tuple[float, float, float] | None = None
    """Difference of perplexity in percent, and the ends of its interval."""
    seeds_needed: int | None = None
    """Number of seeds per system for a power of 80 % (p below 0.05, not corrected) at a difference of this size; None:
    p is below 0.05 already, more than `MAX_SEEDS` are needed, or the variance over seeds is unknown."""

    @property
    def verdict(self) -> Verdict | None:
        """level: the interval is within the margin; better, worse: `p_holm` is below 0.05; otherwise undecided.

        None if neither higher nor lower scores are better.
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
        """`low` and `high`; None if an end is not finite."""
        ends = (self.low, self.high)
        return ends if all(map(math.isfinite, ends)) else None

    @property
    def provisional(self) -> bool:
        """Whether the system or the baseline has a single seed: other trainings may differ."""
        return min(self.seeds) == 1

    def json(self) -> dict[str, Any]:
        """Return the keys of a comparison beside `difference`; an end that is not finite is null."""
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
"""Keys of `Difference.json` without a test."""


class SeedSpread(NamedTuple):
    """Variance of scores over training seeds."""

    variance: float = 0.0
    """Variance of the scores of a system on these sentences over its seeds."""
    interaction: float = 0.0
    """Part of the variance that depends on the sentences."""
    degrees: int = 0
    """Degrees of freedom: seeds minus systems; 0 if each system has one seed."""


class _Noise(NamedTuple):
    error: float
    """Standard error."""
    degrees: float
    """Degrees of freedom of Student's t; 0: the error is unknown."""


class PairedTest:
    """Differences between systems by one metric, all on the same resamples of the sentences.

    The seeds of two systems are treated as independent. Two methods of asking one model share their seeds: their
    intervals are conservative. Perplexities are compared by their ratio: all computations use logarithms.

    Time for 1,000 resamples of 1,000 sentences: about 0.03 s per score.
    """

    def __init__(self, systems: Sequence[Sequence[Score]], settings: EvalConfig = DEFAULTS, seed: int = SEED) -> None:
        """Resample the scores of each system, one per training seed; `settings`: number of resamples, and margins.

        A metric that is no function of sums over sentences cannot be resampled: its intervals are over seeds alone.

        Raises DataError if number of sentences, metric or signature differ between scores.
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
        resamples = np.concatenate(self.values)[:, None]  # not resampled: no variance over sentences
        if self.resampled:
            resamples = resampled_scores(scores, settings.bootstrap, seed)
        ends = np.cumsum([len(system) for system in systems])
        self.resamples: list[Matrix] = np.split(resamples, ends[:-1])
        """Scores of each system on the resamples, [seeds, resamples]."""

    def against(self, baseline: int) -> dict[int, Difference]:
        """Return the differences of all other systems to the baseline, by index of the system, with Holm's correction.

        By a metric that cannot be resampled, systems with one seed are omitted if the baseline has one seed.
        """
        differences = {
            index: self.compare(index, baseline)
            for index in range(len(self.values))
            if index != baseline and (self.resampled or self.spread(index, baseline).degrees)
        }
        p_values = corrected([difference.p for difference in differences.values()])
        return {
            index: replace(difference, p_holm=p)
            for (index, difference), p in zip(differences.items(), p_values, strict=True)
        }

    def compare(self, system: int, baseline: int) -> Difference:
        """Return the difference between two systems, given by index; p is not corrected."""
        first, second = (float(self.values[index].mean()) for index in (system, baseline))
        difference = math.log(first) - math.log(second) if self.ratio else first - second
        low, high, p = _interval(difference, self._noise(system, baseline))
        bound = math.log1p(self.margin / 100) if self.ratio else self.margin
        within, percent = max(-low, high) <= bound, None
        if self.ratio:
            percent = (_percent(difference), _percent(low), _percent(high))
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
            self._seeds_needed(difference, system, baseline) if p >= LEVEL else None,
        )

    def _seeds_needed(self, difference: float, *systems: int) -> int | None:
        if not self.spread(*systems).degrees or not math.isfinite(difference):
            return None
        if not self._noise(*systems).degrees:  # one sentence: the variance stays unknown with any number of seeds
            return None

        def significant(seeds: int) -> bool:
            noise = self._noise(*systems, seeds=seeds)
            return abs(difference) >= noise.error * (critical_value(LEVEL, noise.degrees) + POWER)

        counts = range(2, MAX_SEEDS + 1)
        index = bisect_left(counts, True, key=significant)
        return counts[index] if index < len(counts) else None

    def interval(self, system: int) -> tuple[float, float, float]:
        """Return the mean over the seeds of one system, and its 95 % interval over sentences and seeds.

        The ends are infinite if the variance is unknown, as for one seed and a metric that cannot be resampled.
        """
        value = float(self._scaled(self.values[system]).mean())
        known = self.resampled or len(self.values[system]) > 1
        low, high, _ = _interval(value, self._noise(system) if known else _Noise(0.0, 0))
        return (math.exp(value), math.exp(low), math.exp(high)) if self.ratio else (value, low, high)

    def spread(self, *systems: int) -> SeedSpread:
        """Return the variance over seeds, pooled over the systems by degrees of freedom."""
        squares, interaction, degrees = 0.0, 0.0, 0
        for index in systems:
            scores, resamples = self._scaled(self.values[index]), self._scaled(self.resamples[index])
            noise = resamples - resamples.mean(1, keepdims=True)  # [seeds, resamples]
            squares += float(((scores - scores.mean()) ** 2).sum())
            interaction += float(((noise - noise.mean(0)) ** 2).sum(0).mean())
            degrees += len(scores) - 1
        return SeedSpread(squares / degrees, interaction / degrees, degrees) if degrees else SeedSpread()

    def _noise(self, system: int, *baseline: int, seeds: int | None = None) -> _Noise:
        """Return the noise of a score, or of its difference to a baseline, over sentences and seeds.

        `seeds`: number of seeds of each system; default: the actual numbers.
        """
        systems = (system, *baseline)
        spread = self.spread(*systems)
        differences = self._scaled(self.resamples[system].mean(0))
        for index in baseline:
            differences = differences - self._scaled(self.resamples[index].mean(0))
        if self.sentences == 1 and self.resampled:  # the variance over sentences is unknown
            return _Noise(0.0, 0)
        sentence_degrees = max(self.sentences - 1, 1)
        of_sentences = float(differences.var()) * self.sentences / sentence_degrees
        if not spread.degrees:
            return _Noise(math.sqrt(of_sentences), sentence_degrees)
        share = sum(1 / len(self.values[index]) for index in systems)
        # V(sentences) - V(both)
        sentences_alone = max(0.0, of_sentences - share * spread.interaction)
        seed_degrees = spread.degrees
        if seeds is not None:
            share, seed_degrees = len(systems) / seeds, len(systems) * (seeds - 1)
        of_seeds = share * spread.variance
        total = of_seeds + sentences_alone
        weight = of_seeds / total if total else 0.0
        # Student's critical value with these degrees of freedom is that of Cochran and Cox at 95 %
        critical = weight * critical_value(LEVEL, seed_degrees)
        critical += (1 - weight) * critical_value(LEVEL, sentence_degrees)
        degrees = degrees_of(critical, LEVEL, *sorted((seed_degrees, sentence_degrees)))
        return _Noise(math.sqrt(total), degrees)

    def _scaled(self, scores: np.ndarray) -> np.ndarray:
        return np.log(scores) if self.ratio else scores


def _interval(value: float, noise: _Noise) -> tuple[float, float, float]:
    """Return the ends of the 95 % interval, and p."""
    if not noise.degrees or not math.isfinite(value + noise.error):
        return -math.inf, math.inf, 1.0
    half = noise.error * critical_value(LEVEL, noise.degrees)
    if noise.error < ROUNDING:
        return value - half, value + half, float(abs(value) < ROUNDING)
    return value - half, value + half, two_sided(value / noise.error, noise.degrees)


def _percent(log_ratio: float) -> float:
    """Return the log of a ratio as a change in percent; infinite if it is unbounded, otherwise without overflow."""
    return 100 * math.expm1(log_ratio if math.isinf(log_ratio) else min(log_ratio, 700))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def compare(
    system: Sequence[Score], baseline: Sequence[Score], settings: EvalConfig = DEFAULTS, seed: int = SEED
) -> Difference:
    """Compare a system with a baseline, each given by one score per training seed; see `PairedTest`.

    With one seed each, the result applies to other test sentences for these trained models. With several seeds it
    applies to other trainings too. Raises DataError as `PairedTest`.
    """
    return PairedTest([system, baseline], settings, seed).compare(0, 1)


def corrected(p_values: Sequence[float]) -> list[float]:
    """Return the p-values after Holm's correction, which bounds the family-wise error rate by the level.

    The smallest of n p-values is multiplied by n, the next by n - 1, and so on; each is at least its predecessor.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    out = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        out[index] = largest
    return out


def resampled_scores(scores: Sequence[Score], resamples: int, seed: int = SEED) -> Matrix:
    """Return the scores [scores, resamples] by one metric, all on the same resamples of the sentences.

    Sentences are drawn with replacement, as by sacrebleu's test with the same seed. A resample is a vector of counts,
    so its sums of statistics are one matrix product: no [resamples, sentences, k] array is made.
    """
    reduce, generator = reducer(scores[0].metric), np.random.default_rng(seed)
    sentences = len(scores[0].statistics)
    block = max(1, CELLS // sentences)
    out: list[list[float]] = [[] for _ in scores]
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        indices = generator.integers(0, sentences, size=(rows, sentences))
        indices += sentences * np.arange(rows)[:, None]
        counts = np.bincount(indices.ravel(), minlength=rows * sentences)
        weights = counts.reshape(rows, sentences).astype(np.float64)
        for values, score in zip(out, scores, strict=True):
            values += map(reduce, (weights @ score.statistics).tolist())
    return np.array(out)
