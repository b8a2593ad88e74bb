"""What evaluations saved, line by line, beside the lines of the corpus that were scored.

Nothing is decoded here, and no model is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from attnkit.data.questions import QuestionSet, accepted
from attnkit.errors import DataError, MissingInputError, UsageError
from attnkit.runs import Run, one_task
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring.saved_scores import CONDITION, SavedScores, digest, saved_split, scored_splits
from attnkit.text import hint, quoted

QUESTIONS = "question-answering"


@dataclass(frozen=True)
class CorpusLine:
    """One line of a test set."""

    number: int
    """In the split, from 1."""
    source: str
    references: tuple[str, ...]
    contexts: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvaluatedSystem:
    """One run, or one method of answering questions by a run, and what is saved of it."""

    run: Run
    method: str | None
    saved: SavedScores
    name: str = ""
    """Short, and no other system's."""


@dataclass(frozen=True)
class EvaluatedLines:
    """Systems that were scored on the same lines."""

    task: str
    split: str
    contexts: int | None
    """Contexts given with each question."""
    lines: tuple[CorpusLine, ...]
    systems: tuple[EvaluatedSystem, ...]
    notes: tuple[str, ...] = ()
    """What else than the systems themselves makes their outputs differ."""


class _Condition(NamedTuple):
    """What was scored: a split, of questions with so many contexts by one method."""

    split: str
    method: str | None = None
    contexts: int | None = None

    @classmethod
    def of(cls, stored: str) -> "_Condition":
        """By the name under which it is stored."""
        found = CONDITION.match(stored)
        return cls(found[1], found[2], int(found[3])) if found else cls(stored)


def read_lines(
    runs: Sequence[Run],
    split: str | None = None,
    *,
    methods: Sequence[str] = (),
    data_dir: Path | None = None,
    offline: bool = False,
) -> EvaluatedLines:
    """What `attnkit eval` saved of some runs on one split.

    Args:
        runs: finished ones, the baseline first; of question answering one is enough.
        split: the first that all runs were scored on when None.
        methods: of question answering: with one run all of them when empty, else the first.
        data_dir: where corpora are; $ATTNKIT_DATA by default.
        offline: never download.

    Raises:
        UsageError: too few runs, different tasks, or options of question answering for others.
        MissingInputError: a run is not scored on the split, or a file of the corpus is not there.
        DataError: runs were scored on different lines, or what was saved is damaged.
    """
    task, first = one_task(runs, "compare runs of one task"), runs[0]
    if task == "language-modeling":
        raise UsageError("language models write no outputs to compare: use `attnkit eval`")
    if task != QUESTIONS and methods:
        raise UsageError(f"--method is for question answering; these are runs of {task}")
    if task != QUESTIONS and len(runs) < 2:
        raise UsageError(f"{first.path}: name at least two runs; the first is the baseline")
    chosen = _conditions(runs, split, methods, task)
    split, contexts = chosen[0].split, chosen[0].contexts
    systems = [EvaluatedSystem(run, one.method, _saved(run, one)) for run in runs for one in chosen]
    if len(systems) < 2:
        raise UsageError(
            f"{first.path}: only {chosen[0].method} is scored: name another run or method"
        )
    lines = _lines(first, RunCorpus(first, data_dir, offline), split, contexts)
    _check(systems, lines)
    names = dict(zip(map(id, runs), _names(runs), strict=True))
    named = []
    for one in systems:
        name = names[id(one.run)]
        if one.method and (len(runs) == 1 or len(chosen) > 1):
            name = one.method if len(runs) == 1 else f"{name} {one.method}"
        named.append(replace(one, name=name))
    return EvaluatedLines(task, split, contexts, lines, tuple(named), _search_notes(named))


