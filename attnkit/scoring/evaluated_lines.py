"""What evaluations saved, line by line, beside the lines of the corpus that were scored.

Nothing is decoded here, and no model is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnkit.data.questions import QuestionSet, accepted
from attnkit.data.rows import Row
from attnkit.errors import DataError, MissingInputError, UsageError
from attnkit.runs import Run, one_task
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring.metrics import Score
from attnkit.scoring.saved_scores import CONDITION, SavedScores, digest, scored_splits
from attnkit.text import nearest, quoted

QUESTIONS = "question-answering"


Stored = tuple[Run, str | None, SavedScores]
"""A run, the method that answered, and what is saved of it."""


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
    """One run, or one method of answering questions by a run."""

    name: str
    """Short, and no other system's."""
    run: Run
    method: str | None
    outputs: tuple[str, ...]
    scores: dict[str, Score]
    """Stored ones, with their statistics of each line."""
    chosen: tuple[int, ...] | None
    """The deciding context of each answer, from 0; None where the method has none."""


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
    task, contexts = _task(runs, methods), None
    split = _split(runs, split, task)
    words: Sequence[str | None] = [None]
    if task == QUESTIONS:
        words, contexts = _conditions(runs, split, methods)
    saved = [(run, word, _saved(run, split, word, contexts)) for run in runs for word in words]
    if len(saved) < 2:
        raise UsageError(f"{runs[0].path}: only {words[0]} is scored: name another run or method")
    run = runs[0]
    lines = _lines(run, RunCorpus(run, data_dir, offline), split, contexts)
    _check(saved, lines)
    names = _names(runs)
    systems = tuple(
        EvaluatedSystem(
            name=_label(names[runs.index(run)], word, len(runs), len(words)), run=run, method=word,
            outputs=tuple(one.texts), scores=one.scores,
            chosen=tuple(one.decoding and one.decoding.chosen or ()) or None,
        )
        for run, word, one in saved
    )  # fmt: skip
    notes = _search_notes(
        [(system.name, one) for system, (_, _, one) in zip(systems, saved, strict=True)]
    )
    return EvaluatedLines(task, split, contexts, lines, systems, notes)


def _task(runs: Sequence[Run], methods: Sequence[str]) -> str:
    """The task of all runs, in which they can be compared."""
    task = one_task(runs, "compare runs of one task")
    if task == "language-modeling":
        raise UsageError("language models write no outputs to compare: use `attnkit eval`")
    if task != QUESTIONS and methods:
        raise UsageError(f"--method is for question answering; these are runs of {task}")
    if task != QUESTIONS and len(runs) < 2:
        raise UsageError(f"{runs[0].path}: name at least two runs; the first is the baseline")
    return task


def _split(runs: Sequence[Run], wanted: str | None, task: str) -> str:
    """The split to compare on."""
    scored = []
    for run in runs:
        names = scored_splits(run)
        if task == QUESTIONS:
            names = [found[1] for name in names if (found := CONDITION.match(name))]
        if not names:
            raise MissingInputError(f"{run.path}: not scored yet: run `attnkit eval {run.path}`")
        scored.append(list(dict.fromkeys(names)))
    if wanted is None:
        common = [name for name in scored[0] if all(name in names for names in scored)]
        if not common:
            have = "; ".join(f"{r.path}: {', '.join(n)}" for r, n in zip(runs, scored, strict=True))
            raise MissingInputError(
                f"no split is scored in all runs ({have}): score one with `attnkit eval --split`"
            )
        usual = [name for name in runs[0].recipe.eval.splits if name in common]
        return (usual or common)[0]
    for run, names in zip(runs, scored, strict=True):
        if wanted not in names:
            near = nearest(wanted, names)
            hint = f"did you mean {near}? " if near else ""
            raise MissingInputError(
                f"{run.path}: split {quoted(wanted)} is not scored; {hint}scored: "
                f"{', '.join(names)}; score another with `attnkit eval {run.path} --split NAME`"
            )
    return wanted


