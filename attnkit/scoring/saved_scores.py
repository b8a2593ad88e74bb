"""What an evaluation saves in a folder: outputs, per-sentence statistics, scores.json.

What the search of the run's own recipe gave is stored under the name of the split; what another
search gave stands beside it, under `<split>.<search>`, such as `test.beam-4-1a2b3c4d`.  Answers to
questions are stored under `<split>.<method>.<contexts>`.
"""

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from attnkit import __version__
from attnkit.errors import AttnkitError, DataError, MissingInputError
from attnkit.recipe.metrics import base_metric, is_known
from attnkit.recipe.schema import EvalConfig, SearchConfig
from attnkit.runs import Results, Run
from attnkit.runs.json_files import Decoding, StoredMetric, StoredScoring, StoredSearch, StoredSplit
from attnkit.runs.layout import ScoredSplit
from attnkit.scoring.metrics import CONTEXT, TEACHER_FORCED, Score, embedding, expand, plugin_metrics
from attnkit.scoring.metrics.base import Statistics
from attnkit.scoring.results import ScoreRow, System
from attnkit.storage import files

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, MemoryError, zipfile.BadZipFile)
LARGEST = 1 << 30
"""Bytes of the statistics of a split that are read, at most."""
SCORING = (*StoredScoring.model_fields,)
"""Settings of `eval` that scores depend on, but for word vectors."""


@dataclass
class SavedScores:
    """Outputs and scores of one split of one system, and what they were made from."""

    name: str
    """What it is stored under: the split, or with the name of the search behind it."""
    stored: StoredSplit
    """What scores.json says of it; `write` adds metrics, and digests of the files."""
    texts: list[str] = field(default_factory=list)
    """Outputs, one a line; empty where no metric reads them."""
    scores: dict[str, Score] = field(default_factory=dict)
    others: dict[str, tuple[StoredMetric, Statistics]] = field(default_factory=dict)
    """Metrics that are not known now, those of other plug-ins, with their statistics."""

    @classmethod
    def read(cls, results: Results, split: str, name: str | None = None) -> "SavedScores | None":
        """What is saved of a split in a folder, under its own or another name, or None.

        Raises DataError: a file is missing or is not the one that was saved.
        """
        name = name or split
        try:
            with results.unchanged():
                if (entry := results.scores().get(name)) is None:
                    return None
                data = _verified(results, results.output_path(name), entry.digests.outputs)
                packed = _verified(results, results.statistics_path(name), entry.digests.statistics)
            tables, texts = _tables(packed), data.decode("utf-8").split("\n")[:-1]
            count, told = entry.sentences, entry.metrics
            lines = {len(t) for k, t in tables.items() if base_metric(k) not in TEACHER_FORCED}
            if lengths := {len(texts) or count, *lines} - {count}:
                raise ValueError(f"of {count} sentences, files have {lengths}")
            known = {k for k in told if is_known(base_metric(k))}
            entry.split = split
            return cls(
                name,
                entry,
                texts,
                scores={k: Score.of(k, tables[k], told[k].signature) for k in told if k in known},
                others={k: (told[k], tables[k]) for k in told if k not in known},
            )
        except (*MALFORMED, MissingInputError) as error:
            raise DataError(
                f"{results.path}: the stored evaluation of {split} is damaged ({error}): score again with --fresh"
            ) from error

    def write(self, results: Results) -> None:
        """Save everything; scores.json, which has the other files' digests, comes last."""
        path = results.statistics_path(self.name)
        files.make_folder(path.parent, parents=results.may_be_made)
        with results.changing():
            self._keep(results)
            told = {name: (one.stored, one.statistics) for name, one in self.scores.items()} | self.others
            packed, text = io.BytesIO(), "".join(f"{text}\n" for text in self.texts)
            tables: dict[str, Any] = {name: table for name, (_, table) in told.items()}
            np.savez_compressed(packed, **tables)
            files.atomic_write(path, packed.getvalue())
            self.stored.metrics = {name: one for name, (one, _) in told.items()}
            self.stored.digests.outputs = hashlib.sha256(text.encode()).hexdigest()
            self.stored.digests.statistics = hashlib.sha256(packed.getvalue()).hexdigest()
            results.write_scores(self.name, self.texts, self.stored)

    def _keep(self, results: Results) -> None:
        """Take over what is stored of metrics that were not measured now, and the outputs where none reads them."""
        try:
            old = SavedScores.read(results, self.stored.split, self.name)
        except AttnkitError:
            return
        if old is None or _made_from(old.stored) != _made_from(self.stored):
            return
        if not self.texts:
            self.texts = old.texts
            _take(self.stored, old.stored, "decode", "warnings", "empty_references")
        alike = self.texts == old.texts
        kept = {k: v for k, v in old.scores.items() if alike or k in TEACHER_FORCED}
        self.scores, self.others = kept | self.scores, old.others if alike else {}

    def holding(self, eval: EvalConfig, *, versions: bool = True) -> dict[str, Score]:
        """The scores that stand under these settings, and by the same versions of packages."""
        now, then = scoring_of(eval), self.stored.scoring
        if versions and not now.versions.items() <= then.versions.items():
            return {}
        alike = all(getattr(now, key) == getattr(then, key) for key in SCORING)
        return {
            name: score
            for name, score in self.scores.items()
            if (name in TEACHER_FORCED or alike) and embedding.current(score, eval) and plugin_metrics.current(score)
        }

    def row(self, system: System) -> ScoreRow:
        """The row of a comparison."""
        stored, part = self.stored, ScoredSplit.of(self.stored.split)
        decoding = stored.decode or Decoding()
        return ScoreRow(
            system,
            part.split,
            self.scores,
            stored.sentences,
            stored.digests.references,
            stored.digests.source,
            stored.empty_references,
            stored.weights,
            stored.search,
            sentences_per_second=decoding.sentences_per_second,
            tokens_per_second=decoding.tokens_per_second,
            warnings=tuple(stored.warnings),
            length=part.length,
            method=part.method,
            contexts=part.contexts,
            cut=decoding.cut if part.method else None,
        )


