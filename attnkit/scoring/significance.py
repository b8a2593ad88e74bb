"""Whether a difference between systems is more than chance in test sentences and seeds.

Over sentences: paired bootstrap (Koehn 2004, "Statistical Significance Tests for Machine
Translation Evaluation") of per-sentence statistics, with the resamples of sacrebleu's `PairedTest`.

Over seeds: the variance of the scores over training seeds, pooled over all systems that have
several (as in an analysis of variance; one that fails with some seeds is compared by the spread of
the two systems alone), less what the sampled sentences explain of it, is added to
that of the bootstrap; with few seeds it is uncertain itself, which Student's t with
Welch-Satterthwaite degrees of freedom (Satterthwaite 1946) takes into account.  Seeds and sentences
are crossed, so this is the two-way variance V(seeds) + V(sentences) - V(both) of Cameron, Gelbach
and Miller (2011).  Resampling seeds as well as sentences counts V(both) twice (McCullagh 2000, "no
bootstrap is exact"; Owen 2007, "The pigeonhole bootstrap"); randomisation within sentences (Clark
et al. 2011) leaves V(seeds) out.  `benchmarks/significance.py` measures all of them.

Holm (1979) corrects for several systems against one.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.scoring.metrics import Score, Statistics, reducer

SEED = 12345
"""sacrebleu's own default, so that the resamples are the same."""
LEVEL = 0.05
"""A corrected p below this is called significant."""
CELLS = 4_000_000
"""Random draws held at a time: bounds memory to about 100 MB."""
OUTLIER = 25.0
"""A variance over seeds that is so many times the median one is not that of the other systems."""
ROUNDING = 1e-9
"""Differences of scores below this are rounding."""

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]


class Comparison(NamedTuple):
    """System minus baseline on the same sentences."""

    difference: float
    """Difference of the scores, each the mean over its seeds."""
    p: float
    """Two-sided p-value of no difference, not corrected; at least 1 / (resamples + 1)."""
    interval: tuple[float, float]
    """95 % interval of the difference."""
    seed_degrees: int = 0
    """Degrees of freedom of the spread over seeds; 0 where p speaks of sentences alone."""


class SeedSpread(NamedTuple):
    """How far training with another seed moves a score."""

    variance: float
    """Of the scores of one system on these sentences over its seeds."""
    beyond_sentences: float
    """The part of it that other sentences would not change."""
    degrees: int
    """Degrees of freedom: seeds less systems; 0 where every system has one seed."""


class PairedTest:
    """Tests of the differences between systems by one metric, all on the same resamples.

    Seeds of two systems are taken as trainings of their own.  Two ways of asking one model share
    them: p is then larger than it need be.

    Time for 1,000 resamples of 1,000 sentences: about 0.03 s a score.
    """

    def __init__(
        self, systems: Sequence[Sequence[Score]], *, resamples: int = 1000, seed: int = SEED
    ) -> None:
        """Resample the systems' scores; each system has one score per training seed.

        Raises:
            DataError: they were not scored on the same number of sentences, or not alike.
        """
        scores = [score for system in systems for score in system]
        if len({(score.metric, score.signature, len(score.statistics)) for score in scores}) != 1:
            parts = sorted({f"{len(s.statistics)} lines, {s.metric}|{s.signature}" for s in scores})
            raise DataError(f"these scores cannot be compared: {'; '.join(parts)}")
        drawn = resampled_scores(scores, resamples, seed)
        self.drawn: list[Matrix] = np.split(  # [seeds, resamples] of each system
            drawn, np.cumsum([len(system) for system in systems])[:-1]
        )
        self.sentences = len(scores[0].statistics)
        self.values = [np.array([score.value for score in system]) for system in systems]
        self._spreads = _spreads(self.values, self.drawn)
        self._generator_seed = (seed, 1)

    @classmethod
    def of_average(cls, tests: Sequence["PairedTest"]) -> "PairedTest":
        """The test of each system's average over tests of the same systems and seeds.

        Each test has sentences of its own, drawn by a seed of its own: a stratified bootstrap.
        """
        made = cls.__new__(cls)
        both = zip(*(test.drawn for test in tests), strict=True)
        made.drawn = [np.mean(same, 0) for same in both]
        made.values = [np.mean(same, 0) for same in zip(*(t.values for t in tests), strict=True)]
        made.sentences = sum(test.sentences for test in tests)
        made._spreads = _spreads(made.values, made.drawn)
        made._generator_seed = tests[0]._generator_seed
        return made

    def compare(self, system: int, baseline: int) -> Comparison:
        """Compare two of the systems, by their places.

        A resample draws sentences, the same ones for all; a system's score on it is the mean of
        its seeds' scores.  How far the resampled differences lie from their mean is what chance
        does; it is stretched to the variance over seeds and sentences together.  p is the share of
        them that is at least as far from 0 as the difference, in either direction.
        """
        pair = [self.values[place].mean() for place in (system, baseline)]
        difference = float(pair[0] - pair[1])
        differences = self.drawn[system].mean(0) - self.drawn[baseline].mean(0)
        chance = differences - differences.mean()
        share = 1 / len(self.values[system]) + 1 / len(self.values[baseline])
        spread = self.spread(system, baseline)
        if differences.any():  # else both gave the same outputs
            chance = _stretched(chance, share, spread, self._generator_seed)
        beyond = int((np.abs(chance) >= abs(difference) - ROUNDING).sum())
        if self.sentences == 1:  # which tells nothing of others
            beyond = len(chance)
        low, high = difference + np.percentile(chance, [2.5, 97.5])
        p, interval = (beyond + 1) / (len(chance) + 1), (float(low), float(high))
        return Comparison(difference, p, interval, spread.degrees)

    def spread(self, *compared: int) -> SeedSpread:
        """The spread over seeds of systems that are compared, pooled over all that are alike."""
        several = [one.variance for one in self._spreads if one.degrees]
        limit = OUTLIER * float(np.median(several)) if several else 0.0
        chosen = [self._spreads[place] for place in compared]
        if all(one.variance <= limit for one in chosen):
            chosen = [one for one in self._spreads if one.variance <= limit]
        return _pooled(chosen)


