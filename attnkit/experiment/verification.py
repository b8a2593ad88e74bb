"""Whether runs are still what they were: files, scores and outputs made again and compared."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attnkit.data.questions import accepted
from attnkit.errors import AttnkitError, DataError, MissingInputError, UnavailableError
from attnkit.models.base import Model
from attnkit.nbce import question_sets
from attnkit.nbce.question_sets import EvaluatedModel
from attnkit.recipe.metrics import base_metric
from attnkit.recipe.schema import ContextsConfig, EvalConfig, SearchConfig
from attnkit.runs import Run, json_files, layout
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring import CONTEXT, TEACHER_FORCED, score
from attnkit.scoring.evaluation import answer_scores, answers, model_scores, references_of
from attnkit.scoring.metrics import Score
from attnkit.scoring.results import RUN_ID
from attnkit.scoring.saved_scores import CONDITION, SCORING, SavedScores, digest
from attnkit.train import checkpoint

SAME_TEXT, SAME_MODEL = 1e-9, 1e-4
"""Relative difference of equal scores: of the same outputs, and of a model's probabilities, which
differ in rounding from one machine or number of threads to another."""
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


def verify(
    path: Path, lines: int = 20, *, device: str = "cpu", data_dir: Path | None = None
) -> Iterator[Check]:
    """Check one run: its files, its scores, and as many lines of each split decoded again.

    Faults of the run are found, not raised; nothing is written, and nothing is downloaded.
    """
    try:
        run = Run.open(path)
    except AttnkitError as error:
        why = _short(error, path)
        name = layout.RECIPE if why.startswith(layout.RECIPE) else layout.MANIFEST
        yield Check(path.as_posix(), "", "file", name, "different", why)
        return
    verification = _Verification(run, lines, device, data_dir)
    if run.in_training:
        yield verification.check("file", "run", "not checked", "is being trained")
        return
    yield from verification.files()
    yield from verification.splits()


def verify_table(table: Mapping[str, Any], checks: Sequence[Check]) -> Iterator[Check]:
    """Check every score of a table, the object of `attnkit eval --format json`, against its run.

    `checks` are those of the runs, by `verify`.

    Raises:
        DataError: it is no such object.
    """
    known: dict[tuple[str, str, str], list[float | None]] = {}
    for check in checks:
        known.setdefault((check.run_id, check.split, check.metric), []).append(check.score)
    try:
        for row in table["rows"]:
            asked = [str(row[key]) for key in ("split", "method", "contexts") if key in row]
            for metric, value in row["metrics"].items():
                split, told = ".".join(asked), value["score"]
                found = known.get((row["run_id"], split, metric), [])
                state: State = "same"
                text = ""
                if not any(_same(one, told) for one in found):
                    state, text = "different", "no run has this id and score"
                    if found:
                        text = f"the table says {told}, the run {found[0]}"
                run, cell = str(row["run"]), f"{split} {metric}"
                yield Check(run, row["run_id"], "table", cell, state, text, split, metric, told)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError("the table is not what `attnkit eval --format json` prints") from error


class _Again(NamedTuple):
    """The rows that a split was scored on, and how its scores and outputs are made again."""

    source: Sequence[Sequence[str]]
    references: Sequence[Sequence[str]]
    scores: Callable[[SavedScores], Mapping[str, Score]]
    decode: Callable[[Sequence[int], SearchConfig], Sequence[str]]
    """The outputs of the lines at some places."""


class _Verification:
    """One run and how it is checked."""

    def __init__(self, run: Run, lines: int, device: str, data_dir: Path | None) -> None:
        self.run, self.lines, self.device, self.data_dir = run, lines, device, data_dir
        self.run_id = str(run.manifest["files"].get(layout.MODEL) or "")[:RUN_ID]

    @cached_property
    def model(self) -> Model:
        return self.run.model(self.device)

    def check(
        self, kind: Kind, cell: str, state: State = "same", text: str = "", *score: Any
    ) -> Check:
        """What was found; `score` is split, metric and stored score."""
        return Check(self.run.path.as_posix(), self.run_id, kind, cell, state, text, *score)

    def files(self) -> Iterator[Check]:
        """Every file that has a hash or should have one."""
        run = self.run
        if not run.read_json(layout.MANIFEST).get("sha256"):
            yield self.check("file", layout.MANIFEST, "not checked", "no hash recorded")
        else:
            yield self.check("file", layout.MANIFEST)
        here = [layout.SCORES, *([layout.MODEL, layout.LOG] if run.finished else [])]
        notes = sorted((run.path / layout.DATA).glob("*.json"))
        here = [name for name in here if run.has(name)]
        here += [note.relative_to(run.path).as_posix() for note in notes]
        recorded = [name for name, value in run.manifest["files"].items() if value is not None]
        for name in dict.fromkeys([*recorded, *here]):
            try:
                hashed = run.check_file(name)
            except AttnkitError as error:
                yield self.check("file", name, "different", _short(error, run.path / name))
                continue
            why = "" if hashed else "no hash recorded"
            if name in run.left_out:
                why = "left out of packed results"
            elif name == layout.LOG and run.left_out:
                why = f"thinned from {run.manifest[layout.LEFT_OUT]['log_records']} records"
            yield self.check("file", name, "same" if hashed else "not checked", why)
        for step in run.checkpoint_steps():
            fault = checkpoint.fault_of(run.checkpoints / f"step-{step}")
            name = f"{layout.CHECKPOINTS}/step-{step}"
            yield self.check("file", name, "different" if fault else "same", fault or "")

    def splits(self) -> Iterator[Check]:
        """Every split that was scored."""
        if not self.run.finished:
            yield self.check("score", "all", "not checked", "training is not finished")
            return
        try:
            stored = self.run.scores()
        except AttnkitError as error:
            yield self.check("score", "all", "different", _short(error, self.run.path))
            return
        if not stored:
            yield self.check("score", "all", "not checked", "not scored yet")
        for name in stored:
            cells = [f"{name} {metric}" for metric in stored[name].get("metrics", {})] or [name]
            try:
                yield from self._split(name, stored[name])
            except AttnkitError as error:
                for cell in cells:
                    yield self.check("score", cell, _state(error), _short(error, self.run.path))

    def _split(self, name: str, entry: Mapping[str, Any]) -> Iterator[Check]:
        """The scores and outputs of one split by one search."""
        saved = SavedScores.read(self.run, entry.get("split") or name, name)
        assert saved is not None
        if saved.weights != self.run.manifest["files"].get(layout.MODEL):
            yield self.check("score", name, "different", "the scores are of other weights")
            return
        told = {metric: value["score"] for metric, value in entry["metrics"].items()}
        try:
            again = self._again(saved)
        except AttnkitError as error:  # each cell still follows from its sentences
            yield from self._scores(saved, told, saved.scores)
            why = f"its rows: {_short(error, self.run.path)}"
            if self.run.left_out:
                why = f"no weights; scores follow from what is kept of each line, {why}"
            yield self.check("output", name, _state(error), why)
            return
        if (digest(*again.source), digest(*again.references)) != (saved.source, saved.references):
            yield self.check("output", name, "different", "the rows at hand are not those scored")
            return
        yield from self._scores(saved, told, saved.scores | dict(again.scores(saved)))
        if saved.texts and self.run.left_out:
            cell = f"{saved.name}: 0 of {len(saved.texts)} lines"
            why = "no weights to decode them again"
            yield self.check("output", cell, "not checked", why)
        elif saved.texts:
            yield self._outputs(saved, again)

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
            new = made[metric].json()["score"]
            tolerance = SAME_MODEL if base_metric(metric) in TEACHER_FORCED else SAME_TEXT
            state: State = "same" if _same(value, new, tolerance) else "different"
            text = f"{layout.SCORES} says {value}, scored again it is {new}"
            text = "" if state == "same" else text
            yield self.check("score", cell, state, text, saved.split, metric, value)

    def _outputs(self, saved: SavedScores, again: _Again) -> Check:
        """A sample of lines decoded again."""
        count = len(saved.texts)
        number = min(self.lines, count)
        places = [place * count // number for place in range(number)] if number else []
        if saved.search.get("method") == "sample":  # a draw depends on the number of its line
            places = list(range(number))
        search = {key: value for key, value in saved.search.items() if key != "contexts"}
        where = f"{layout.SCORES}: {saved.name}.search"
        made = again.decode(places, json_files.parse(search, SearchConfig, where))
        pairs = zip(places, made, strict=True)
        wrong = [place + 1 for place, text in pairs if text != saved.texts[place]]
        cell = f"{saved.name}: {number} of {count} lines"
        if not wrong:
            return self.check("output", cell)
        where = ", ".join(map(str, wrong[:5])) + (", ..." if wrong[5:] else "")
        return self.check(
            "output", cell, "different", f"{len(wrong)} are decoded otherwise now: line {where}"
        )

    def _again(self, saved: SavedScores) -> _Again:
        """Raises AttnkitError where the rows of the split are not at hand."""
        corpus = RunCorpus(self.run, self.data_dir, offline=True)
        if self.run.recipe.task == "question-answering":
            return self._answered_again(saved, corpus)
        windows = layout.WINDOWS.fullmatch(saved.split)
        length = int(windows[2]) if windows else None
        rows = list(corpus.rows(windows[1] if windows else saved.split, length))
        run, recipe = self.run, self.run.recipe

        def scores(saved: SavedScores) -> dict[str, Score]:
            """From the saved outputs or, where there are weights, the model's probabilities."""
            names = list(dict.fromkeys(map(base_metric, saved.scores)))
            forced = [name for name in names if name in TEACHER_FORCED and not run.left_out]
            text, eval = [n for n in names if n not in TEACHER_FORCED], _settings(run, saved)
            found = answer_scores(text, saved.texts, rows, recipe, eval) if text else {}
            if forced:
                tokenizer = run.tokenizer()
                found |= model_scores(forced, self.model, tokenizer, rows, recipe, length=length)
            return found

        def decode(places: Sequence[int], search: SearchConfig) -> list[str]:
            sources = [rows[place].source for place in places]
            return list(answers(self.model, run.tokenizer(), sources, recipe, search))

        return _Again([[row.source for row in rows]], references_of(rows), scores, decode)

    def _answered_again(self, saved: SavedScores, corpus: RunCorpus) -> _Again:
        """The same of questions that were answered in one way."""
        found = CONDITION.match(saved.split)
        assert found is not None
        merging = saved.search["contexts"]
        known = {key: merging[key] for key in ContextsConfig.model_fields if key in merging}
        update = {"counts": (int(found[3]),), "methods": (found[2].partition(",")[0],), **known}
        spec = self.run.recipe.contexts.model_copy(update=update)
        (setting,) = question_sets.conditions(corpus, found[1], spec)
        references = [list(accepted(row)) for row, _ in setting.questions]
        source = [[row.source, *contexts] for row, contexts in setting.questions]

        def scores(saved: SavedScores) -> dict[str, Score]:
            """Which context was chosen is not decided again."""
            names = [n for n in dict.fromkeys(map(base_metric, saved.scores)) if n not in CONTEXT]
            return score(names, saved.texts, references, _settings(self.run, saved))

        def decode(places: Sequence[int], search: SearchConfig) -> list[str]:
            some = setting._replace(questions=[setting.questions[place] for place in places])
            model = EvaluatedModel.of_run(self.run, self.device)
            return question_sets.answers(model, some, search)

        return _Again(source, references, scores, decode)


def _settings(run: Run, saved: SavedScores) -> EvalConfig:
    """How the outputs were scored."""
    stored = {key: saved.scoring[key] for key in SCORING if key in saved.scoring}
    where = f"{layout.SCORES}: {saved.name}.scoring"
    return json_files.parse(run.recipe.eval.model_dump() | stored, EvalConfig, where)


def _same(one: float | None, other: float | None, tolerance: float = SAME_TEXT) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _state(error: AttnkitError) -> State:
    """What is not at hand cannot be checked; anything else is a fault."""
    missing = isinstance(error, MissingInputError | UnavailableError)
    return "not checked" if missing else "different"


def _short(error: Exception, path: Path) -> str:
    """What was wrong, without the path of the run or file."""
    return str(error).replace(f"{path}: ", "").replace(f"{path}/", "")
