"""Statistics of the outputs of systems over all lines.

Source: Neubig et al. 2019, "compare-mt: A Tool for Holistic Comparison of Language Generation Systems".
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from attnkit.scoring.metrics import reducer, score
from attnkit.scoring.output_comparison import TIE, ComparedOutputs
from attnkit.scoring.significance import Difference, PairedTest

LENGTHS = (0, 1, 10, 20, 30, 40, 60, 100)
"""Lower bounds of the buckets of reference lengths, in words."""


@dataclass(frozen=True)
class SystemFacts:
    """Statistics of one system over all lines."""

    name: str
    score: float
    """Corpus score by the metric of the comparison."""
    better: int
    """Number of lines with a better score than that of the first system."""
    worse: int
    length_ratio: float
    repetition: float
    """seq-rep-4."""
    empty: int
    """Number of empty outputs."""
    difference: Difference | None
    """Difference to the first system; None for the first system, and without a bootstrap."""


def system_facts(compared: ComparedOutputs) -> list[SystemFacts]:
    """Return the statistics of each system, with the test of `attnkit eval` against the first system."""
    settings, differences = compared.systems[0].run.recipe.eval, dict[int, Difference]()
    if settings.bootstrap:
        differences = PairedTest([[score] for score in compared.scores], settings).against(0)
    references = [line.references for line in compared.sorted("line").lines]
    out = []
    for index, system in enumerate(compared.systems):
        text_scores = score(["length-ratio", "seq-rep-4"], system.saved.texts, references, settings)
        gains = [compared.sign * (line.scores[index] - line.scores[0]) for line in compared.lines]
        out.append(
            SystemFacts(
                system.name,
                compared.scores[index].value,
                sum(gain > TIE for gain in gains),
                sum(gain < -TIE for gain in gains),
                text_scores["length-ratio"].value,
                text_scores["seq-rep-4"].value,
                sum(not text.strip() for text in system.saved.texts),
                differences.get(index),
            )
        )
    return out


def by_length(compared: ComparedOutputs) -> dict[str, tuple[int, tuple[float, ...]]]:
    """Return for each bucket of reference lengths the number of lines and the corpus score of each system."""
    compute = reducer(compared.metric)
    lengths = [line.length for line in compared.sorted("line").lines]  # in the order of the statistics
    out = {}
    for low, high in pairwise((*LENGTHS, math.inf)):
        if bucket := [index for index, length in enumerate(lengths) if low <= length < high]:
            sums = (score.statistics[bucket].sum(0).tolist() for score in compared.scores)
            label = f"{low}-{high - 1}" if high < math.inf else f"{low}+"
            out[label] = len(bucket), tuple(map(compute, sums))
    return out
