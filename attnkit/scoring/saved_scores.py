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
from attnkit.recipe.search_text import search_key, search_name
from attnkit.runs import Results, Run
from attnkit.runs.json_files import Decoding
from attnkit.runs.layout import ScoredSplit
from attnkit.scoring.metrics import TEACHER_FORCED, Score, embedding, expand, plugin_metrics
from attnkit.scoring.metrics.base import Statistics
from attnkit.scoring.results import ScoreRow, System
from attnkit.storage import files

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, MemoryError, zipfile.BadZipFile)
LARGEST = 1 << 30
"""Bytes of the statistics of a split that are read, at most."""
MADE_FROM = ("weights", "source", "references", "search", "scoring")
STORED = ("weights", "search", "scoring", "sentences", "empty_references", "unknown", "warnings")
"""Fields that scores.json has under their own names."""
SCORING = ("tokenize", "words", "lowercase", "sentences")
"""Settings of `eval` that scores depend on, but for word vectors."""


@dataclass
class SavedScores:
    """Outputs and scores of one split of one system, and what they were made from."""

    weights: str
    """SHA-256 of the weights."""
    source: str
    """SHA-256 of what was decoded."""
    references: str
    """SHA-256 of what it was compared with."""
    search: dict[str, Any]
    """How it was decoded."""
    scoring: dict[str, Any]
    """How it was scored, with the versions of the packages that did it."""
    split: str
    """The split (of questions: with method and number of contexts)."""
    name: str
    """What it is stored under: the split, or with the name of the search behind it."""
    texts: list[str] = field(default_factory=list)
    """Outputs, one a line; empty where no metric reads them."""
    scores: dict[str, Score] = field(default_factory=dict)
    sentences: int = 0
    empty_references: int = 0
    decoding: Decoding | None = None
    """None where no metric reads outputs."""
    unknown: dict[str, str] = field(default_factory=dict)
    """What of sources and targets the tokenizer does not know, in words."""
    warnings: list[str] = field(default_factory=list)
    others: dict[str, tuple[Any, Statistics]] = field(default_factory=dict)
    """Entries and statistics of metrics that are not known now: those of other plug-ins."""

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
                digests, path = entry["digests"], results.output_path(name)
                data = _verified(results, path, digests["outputs"])
                packed = _verified(results, _statistics_path(path), digests["statistics"])
            tables, texts = _tables(packed), data.decode("utf-8").split("\n")[:-1]
            count, told, decode = entry["sentences"], entry["metrics"], entry.get("decode")
            lines = {len(t) for k, t in tables.items() if base_metric(k) not in TEACHER_FORCED}
            if lengths := {len(texts) or count, *lines} - {count}:
                raise ValueError(f"of {count} sentences, files have {lengths}")
            known = {k: told[k] for k in told if is_known(base_metric(k))}
            entry["scoring"].setdefault("words", "classic")  # until they could be chosen
            return cls(
                source=digests["source"],
                references=digests["references"],
                split=split,
                name=name,
                texts=texts,
                scores={k: Score.of(k, tables[k], told[k]["signature"]) for k in told if k in known},
                others={k: (told[k], tables[k]) for k in told if k not in known},
                decoding=None if decode is None else Decoding.model_validate(decode),
                **{key: entry[key] for key in STORED if key in entry},
            )
        except (*MALFORMED, MissingInputError) as error:
            raise DataError(
                f"{results.path}: the stored evaluation of {split} is damaged ({error}): score again with --fresh"
            ) from error

    def write(self, results: Results) -> None:
        """Save everything; scores.json, which has the other files' digests, comes last."""
        path = results.output_path(self.name)
        files.make_folder(path.parent, parents=results.may_be_made)
        with results.changing():
            self._keep(results)
            told = {name: value.json() for name, value in self.scores.items()}
            tables: dict[str, Any] = {name: one.statistics for name, one in self.scores.items()}
            for name, (entry, table) in self.others.items():
                told[name], tables[name] = entry, table
            packed, text = io.BytesIO(), "".join(f"{text}\n" for text in self.texts)
            np.savez_compressed(packed, **tables)
            files.atomic_write(_statistics_path(path), packed.getvalue())
            entry = {
                "metrics": told,
                "split": self.split,
                **{key: getattr(self, key) for key in STORED},
                **({"decode": self.decoding.model_dump()} if self.decoding else {}),
                "digests": {
                    "source": self.source,
                    "references": self.references,
                    "outputs": hashlib.sha256(text.encode()).hexdigest(),
                    "statistics": hashlib.sha256(packed.getvalue()).hexdigest(),
                },
            }
            results.write_scores(self.name, self.texts, entry)

    def _keep(self, results: Results) -> None:
        """Take over what is stored of metrics that were not measured now, and the outputs where
        none reads them."""
        try:
            old = SavedScores.read(results, self.split, self.name)
        except AttnkitError:
            return
        if old is None or any(getattr(old, k) != getattr(self, k) for k in MADE_FROM):
            return
        for name in () if self.texts else ("texts", "decoding", "warnings", "empty_references"):
            setattr(self, name, getattr(old, name))
        alike = self.texts == old.texts
        kept = {k: v for k, v in old.scores.items() if alike or k in TEACHER_FORCED}
        self.scores, self.others = kept | self.scores, old.others if alike else {}

    def holding(self, eval: EvalConfig, *, versions: bool = True) -> dict[str, Score]:
        """The scores that stand under these settings, and by the same versions of packages."""
        now = scoring_of(eval)
        changed = {key for key in now if self.scoring.get(key) != now[key]}
        if versions and changed - {*SCORING}:
            return {}
        return {
            name: score
            for name, score in self.scores.items()
            if (name in TEACHER_FORCED or not changed & {*SCORING})
            and embedding.current(score, eval)
            and plugin_metrics.current(score)
        }

    def row(self, system: System) -> ScoreRow:
        """The row of a comparison."""
        decoding, part = self.decoding or Decoding(), ScoredSplit.of(self.split)
        return ScoreRow(
            system,
            part.split,
            self.scores,
            self.sentences,
            self.references,
            self.source,
            self.empty_references,
            self.weights,
            self.search,
            sentences_per_second=decoding.sentences_per_second,
            tokens_per_second=decoding.tokens_per_second,
            warnings=tuple(self.warnings),
            length=part.length,
            method=part.method,
            contexts=part.contexts,
            cut=decoding.cut if part.method else None,
        )