def _conditions(
    runs: Sequence[Run], split: str, methods: Sequence[str]
) -> tuple[Sequence[str], int]:
    """Methods to compare, and the number of contexts: the most that all runs were scored with."""
    found = []
    for run in runs:
        parts = [match for name in scored_splits(run) if (match := CONDITION.match(name))]
        found.append([(int(part[3]), part[2]) for part in parts if part[1] == split])
    common = [one for one in found[0] if all(one in others for others in found)]
    if not common:
        raise MissingInputError(
            f"{split}: no number of contexts and method is scored in all runs: run `attnkit eval` "
            "on them with the same recipe"
        )
    contexts = max(number for number, _ in common)
    stored = [method for number, method in common if number == contexts]
    for method in methods:
        if method not in stored:
            near = nearest(method, stored)
            hint = f"did you mean {near}? " if near else ""
            raise UsageError(
                f"--method {quoted(method)}: {hint}scored with {contexts} contexts: "
                f"{', '.join(stored)}"
            )
    return (list(dict.fromkeys(methods)) or (stored if len(runs) == 1 else stored[:1])), contexts


def _saved(run: Run, split: str, method: str | None, contexts: int | None) -> SavedScores:
    """What is saved of one system; a DataError without outputs."""
    name = split if method is None else f"{split}.{method}.{contexts}"
    stored = run.scores()  # by another search than its recipe's under a longer name
    found = (key for key in (name, *stored) if stored.get(key, {}).get("split", key) == name)
    saved = SavedScores.read(run, next(found, name))
    if saved is None:
        raise MissingInputError(f"{run.path}: {name} is not scored: run `attnkit eval {run.path}`")
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
    first: list[Row] = rows[: spec.rows or None]
    drawn = ((row, questions.contexts(place, contexts)) for place, row in enumerate(first))
    return tuple(
        CorpusLine(number, row.source, tuple(accepted(row)), passages)
        for number, (row, passages) in enumerate(drawn, 1) if passages is not None
    )  # fmt: skip


def _check(saved: Sequence[Stored], lines: Sequence[CorpusLine]) -> None:
    """All systems were scored on the same lines, and these are the corpus's now."""
    run, method, first = saved[0]
    for other, _, one in saved[1:]:
        for what in ("source", "references"):
            if getattr(one, what) != getattr(first, what):
                raise DataError(
                    f"{run.path} and {other.path} were scored on different test lines "
                    f"({'sources' if what == 'source' else what} differ): compare runs of one "
                    "corpus, or score both again with `attnkit eval`"
                )
    sources = [line.source for line in lines]
    expected = digest(sources)
    if method is not None:
        expected = digest(*[[line.source, *line.contexts] for line in lines])
    if (expected, digest(*[list(line.references) for line in lines])) != (
        first.source, first.references,
    ):  # fmt: skip
        raise DataError(
            f"{run.path}: the corpus or the recipe has changed since it was scored: run "
            f"`attnkit eval {run.path}` again"
        )


def _search_notes(saved: Sequence[tuple[str, SavedScores]]) -> tuple[str, ...]:
    """That the outputs were decoded in different ways, if they were."""
    (first, base), *others = saved
    unlike = {
        key: value for key, value in base.search.items()
        if key != "contexts" and any(one.search.get(key) != value for _, one in others)
    }  # fmt: skip
    if not unlike:
        return ()
    ways = (
        f"{name} " + ", ".join(f"{key}={one.search.get(key)}" for key in unlike)
        for name, one in saved
    )
    return (f"decoded by different searches: {'; '.join(ways)}",)


def _names(runs: Sequence[Run]) -> list[str]:
    """The shortest description that tells the runs apart."""
    ways = (
        [run.variant for run in runs],
        [f"{run.variant} seed {run.seed}" for run in runs],
        [f"{run.name} {run.variant}" for run in runs],
        [f"{run.name} {run.variant} seed {run.seed}" for run in runs],
    )
    unlike = [names for names in ways if len({*names}) == len(names)]
    return unlike[0] if unlike else [run.path.as_posix() for run in runs]


def _label(run: str, method: str | None, runs: int, methods: int) -> str:
    """The name of a system: of the run, of the method, or both."""
    if method is None or (runs > 1 and methods == 1):
        return run
    return method if runs == 1 else f"{run} {method}"
