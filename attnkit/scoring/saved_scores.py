"""What a folder keeps of an evaluation: outputs, per-sentence statistics, scores.json."""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnkit.errors import DataError, MissingInputError
from attnkit.runs import Results, Run
from attnkit.scoring.comparison import Entry
from attnkit.scoring.metrics import Score, Statistics
from attnkit.storage import files

FACTS = ("sentences", "decode", "warnings")
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, zipfile.BadZipFile)


@dataclass
class SavedScores:
    """What is known of one split of one system."""

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
    """What is reported beside the scores; see FACTS."""

    @classmethod
    def read(cls, results: Results, split: str) -> "SavedScores | None":
        """What is stored in a folder, or None.

        Raises:
            DataError: a file is missing or is not the one that was stored.
        """
        entry = results.scores().get(split)
        if entry is None:
            return None
        try:
            digests = entry["digests"]
            path = results.output_path(split)
            data = _verified(path, digests["outputs"])
            tables = _tables(_verified(_beside(path), digests["statistics"]))
            return cls(
                entry["weights"],
                digests["source"],
                digests["references"],
                dict(entry["search"]),
                dict(entry["scoring"]),
                data.decode("utf-8").split("\n")[:-1],
                {k: Score.of(k, tables[k], v["signature"]) for k, v in entry["metrics"].items()},
                {key: entry[key] for key in FACTS if key in entry or key != "decode"},
            )
        except (*MALFORMED, MissingInputError) as error:
            raise DataError(
                f"{results.path}: the stored evaluation of {split} is damaged ({error}): "
                "score again with --fresh"
            ) from error

    def write(self, results: Results, split: str) -> None:
        """Store everything; scores.json, which has the other files' digests, comes last."""
        path = results.output_path(split)
        files.make_folder(path.parent, results.fs)
        packed = io.BytesIO()
        tables: dict[str, Any] = {name: value.statistics for name, value in self.scores.items()}
        np.savez_compressed(packed, **tables)
        files.atomic_write(_beside(path), packed.getvalue(), results.fs)
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
        """The row of a comparison, of a system as `described` tells it."""
        decode = self.facts.get("decode", {})
        row = {
            **{name: system[name] for name in ("recipe", "variant", "seed")},
            "split": split,
            "metrics": {name: value.json() for name, value in self.scores.items()},
            "sentences": self.facts["sentences"],
            **{name: system[name] for name in ("parameters", "train_tokens_per_second")},
            "decode_sentences_per_second": decode.get("sentences_per_second"),
            "decode_tokens_per_second": decode.get("tokens_per_second"),
            "run": system["run"],
            "weights": self.weights,
            "search": self.search,
            "warnings": self.facts["warnings"],
        }
        return Entry(row, self.scores, self.references)


def described(run: Run) -> dict[str, Any]:
    """What a finished run is, for the rows of comparisons."""
    return {
        "recipe": run.name,
        "variant": run.variant,
        "seed": run.seed,
        "parameters": run.manifest.get("parameters"),
        "train_tokens_per_second": run.manifest["finished"].get("tokens_per_second"),
        "run": run.path.as_posix(),
    }


def _beside(path: Path) -> Path:
    """The file of per-sentence statistics beside the outputs."""
    return path.with_name(path.name.removesuffix(".hyp.txt") + ".stats.npz")


def _verified(path: Path, digest: str) -> bytes:
    """The content of a file that must have this SHA-256."""
    files.require_file(path)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{path.name} was changed")
    return data


def _tables(data: bytes) -> dict[str, Statistics]:
    """Statistics [sentences, k] of each metric; nothing that needs pickle is read."""
    with np.load(io.BytesIO(data), allow_pickle=False) as tables:
        return {name: tables[name] for name in tables.files}
