"""What an evaluation saves in a folder: outputs, per-sentence statistics, scores.json."""

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from attnkit import __version__
from attnkit.errors import DataError, MissingInputError
from attnkit.recipe.schema import EvalConfig
from attnkit.runs import Results, Run
from attnkit.scoring.comparison import Entry
from attnkit.scoring.metrics import Score, embedding
from attnkit.storage import files

SAVED_FACTS = ("sentences", "decode", "warnings")
TRAINING_FACTS = ("parameters", "train_updates", "train_seconds", "train_tokens_per_second",
                  "train_peak_memory_bytes", "train_device", "train_threads",
                  "train_precision")  # fmt: skip
"""What a row says of how its system was trained; null for one from elsewhere."""
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, zipfile.BadZipFile)


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

    @classmethod
    def read(cls, results: Results, split: str) -> "SavedScores | None":
        """What is saved in a folder, or None.

        Raises:
            DataError: a file is missing or is not the one that was saved.
        """
        entry = results.scores().get(split)
        if entry is None:
            return None
        try:
            digests = entry["digests"]
            path = results.output_path(split)
            data = _verified(path, digests["outputs"])
            packed = io.BytesIO(_verified(_statistics_path(path), digests["statistics"]))
            with np.load(packed, allow_pickle=False) as arrays:  # [sentences, k] of each metric
                tables = dict(arrays)
            return cls(
                entry["weights"],
                digests["source"],
                digests["references"],
                dict(entry["search"]),
                dict(entry["scoring"]),
                data.decode("utf-8").split("\n")[:-1],
                {k: Score.of(k, tables[k], v["signature"]) for k, v in entry["metrics"].items()},
                {key: entry[key] for key in SAVED_FACTS if key in entry or key != "decode"},
            )
        except (*MALFORMED, MissingInputError) as error:
            raise DataError(
                f"{results.path}: the stored evaluation of {split} is damaged ({error}): "
                "score again with --fresh"
            ) from error

    def write(self, results: Results, split: str) -> None:
        """Save everything; scores.json, which has the other files' digests, comes last."""
        path = results.output_path(split)
        files.make_folder(path.parent, results.fs)
        packed = io.BytesIO()
        tables: dict[str, Any] = {name: value.statistics for name, value in self.scores.items()}
        np.savez_compressed(packed, **tables)
        files.atomic_write(_statistics_path(path), packed.getvalue(), results.fs)
        text = "".join(f"{text}\n" for text in self.texts)
        scores = {
            "metrics": {name: value.json() for name, value in self.scores.items()},
            **self.facts,
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
        results.write_scores(split, self.texts, scores)

    def entry(self, system: Mapping[str, Any], split: str) -> Entry:
        """The row of a comparison, of a system as by `describe_run`."""
        decode = self.facts.get("decode", {})
        row = {
            **{name: system[name] for name in ("recipe", "variant", "seed")},
            "split": split,
            "metrics": {name: value.json() for name, value in self.scores.items()},
            "sentences": self.facts["sentences"],
            **{name: system.get(name) for name in TRAINING_FACTS},
            "decode_sentences_per_second": decode.get("sentences_per_second"),
            "decode_tokens_per_second": decode.get("tokens_per_second"),
            "run": system["run"],
            "weights": self.weights,
            "search": self.search,
            "warnings": self.facts["warnings"],
        }
        return Entry(row, self.scores, self.references)


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
) -> SavedScores:
    """The part of an earlier evaluation of a split that still holds; nothing where `force` is set.

    `weights`, `source` (what is decoded) and `references` are SHA-256 digests.

    Raises:
        DataError: the scores are damaged, without `force`.
    """
    scoring = {
        "tokenize": eval.model_dump(mode="json")["tokenize"],
        "lowercase": eval.lowercase,
        "sentences": eval.sentences,
        "attnkit": __version__,
        "sacrebleu": version("sacrebleu"),
        "rouge-score": version("rouge-score"),
        "nltk": version("nltk"),
    }
    saved = SavedScores(weights, source, references, search, scoring)
    try:
        results.scores()
    except DataError as error:  # before the work, since it cannot be written to either
        if not force:
            text = f"{error}; remove this file, or replace it by `attnkit eval --fresh`"
            raise DataError(text) from error
        results.remove_scores()
    try:
        old = None if force else SavedScores.read(results, split)
    except DataError:
        return saved
    if old is None or (old.weights, old.source, old.search) != (weights, source, search):
        return saved
    saved.texts, saved.facts = old.texts, old.facts
    if (old.scoring, old.references) == (scoring, references):
        saved.scores = {
            name: score for name, score in old.scores.items() if embedding.current(score, eval)
        }
    return saved


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
    """The description of a finished run in the rows of comparisons."""
    finished = run.manifest["finished"]
    return {
        "recipe": run.name,
        "variant": run.variant,
        "seed": run.seed,
        "parameters": run.manifest.get("parameters"),
        **{f"train_{name}": finished.get(name) for name in
           ("updates", "seconds", "tokens_per_second", "peak_memory_bytes")},
        **{f"train_{name}": run.manifest.get(name) for name in ("device", "threads", "precision")},
        "run": run.path.as_posix(),
    }  # fmt: skip


def _statistics_path(path: Path) -> Path:
    """The file of per-sentence statistics beside the outputs."""
    return path.with_name(path.name.removesuffix(".hyp.txt") + ".stats.npz")


def _verified(path: Path, digest: str) -> bytes:
    """The content of a file that must have this SHA-256."""
    files.require_file(path)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{path.name} was changed")
    return data
