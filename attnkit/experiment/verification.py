"""Verification of runs: hashes are compared, and the stored outputs are scored again."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attnkit.errors import AttnkitError, DataError, MissingInputError, UnavailableError
from attnkit.recipe.metrics import base_metric
from attnkit.recipe.schema import EvalConfig
from attnkit.runs import Run, json_files, layout
from attnkit.runs.json_files import StoredMetric
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring.evaluation import answer_scores
from attnkit.scoring.metrics import LABELS, Score, is_text
from attnkit.scoring.output_comparison import scored_lines
from attnkit.scoring.results import RUN_ID
from attnkit.scoring.saved_scores import SCORING, SavedScores
from attnkit.storage.files import read_json
from attnkit.train import checkpoint

TOLERANCE = 1e-9
"""Maximum relative difference between equal scores."""
TABLE_LIMIT = 1 << 28
"""Maximum size of a table in bytes."""
Kind = Literal["file", "score", "table"]
State = Literal["same", "different", "not checked"]


class Check(NamedTuple):
    """Result of one check."""

    run: str
    run_id: str
    kind: Kind
    cell: str
    """File of the run, or split and metric."""
    state: State
    text: str = ""
    """The difference, or the reason why nothing was checked."""
    split: str = ""
    metric: str = ""
    score: float | None = None


class TableRow(json_files.Schema):
    """Row of a table, as `attnkit.scoring.results.ScoreRow` writes it."""

    split: str
    method: str | None = None
    contexts: int | None = None
    metrics: dict[str, StoredMetric]
    run: str | None = None
    run_id: str | None = None


class ScoreTable(json_files.Schema):
    """The checked part of the output of `attnkit eval --format json`."""

    rows: list[TableRow]


def verify(path: Path, *, data_dir: Path | None = None, fault: str = "") -> Iterator[Check]:
    """Check the files and the scores of one run.

    Faults are yielded, not raised; nothing is written or downloaded. `fault` is an already known fault of the path
    (see `attnkit.runs.layout.run_paths`).
    """
    try:
        if fault:
            raise DataError(fault)
        run = Run.open(path)
    except AttnkitError as error:
        reason = layout.without_path(error, path)
        if Run(path).in_training:
            yield Check(path.as_posix(), "", "file", "run", "not checked", reason)
            return
        name = layout.RECIPE if layout.RECIPE in reason else "." if fault else layout.MANIFEST
        yield Check(path.as_posix(), "", "file", name, "different", reason)
        return
    verification = _Verification(run, data_dir)
    if run.in_training:
        yield verification.check("file", "run", "not checked", "is being trained")
        return
    try:
        with run.unchanged():
            checks = list(verification.files())
        yield from checks
    except AttnkitError as error:
        yield verification.check("file", "run", "different", layout.without_path(error, path))
    yield from verification.splits()


def read_table(path: Path) -> ScoreTable:
    """Read a table of `attnkit eval --format json`.

    Raises MissingInputError if there is no such file, or DataError if it has other contents.
    """
    message = f"{path}: not a table of `attnkit eval --format json`"
    return json_files.parse(read_json(path, TABLE_LIMIT), ScoreTable, message)


def verify_table(table: ScoreTable, checks: Sequence[Check]) -> Iterator[Check]:
    """Compare every score of a table with its run's, from the results of `verify`."""
    scores: dict[tuple[str, str, str], list[float | None]] = {}
    for check in checks:
        scores.setdefault((check.run_id, check.split, check.metric), []).append(check.score)
    for row in table.rows:
        parts = [row.split, row.method, None if row.contexts is None else str(row.contexts)]
        split, run_id = ".".join(filter(None, parts)), row.run_id or ""
        for metric, stored in row.metrics.items():
            score, run_scores = stored.score, scores.get((run_id, split, metric), [])
            state: State = "same"
            text = ""
            if not any(_same(other, score) for other in run_scores):
                state, text = "different", "no run has this id and score"
                if run_scores:
                    text = f"the table has {score}, the run {run_scores[0]}"
            yield Check(row.run or "", run_id, "table", f"{split} {metric}", state, text, split, metric, score)