def _made_from(entry: StoredSplit) -> tuple[object, ...]:
    """What outputs and scores depend on."""
    return entry.weights, entry.digests.source, entry.digests.references, entry.search, entry.scoring


def _take(entry: StoredSplit, old: StoredSplit, *names: str) -> None:
    for name in names:
        setattr(entry, name, getattr(old, name))


def reusable_scores(
    results: Results, entry: StoredSplit, eval: EvalConfig, *, force: bool, own: bool = True
) -> SavedScores:
    """The part of an earlier evaluation of a split that still holds; nothing where `force` is set.

    `entry` says what is to be scored: split, weights, search, scoring, digests of what is decoded and
    of its references.  `own`: it is the search of the run's own recipe, whose outputs have the name
    of the split.  Of a run without its weights, scores by other versions of packages hold, too:
    their signatures name these.

    Raises DataError: the scores are damaged, without `force`.
    """
    saved = SavedScores(entry.split, entry)
    try:
        known = results.scores()
    except DataError:  # before the work, since it cannot be written to either
        if not force:
            raise
        results.remove_scores()
        known = {}
    found = stored_name(known, entry.split, entry.search)
    if not own:
        saved.name = found or _name_of(entry.split, entry.search)
    try:
        old = None if force or found is None else SavedScores.read(results, entry.split, found)
    except DataError:
        old = None
    if old is None:
        return saved
    now, then = entry.digests, old.stored.digests
    if (old.stored.weights, then.source) == (entry.weights, now.source):
        saved.texts = old.texts
        _take(entry, old.stored, "decode", "unknown", "sentences", "empty_references", "warnings")
        if then.references == now.references:
            packed = isinstance(results, Run) and bool(results.left_out)
            saved.scores = old.holding(eval, versions=not packed)
    return saved


def packed_row(run: Run, split: str, eval: EvalConfig, names: Sequence[str], search: StoredSearch) -> ScoreRow | None:
    """The row of these metrics that the results of a run without its weights have, decoded by this search.

    The corpus is not read.  None where the run has its weights, or some metrics are not among the results.

    Raises DataError: what was saved is damaged.
    """
    name = stored_name(run.scores(), split, search) if run.left_out else None
    saved = None if name is None else SavedScores.read(run, split, name)
    if saved is None:
        return None
    saved.scores = saved.holding(eval, versions=False)
    unknown = () if saved.stored.decode and saved.stored.decode.chosen else CONTEXT
    known = {*map(base_metric, saved.scores), *unknown}
    return saved.row(System.of_run(run)).only(names) if {*names} <= known else None


