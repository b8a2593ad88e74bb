"""Saved outputs of several systems compared line by line; nothing is decoded, and no model is loaded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attnkit.data.questions import QuestionSet, accepted
from attnkit.errors import DataError, MissingInputError, UsageError
from attnkit.recipe.metrics import METRICS, PER_TOKENIZER, base_metric, metric_facts
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run, one_task
from attnkit.runs.json_files import StoredSplit
from attnkit.runs.layout import ScoredSplit
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring.comparison import full_names, named
from attnkit.scoring.metrics import Score, check_available, expand, is_text, reducer, score
from attnkit.scoring.metrics.tokenizers import Words, sacrebleu_metric
from attnkit.scoring.results import System
from attnkit.scoring.saved_scores import SavedScores, digest, saved_split, scored_splits
from attnkit.text import hint, quoted

QUESTIONS = "question-answering"
Sort = Literal["difference", "score", "length", "line"]
PREFERRED = ("chrf", "bleu", "answer-f1")
"""Default metrics of line scores: the first of these that is stored, otherwise any stored metric."""
TIE = 1e-9
"""Sentence scores that differ by at most this are equal."""


@dataclass(frozen=True)
class ComparedSystem:
    """A run, or one of its methods of answering questions, with its saved evaluation."""

    name: str
    """Short unique name."""
    run: Run
    saved: SavedScores


@dataclass(frozen=True)
class ComparedLine:
    """One line of a test set, with the output and the score of each system."""

    number: int
    """Number of the line in the split, from 1."""
    source: str
    references: tuple[str, ...]
    contexts: tuple[str, ...]
    length: int
    """Number of words in the first reference."""
    outputs: tuple[str, ...]
    """One per system, like `scores` and `chosen`."""
    scores: tuple[float, ...]
    chosen: tuple[int | None, ...]
    """Index of the context that decided the answer, from 0."""

    @property
    def difference(self) -> float:
        """Score of the second system minus that of the first."""
        return self.scores[1] - self.scores[0]


@dataclass(frozen=True)
class ComparedOutputs:
    """Systems compared line by line; the first system is the baseline."""

    part: ScoredSplit
    """Split that all systems were scored on, with the method of the first system."""
    systems: tuple[ComparedSystem, ...]
    metric: str
    """Metric of the line scores."""
    scores: tuple[Score, ...]
    """Score of each system, with statistics in the order of the test set."""
    lines: tuple[ComparedLine, ...]
    notes: tuple[str, ...]
    """Other reasons why the outputs differ."""

    @property
    def names(self) -> list[str]:
        """Names of the systems."""
        return [system.name for system in self.systems]

    @property
    def sign(self) -> int:
        """1 if higher scores are better, otherwise -1."""
        return -1 if metric_facts(self.metric).better == "lower" else 1

    @cached_property
    def words(self) -> Callable[[str], list[str]]:
        """Function that splits a text into words."""
        return _words(self.systems[0].run)

    def sorted(self, sort: Sort) -> "ComparedOutputs":
        """Return the comparison with its lines in another order.

        difference: the largest gain of the second system over the first comes first; score: the worst average over the
        systems; length: the longest reference; line: as in the test set.
        """
        keys: dict[Sort, Callable[[ComparedLine], float]] = {
            "difference": lambda line: -self.sign * line.difference,
            "score": lambda line: self.sign * sum(line.scores),
            "length": lambda line: -line.length,
            "line": lambda line: 0,
        }
        lines = sorted(self.lines, key=lambda line: (keys[sort](line), line.number))
        return replace(self, lines=tuple(lines))

    def pair(self, index: int) -> "ComparedOutputs":
        """Return the comparison of the first system with the system of this index, lines sorted by difference."""
        lines = tuple(
            replace(
                line,
                outputs=(line.outputs[0], line.outputs[index]),
                scores=(line.scores[0], line.scores[index]),
                chosen=(line.chosen[0], line.chosen[index]),
            )
            for line in self.lines
        )
        return replace(self, lines=lines, systems=(self.systems[0], self.systems[index])).sorted("difference")

    def record(self, line: ComparedLine) -> dict[str, Any]:
        """Return the JSON object of a line; contexts are numbered from 1."""
        questions = self.part.method is not None
        systems = [
            {
                "name": system.name,
                "run": system.run.path.as_posix(),
                "output": output,
                "score": value,
                "length": len(self.words(output)),
                **({"context": None if context is None else context + 1} if questions else {}),
            }
            for system, output, value, context in zip(
                self.systems, line.outputs, line.scores, line.chosen, strict=True
            )
        ]
        return {
            "split": self.part.split,
            "line": line.number,
            "source": line.source,
            "references": list(line.references),
            "length": line.length,
            **({"contexts": list(line.contexts)} if questions else {}),
            "metric": self.metric,
            "difference": line.difference,
            "systems": systems,
        }


def compare_outputs(
    runs: Sequence[Run],
    split: str | None = None,
    metric: str | None = None,
    *,
    methods: Sequence[str] = (),
    data_dir: Path | None = None,
    offline: bool = False,
) -> ComparedOutputs:
    """Compare the outputs that `attnkit eval` saved for runs on one split; lines are in the order of the test set.

    Args:
        runs: finished runs, the baseline first; one run is enough for question answering.
        split: default: the first split that all runs were scored on.
        metric: metric of the line scores; default: a metric stored with the same signature for all systems.
        methods: methods of question answering; default: all methods of one run, the first method of several runs.
        data_dir: folder of corpora; default: $ATTNKIT_DATA.

    Raises:
        UsageError: too few runs, different tasks, `methods` for another task, or an unsuitable metric.
        MissingInputError: a run is not scored on the split, or a file of the corpus does not exist.
        DataError: runs were scored on different lines, or a saved evaluation is damaged.
        UnavailableError: a dependency of the metric is missing.
    """
    task, first = one_task(runs, "compare runs of one task"), runs[0]
    if task == "language-modeling":
        raise UsageError("language models write no outputs to compare: use `attnkit eval`")
    if task != QUESTIONS and methods:
        raise UsageError(f"--method is for question answering; these are runs of {task}")
    if task != QUESTIONS and len(runs) < 2:
        raise UsageError(f"{first.path}: name at least two runs; the first is the baseline")
    parts = _common_parts(runs, split, methods)
    systems = _systems(runs, parts)
    if len(systems) < 2:
        raise UsageError(f"{first.path}: only {parts[0].method} is scored: name another run or method")
    _require_same_lines(systems)
    rows = scored_lines(first, RunCorpus(first, data_dir, offline), systems[0].saved.stored)
    metric, scores = _scores(systems, [row.references for row in rows], metric, task)
    line_scores = list(zip(*map(sentence_scores, scores), strict=True))
    chosen = [system.saved.stored.decode and system.saved.stored.decode.chosen for system in systems]
    words = _words(first)
    lines = tuple(
        ComparedLine(
            index + 1,
            *row,
            len(words(row.references[0])),
            tuple(system.saved.texts[index] for system in systems),
            line_scores[index],
            tuple(contexts[index] if contexts else None for contexts in chosen),
        )
        for index, row in enumerate(rows)
    )
    return ComparedOutputs(parts[0], tuple(systems), metric, tuple(scores), lines, _search_notes(systems))


def _words(run: Run) -> Callable[[str], list[str]]:
    settings = run.recipe.eval
    return Words(settings, settings.lowercase).of


def _common_parts(runs: Sequence[Run], split: str | None, methods: Sequence[str]) -> list[ScoredSplit]:
    """Return the parts to compare: one split, for questions with the maximum number of contexts that all runs have."""
    scored = []
    for run in runs:
        parts = list(map(ScoredSplit.of, scored_splits(run)))
        if not parts:
            raise MissingInputError(f"{run.path}: not scored yet: run `attnkit eval {run.path}`")
        names = dict.fromkeys(map(_split_name, parts))
        if split is not None and split not in names:
            raise MissingInputError(
                f"{run.path}: split {quoted(split)} is not scored: {hint(split, names)}; score "
                f"another with `attnkit eval {run.path} --split NAME`"
            )
        scored.append(parts)
    common = [part for part in scored[0] if all(part in parts for parts in scored)]
    order = [split] if split else [*runs[0].recipe.eval.splits, *map(_split_name, common)]
    split = next((name for name in order if name in map(_split_name, common)), None)
    common = [part for part in common if _split_name(part) == split]
    if not common:
        raise MissingInputError(
            "no split is scored with the same settings in all runs: score one split with `attnkit eval "
            "--split`, questions with the same recipe"
        )
    contexts = max(part.contexts or 0 for part in common)
    by_method = {part.method: part for part in common if (part.contexts or 0) == contexts}
    for method in methods:
        if method not in by_method:
            known = hint(method, map(str, by_method))
            raise UsageError(f"--method {quoted(method)} is not scored with {contexts} contexts: {known}")
    if methods:
        return [by_method[method] for method in dict.fromkeys(methods)]
    return list(by_method.values())[: None if len(runs) == 1 else 1]


def _split_name(part: ScoredSplit) -> str:
    """Return the name of a part without its method."""
    return str(part._replace(method=None))


def _systems(runs: Sequence[Run], parts: Sequence[ScoredSplit]) -> list[ComparedSystem]:
    """Return the systems, named by run, by method, or by both."""
    by_run, by_method = len(runs) > 1, len(runs) == 1 or len(parts) > 1
    saved = [[_saved(run, part) for part in parts] for run in runs]
    names = _names(runs, [first for first, *_ in saved])
    return [
        ComparedSystem(" ".join(filter(None, (name * by_run, (part.method or "") * by_method))), run, scores)
        for name, run, run_scores in zip(names, runs, saved, strict=True)
        for part, scores in zip(parts, run_scores, strict=True)
    ]


def _saved(run: Run, part: ScoredSplit) -> SavedScores:
    """Return the saved evaluation of one system; raise MissingInputError if it has no outputs."""
    saved = saved_split(run, str(part))
    if not saved.texts:
        raise MissingInputError(
            f"{run.path}: no outputs of {part} are stored: run `attnkit eval {run.path} --metrics bleu`"
        )
    return saved


class ScoredLine(NamedTuple):
    """One line of a test set."""

    source: str
    references: tuple[str, ...]
    contexts: tuple[str, ...] = ()


def scored_lines(run: Run, corpus: RunCorpus, scored: StoredSplit) -> list[ScoredLine]:
    """Return the lines that a run was scored on.

    Raises MissingInputError if a file of the corpus does not exist, or DataError if the lines have changed since.
    """
    part = ScoredSplit.of(scored.split)
    if part.contexts is None:
        rows = corpus.rows(part.split, part.length)
        lines = [ScoredLine(row.source, tuple(row.references or (row.target,))) for row in rows]
        source = digest([line.source for line in lines])
    else:
        spec = run.recipe.contexts
        question_rows = corpus.questions(part.split, max(*spec.counts, part.contexts))
        questions = QuestionSet(question_rows, spec.seed)
        lines = [
            ScoredLine(row.source, tuple(accepted(row)), contexts)
            for i, row in enumerate(question_rows[: spec.rows or None])
            if (contexts := questions.contexts(i, part.contexts)) is not None
        ]
        source = digest(*[[line.source, *line.contexts] for line in lines])
    references = digest(*[line.references for line in lines])
    if (source, references) != (scored.digests.source, scored.digests.references):
        raise DataError(
            f"{run.path}: the corpus or the recipe has changed since scoring: run `attnkit eval {run.path}` again"
        )
    return lines


def _require_same_lines(systems: Sequence[ComparedSystem]) -> None:
    """Raise DataError unless all systems were scored on the same lines."""
    first, digests = systems[0], systems[0].saved.stored.digests
    for other in systems:
        for key, title in (("source", "sources"), ("references", "references")):
            if getattr(other.saved.stored.digests, key) != getattr(digests, key):
                raise DataError(
                    f"{first.run.path} and {other.run.path} were scored on different test lines ({title} differ): "
                    "compare runs of one corpus, or score both again with `attnkit eval`"
                )


def _search_notes(systems: Sequence[ComparedSystem]) -> tuple[str, ...]:
    """Return a note if the systems were decoded by different searches."""
    searches = [system.saved.stored.search for system in systems]
    differing = [key for key in SearchConfig.model_fields if len({getattr(search, key) for search in searches}) > 1]
    settings = (
        f"{system.name} " + ", ".join(f"{key}={getattr(search, key)}" for key in differing)
        for system, search in zip(systems, searches, strict=True)
    )
    return (f"decoded with different search settings: {'; '.join(settings)}",) if differing else ()


def _names(runs: Sequence[Run], saved: Sequence[SavedScores]) -> list[str]:
    """Return the name of each run as in `attnkit eval`, with the seed if names are equal, or else the paths."""
    names = full_names(named([scores.row(System.of_run(run)) for scores, run in zip(saved, runs, strict=True)]))
    if len({*names}) < len(names):
        names = [f"{name} seed {run.seed}" for name, run in zip(names, runs, strict=True)]
    return names if len({*names}) == len(names) else [run.path.as_posix() for run in runs]


def sentence_scores(score: Score) -> list[float]:
    """Return the score of each single line, computed from its statistics.

    Sentence BLEU skips orders of which a line has no n-gram, as sacrebleu's effective_order.
    """
    name = base_metric(score.metric)
    if name not in PER_TOKENIZER:
        return list(map(reducer(score.metric), score.statistics.tolist()))
    metric = sacrebleu_metric(name)
    metric.effective_order = True
    return [float(metric._compute_score_from_stats(row).score) for row in score.statistics.tolist()]


def _scores(
    systems: Sequence[ComparedSystem], references: Sequence[Sequence[str]], metric: str | None, task: str
) -> tuple[str, list[Score]]:
    """Return the metric of the line scores, and the score of each system: stored, otherwise computed."""
    stored, settings = [system.saved.scores for system in systems], systems[0].run.recipe.eval
    usable = [
        name
        for name, score in stored[0].items()
        if _scores_lines(name)
        and all(name in scores and scores[name].signature == score.signature for scores in stored)
    ]
    metric = _metric(usable, metric, task)
    if metric in usable:
        return metric, [scores[metric] for scores in stored]
    check_available([metric], settings)
    return metric, [score([metric], system.saved.texts, references, settings)[metric] for system in systems]


def _metric(usable: Sequence[str], name: str | None, task: str) -> str:
    """Return the metric of the line scores: a stored metric, or a metric of text to be computed."""
    if name is None:
        default = "exact-match" if task == "classification" else "chrf"
        return next((name for name in (*PREFERRED, *usable) if name in usable), default)
    if name in usable:
        return name
    (metric, *others) = expand([name])
    if others or not _scores_lines(metric):
        choices = ", ".join(m for m in METRICS if m in usable or (is_text(m) and _scores_lines(m)))
        issue = "is a group of metrics" if others else "does not score single sentences"
        raise UsageError(f"--metric {name}: {issue}; choose from {choices}")
    if not is_text(metric):
        raise UsageError(
            f"--metric {metric}: not stored with the same settings in all runs: run `attnkit eval "
            f"--metrics {metric}` on all runs first"
        )
    return metric


def _scores_lines(name: str) -> bool:
    facts = metric_facts(name)
    of_matrix = facts.reads == "labels" and name != "label-accuracy"  # functions of the whole confusion matrix
    return facts.resampled and facts.better != "neither" and not of_matrix