def reusable_scores(
    results: Results,
    weights: str,
    split: str,
    eval: EvalConfig,
    *,
    force: bool,
    source: str,
    references: str,
    search: dict[str, Any],
    own: bool = True,
) -> SavedScores:
    """The part of an earlier evaluation of a split that still holds; nothing where `force` is set.

    `weights`, `source` (what is decoded) and `references` are SHA-256 digests.  `own`: it is the
    search of the run's own recipe, whose outputs have the name of the split.  Of a run without its
    weights, scores by other versions of packages hold, too: their signatures name these.

    Raises DataError: the scores are damaged, without `force`.
    """
    saved = SavedScores(weights, source, references, search, scoring_of(eval), split, split)
    try:
        known = results.scores()
    except DataError:  # before the work, since it cannot be written to either
        if not force:
            raise
        results.remove_scores()
        known = {}
    found = stored_name(known, split, search)
    if not own:
        saved.name = found or _name_of(split, search)
    try:
        old = None if force or found is None else SavedScores.read(results, split, found)
    except DataError:
        old = None
    if old is not None and (old.weights, old.source) == (weights, source):
        for name in ("texts", "decoding", "unknown", "sentences", "empty_references", "warnings"):
            setattr(saved, name, getattr(old, name))
        if old.references == references:
            packed = isinstance(results, Run) and bool(results.left_out)
            saved.scores = old.holding(eval, versions=not packed)
    return saved


def packed_scores(run: Run, split: str, eval: EvalConfig, search: Mapping[str, Any]) -> SavedScores | None:
    """What the results of a run without its weights say of a split, decoded by this search.

    The corpus is not read.  Scores by other settings than `eval` are left out.  None where there
    is nothing, or the run has its weights.

    Raises DataError: what was saved is damaged.
    """
    name = stored_name(run.scores(), split, search) if run.left_out else None
    saved = None if name is None else SavedScores.read(run, split, name)
    if saved is not None:
        saved.scores = saved.holding(eval, versions=False)
    return saved


def scoring_of(eval: EvalConfig) -> dict[str, Any]:
    """The settings and the versions of packages that scores depend on, as they are stored."""
    values = eval.model_dump(mode="json")
    return {key: values[key] for key in SCORING} | {"attnkit": __version__} | _packages()


@cache
def _packages() -> dict[str, str]:
    """Looked up once: it takes as long as reading the scores of a run."""
    return {name: version(name) for name in ("sacrebleu", "rouge-score", "nltk")}


def stored_name(scores: Mapping[str, Any], split: str, search: Mapping[str, Any]) -> str | None:
    """What the outputs of a split by this search are stored under; None where there are none."""
    for name in (split, _name_of(split, search)):
        known = scores.get(name, {}).get("search")
        if known is not None and search_key(known) == search_key(search):
            return name
    return None


def _name_of(split: str, search: Mapping[str, Any]) -> str:
    return f"{split}.{search_name(search)}"


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
    search, known = one_best(run.recipe.search).model_dump(mode="json"), run.scores()
    asked = run.recipe.task == "question-answering"
    own = None if asked else stored_name(known, split, search)
    names = [own, split, *(name for name, one in known.items() if one.get("split") == split)]
    saved = SavedScores.read(run, split, next((name for name in names if name in known), None))
    if saved is None:
        raise MissingInputError(f"{run.path}: {split} is not scored: run `attnkit eval {run.path}`")
    return saved


def one_best(search: SearchConfig) -> SearchConfig:
    """The same search with one output a line."""
    return search.model_copy(update={"n_best": 1})


def scored_splits(run: Run) -> list[str]:
    """The splits that were scored, by whatever search."""
    return [*dict.fromkeys(entry.get("split", name) for name, entry in run.scores().items())]


def _statistics_path(path: Path) -> Path:
    """The file of per-sentence statistics beside the outputs."""
    return path.with_name(path.name.removesuffix(".hyp.txt") + ".stats.npz")


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
