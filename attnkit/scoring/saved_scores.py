"""What an evaluation saves in a folder: outputs, per-sentence statistics, scores.json.

What the search of the run's own recipe gave is stored under the name of the split; what another
search gave stands beside it, under `<split>.<search>`, such as `test.beam-4-1a2b3c4d`.
"""

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from attnkit import __version__
from attnkit.errors import DataError, MissingInputError
from attnkit.recipe import Recipe, flat
from attnkit.recipe.schema import EvalConfig
from attnkit.recipe.search_text import search_key, search_name
from attnkit.runs import Results, Run, layout
from attnkit.runs.layout import WINDOWS, windows_name
from attnkit.scoring.metrics import TEACHER_FORCED, Score, embedding
from attnkit.scoring.metrics.base import Statistics
from attnkit.scoring.systems import Entry
from attnkit.storage import files

SAVED_FACTS = ("sentences", "empty_references", "decode", "unknown", "warnings")
SOMETIMES = (
    "empty_references",
    "decode",
    "unknown",
)  # facts that a run has not, by what it was scored
TRAINING_FACTS = ("parameters", "train_updates", "train_seconds", "train_tokens_per_second",
                  "train_peak_memory_bytes", "train_device", "train_threads",
                  "train_precision", "train_processes")  # fmt: skip