def _conditions(
    runs: Sequence[Run], split: str | None, methods: Sequence[str], task: str
) -> list[_Condition]:
    """What to compare: one split, of questions the most contexts that all runs were scored with."""
    scored = []
    for run in runs:
        found = [_Condition(name) for name in scored_splits(run)]
        if task == QUESTIONS:
            found = [one for one in map(_Condition.of, scored_splits(run)) if one.method]
        if not found:
            raise MissingInputError(f"{run.path}: not scored yet: run `attnkit eval {run.path}`")
        names = list(dict.fromkeys(one.split for one in found))
        if split is not None and split not in names:
            raise MissingInputError(
                f"{run.path}: split {quoted(split)} is not scored: {hint(split, names)}; score "
                f"another with `attnkit eval {run.path} --split NAME`"
            )
        scored.append(found)
    common = [one for one in scored[0] if all(one in some for some in scored)]
    if split is None:
        order = [*runs[0].recipe.eval.splits, *(one.split for one in common)]
        split = next((name for name in order if any(one.split == name for one in common)), None)
    common = [one for one in common if one.split == split]
    if not common:
        raise MissingInputError(
            "nothing is scored alike in all runs: score one split with `attnkit eval --split`, "
            "questions by the same recipe"
        )
    most = max(one.contexts or 0 for one in common)
    known = {one.method: one for one in common if (one.contexts or 0) == most}
    for method in methods:
        if method not in known:
            near = hint(method, map(str, known))
            raise UsageError(
                f"--method {quoted(method)} is not scored with {most} contexts: {near}"
            )
    if methods:
        return [known[method] for method in dict.fromkeys(methods)]
    return list(known.values())[: None if len(runs) == 1 else 1]


def _saved(run: Run, one: _Condition) -> SavedScores:
    """What is saved of one system; a MissingInputError without outputs."""
    name = one.split if one.method is None else f"{one.split}.{one.method}.{one.contexts}"
    saved = saved_split(run, name)
    if not saved.texts:
        raise MissingInputError(
            f"{run.path}: no outputs of {name} are stored: run `attnkit eval {run.path} "
            "--metrics bleu`"
        )
    return saved


def _lines(run: Run, corpus: RunCorpus, split: str, contexts: int | None) -> tuple[CorpusLine, ...]:
    """The lines of a split that a run was scored on, as `attnkit eval` reads them."""
    if contexts is None:
        return tuple(
            CorpusLine(number, row.source, tuple(row.references or (row.target,)))
            for number, row in enumerate(corpus.rows(split), 1)
        )
    spec = run.recipe.contexts
    rows = corpus.questions(split, max(*spec.counts, contexts))
    questions = QuestionSet(rows, spec.seed)
    first = rows[: spec.rows or None]
    drawn = ((row, questions.contexts(place, contexts)) for place, row in enumerate(first))
    return tuple(
        CorpusLine(number, row.source, tuple(accepted(row)), passages)
        for number, (row, passages) in enumerate(drawn, 1) if passages is not None
    )  # fmt: skip


def _check(systems: Sequence[EvaluatedSystem], lines: Sequence[CorpusLine]) -> None:
    """All systems were scored on the same lines, and these are the corpus's now."""
    first = systems[0]
    for other in systems:
        for what, words in (("source", "sources"), ("references", "references")):
            if getattr(other.saved, what) != getattr(first.saved, what):
                raise DataError(
                    f"{first.run.path} and {other.run.path} were scored on different test lines "
                    f"({words} differ): compare runs of one corpus, or score both again with "
                    "`attnkit eval`"
                )
    source = digest([line.source for line in lines])
    if first.method is not None:
        source = digest(*[[line.source, *line.contexts] for line in lines])
    references = digest(*[line.references for line in lines])
    if (source, references) != (first.saved.source, first.saved.references):
        raise DataError(
            f"{first.run.path}: the corpus or the recipe has changed since it was scored: run "
            f"`attnkit eval {first.run.path}` again"
        )


def _search_notes(systems: Sequence[EvaluatedSystem]) -> tuple[str, ...]:
    """That the outputs were decoded in different ways, if they were."""
    searches = [one.saved.search for one in systems]
    unlike = [
        key for key, value in searches[0].items()
        if key != "contexts" and any(one.get(key) != value for one in searches)
    ]  # fmt: skip
    ways = (
        f"{one.name} " + ", ".join(f"{key}={one.saved.search.get(key)}" for key in unlike)
        for one in systems
    )
    return (f"decoded by different searches: {'; '.join(ways)}",) if unlike else ()


def _names(runs: Sequence[Run]) -> list[str]:
    """The shortest description that tells the runs apart."""
    for way in ("{0.variant}", "{0.variant} seed {0.seed}", "{0.name} {0.variant}",
                "{0.name} {0.variant} seed {0.seed}"):  # fmt: skip
        names = [way.format(run) for run in runs]
        if len({*names}) == len(names):
            return names
    return [run.path.as_posix() for run in runs]
