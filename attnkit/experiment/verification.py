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
        why = layout.without_path(error, path)
        if Run(path).in_training:
            yield Check(path.as_posix(), "", "file", "run", "not checked", why)
            return
        name = layout.RECIPE if layout.RECIPE in why else "." if fault else layout.MANIFEST
        yield Check(path.as_posix(), "", "file", name, "different", why)
        return
    verification = _Verification(run, data_dir)
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
    """Read a table of `attnkit eval --format json`.

    Raises MissingInputError if there is no such file, or DataError if it has other contents.
    """
    where = "the table is not what `attnkit eval --format json` prints"
    return json_files.parse(read_json(path, TABLE_LIMIT), ScoreTable, where)


def verify_table(table: ScoreTable, checks: Sequence[Check]) -> Iterator[Check]:
    """Compare every score of a table with its run's, from the results of `verify`."""
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
            yield Check(row.run or "", run_id, "table", f"{split} {metric}", state, text, split, metric, told)


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
        for name in [name for name in recorded if name.startswith(f"{layout.DATA}/")]:
            rows = name.removesuffix(".json") + ".jsonl"
            split, kept = name.removeprefix(f"{layout.DATA}/").removesuffix(".json"), False
            with suppress(AttnkitError):  # already reported for the file itself
                kept = self.corpus.keeps(split)
            if kept:
                used.add(rows)
                yield self._file(rows, partial(self.corpus.kept, split), "")
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
            for name in run.scores():  # their contents are compared with scores.json
                paths = run.output_path(name), run.statistics_path(name)
                used |= {path.relative_to(run.path).as_posix() for path in paths}
        folders = {parent.as_posix() for one in used for parent in Path(one).parents}
        for name in run.names():  # a link may be the folder of used files
            if name not in used | folders:
                why = "not recorded, so it is not used" if run.sealed else "no hash recorded"
                yield self.check("file", name, "not checked", why)

    def _file(self, name: str, whole: Callable[[], object], why: str) -> Check:
        """Check one file; `whole` raises if it differs, and returns whether there was a hash to compare."""
        try:
            hashed = whole()
        except AttnkitError as error:
            return self.check("file", name, "different", layout.without_path(error, self.run.path / name))
        return self.check("file", name, "same" if hashed else "not checked", why)

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
                why = layout.without_path(error, self.run.path)
                for cell in [f"{name} {metric}" for metric in entry.metrics] or [name]:
                    yield self.check("score", cell, "different", why)
                continue
            if saved is None:  # removed in the meantime
                continue
            if saved.stored.weights != self.run.weights_sha256:
                yield self.check("score", name, "different", "the scores are of other weights")
                continue
            made = saved.scores  # computed from the stored statistics of each line
            try:
                made = made | self._scored_again(saved)
            except (MissingInputError, UnavailableError) as error:
                why = layout.without_path(error, self.run.path)
                yield self.check("score", name, "not checked", f"scores follow from what is kept of each line: {why}")
            except AttnkitError as error:
                yield self.check("score", name, "different", f"its rows: {layout.without_path(error, self.run.path)}")
            yield from self._scores(saved, made)

    def _scored_again(self, saved: SavedScores) -> dict[str, Score]:
        """Score the stored outputs again.  Raises AttnkitError if the rows have changed or are missing."""
        recipe, known = self.run.recipe, dict.fromkeys(map(base_metric, saved.scores))
        if not (names := [name for name in known if is_text(name) or name in LABELS]):
            return {}
        settings = recipe.eval.model_dump() | saved.stored.scoring.model_dump(include={*SCORING})
        eval = json_files.parse(settings, EvalConfig, f"{layout.SCORES}: {saved.name}.scoring")
        lines = scored_lines(self.run, self.corpus, saved.stored)
        sources, references = [line.source for line in lines], [line.references for line in lines]
        return answer_scores(names, saved.texts, sources, references, recipe, eval)

    def _scores(self, saved: SavedScores, made: Mapping[str, Score]) -> Iterator[Check]:
        for metric, told in saved.stored.metrics.items():
            cell, at = f"{saved.name} {metric}", (saved.stored.split, metric, told.score)
            if metric not in made:
                why = "a metric of a plug-in that is not there: add --plugin FILE"
                yield self.check("score", cell, "not checked", why)
            elif _same(told.score, new := made[metric].stored.score):
                yield self.check("score", cell, "same", "", *at)
            else:
                why = f"{layout.SCORES} says {told.score}, scored again it is {new}"
                yield self.check("score", cell, "different", why, *at)


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