"""What a row says of how its system was trained; null for one from elsewhere."""
LATER = ("train.seeds", "search.", "eval.", "contexts.")
"""Keys of a recipe in which seeds of one system may differ."""
FILES = ("data.train", "data.valid", "data.test", "tokenizer.model")
"""Keys of a recipe that name files, whose content has a digest in the manifest."""
BUDGET = ("steps", "batch_tokens", "accumulate")
"""Keys of `train` that say how much a system may learn from."""
RUN_ID = 12
"""Digits of the id of a run."""
CONDITION = re.compile(r"(.+)\.([a-z-]+)\.(\d+)$")
"""Under what name answers to questions are stored: split, method, number of contexts."""
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, MemoryError, zipfile.BadZipFile)
LARGEST = 1 << 30
"""Bytes of the statistics of a split that are read, at most."""
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
    texts: list[str] = field(default_factory=list)
    """Outputs, one a line; empty where no metric reads them."""
    scores: dict[str, Score] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """What is reported beside the scores; see SAVED_FACTS."""
    split: str = ""
    """The split (of questions: with method and number of contexts)."""
    name: str = ""
    """What it is stored under: the split, or with the name of the search behind it."""

    @classmethod
    def read(cls, results: Results, split: str, name: str | None = None) -> "SavedScores | None":
        """What is saved of a split in a folder, under its own or another name, or None.

        Raises:
            DataError: a file is missing or is not the one that was saved.
        """
        name = name or split
        entry = results.scores().get(name)
        if entry is None:
            return None
        try:
            digests = entry["digests"]
            path = results.output_path(name)
            data = _verified(results, path, digests["outputs"])
            tables = _tables(_verified(results, _statistics_path(path), digests["statistics"]))
            return cls(
                entry["weights"],
                digests["source"],
                digests["references"],
                dict(entry["search"]),
                {"words": "classic", **entry["scoring"]},  # until they could be chosen
                data.decode("utf-8").split("\n")[:-1],
                {k: Score.of(k, tables[k], v["signature"]) for k, v in entry["metrics"].items()},
                {key: entry[key] for key in SAVED_FACTS if key in entry or key not in SOMETIMES},
                split,
                name,
            )
        except (*MALFORMED, MissingInputError) as error:
            raise DataError(
                f"{results.path}: the stored evaluation of {split} is damaged ({error}): "
                "score again with --fresh"
            ) from error

    def write(self, results: Results) -> None:
        """Save everything; scores.json, which has the other files' digests, comes last."""
        self._set_aside(results)
        path = results.output_path(self.name)
        files.make_folder(path.parent, results.fs, parents=results.may_be_made)
        packed = io.BytesIO()
        tables: dict[str, Any] = {name: value.statistics for name, value in self.scores.items()}
        np.savez_compressed(packed, **tables)
        files.atomic_write(_statistics_path(path), packed.getvalue(), results.fs)
        text = "".join(f"{text}\n" for text in self.texts)
        scores = {
            "metrics": {name: value.json() for name, value in self.scores.items()},
            **self.facts,
            "split": self.split,
            "weights": self.weights,
            "search": self.search,
            "scoring": self.scoring,
            "digests": {
                "source": self.source,
                "references": self.references,
                "outputs": hashlib.sha256(text.encode()).hexdigest(),
                "statistics": hashlib.sha256(packed.getvalue()).hexdigest(),
            },
        }
        results.write_scores(self.name, self.texts, scores)

    def _set_aside(self, results: Results) -> None:
        """Give what another search left under this name a name of its own."""
        try:
            old = SavedScores.read(results, self.split, self.name)
        except DataError:
            return
        if old is not None and old.weights == self.weights and not _same(old, self):
            old.name = _name_of(self.split, old.search)
            old.write(results)

    def entry(self, system: Mapping[str, Any]) -> Entry:
        """The row of a comparison, of a system as by `describe_run`."""
        decode, windows = self.facts.get("decode", {}), WINDOWS.fullmatch(self.split)
        row = {
            **{name: system[name] for name in ("recipe", "variant", "seed")},
            "split": windows[1] if windows else self.split,
            **({"length": int(windows[2])} if windows else {}),
            "metrics": {name: value.json() for name, value in self.scores.items()},
            "sentences": self.facts["sentences"],
            "empty_references": self.facts.get("empty_references", 0),
            **{name: system.get(name) for name in (*TRAINING_FACTS, "corpus", "budget")},
            **{name: system[name] for name in ("tuned", "train_lr") if system.get(name)},
            "changes": system.get("changes", []),
            "decode_sentences_per_second": decode.get("sentences_per_second"),
            "decode_tokens_per_second": decode.get("tokens_per_second"),
            "run": system["run"],
            "run_id": self.weights[:RUN_ID],
            "weights": self.weights,
            "search": self.search,
            "search_from": "run",
            "digests": {"source": self.source, "references": self.references},
            "warnings": self.facts["warnings"],
        }
        return Entry(row, self.scores, self.references, system.get("settings", {}))


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
    search of the run's own recipe, whose outputs have the name of the split.

    Raises:
        DataError: the scores are damaged, without `force`.
    """
    scoring = {
        **_settings(eval),
        "attnkit": __version__,
        "sacrebleu": version("sacrebleu"),
        "rouge-score": version("rouge-score"),
        "nltk": version("nltk"),
    }
    saved = SavedScores(weights, source, references, search, scoring, split=split, name=split)
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
        return saved
    if old is None or (old.weights, old.source) != (weights, source):
        return saved
    saved.texts, saved.facts = old.texts, old.facts
    if (old.scoring, old.references) == (scoring, references):
        saved.scores = {
            name: score for name, score in old.scores.items() if embedding.current(score, eval)
        }
    return saved


def packed_scores(
    run: Run, split: str, eval: EvalConfig, search: Mapping[str, Any]
) -> SavedScores | None:
    """What the results of a run without its weights say of a split, decoded by this search.

    The corpus is not read.  Scores by other settings than `eval` are left out; those by other
    versions of packages, which the signatures name, are not.  None where there is nothing, or the
    run has its weights.

    Raises:
        DataError: what was saved is damaged.
    """
    name = stored_name(run.scores(), split, search) if run.left_out else None
    saved = None if name is None else SavedScores.read(run, split, name)
    if saved is not None:
        settings = _settings(eval)
        same = settings == {key: saved.scoring.get(key, settings[key]) for key in SCORING}
        saved.scores = {
            metric: score for metric, score in saved.scores.items()
            if (same or metric in TEACHER_FORCED) and embedding.current(score, eval)
        }  # fmt: skip
    return saved


def _settings(eval: EvalConfig) -> dict[str, Any]:
    """The settings that scores depend on, as they are stored."""
    values = eval.model_dump(mode="json")
    return {key: values[key] for key in SCORING}


def stored_name(scores: Mapping[str, Any], split: str, search: Mapping[str, Any]) -> str | None:
    """What the outputs of a split by this search are stored under; None where there are none."""
    for name in (split, _name_of(split, search)):
        entry = scores.get(name)
        known = entry.get("search") if isinstance(entry, Mapping) else None
        if isinstance(known, Mapping) and search_key(known) == search_key(search):
            return name
    return None


def stored_splits(eval: EvalConfig) -> list[str]:
    """Under what names an evaluation stores the splits of a recipe."""
    if not eval.lengths:
        return [*eval.splits]
    return [windows_name(split, length) for split in eval.splits for length in eval.lengths]


def _same(one: SavedScores, other: SavedScores) -> bool:
    """Whether two searches give the same outputs."""
    return search_key(one.search) == search_key(other.search)


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


def describe_run(run: Run) -> dict[str, Any]:
    """The description of a finished run in the rows of comparisons.

    `settings` are those keys of its recipe by which it is told from another seed of the same
    system: all but those of seeds, search and scoring.  Files of data count by their content, so
    that moved runs stay equal.
    """
    finished, recipe = run.manifest["finished"], run.recipe
    processes = int(run.manifest.get("world_size", 1))
    settings = {key: value for key, value in flat(recipe).items() if not key.startswith(LATER)}
    hashes = run.manifest.get("hashes", {})
    if data := hashes.get("data"):
        settings = {key: value for key, value in settings.items() if key not in FILES}
        settings["data"] = data[:8]
    return {
        "recipe": run.name,
        "variant": run.variant,
        "seed": run.seed,
        "parameters": run.manifest.get("parameters"),
        **{f"train_{name}": finished.get(name) for name in
           ("updates", "seconds", "tokens_per_second", "peak_memory_bytes")},
        **{f"train_{name}": run.manifest.get(name) for name in ("device", "threads", "precision")},
        "train_processes": processes,
        "run": run.path.as_posix(),
        "corpus": recipe.data.corpus,
        "training_data": hashes.get("corpus"),
        "budget": _budget(recipe, processes),
        "changes": list(run.manifest.get("changes", [])),
        "tuned": run.manifest.get(layout.TUNED),
        "train_lr": None if recipe.model.counted else recipe.train.lr,
        "settings": settings,
    }  # fmt: skip


def run_id(run: Run) -> str:
    """What tells a run from others in tables: the beginning of the SHA-256 of its weights."""
    return str(run.manifest["files"].get(layout.MODEL) or "")[:RUN_ID]


def _budget(recipe: Recipe, processes: int) -> dict[str, int] | None:
    """How much a training may learn from; None of a model that is counted."""
    if recipe.model.counted:
        return None
    budget = {name: getattr(recipe.train, name) for name in BUDGET}
    return budget | {"accumulate": recipe.train.accumulate * processes}


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
