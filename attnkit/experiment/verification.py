"""Whether runs are still what they were: files, scores and outputs made again and compared."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attnkit.errors import AttnkitError, DataError, MissingInputError, UnavailableError
from attnkit.nbce import question_sets
from attnkit.nbce.question_sets import AskedQuestions, EvaluatedModel
from attnkit.recipe.metrics import base_metric
from attnkit.recipe.schema import ContextsConfig, EvalConfig
from attnkit.runs import Run, json_files, layout
from attnkit.runs.json_files import StoredMetric
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring import CONTEXT, TEACHER_FORCED
from attnkit.scoring.evaluation import RunLines, ScoredLines
from attnkit.scoring.metrics import Score
from attnkit.scoring.results import RUN_ID
from attnkit.scoring.saved_scores import SCORING, SavedScores, digest
from attnkit.storage.files import read_json
from attnkit.train import checkpoint

TOLERANCE = {False: 1e-9, True: 1e-4}
"""Relative difference of equal scores: of the same outputs, and of a model's probabilities, which
differ in rounding from one machine or number of threads to another."""
TABLE_LIMIT = 1 << 28
"""Bytes of a table that are read, at most."""
Kind = Literal["file", "score", "output", "table"]
State = Literal["same", "different", "not checked"]


class Check(NamedTuple):
    """One thing that was looked at."""

    run: str
    run_id: str
    kind: Kind
    cell: str
    """The file, or split and metric, of the run."""
    state: State
    text: str = ""
    """What differs, or why it was not checked."""
    split: str = ""
    metric: str = ""
    score: float | None = None
    """Of a score: as it is stored."""


class TableRow(json_files.Schema):
    """A row of a table, as `attnkit.scoring.results.ScoreRow` writes it."""

    split: str
    method: str | None = None
    contexts: int | None = None
    metrics: dict[str, StoredMetric]
    run: str | None = None
    run_id: str | None = None


class ScoreTable(json_files.Schema):
    """What `attnkit eval --format json` prints, as far as it is checked."""

    rows: list[TableRow]


def verify(
    path: Path, lines: int = 20, *, device: str = "cpu", data_dir: Path | None = None, fault: str = ""
) -> Iterator[Check]:
    """Check one run: its files, its scores, and as many lines of each split decoded again.

    Faults of the run are found, not raised; nothing is written, and nothing is downloaded.  `fault`
    is what is already known of the path (see `attnkit.runs.layout.run_paths`).
    """
    try:
        if fault:
            raise DataError(fault)
        run = Run.open(path)
    except AttnkitError as error:
        why = layout.without_path(error, path)
        if Run(path).in_training:
            yield Check(path.as_posix(), "", "file", "run", "not checked", why)
            return
        name = layout.RECIPE if layout.RECIPE in why else "." if fault else layout.MANIFEST
        yield Check(path.as_posix(), "", "file", name, "different", why)
        return
    verification = _Verification(run, lines, device, data_dir)
    if run.in_training:
        yield verification.check("file", "run", "not checked", "is being trained")
        return
    try:
        with run.unchanged():
            found = list(verification.files())
        yield from found
    except AttnkitError as error:
        yield verification.check("file", "run", "different", layout.without_path(error, path))
    yield from verification.splits()


def read_table(path: Path) -> ScoreTable:
    """A file of `attnkit eval --format json`.

    Raises MissingInputError: there is no such file; DataError: it holds something else.
    """
    where = "the table is not what `attnkit eval --format json` prints"
    return json_files.parse(read_json(path, TABLE_LIMIT), ScoreTable, where)


def verify_table(table: ScoreTable, checks: Sequence[Check]) -> Iterator[Check]:
    """Check every score of a table against its run; `checks` are those of the runs, by `verify`."""
    known: dict[tuple[str, str, str], list[float | None]] = {}
    for check in checks:
        known.setdefault((check.run_id, check.split, check.metric), []).append(check.score)
    for row in table.rows:
        asked = [row.split, row.method, None if row.contexts is None else str(row.contexts)]
        split, run_id = ".".join(filter(None, asked)), row.run_id or ""
        for metric, value in row.metrics.items():
            told, found = value.score, known.get((run_id, split, metric), [])
            state: State = "same"
            text = ""
            if not any(_same(one, told) for one in found):
                state, text = "different", "no run has this id and score"
                if found:
                    text = f"the table says {told}, the run {found[0]}"
            cell = f"{split} {metric}"
            yield Check(row.run or "", run_id, "table", cell, state, text, split, metric, told)


class _Verification:
    """One run and how it is checked."""

    def __init__(self, run: Run, lines: int, device: str, data_dir: Path | None) -> None:
        self.run, self.lines, self.device, self.data_dir = run, lines, device, data_dir
        self.run_id = run.weights_sha256[:RUN_ID]
        self.load = cache(partial(run.model, device))

    def check(self, kind: Kind, cell: str, state: State = "same", text: str = "", *score: Any) -> Check:
        """What was found; `score` is split, metric and stored score."""
        return Check(self.run.path.as_posix(), self.run_id, kind, cell, state, text, *score)

    def fault(self, kind: Kind, cell: str, error: AttnkitError, before: str = "") -> Check:
        """What is not at hand cannot be checked; anything else is a fault."""
        missing = isinstance(error, MissingInputError | UnavailableError)
        why = layout.without_path(error, self.run.path)
        why = f"{before}its rows: {why}" if kind == "output" else why
        return self.check(kind, cell, "not checked" if missing else "different", why)

    def files(self) -> Iterator[Check]:
        """Every file that is there or should be; what is not recorded is not used."""
        run = self.run
        recorded = [name for name, value in run.manifest.files.items() if value is not None]
        left_out = run.manifest.left_out
        why = "" if run.sealed else "no hash recorded"
        yield self.check("file", layout.MANIFEST, "same" if run.sealed else "not checked", why)
        used = {layout.MANIFEST, *recorded}
        for name in recorded:
            why = ""
            if left_out and name in left_out.files:
                why = "left out of packed results"
            elif left_out and name == layout.LOG:
                why = f"thinned from {left_out.log_records} records"
            yield self._file(name, partial(run.check_file, name), why)
        corpus = RunCorpus(run, offline=True)
        for name in [name for name in recorded if name.startswith(f"{layout.DATA}/")]:
            rows = name.removesuffix(".json") + ".jsonl"
            split, kept = name.removeprefix(f"{layout.DATA}/").removesuffix(".json"), False
            with suppress(AttnkitError):  # which is said of the file itself
                kept = corpus.keeps(split)
            if kept:
                used.add(rows)
                yield self._file(rows, partial(corpus.kept, split), "")
        steps = run.checkpoint_steps()
        for step in steps:
            path = run.checkpoints / f"step-{step}"
            fault = checkpoint.fault_of(path)
            name = f"{layout.CHECKPOINTS}/step-{step}"
            yield self.check("file", name, "different" if fault else "same", fault or "")
            inside = (one.name for one in path.glob("*")) if fault else checkpoint.names(path)
            used |= {name, *(f"{name}/{one}" for one in inside)}
        if steps and layout.LOG not in used:
            used.add(layout.LOG)
            yield self._file(layout.LOG, partial(checkpoint.check_log, run), "")
        with suppress(AttnkitError):
            for name in run.scores():  # what is in these is compared with scores.json
                output = run.output_path(name).relative_to(run.path).as_posix()
                used |= {output, output.removesuffix(".hyp.txt") + ".stats.npz"}
        folders = {parent.as_posix() for one in used for parent in Path(one).parents}
        for name in run.names():  # one that is a link may be a folder of used ones
            if name not in used | folders:
                why = "not recorded, so it is not used" if run.sealed else "no hash recorded"
                yield self.check("file", name, "not checked", why)

    def _file(self, name: str, whole: Callable[[], object], why: str) -> Check:
        """One file; `whole` says whether there is something to compare it with, or raises."""
        try:
            hashed = whole()
        except AttnkitError as error:
            return self.check("file", name, "different", layout.without_path(error, self.run.path / name))
        return self.check("file", name, "same" if hashed else "not checked", why)

    def splits(self) -> Iterator[Check]:
        """Every split that was scored."""
        if not self.run.finished:
            yield self.check("score", "all", "not checked", "training is not finished")
            return
        saved = dict[str, SavedScores | AttnkitError]()
        try:
            with self.run.unchanged():
                stored = self.run.scores()
                for name, entry in stored.items():
                    try:
                        found = SavedScores.read(self.run, entry.split or name, name)
                        assert found is not None
                        saved[name] = found
                    except AttnkitError as error:
                        saved[name] = error
        except AttnkitError as error:
            yield self.check("score", "all", "different", layout.without_path(error, self.run.path))
            return
        if not stored:
            yield self.check("score", "all", "not checked", "not scored yet")
        for name, one in saved.items():
            told = {metric: value.score for metric, value in stored[name].metrics.items()}
            try:
                if isinstance(one, AttnkitError):
                    raise one
                yield from self._split(one, told)
            except AttnkitError as error:
                for cell in [f"{name} {metric}" for metric in told] or [name]:
                    yield self.fault("score", cell, error)

    def _split(self, saved: SavedScores, told: Mapping[str, float | None]) -> Iterator[Check]:
        """The scores and outputs of one split by one search, as they are stored and made again."""
        entry = saved.stored
        if entry.weights != self.run.weights_sha256:
            yield self.check("score", saved.name, "different", "the scores are of other weights")
            return
        try:
            lines = self._lines(saved)
        except AttnkitError as error:  # each cell still follows from its sentences
            yield from self._scores(saved, told, saved.scores)
            packed = "no weights; scores follow from what is kept of each line, "
            yield self.fault("output", saved.name, error, packed * bool(self.run.left_out))
            return
        if (digest(*lines.source), digest(*lines.references)) != (entry.digests.source, entry.digests.references):
            why = "the rows at hand are not those scored"
            yield self.check("output", saved.name, "different", why)
            return
        settings = self.run.recipe.eval.model_dump() | entry.scoring.model_dump(include={*SCORING})
        eval = json_files.parse(settings, EvalConfig, f"{layout.SCORES}: {saved.name}.scoring")
        # which context an answer is from is not decided again
        unread = {*CONTEXT, *(TEACHER_FORCED if self.run.left_out else ())}
        names = [one for one in dict.fromkeys(map(base_metric, saved.scores)) if one not in unread]
        yield from self._scores(saved, told, saved.scores | lines.scores(names, saved, eval))
        if not (count := len(saved.texts)):
            return
        if self.run.left_out:
            why = "no weights to decode them again"
            yield self.check("output", f"{saved.name}: 0 of {count} lines", "not checked", why)
            return
        number = min(self.lines, count)
        places = [place * count // number for place in range(number)]
        if entry.search.method == "sample":  # a draw depends on the number of its line
            places = list(range(number))
        made, _ = lines.decode(entry.search, places)
        pairs = zip(places, made, strict=True)
        wrong = [str(place + 1) for place, text in pairs if text != saved.texts[place]]
        why = f"{len(wrong)} are decoded otherwise now: line {', '.join(wrong[:5])}"
        why += ", ..." * bool(wrong[5:])
        cell = f"{saved.name}: {number} of {count} lines"
        yield self.check("output", cell, *(("different", why) if wrong else ()))

    def _scores(
        self, saved: SavedScores, told: Mapping[str, float | None], made: Mapping[str, Score]
    ) -> Iterator[Check]:
        """Each cell: the stored score beside the same made again."""
        for metric, value in told.items():
            cell = f"{saved.name} {metric}"
            if metric not in made:
                why = "a metric of a plug-in that is not there: add --plugin FILE"
                yield self.check("score", cell, "not checked", why)
                continue
            new = made[metric].stored.score
            same = _same(value, new, TOLERANCE[base_metric(metric) in TEACHER_FORCED])
            text = "" if same else f"{layout.SCORES} says {value}, scored again it is {new}"
            state: State = "same" if same else "different"
            yield self.check("score", cell, state, text, saved.stored.split, metric, value)

    def _lines(self, saved: SavedScores) -> ScoredLines:
        """What was scored.  Raises AttnkitError where the rows of the split are not at hand."""
        corpus = RunCorpus(self.run, self.data_dir, offline=True)
        part = layout.ScoredSplit.of(saved.stored.split)
        if self.run.recipe.task != "question-answering":
            rows = list(corpus.rows(part.split, part.length))
            return RunLines(self.run, part, rows, self.device, self.load)
        merging = saved.stored.search.contexts
        if part.method is None or merging is None:
            raise DataError(f"{layout.SCORES}: {saved.name}: is not of questions")
        known = merging.model_dump(include={*question_sets.MERGING})
        asked = {"counts": [part.contexts], "methods": [part.method.partition(",")[0]]}
        where = f"{layout.SCORES}: {saved.name}.search.contexts"
        ours = self.run.recipe.contexts.model_dump(mode="json")
        spec = json_files.parse(ours | asked | known, ContextsConfig, where)
        (condition,) = question_sets.conditions(corpus, part.split, spec)
        return AskedQuestions(EvaluatedModel.of_run(self.run, self.device), condition)


def _same(one: float | None, other: float | None, tolerance: float = TOLERANCE[False]) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
