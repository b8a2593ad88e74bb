"""Outputs of several systems side by side: sentence scores, examples, aggregate differences.

Source of the analyses: Neubig et al. 2019, "compare-mt: A Tool for Holistic Comparison of Language
Generation Systems".
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from attnkit.errors import UsageError
from attnkit.recipe.metrics import METRICS, PER_TOKENIZER, base_metric, metric_facts
from attnkit.scoring.evaluated_lines import CorpusLine, EvaluatedLines
from attnkit.scoring.metrics import Score, check_available, expand, is_text, reducer, score
from attnkit.scoring.metrics.tokenizers import ORDERS, Words
from attnkit.scoring.significance import Difference, Margins, PairedTest
from attnkit.scoring.word_marks import contains_words

Sort = Literal["difference", "score", "length", "line"]
SORTS: tuple[Sort, ...] = ("difference", "score", "length", "line")
PREFERRED = ("chrf", "bleu", "answer-f1")
"""Which stored metric judges sentences unless one is named: the first of these, else any."""
LENGTHS = (0, 1, 10, 20, 30, 40, 60, 100)
"""Where buckets of reference lengths in words begin."""
FREQUENCIES = (0, 1, 10, 100, 1000)
"""Where buckets of word frequencies begin."""


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
    """Lines or words of one kind, and a value of each system on them."""

    label: str
    count: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class SystemFacts:
    """One system on all lines that were compared."""

    name: str
    run: str
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
    difference: Difference | None = None
    """To the first system; None of that, and where only some lines were compared."""


@dataclass(frozen=True)
class ComparedOutputs:
    """Systems side by side, line by line; the first is the baseline."""

    task: str
    split: str
    contexts: int | None
    metric: str
    """Judges each line."""
    lines: tuple[ComparedLine, ...]
    """Those that the filter left, sorted."""
    names: tuple[str, ...]
    """Of the systems."""
    notes: tuple[str, ...]
    """What makes the comparison unfair."""

    @property
    def sign(self) -> int:
        """1 where higher scores are better, else -1."""
        return -1 if metric_facts(self.metric).better == "lower" else 1

    def pair(self, place: int) -> "ComparedOutputs":
        """The first system and another one, by its place; lines by difference."""
        both = (0, place)
        lines = [
            replace(
                one, outputs=tuple(one.outputs[at] for at in both),
                scores=tuple(one.scores[at] for at in both),
                chosen=tuple(one.chosen[at] for at in both),
            )
            for one in self.lines
        ]  # fmt: skip
        order = _order("difference", self.sign)
        names = (self.names[0], self.names[place])
        return replace(self, lines=tuple(sorted(lines, key=order)), names=names)


@dataclass(frozen=True)
class OutputComparison(ComparedOutputs):
    """The same with what is to be said of all lines together."""

    total: int
    """Lines before the filter."""
    lengths: Mapping[int, tuple[int, ...]]
    """Words of the outputs, by the number of the line."""
    systems: tuple[SystemFacts, ...]
    by_length: tuple[Bucket, ...]
    """Corpus score by words of the first reference."""
    by_frequency: tuple[Bucket, ...]
    """F1 of words by how often they occur; empty for answers to questions."""
    frequencies: str
    """Where words were counted: training text, or references."""
    resamples: int = 0
    """Of the paired bootstrap."""

    def record(self, one: ComparedLine) -> dict[str, Any]:
        """All that is known of a line, as JSON; contexts are numbered from 1."""
        systems = [
            {
                "name": system.name, "run": system.run, "output": output, "score": score,
                "length": length,
                **({"context": None if at is None else at + 1} if self.contexts else {}),
            }
            for system, output, score, length, at in zip(
                self.systems, one.outputs, one.scores, self.lengths[one.line.number], one.chosen,
                strict=True,
            )
        ]  # fmt: skip
        line = one.line
        return {
            "split": self.split, "line": line.number, "source": line.source,
            "references": list(line.references), "length": one.length,
            **({"contexts": list(line.contexts)} if self.contexts else {}),
            "metric": self.metric, "difference": one.difference, "systems": systems,
        }  # fmt: skip


@dataclass(frozen=True)
class LineFilter:
    """Which lines are compared."""

    min_length: int = 0
    """Words of the first reference."""
    max_length: int = 0
    """0: any."""
    word: str = ""
    """Words in the source or in a reference."""

    def keeps(self, line: CorpusLine, length: int) -> bool:
        """Whether a line of so many words is compared."""
        if length < self.min_length or (self.max_length and length > self.max_length):
            return False
        texts = (line.source, *line.references)
        return not self.word or any(contains_words(text, self.word) for text in texts)


def compare_lines(evaluated: EvaluatedLines) -> ComparedOutputs:
    """Systems side by side on all lines, as in the test set; see `compare_outputs`."""
    metric, scores = _scores(evaluated, None)
    cut = _words(evaluated)
    lengths = [len(cut(line.references[0])) for line in evaluated.lines]
    return _compared(evaluated, metric, scores, lengths, range(len(lengths)), "line")


def compare_outputs(
    evaluated: EvaluatedLines,
    metric: str | None = None,
    *,
    sort: Sort = "difference",
    keep: LineFilter | None = None,
) -> OutputComparison:
    """Systems side by side, and what is to be said of all lines together.

    Lines are sorted by the difference of the first two systems (the second's largest gains first),
    by score (the worst on average first), by length (longest first) or as in the test set.

    Raises:
        UsageError: the metric is unknown or judges no single sentence; no line is left.
        UnavailableError, MissingInputError: what the metric needs is not there.
    """
    keep = keep or LineFilter()
    if keep.max_length and keep.max_length < keep.min_length:
        raise UsageError(f"--max-length {keep.max_length} is below --min-length {keep.min_length}")
    metric, scores = _scores(evaluated, metric)
    cut = _words(evaluated)
    lengths = [len(cut(line.references[0])) for line in evaluated.lines]
    kept = [place for place, line in enumerate(evaluated.lines) if keep.keeps(line, lengths[place])]
    if not kept:
        raise UsageError(
            f"no sentence is left of {len(lengths):,}: references have {min(lengths)} to "
            f"{max(lengths)} words; change --min-length, --max-length or --word"
        )
    compared = _compared(evaluated, metric, scores, lengths, kept, sort)
    lines = sorted(compared.lines, key=lambda one: one.line.number)  # as `kept`
    counted, where = _frequencies(evaluated, cut)
    settings = evaluated.systems[0].run.recipe.eval
    differences: dict[int, Difference] = {}
    if len(kept) == len(lengths) and settings.bootstrap:
        test = PairedTest(
            [[one] for one in scores], resamples=settings.bootstrap, margins=Margins.of(settings)
        )
        differences = test.against(0)
    return OutputComparison(
        **vars(compared),
        total=len(lengths),
        lengths={one.line.number: tuple(len(cut(text)) for text in one.outputs) for one in lines},
        systems=tuple(
            _facts(
                evaluated, place, lines, scores[place], kept, compared.sign, differences.get(place)
            )
            for place in range(len(compared.names))
        ),
        by_length=_by_length(lines, scores, kept, metric),
        by_frequency=() if evaluated.contexts else _by_frequency(lines, counted, cut),
        frequencies=where,
        resamples=settings.bootstrap,
    )


def _words(evaluated: EvaluatedLines) -> Callable[[str], list[str]]:
    """How texts are cut into words."""
    settings = evaluated.systems[0].run.recipe.eval
    return Words(settings, settings.lowercase).of


def _compared(
    evaluated: EvaluatedLines, metric: str, scores: Sequence[Score], lengths: Sequence[int],
    kept: Sequence[int], sort: Sort,
) -> ComparedOutputs:  # fmt: skip
    """The lines at these places, sorted; `lengths`: words of all references."""
    systems, of_lines = evaluated.systems, [sentence_scores(one) for one in scores]
    lines = [
        ComparedLine(
            evaluated.lines[place], lengths[place],
            tuple(system.outputs[place] for system in systems),
            tuple(values[place] for values in of_lines),
            tuple(system.chosen[place] if system.chosen else None for system in systems),
        )
        for place in kept
    ]  # fmt: skip
    sign = -1 if metric_facts(metric).better == "lower" else 1
    return ComparedOutputs(
        evaluated.task, evaluated.split, evaluated.contexts, metric,
        tuple(sorted(lines, key=_order(sort, sign))), tuple(one.name for one in systems),
        evaluated.notes,
    )  # fmt: skip


def sentence_scores(whole: Score) -> list[float]:
    """A metric of each line by itself, from its statistics.

    Sentence BLEU leaves out orders of which a line has no n-gram, as sacrebleu's effective_order.
    """
    name = base_metric(whole.metric)
    if name not in PER_TOKENIZER:
        compute = reducer(whole.metric)
        return [compute(row) for row in whole.statistics.tolist()]
    from sacrebleu.metrics.bleu import BLEU

    order, out = ORDERS.get(name, 4), []
    for row in whole.statistics.astype(int).tolist():
        found = BLEU.compute_bleu(
            row[2 : 2 + order], row[2 + order :], row[0], row[1],
            smooth_method="exp", effective_order=True, max_ngram_order=order,
        )  # fmt: skip
        out.append(float(found.score))
    return out


def _scores(evaluated: EvaluatedLines, metric: str | None) -> tuple[str, list[Score]]:
    """The metric that judges lines, and each system's score by it: stored, or computed now."""
    systems, settings = evaluated.systems, evaluated.systems[0].run.recipe.eval
    stored = [
        name for name, first in systems[0].scores.items()
        if all(n.signature == first.signature if (n := s.scores.get(name)) else False
               for s in systems)
    ]  # fmt: skip
    usable = [name for name in stored if _judges_lines(name)]
    if metric is None:
        chosen = [name for name in (*PREFERRED, *usable) if name in usable]
        other = "exact-match" if evaluated.task == "classification" else "chrf"
        metric = chosen[0] if chosen else other
    if metric in usable:
        return metric, [system.scores[metric] for system in systems]
    (metric, *several) = expand([metric])
    if several or not _judges_lines(metric):
        good = ", ".join(name for name in METRICS if name in usable or
                         (is_text(name) and _judges_lines(name)))  # fmt: skip
        what = "stands for several metrics" if several else "does not judge single sentences"
        raise UsageError(f"--metric {'rouge' if several else metric}: {what}; choose from {good}")
    if not is_text(metric):
        raise UsageError(
            f"--metric {metric}: not stored alike in all runs: run `attnkit eval --metrics "
            f"{metric}` on them first"
        )
    check_available([metric], settings)
    references = [list(line.references) for line in evaluated.lines]
    return metric, [
        score([metric], system.outputs, references, settings)[metric] for system in systems
    ]


def _judges_lines(name: str) -> bool:
    facts = metric_facts(name)
    of_all = facts.reads == "labels" and name != "label-accuracy"  # of the confusion matrix
    return facts.resampled and facts.better != "neither" and not of_all


def _order(sort: Sort, sign: int) -> Callable[[ComparedLine], tuple[float, int]]:
    """The key of a line; equal ones stay as in the test set."""
    keys: dict[Sort, Callable[[ComparedLine], float]] = {
        "difference": lambda one: -sign * one.difference,
        "score": lambda one: sign * sum(one.scores),
        "length": lambda one: -one.length,
        "line": lambda one: 0,
    }
    return lambda one: (keys[sort](one), one.line.number)


def _facts(
    evaluated: EvaluatedLines, place: int, lines: Sequence[ComparedLine], whole: Score,
    kept: Sequence[int], sign: int, difference: Difference | None,
) -> SystemFacts:  # fmt: skip
    system, settings = evaluated.systems[place], evaluated.systems[0].run.recipe.eval
    texts = [one.outputs[place] for one in lines]
    references = [list(one.line.references) for one in lines]
    more = score(["length-ratio", "seq-rep-4"], texts, references, settings)
    gains = [sign * (one.scores[place] - one.scores[0]) for one in lines]
    return SystemFacts(
        system.name, system.run.path.as_posix(), _corpus_score(whole, kept),
        sum(gain > TIE for gain in gains), sum(gain < -TIE for gain in gains),
        more["length-ratio"].value, more["seq-rep-4"].value,
        sum(not text.strip() for text in texts), difference,
    )  # fmt: skip


TIE = 1e-9
"""Differences of sentence scores that are none."""


def _corpus_score(whole: Score, places: Sequence[int]) -> float:
    """The score of some lines together."""
    return reducer(whole.metric)(np.asarray(whole.statistics)[list(places)].sum(0).tolist())


def _by_length(
    lines: Sequence[ComparedLine], scores: Sequence[Score], kept: Sequence[int], metric: str
) -> tuple[Bucket, ...]:
    places: dict[int, list[int]] = {}
    for one, place in zip(lines, kept, strict=True):
        bucket = bisect_right(LENGTHS, one.length) - 1
        places.setdefault(bucket, []).append(place)
    return tuple(
        Bucket(
            _range(LENGTHS, bucket), len(some),
            tuple(_corpus_score(whole, some) for whole in scores),
        )
        for bucket, some in sorted(places.items())
    )  # fmt: skip


def _frequencies(
    evaluated: EvaluatedLines, cut: Callable[[str], list[str]]
) -> tuple[Counter[str], str]:
    """How often words occur in the training text, else in the references, and in which."""
    if evaluated.contexts:
        return Counter(), ""
    texts, where = evaluated.training, "training text"
    if texts is None:
        texts, where = tuple(line.references[0] for line in evaluated.lines), "references"
    return Counter(word for text in texts for word in cut(text)), where


def _by_frequency(
    lines: Sequence[ComparedLine], counted: Counter[str], cut: Callable[[str], list[str]]
) -> tuple[Bucket, ...]:
    """F1 of words: those of an output that its first reference has too, each as often."""
    count = len(lines[0].outputs)
    expected: Counter[int] = Counter()
    written, matched = ([Counter[int]() for _ in range(count)] for _ in range(2))

    def add(to: Counter[int], words: Counter[str]) -> None:
        for word, times in words.items():
            to[bisect_right(FREQUENCIES, counted[word]) - 1] += times

    for one in lines:
        reference = Counter(cut(one.line.references[0]))
        add(expected, reference)
        for place, text in enumerate(one.outputs):
            words = Counter(cut(text))
            add(written[place], words)
            add(matched[place], words & reference)
    return tuple(
        Bucket(
            _range(FREQUENCIES, bucket), total,
            tuple(200 * matched[at][bucket] / (total + written[at][bucket]) for at in range(count)),
        )
        for bucket, total in sorted(expected.items())
    )  # fmt: skip


def _range(starts: Sequence[int], place: int) -> str:
    """The numbers of a bucket in words: 10-19, 100+, 0."""
    start = starts[place]
    if place + 1 == len(starts):
        return f"{start:,}+"
    end = starts[place + 1] - 1
    return f"{start}" if start == end else f"{start}-{end}"