def compare(
    system: Sequence[Score], baseline: Sequence[Score], *, resamples: int = 1000, seed: int = SEED
) -> Comparison:
    """Compare a system with a baseline; each is one score per training seed.  See `PairedTest`.

    With one seed each, p speaks of other test sentences for these trained models.  With several it
    speaks of other trainings too.  sacrebleu's p of the same resamples is about half as large where
    the difference is clear: it folds the resampled differences before it centres them, and so
    counts one direction.

    Raises:
        DataError: the systems were not scored on the same number of sentences, or not alike.
    """
    return PairedTest([system, baseline], resamples=resamples, seed=seed).compare(0, 1)


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


@np.errstate(over="ignore", invalid="ignore")  # perplexities of a model that learned nothing
def _spreads(values: Sequence[np.ndarray], drawn: Sequence[Matrix]) -> list[SeedSpread]:
    """The spread over seeds of each system; resamples show what of it the sentences explain."""
    out = []
    for scores, resampled in zip(values, drawn, strict=True):
        degrees = len(scores) - 1
        variance = float(((scores - scores.mean()) ** 2).sum()) / max(degrees, 1)
        noise = resampled - resampled.mean(1, keepdims=True)  # [seeds, resamples]
        explained = float(((noise - noise.mean(0)) ** 2).sum(0).mean()) / max(degrees, 1)
        finite = math.isfinite(variance)
        out.append(
            SeedSpread(variance, variance - explained, degrees)
            if finite
            else SeedSpread(0.0, 0.0, 0)
        )
    return out


def _pooled(spreads: Sequence[SeedSpread]) -> SeedSpread:
    """The mean of spreads, weighted by their degrees of freedom."""
    degrees = sum(one.degrees for one in spreads)
    if not degrees:
        return SeedSpread(0.0, 0.0, 0)
    variance = sum(one.variance * one.degrees for one in spreads) / degrees
    beyond = sum(one.beyond_sentences * one.degrees for one in spreads) / degrees
    return SeedSpread(variance, max(0.0, beyond), degrees)


def _stretched(chance: Matrix, share: float, spread: SeedSpread, seed: tuple[int, int]) -> Matrix:
    """Resampled noise of sentences with the variance of seeds added, t-distributed.

    `share` is the sum of 1 / seeds of the two systems.
    """
    if not spread.degrees:
        return chance
    generator, sentences = np.random.default_rng(seed), float(chance.var(ddof=1))
    if sentences < ROUNDING**2:  # all lines differ alike: only seeds vary, as in the limit below
        of_seeds: Matrix = generator.standard_t(spread.degrees, len(chance))
        return of_seeds * math.sqrt(share * spread.beyond_sentences)
    total = 1 + share * spread.beyond_sentences / sentences
    uncertain = min(total, share * spread.variance / sentences)
    if uncertain == 0:
        return chance
    degrees = spread.degrees * (total / uncertain) ** 2
    draws = generator.chisquare(degrees, len(chance))
    stretched: Matrix = chance * np.sqrt(total * degrees / draws)
    return stretched


def resampled_scores(scores: Sequence[Score], resamples: int, seed: int = SEED) -> Matrix:
    """Scores [scores, resamples] by one metric, all on the same resamples of the sentences."""
    value = reducer(scores[0].metric)
    sums = _resample([score.statistics for score in scores], resamples, seed)
    return np.array([[value(row) for row in table.tolist()] for table in sums])


def _resample(tables: Sequence[Statistics], resamples: int, seed: int) -> list[Statistics]:
    """Sums [resamples, k] of each table over sentences drawn with replacement.

    A resample is a vector of counts, so its sums are one matrix product: no [resamples,
    sentences, k] array is made.  The draws are those of sacrebleu's test with the same seed.
    """
    generator = np.random.default_rng(seed)
    sentences = len(tables[0])
    block = max(1, CELLS // sentences)
    out: list[list[Statistics]] = [[] for _ in tables]
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(0, sentences, size=(rows, sentences))
        drawn += sentences * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * sentences)
        weights = counts.reshape(rows, sentences).astype(np.float64)
        for sums, table in zip(out, tables, strict=True):
            sums.append(weights @ table)
    return [np.concatenate(sums) for sums in out]