def scoring_of(eval: EvalConfig) -> StoredScoring:
    """The settings and the versions of packages that scores depend on."""
    values = eval.model_dump(mode="json", include={*SCORING})
    return StoredScoring.model_validate(values | {"attnkit": __version__} | _packages())


@cache
def _packages() -> dict[str, str]:
    """Looked up once: it takes as long as reading the scores of a run."""
    return {name: version(name) for name in ("sacrebleu", "rouge-score", "nltk")}


def stored_name(scores: Mapping[str, StoredSplit], split: str, search: StoredSearch) -> str | None:
    """What the outputs of a split by this search are stored under; None where there are none.

    An entry without weights is not of outputs.
    """
    for name in (split, _name_of(split, search)):
        known = scores.get(name)
        if known is not None and known.weights and known.search.key == search.key:
            return name
    return None


def _name_of(split: str, search: StoredSearch) -> str:
    return f"{split}.{search.name}"


def digest(*rows: Sequence[str]) -> str:
    """SHA-256 of rows of texts, and of where each text and row ends."""
    hashed = hashlib.sha256()
    for row in rows:
        hashed.update(len(row).to_bytes(8, "big"))
        for text in row:
            data = text.encode("utf-8", "surrogatepass")
            hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


def saved_rows(run: Run) -> list[ScoreRow]:
    """All that was saved of a run, as `attnkit eval RUN` shows it: the recipe's splits come first.

    Metrics that were measured beside those of the recipe follow them.

    Raises MissingInputError: nothing was scored; DataError: what was saved is damaged.
    """
    names, usual = scored_splits(run), list(run.recipe.eval.splits)
    if run.recipe.task == "question-answering":
        spec = run.recipe.contexts
        usual = [f"{split}.{method}.{count}" for split in usual for count in spec.counts for method in spec.methods]
    if not names:
        raise MissingInputError(f"{run.path}: not scored yet: run `attnkit eval {run.path}` first")
    wanted, system, rows = expand(run.recipe.eval.metrics), System.of_run(run), []
    for split in dict.fromkeys([*(name for name in usual if name in names), *names]):
        row = saved_split(run, split).row(system)
        rows.append(row.only(list(dict.fromkeys([*wanted, *map(base_metric, row.scores)]))))
    return rows


def saved_split(run: Run, split: str) -> SavedScores:
    """What was saved of a split by the search of the run's recipe, else by another.

    Raises MissingInputError: there was none; DataError: what it saved is damaged.
    """
    search, known = StoredSearch.of(one_best(run.recipe.search)), run.scores()
    asked = run.recipe.task == "question-answering"
    own = None if asked else stored_name(known, split, search)
    names = [own, split, *(name for name, one in known.items() if one.split == split)]
    saved = SavedScores.read(run, split, next((name for name in names if name in known), None))
    if saved is None:
        raise MissingInputError(f"{run.path}: {split} is not scored: run `attnkit eval {run.path}`")
    return saved


def one_best(search: SearchConfig) -> SearchConfig:
    """The same search with one output a line."""
    return search.model_copy(update={"n_best": 1})


def scored_splits(run: Run) -> list[str]:
    """The splits that were scored, by whatever search."""
    return [*dict.fromkeys(entry.split or name for name, entry in run.scores().items())]


def _tables(packed: bytes) -> dict[str, Statistics]:
    """The statistics [sentences, k] of each metric; results files have them as integers."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        if sum(one.file_size for one in archive.infolist()) > LARGEST:
            raise ValueError(f"statistics of more than {LARGEST >> 20} MB")
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        return {name: np.asarray(array, np.float64) for name, array in arrays.items()}


def _verified(results: Results, path: Path, digest: str) -> bytes:
    """The content of a file that must have this SHA-256."""
    data = results.read(path.relative_to(results.path).as_posix())
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{path.name} was changed")
    return data
