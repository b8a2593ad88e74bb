"""Splits that a run was scored on: the run stores small ones, and hashes of the others.

    data/<split>.jsonl    its rows as they were read, up to `MAX_BYTES` bytes
    data/<split>.json     {"rows", "bytes", "fingerprint", "sha256", "contexts"}

A run can thus be scored from any folder and on any machine, without the corpus. `fingerprint` is the SHA-256 of the
corpus split, `sha256` that of the stored rows (null if they are not stored). `contexts` is the number of passages
generated for each question, null if the passages come from files.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.data.corpus import Corpus, require_split, splits_of
from attnkit.data.rows import Row
from attnkit.errors import AttnkitError, DataError, MissingInputError
from attnkit.recipe.data_rules import SPLITS
from attnkit.recipe.schema import SplitSizes
from attnkit.runs import json_files, layout
from attnkit.runs.json_files import KeptSplit
from attnkit.storage import files

if TYPE_CHECKING:
    from attnkit.runs.run import Run

MAX_BYTES = 10_000_000
"""Maximum bytes of rows of a split that is stored in a run."""
TRAIN = "train"
"""The split that no run stores."""


class RunCorpus:
    """The data a run is scored on: splits stored in the run, other splits from its corpus.

    If the corpus is available too but has changed, a warning says so, and the stored rows are used.
    """

    def __init__(
        self,
        run: "Run",
        data_dir: str | Path | None = None,
        offline: bool = False,
        *,
        fresh: bool = False,
        keep: bool = False,
    ) -> None:
        """Choose the data: `fresh` ignores stored rows if the corpus has changed, `keep` stores splits that are read.

        Raises:
            MissingInputError: If the folder `data_dir` does not exist.
        """
        self.run, self.offline, self.fresh, self.keep = run, offline, fresh, keep
        self.data_dir = None if data_dir is None else Path(data_dir)
        if self.data_dir:
            files.require_folder(self.data_dir, "folder", " (--data-dir)")

    def rows(self, split: str, length: int | None = None) -> Iterator[Row]:
        """Return the rows of a split in order; as `Corpus.rows`, with its errors, if the run does not store them.

        `length` is one of `eval.lengths`. It changes generated rows, which a run does not store, but not running text,
        which is cut into windows of this length later.
        """
        if length and self.run.recipe.task in ("recall", "tagging"):
            return self._corpus(split).rows(split, length=length)
        if self.run.recipe.task == "question-answering" or split == TRAIN:
            return self._corpus(split).rows(split)
        return iter(self._load_rows(split, 0))

    def questions(self, split: str, contexts: int) -> list[Row]:
        """Return the questions of a split with their passages, as `Corpus.questions`."""
        if split == TRAIN:
            return self._corpus(split).questions(split, contexts)
        return self._load_rows(split, contexts)

    def stores(self, split: str) -> bool:
        """Return whether the run stores the rows of a split."""
        return self._has_rows(self._stored(split))

    def _has_rows(self, stored: KeptSplit | None) -> bool:
        """Return whether the rows are stored, by data/<split>.json; results files have no rows."""
        return stored is not None and stored.sha256 is not None and not self.run.left_out

    def _load_rows(self, split: str, contexts: int) -> list[Row]:
        """Return the stored rows, otherwise those of the corpus."""
        self._require_split(split)
        stored = self._stored(split)
        if stored and stored.contexts not in (None, contexts):  # generated with another number of passages
            stored = None
        if stored and self._available(split) not in (None, stored.fingerprint):
            if self.run.left_out:
                raise MissingInputError(
                    f"{self.run.path}: the corpus has changed since {split} was scored"
                    " (its SHA-256 differs), and results files have no rows"
                )
            rows_used = "the run's stored rows are used" if stored.sha256 else "the new rows are used"
            if self.fresh:
                stored = None
            else:
                warnings.warn(
                    f"{self.run.path}: the corpus has changed since {split} was scored"
                    f" (its SHA-256 differs): {rows_used}; `eval --fresh` scores the new corpus",
                    stacklevel=2,
                )
        if self._has_rows(stored):
            return self._stored_rows(split)
        try:
            corpus = self._corpus(split)
            rows = corpus.questions(split, contexts) if contexts else list(corpus.rows(split))
        except MissingInputError as error:
            if stored is None:
                raise
            reason = f"{stored.bytes / 1e6:,.0f} MB of rows are too many to store in a run"
            if self.run.left_out:
                reason = "results files have no sources and references"
            raise MissingInputError(f"{self.run.path}: {split}: {reason}: {error}") from error
        if not stored and self.keep:
            with suppress(AttnkitError):  # a read-only run can be scored without storing rows
                self._store(split, rows, corpus, contexts)
        return rows

    def _require_split(self, split: str) -> None:
        data = self.run.recipe.data
        require_split(data.corpus or str(self.run.path), split, splits_of(data))

    def _corpus(self, split: str) -> Corpus:
        """Open the corpus; of the user's own files, only those that this split needs."""
        recipe = self.run.recipe
        data = recipe.data
        self._require_split(split)
        if data.corpus is None:
            needed = (split, "train") if data.split_off(split) else (split,)
            left_out = dict.fromkeys(name for name in SPLITS if name not in needed)
            unsplit = {} if "train" in needed else {"split": SplitSizes()}
            data = data.model_copy(update=left_out | unsplit)
        return Corpus.open(data, recipe.task, data_dir=self.data_dir, offline=self.offline)

    def _available(self, split: str) -> str | None:
        """Return the fingerprint of a split; None if it is not available without a download."""
        with suppress(AttnkitError):
            corpus = self._corpus(split)
            if split in corpus.splits and corpus.available(split):
                return corpus.fingerprint(split)
        return None

    def _name(self, split: str, suffix: str) -> str:
        return f"{layout.DATA}/{layout.component(f'{split}{suffix}')}"

    def _stored(self, split: str) -> KeptSplit | None:
        """Return the contents of data/<split>.json; None if it does not exist."""
        name = self._name(split, ".json")
        if not self.run.has(name) or not self.run.recorded(name):
            return None
        self.run.check_file(name)
        return json_files.parse(self.run.read_json(name), KeptSplit, str(self.run.path / name))

    def stored_bytes(self, split: str) -> bytes:
        """Return the content of data/<split>.jsonl. Raises DataError or MissingInputError if changed or missing."""
        name = self._name(split, ".jsonl")
        with self.run.unchanged():
            data, stored = self.run.read(name), self._stored(split)
        if stored is None or hashlib.sha256(data).hexdigest() != stored.sha256:
            raise DataError(
                f"{self.run.path / name}: was changed after scoring (its SHA-256 differs from {split}.json); "
                f"remove {split}.json to read the corpus again"
            )
        return data

    def _stored_rows(self, split: str) -> list[Row]:
        rows, file = list[Row](), str(self.run.path / self._name(split, ".jsonl"))
        for number, line in enumerate(self.stored_bytes(split).split(b"\n")[:-1], 1):
            try:
                value = json.loads(line)  # also decodes surrogates
            except (ValueError, RecursionError) as error:
                raise DataError(f"{file}:{number}: not valid JSON: {error}") from error
            row = json_files.parse(value, json_files.KeptRow, f"{file}:{number}")
            texts = tuple(row.references), tuple(row.contexts)
            rows.append(Row(row.source, row.target, *texts, row.gold))
        return rows

    def _store(self, split: str, rows: list[Row], corpus: Corpus, contexts: int) -> None:
        """Store the rows if they are small enough, and then their description."""
        lines, size = list[bytes](), 0
        for row in rows:
            text = json.dumps(row._asdict(), ensure_ascii=False, separators=(",", ":"))
            line = text.encode("utf-8", "surrogatepass") + b"\n"
            size += len(line)
            if size <= MAX_BYTES:
                lines.append(line)
        data = b"".join(lines) if size <= MAX_BYTES else None
        description = {
            "rows": len(rows),
            "bytes": size,
            "fingerprint": corpus.fingerprint(split),
            "sha256": None if data is None else hashlib.sha256(data).hexdigest(),
            "contexts": contexts if corpus.generated else None,
        }
        name, written = self._name(split, ".json"), files.json_text(description).encode("utf-8")
        path = self.run.path / self._name(split, ".jsonl")
        files.make_folder(path.parent, parents=False)
        with self.run.changing():
            self.run.record(name, None)
            if data is not None:
                files.atomic_write(path, data)
            files.atomic_write(self.run.path / name, written)
            self.run.record(name, hashlib.sha256(written).hexdigest())
