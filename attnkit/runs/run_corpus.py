"""The splits that a run was scored on: small ones are kept in the run, of others their hashes.

    data/<split>.jsonl    its rows as they were read, up to `LARGEST` bytes
    data/<split>.json     {"rows", "bytes", "fingerprint", "sha256", "contexts"}

So a run is scored from any folder and on any machine, without the corpus.  `fingerprint` is that
of the corpus, `sha256` that of the rows, null where they are not kept.  `contexts` is how many
passages were generated for each question, null where files have them.
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

LARGEST = 10_000_000
"""Bytes of the rows of a split that is kept in a run, at most."""
TRAIN = "train"
"""The split that no run keeps."""


class RunCorpus:
    """What a run is scored on: the splits that it keeps, others from its corpus.

    Where the corpus is at hand as well and is another one, a warning says so, and the rows that the
    run keeps are taken.
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
        """With `keep` a split that is read is kept in the run.

        `fresh` takes it from the corpus where that is at hand, and in place of what was kept.

        Raises MissingInputError: there is no folder `data_dir`.
        """
        self.run, self.offline, self.fresh, self.keep = run, offline, fresh, keep
        self.data_dir = None if data_dir is None else Path(data_dir)
        if self.data_dir:
            files.require_folder(self.data_dir, "folder", " (--data-dir)")

    def rows(self, split: str, length: int | None = None) -> Iterator[Row]:
        """The rows of a split in order, as `Corpus.rows`; raises as that where the run lacks it.

        `length` is one of `eval.lengths`: it makes no difference to running text, which is cut in
        windows of it, but generated rows have it.  A run does not keep those.
        """
        if length and self.run.recipe.task in ("recall", "tagging"):
            return self._corpus(split).rows(split, length=length)
        if self.run.recipe.task == "question-answering" or split == TRAIN:
            return self._corpus(split).rows(split)
        return iter(self._split(split, 0))

    def questions(self, split: str, contexts: int) -> list[Row]:
        """The questions of a split with their passages, as `Corpus.questions`."""
        if split == TRAIN:
            return self._corpus(split).questions(split, contexts)
        return self._split(split, contexts)

    def keeps(self, split: str) -> bool:
        """Whether the run itself has the rows of a split."""
        return self._has_rows(self._kept(split))

    def _has_rows(self, kept: KeptSplit | None) -> bool:
        """Whether it has them, by what data/<split>.json says; packed results have no rows."""
        return kept is not None and kept.sha256 is not None and not self.run.left_out

    def _split(self, split: str, contexts: int) -> list[Row]:
        """The rows that are kept, else those of the corpus."""
        self._require(split)
        kept = self._kept(split)
        if kept and kept.contexts not in (None, contexts):  # generated with fewer passages, or more
            kept = None
        if kept and self._available(split) not in (None, kept.fingerprint):
            if self.run.left_out:
                raise MissingInputError(
                    f"{self.run.path}: the corpus at hand is not the one that {split} was scored on"
                    " (its SHA-256 differs), and the results have no rows"
                )
            taken = "the rows kept in the run are used" if kept.sha256 else "its rows are used"
            if self.fresh:
                kept = None
            else:
                warnings.warn(
                    f"{self.run.path}: the corpus at hand is not the one that {split} was scored on"
                    f" before (its SHA-256 differs): {taken}; `eval --fresh` takes it",
                    stacklevel=2,
                )
        if self._has_rows(kept):
            return self._kept_rows(split)
        try:
            corpus = self._corpus(split)
            asked = corpus.questions(split, contexts) if contexts else list(corpus.rows(split))
        except MissingInputError as error:
            if kept is None:
                raise
            why = f"{kept.bytes / 1e6:,.0f} MB of rows are not kept in a run"
            if self.run.left_out:
                why = "sources and references are not kept with results"
            raise MissingInputError(f"{self.run.path}: {split}: {why}: {error}") from error
        if not kept and self.keep:
            with suppress(AttnkitError):  # a run that cannot be written is scored all the same
                self._keep(split, asked, corpus, contexts)
        return asked

    def _require(self, split: str) -> None:
        data = self.run.recipe.data
        require_split(data.corpus or str(self.run.path), split, splits_of(data))

    def _corpus(self, split: str) -> Corpus:
        """The corpus; of files of one's own those of this split alone, which suffice."""
        recipe = self.run.recipe
        data = recipe.data
        self._require(split)
        if data.corpus is None:
            needed = (split, "train") if data.split_off(split) else (split,)
            left_out = dict.fromkeys(name for name in SPLITS if name not in needed)
            unsplit = {} if "train" in needed else {"split": SplitSizes()}
            data = data.model_copy(update=left_out | unsplit)
        return Corpus.open(data, recipe.task, data_dir=self.data_dir, offline=self.offline)

    def _available(self, split: str) -> str | None:
        """The fingerprint of a split, None where it is not there without a download."""
        with suppress(AttnkitError):
            corpus = self._corpus(split)
            if split in corpus.splits and corpus.available(split):
                return corpus.fingerprint(split)
        return None

    def _name(self, split: str, suffix: str) -> str:
        """The file of a split in the run."""
        return f"{layout.DATA}/{layout.component(f'{split}{suffix}')}"

    def _kept(self, split: str) -> KeptSplit | None:
        """What data/<split>.json says; None where there is none."""
        name = self._name(split, ".json")
        if not self.run.has(name) or not self.run.recorded(name):
            return None
        self.run.check_file(name)
        return json_files.parse(self.run.read_json(name), KeptSplit, str(self.run.path / name))

    def kept(self, split: str) -> bytes:
        """The lines of data/<split>.jsonl.

        Raises DataError, MissingInputError: the file is not what was scored, or not there.
        """
        name = self._name(split, ".jsonl")
        with self.run.unchanged():
            data, kept = self.run.read(name), self._kept(split)
        if kept is None or hashlib.sha256(data).hexdigest() != kept.sha256:
            raise DataError(
                f"{self.run.path / name}: is not what was scored (its SHA-256 differs from "
                f"{split}.json); remove {split}.json to read the corpus again"
            )
        return data

    def _kept_rows(self, split: str) -> list[Row]:
        rows, file = list[Row](), str(self.run.path / self._name(split, ".jsonl"))
        for number, line in enumerate(self.kept(split).split(b"\n")[:-1], 1):
            try:
                value = json.loads(line)  # which reads surrogates, too
            except (ValueError, RecursionError) as error:
                raise DataError(f"{file}:{number}: not valid JSON: {error}") from error
            one = json_files.parse(value, json_files.KeptRow, f"{file}:{number}")
            texts = tuple(one.references), tuple(one.contexts)
            rows.append(Row(one.source, one.target, *texts, one.gold))
        return rows

    def _keep(self, split: str, rows: list[Row], corpus: Corpus, contexts: int) -> None:
        """Store the rows where they are few, and what they are; the latter last."""
        lines, size = list[bytes](), 0
        for row in rows:
            text = json.dumps(row._asdict(), ensure_ascii=False, separators=(",", ":"))
            line = text.encode("utf-8", "surrogatepass") + b"\n"
            size += len(line)
            if size <= LARGEST:
                lines.append(line)
        data = b"".join(lines) if size <= LARGEST else None
        about = {
            "rows": len(rows),
            "bytes": size,
            "fingerprint": corpus.fingerprint(split),
            "sha256": None if data is None else hashlib.sha256(data).hexdigest(),
            "contexts": contexts if corpus.generated else None,
        }
        name, written = self._name(split, ".json"), files.json_text(about).encode("utf-8")
        path = self.run.path / self._name(split, ".jsonl")
        files.make_folder(path.parent, parents=False)
        with self.run.changing():
            self.run.record(name, None)
            if data is not None:
                files.atomic_write(path, data)
            files.atomic_write(self.run.path / name, written)
            self.run.record(name, hashlib.sha256(written).hexdigest())
