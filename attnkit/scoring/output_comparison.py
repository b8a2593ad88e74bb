"""Outputs of several systems side by side: sentence scores, and what is to be said of all lines.

Source of the analyses: Neubig et al. 2019, "compare-mt: A Tool for Holistic Comparison of Language
Generation Systems".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from attnkit.errors import UsageError
from attnkit.recipe.metrics import METRICS, PER_TOKENIZER, base_metric, metric_facts
from attnkit.scoring.evaluated_lines import CorpusLine, EvaluatedLines
from attnkit.scoring.metrics import Score, check_available, expand, is_text, reducer, score
from attnkit.scoring.metrics.tokenizers import Words, sacrebleu_metric
from attnkit.scoring.significance import Difference, Margins, PairedTest

Sort = Literal["difference", "score", "length", "line"]
PREFERRED = ("chrf", "bleu", "answer-f1")
"""Which stored metric judges sentences unless one is named: the first of these, else any."""
LENGTHS = (0, 1, 10, 20, 30, 40, 60, 100)
"""Where buckets of reference lengths in words begin."""
TIE = 1e-9
"""Differences of sentence scores that are none."""


@dataclass(frozen=True)
class ComparedLine:
    """One line, what the systems wrote, and how good that is."""

    line: CorpusLine
    length: int
    """Words of the first reference."""
    outputs: tuple[str, ...]
    """One a system, as all that follow."""
    scores: tuple[float, ...]
    chosen: tuple[int | None, ...]
    """The deciding context of an answer, from 0."""

    @property
    def difference(self) -> float:
        """Score of the second system less that of the first."""
        return self.scores[1] - self.scores[0]


@dataclass(frozen=True)
class Bucket:
    """Lines of one kind, and the score of each system on them."""

    label: str
    count: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class SystemFacts:
    """One system on all lines."""

    name: str
    score: float
    """Of the corpus, by the metric of the comparison."""
    better: int
    """Lines on which it is better than the first system."""
    worse: int
    length_ratio: float
    repetition: float
    """seq-rep-4."""
    empty: int
    """Empty outputs."""
    difference: Difference | None
    """To the first system; None of that, and without a bootstrap."""


@dataclass(frozen=True)
class ComparedOutputs:
    """Systems side by side, line by line; the first is the baseline."""

    evaluated: EvaluatedLines
    metric: str
    """Judges each line."""
    scores: tuple[Score, ...]
    """Of each system by the metric."""
    lines: tuple[ComparedLine, ...]
    names: tuple[str, ...]
    """Of the systems."""

    @property
    def contexts(self) -> int | None:
        """Those of each question."""
        return self.evaluated.contexts

    @property
    def sign(self) -> int:
        """1 where higher scores are better, else -1."""
        return -1 if metric_facts(self.metric).better == "lower" else 1

    @cached_property
    def words(self) -> Callable[[str], list[str]]:
        """Cuts a text."""
        settings = self.evaluated.systems[0].run.recipe.eval
        return Words(settings, settings.lowercase).of

    def sorted(self, sort: Sort) -> "ComparedOutputs":
        """By the difference of the first two systems (the second's largest gains first), by score
        (the worst on average first), by length (longest first), or as in the test set."""
        keys: dict[Sort, Callable[[ComparedLine], float]] = {
            "difference": lambda one: -self.sign * one.difference,
            "score": lambda one: self.sign * sum(one.scores),
            "length": lambda one: -one.length,
            "line": lambda one: 0,
        }
        lines = sorted(self.lines, key=lambda one: (keys[sort](one), one.line.number))
        return replace(self, lines=tuple(lines))

    def pair(self, place: int) -> "ComparedOutputs":
        """The first system and another one, by its place; lines by difference."""
        lines = tuple(
            replace(
                one, outputs=(one.outputs[0], one.outputs[place]),
                scores=(one.scores[0], one.scores[place]),
                chosen=(one.chosen[0], one.chosen[place]),
            )
            for one in self.lines
        )  # fmt: skip
        names = (self.names[0], self.names[place])
        return replace(self, lines=lines, names=names).sorted("difference")

    def record(self, one: ComparedLine) -> dict[str, Any]:
        """All that is known of a line, as JSON; contexts are numbered from 1."""
        asked = bool(self.contexts)
        systems = [
            {
                "name": system.name, "run": system.run.path.as_posix(), "output": output,
                "score": value, "length": len(self.words(output)),
                **({"context": None if at is None else at + 1} if asked else {}),
            }
            for system, output, value, at in zip(
                self.evaluated.systems, one.outputs, one.scores, one.chosen, strict=True
            )
        ]  # fmt: skip
        line = one.line
        return {
            "split": self.evaluated.split, "line": line.number, "source": line.source,
            "references": list(line.references), "length": one.length,
            **({"contexts": list(line.contexts)} if asked else {}),
            "metric": self.metric, "difference": one.difference, "systems": systems,
        }  # fmt: skip


def compare_outputs(evaluated: EvaluatedLines, metric: str | None = None) -> ComparedOutputs:
    """Systems side by side on all lines, as in the test set.

    Raises:
        UsageError: the metric is unknown or judges no single sentence.
        UnavailableError, MissingInputError: what the metric needs is not there.
    """
    systems, settings = evaluated.systems, evaluated.systems[0].run.recipe.eval
    metric = _metric(evaluated, metric)
    if metric in _usable(evaluated):
        scores = [system.saved.scores[metric] for system in systems]
    else:
        check_available([metric], settings)
        references = [line.references for line in evaluated.lines]
        scores = [score([metric], one.saved.texts, references, settings)[metric] for one in systems]
    of_lines = [sentence_scores(one) for one in scores]
    made = ComparedOutputs(
        evaluated, metric, tuple(scores), (), tuple(system.name for system in systems)
    )
    chosen = [one.saved.decoding and one.saved.decoding.chosen for one in systems]
    lines = [
        ComparedLine(
            line, len(made.words(line.references[0])),
            tuple(system.saved.texts[place] for system in systems),
            tuple(values[place] for values in of_lines),
            tuple(one[place] if one else None for one in chosen),
        )
        for place, line in enumerate(evaluated.lines)
    ]  # fmt: skip
    return replace(made, lines=tuple(lines))


def sentence_scores(whole: Score) -> list[float]:
    """A metric of each line by itself, from its statistics.

    Sentence BLEU leaves out orders of which a line has no n-gram, as sacrebleu's effective_order.
    """
    name = base_metric(whole.metric)
    if name not in PER_TOKENIZER:
        return list(map(reducer(whole.metric), whole.statistics.tolist()))
    metric = sacrebleu_metric(name)
    metric.effective_order = True
    return [float(metric._compute_score_from_stats(row).score) for row in whole.statistics.tolist()]


def _usable(evaluated: EvaluatedLines) -> list[str]:
    """Metrics that judge lines and are stored alike of all systems."""
    first, *others = (system.saved.scores for system in evaluated.systems)
    return [
        name for name, score in first.items()
        if _judges_lines(name)
        and all(name in some and some[name].signature == score.signature for some in others)
    ]  # fmt: skip


def _metric(evaluated: EvaluatedLines, wanted: str | None) -> str:
    """The metric that judges lines: a stored one, or one of text, which is computed now."""
    usable = _usable(evaluated)
    if wanted is None:
        other = "exact-match" if evaluated.task == "classification" else "chrf"
        return next((name for name in (*PREFERRED, *usable) if name in usable), other)
    if wanted in usable:
        return wanted
    (metric, *several) = expand([wanted])
    if several or not _judges_lines(metric):
        good = ", ".join(
            name for name in METRICS if name in usable or (is_text(name) and _judges_lines(name))
        )
        what = "stands for several metrics" if several else "does not judge single sentences"
        raise UsageError(f"--metric {wanted}: {what}; choose from {good}")
    if not is_text(metric):
        raise UsageError(
            f"--metric {metric}: not stored alike in all runs: run `attnkit eval --metrics "
            f"{metric}` on them first"
        )
    return metric


def _judges_lines(name: str) -> bool:
    facts = metric_facts(name)
    of_all = facts.reads == "labels" and name != "label-accuracy"  # of the confusion matrix
    return facts.resampled and facts.better != "neither" and not of_all


def system_facts(compared: ComparedOutputs) -> list[SystemFacts]:
    """Each system on all lines, with the test of `attnkit eval` against the first."""
    evaluated, differences = compared.evaluated, dict[int, Difference]()
    settings = evaluated.systems[0].run.recipe.eval
    if settings.bootstrap:
        differences = PairedTest(
            [[one] for one in compared.scores], resamples=settings.bootstrap,
            margins=Margins.of(settings),
        ).against(0)  # fmt: skip
    references = [line.references for line in evaluated.lines]
    out = []
    for place, system in enumerate(evaluated.systems):
        more = score(["length-ratio", "seq-rep-4"], system.saved.texts, references, settings)
        gains = [compared.sign * (one.scores[place] - one.scores[0]) for one in compared.lines]
        out.append(
            SystemFacts(
                system.name, compared.scores[place].value,
                sum(gain > TIE for gain in gains), sum(gain < -TIE for gain in gains),
                more["length-ratio"].value, more["seq-rep-4"].value,
                sum(not text.strip() for text in system.saved.texts), differences.get(place),
            )
        )  # fmt: skip
    return out


def by_length(compared: ComparedOutputs) -> list[Bucket]:
    """The corpus score by words of the first reference."""
    compute = reducer(compared.metric)
    lengths = [one.length for one in compared.sorted("line").lines]  # as the statistics are
    out = []
    for low, high in pairwise((*LENGTHS, math.inf)):
        if some := [place for place, length in enumerate(lengths) if low <= length < high]:
            sums = (one.statistics[some].sum(0).tolist() for one in compared.scores)
            label = f"{low}-{high - 1}" if high < math.inf else f"{low}+"
            out.append(Bucket(label, len(some), tuple(map(compute, sums))))
    return out