class _Verification:
    def __init__(self, run: Run, data_dir: Path | None) -> None:
        self.run, self.corpus = run, RunCorpus(run, data_dir, offline=True)

    def check(self, kind: Kind, cell: str, state: State = "same", text: str = "", *score: Any) -> Check:
        """Return a check of this run; `score` is split, metric and stored score."""
        return Check(self.run.path.as_posix(), self.run.weights_sha256[:RUN_ID], kind, cell, state, text, *score)

    def files(self) -> Iterator[Check]:
        """Check every file that exists or is recorded; files that are not recorded are not used."""
        run = self.run
        recorded = [name for name, value in run.manifest.files.items() if value is not None]
        left_out = run.manifest.left_out
        reason = "" if run.sealed else "no hash recorded"
        yield self.check("file", layout.MANIFEST, "same" if run.sealed else "not checked", reason)
        used = {layout.MANIFEST, *recorded}
        for name in recorded:
            reason = ""
            if left_out and name in left_out.files:
                reason = "not in packed results"
            elif left_out and name == layout.LOG:
                reason = f"thinned from {left_out.log_records} records"
            yield self._file(name, partial(run.check_file, name), reason)
        for name in [name for name in recorded if name.startswith(f"{layout.DATA}/")]:
            rows = name.removesuffix(".json") + ".jsonl"
            split, stored = name.removeprefix(f"{layout.DATA}/").removesuffix(".json"), False
            with suppress(AttnkitError):  # already reported for the file itself
                stored = self.corpus.stores(split)
            if stored:
                used.add(rows)
                yield self._file(rows, partial(self.corpus.stored_bytes, split), "")
        steps = run.checkpoint_steps()
        for step in steps:
            path = run.checkpoints / f"step-{step}"
            fault = checkpoint.fault_of(path)
            name = f"{layout.CHECKPOINTS}/step-{step}"
            yield self.check("file", name, "different" if fault else "same", fault or "")
            contents = (file.name for file in path.glob("*")) if fault else checkpoint.file_names(path)
            used |= {name, *(f"{name}/{file}" for file in contents)}
        if steps and layout.LOG not in used:
            used.add(layout.LOG)
            yield self._file(layout.LOG, partial(checkpoint.check_log, run), "")
        with suppress(AttnkitError):
            for name in run.scores():  # their contents are compared with scores.json
                paths = run.output_path(name), run.statistics_path(name)
                used |= {path.relative_to(run.path).as_posix() for path in paths}
        folders = {parent.as_posix() for name in used for parent in Path(name).parents}
        for name in run.names():  # a link may be the folder of used files
            if name not in used | folders:
                reason = "no hash recorded, so the file is not used" if run.sealed else "no hash recorded"
                yield self.check("file", name, "not checked", reason)

    def _file(self, name: str, compare: Callable[[], object], reason: str) -> Check:
        """Check one file; `compare` raises if it differs, and returns whether there was a hash to compare."""
        try:
            hashed = compare()
        except AttnkitError as error:
            return self.check("file", name, "different", layout.without_path(error, self.run.path / name))
        return self.check("file", name, "same" if hashed else "not checked", reason)

    def splits(self) -> Iterator[Check]:
        """Check the scores of every split."""
        if not self.run.finished:
            yield self.check("score", "all", "not checked", "training is not finished")
            return
        try:
            stored = self.run.scores()
        except AttnkitError as error:
            yield self.check("score", "all", "different", layout.without_path(error, self.run.path))
            return
        if not stored:
            yield self.check("score", "all", "not checked", "not scored yet")
        for name, entry in stored.items():
            try:
                saved = SavedScores.read(self.run, entry.split or name, name)
            except AttnkitError as error:
                reason = layout.without_path(error, self.run.path)
                for cell in [f"{name} {metric}" for metric in entry.metrics] or [name]:
                    yield self.check("score", cell, "different", reason)
                continue
            if saved is None:  # removed in the meantime
                continue
            if saved.stored.weights != self.run.weights_sha256:
                yield self.check("score", name, "different", "the scores belong to other weights")
                continue
            scores = saved.scores  # computed from the stored statistics of each line
            try:
                scores = scores | self._recompute(saved)
            except (MissingInputError, UnavailableError) as error:
                reason = f"only the statistics of each line are checked: {layout.without_path(error, self.run.path)}"
                yield self.check("score", name, "not checked", reason)
            except AttnkitError as error:
                yield self.check("score", name, "different", f"its rows: {layout.without_path(error, self.run.path)}")
            yield from self._scores(saved, scores)

    def _recompute(self, saved: SavedScores) -> dict[str, Score]:
        """Score the stored outputs again.  Raises AttnkitError if the rows have changed or are missing."""
        recipe, metrics = self.run.recipe, dict.fromkeys(map(base_metric, saved.scores))
        if not (names := [name for name in metrics if is_text(name) or name in LABELS]):
            return {}
        settings = recipe.eval.model_dump() | saved.stored.scoring.model_dump(include={*SCORING})
        eval = json_files.parse(settings, EvalConfig, f"{layout.SCORES}: {saved.name}.scoring")
        lines = scored_lines(self.run, self.corpus, saved.stored)
        sources, references = [line.source for line in lines], [line.references for line in lines]
        return answer_scores(names, saved.texts, sources, references, recipe, eval)

    def _scores(self, saved: SavedScores, scores: Mapping[str, Score]) -> Iterator[Check]:
        for metric, stored in saved.stored.metrics.items():
            cell, score = f"{saved.name} {metric}", (saved.stored.split, metric, stored.score)
            if metric not in scores:
                reason = "the metric's plug-in is not loaded: add --plugin FILE"
                yield self.check("score", cell, "not checked", reason)
            elif _same(stored.score, new := scores[metric].stored.score):
                yield self.check("score", cell, "same", "", *score)
            else:
                reason = f"{layout.SCORES} has {stored.score}, scoring again gives {new}"
                yield self.check("score", cell, "different", reason, *score)


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
