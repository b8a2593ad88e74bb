"""Saved evaluations: outputs, per-sentence statistics and scores.json in a folder.

Results of the search of the run's recipe are stored under the name of the split, results of other searches under
`<split>.<search>`, such as `test.beam-4-1a2b3c4d`, and answers to questions under `<split>.<method>.<contexts>`.
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
MAX_BYTES = 1 << 30
"""Maximum size of the statistics of a split, in bytes."""
SCORING = (*StoredScoring.model_fields,)
"""Settings of `eval` that scores depend on, except word vectors."""


@dataclass
class SavedScores:
    """Outputs and scores of one split of one system."""

    name: str
    """Name in storage: the split, or the split and the search."""
    stored: StoredSplit
    """Entry of scores.json; `write` sets its metrics and the digests of the files."""
    texts: list[str] = field(default_factory=list)
    """Outputs, one per line; empty if no metric reads outputs."""
    scores: dict[str, Score] = field(default_factory=dict)
    others: dict[str, tuple[StoredMetric, Statistics]] = field(default_factory=dict)
    """Unknown metrics (of plug-ins that are not loaded) with their statistics."""

    @classmethod
    def read(cls, results: Results, split: str, name: str | None = None) -> "SavedScores | None":
        """Return the evaluation saved as `name` (default: the split), or None.

        Raises DataError if a file is missing or differs from the saved file.
        """
        name = name or split
        try:
            with results.unchanged():
                if (entry := results.scores().get(name)) is None:
                    return None
                data = _verified(results, results.output_path(name), entry.digests.outputs)
                packed = _verified(results, results.statistics_path(name), entry.digests.statistics)
            tables, texts = _tables(packed), data.decode("utf-8").split("\n")[:-1]
            count, metrics = entry.sentences, entry.metrics
            lines = {len(table) for key, table in tables.items() if base_metric(key) not in TEACHER_FORCED}
            if lengths := {len(texts) or count, *lines} - {count}:
                raise ValueError(f"of {count} sentences, files have {lengths}")
            known = {key for key in metrics if is_known(base_metric(key))}
            entry.split = split
            return cls(
                name,
                entry,
                texts,
                scores={k: Score.of(k, tables[k], metric.signature) for k, metric in metrics.items() if k in known},
                others={k: (metric, tables[k]) for k, metric in metrics.items() if k not in known},
            )
        except (*MALFORMED, MissingInputError) as error:
            raise DataError(
                f"{results.path}: the stored evaluation of {split} is damaged ({error}): score again with --fresh"
            ) from error

    def write(self, results: Results) -> None:
        """Save all files; scores.json, which has the digests of the others, is written last."""
        path = results.statistics_path(self.name)
        files.make_folder(path.parent, parents=results.creates_folder)
        with results.changing():
            self._keep(results)
            entries = {name: (score.stored, score.statistics) for name, score in self.scores.items()} | self.others
            packed, text = io.BytesIO(), "".join(f"{text}\n" for text in self.texts)
            tables: dict[str, Any] = {name: table for name, (_, table) in entries.items()}
            np.savez_compressed(packed, **tables)
            files.atomic_write(path, packed.getvalue())
            self.stored.metrics = {name: metric for name, (metric, _) in entries.items()}
            self.stored.digests.outputs = hashlib.sha256(text.encode()).hexdigest()
            self.stored.digests.statistics = hashlib.sha256(packed.getvalue()).hexdigest()
            results.write_scores(self.name, self.texts, self.stored)

    def _keep(self, results: Results) -> None:
        """Keep the stored scores of other metrics, and the stored outputs if there are no new ones."""
        try:
            old = SavedScores.read(results, self.stored.split, self.name)
        except AttnkitError:
            return
        if old is None or _inputs(old.stored) != _inputs(self.stored):
            return
        if not self.texts:
            self.texts = old.texts
            _copy(self.stored, old.stored, "decode", "warnings", "empty_references")
        same_texts = self.texts == old.texts
        kept = {name: score for name, score in old.scores.items() if same_texts or name in TEACHER_FORCED}
        self.scores, self.others = kept | self.scores, old.others if same_texts else {}

    def valid_scores(self, eval: EvalConfig, *, versions: bool = True) -> dict[str, Score]:
        """Return the scores that are valid for these settings and, with `versions`, the installed packages."""
        new, old = scoring_of(eval), self.stored.scoring
        if versions and not new.versions.items() <= old.versions.items():
            return {}
        same = all(getattr(new, key) == getattr(old, key) for key in SCORING)
        return {
            name: score
            for name, score in self.scores.items()
            if (name in TEACHER_FORCED or same) and embedding.current(score, eval) and plugin_metrics.current(score)
        }

    def row(self, system: System) -> ScoreRow:
        """Return the row of a comparison."""
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


def _inputs(entry: StoredSplit) -> tuple[object, ...]:
    """Return everything that outputs and scores depend on."""
    return entry.weights, entry.digests.source, entry.digests.references, entry.search, entry.scoring


def _copy(entry: StoredSplit, old: StoredSplit, *names: str) -> None:
    for name in names:
        setattr(entry, name, getattr(old, name))


def reusable_scores(
    results: Results, entry: StoredSplit, eval: EvalConfig, *, force: bool, of_recipe: bool
) -> SavedScores:
    """Return the part of a saved evaluation that is still valid for the new `entry`; nothing with `force`.

    `of_recipe`: whether the search is that of the run's recipe, whose results have the name of the split.
    For a run without weights, scores by other versions of packages are valid too: their signatures name the versions.

    Raises DataError if the scores are damaged, unless `force` is set.
    """
    saved = SavedScores(entry.split, entry)
    try:
        entries = results.scores()
    except DataError:  # raised before the work, since a damaged file cannot be extended either
        if not force:
            raise
        results.remove_scores()
        entries = {}
    name = stored_name(entries, entry.split, entry.search)
    if not of_recipe:
        saved.name = name or _search_name(entry.split, entry.search)
    try:
        old = None if force or name is None else SavedScores.read(results, entry.split, name)
    except DataError:
        old = None
    if old is None:
        return saved
    new_digests, old_digests = entry.digests, old.stored.digests
    if (old.stored.weights, old_digests.source) == (entry.weights, new_digests.source):
        saved.texts = old.texts
        _copy(entry, old.stored, "decode", "unknown", "sentences", "empty_references", "warnings")
        if old_digests.references == new_digests.references:
            packed = isinstance(results, Run) and bool(results.left_out)
            saved.scores = old.valid_scores(eval, versions=not packed)
    return saved


def packed_row(run: Run, split: str, eval: EvalConfig, names: Sequence[str], search: StoredSearch) -> ScoreRow | None:
    """Return the saved row of these metrics and this search for a run without weights; the corpus is not read.

    Returns None if the run has weights, or if a metric is not saved. Raises DataError if a saved file is damaged.
    """
    name = stored_name(run.scores(), split, search) if run.left_out else None
    saved = None if name is None else SavedScores.read(run, split, name)
    if saved is None:
        return None
    saved.scores = saved.valid_scores(eval, versions=False)
    unknown = () if saved.stored.decode and saved.stored.decode.chosen else CONTEXT
    known = {*map(base_metric, saved.scores), *unknown}
    return saved.row(System.of_run(run)).only(names) if {*names} <= known else None


def scoring_of(eval: EvalConfig) -> StoredScoring:
    """Return the settings and the versions of packages that scores depend on."""
    values = eval.model_dump(mode="json", include={*SCORING})
    return StoredScoring.model_validate(values | {"attnkit": __version__} | _packages())


@cache
def _packages() -> dict[str, str]:
    """Return versions of packages; cached, since the lookup takes as long as reading the scores of a run."""
    return {name: version(name) for name in ("sacrebleu", "rouge-score", "nltk")}


def stored_name(scores: Mapping[str, StoredSplit], split: str, search: StoredSearch) -> str | None:
    """Return the name of the stored results of a split by this search, or None, skipping entries without weights."""
    for name in (split, _search_name(split, search)):
        entry = scores.get(name)
        if entry is not None and entry.weights and entry.search.key == search.key:
            return name
    return None


def _search_name(split: str, search: StoredSearch) -> str:
    return f"{split}.{search.name}"


def digest(*rows: Sequence[str]) -> str:
    """Return the SHA-256 of rows of texts; lengths are hashed too, so that boundaries matter."""
    hashed = hashlib.sha256()
    for row in rows:
        hashed.update(len(row).to_bytes(8, "big"))
        for text in row:
            data = text.encode("utf-8", "surrogatepass")
            hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


def saved_rows(run: Run) -> list[ScoreRow]:
    """Return all saved rows of a run as `attnkit eval RUN` shows them: splits and metrics of the recipe come first.

    Raises MissingInputError if nothing was scored, or DataError if a saved file is damaged.
    """
    splits, recipe_splits = scored_splits(run), list(run.recipe.eval.splits)
    if run.recipe.task == "question-answering":
        spec = run.recipe.contexts
        recipe_splits = [f"{s}.{method}.{n}" for s in recipe_splits for n in spec.counts for method in spec.methods]
    if not splits:
        raise MissingInputError(f"{run.path}: not scored yet: run `attnkit eval {run.path}` first")
    metrics, system, rows = expand(run.recipe.eval.metrics), System.of_run(run), []
    for split in dict.fromkeys([*(name for name in recipe_splits if name in splits), *splits]):
        row = saved_split(run, split).row(system)
        rows.append(row.only(list(dict.fromkeys([*metrics, *map(base_metric, row.scores)]))))
    return rows


def saved_split(run: Run, split: str) -> SavedScores:
    """Return the saved evaluation of a split by the recipe's search, otherwise by another; raises as `saved_rows`."""
    search, entries = StoredSearch.of(one_best(run.recipe.search)), run.scores()
    recipe_name = None if run.recipe.task == "question-answering" else stored_name(entries, split, search)
    names = [recipe_name, split, *(name for name, entry in entries.items() if entry.split == split)]
    saved = SavedScores.read(run, split, next((name for name in names if name in entries), None))
    if saved is None:
        raise MissingInputError(f"{run.path}: {split} is not scored: run `attnkit eval {run.path}`")
    return saved


def one_best(search: SearchConfig) -> SearchConfig:
    """Return the search with one output per line."""
    return search.model_copy(update={"n_best": 1})


def scored_splits(run: Run) -> list[str]:
    """Return the splits that were scored by any search."""
    return [*dict.fromkeys(entry.split or name for name, entry in run.scores().items())]


def _tables(packed: bytes) -> dict[str, Statistics]:
    """Return the statistics [sentences, k] of each metric as float64; results files store integers."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
            raise ValueError(f"statistics of more than {MAX_BYTES >> 20} MB")
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        return {name: np.asarray(array, np.float64) for name, array in arrays.items()}


def _verified(results: Results, path: Path, digest: str) -> bytes:
    """Return the content of a file; raise ValueError unless it has this SHA-256."""
    data = results.read(path.relative_to(results.path).as_posix())
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{path.name} was changed")
    return data
