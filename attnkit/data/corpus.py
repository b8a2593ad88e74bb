"""Corpora for training and scoring: splits of rows, from files or from a generator.

Validation and test rows may be taken from the training data (`data.split`), all rows of a source together: no training
row has the source of a validation or test row, however often the file repeats it. The selection is a pure function of
the rows, their order and the seed. In language modeling the text replaces the source.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from attnkit.data import formats, questions
from attnkit.data.corpus_files import CardFiles, Progress, file_digest, resolve_file
from attnkit.data.draw import Draw
from attnkit.data.records import labeled, read_rows
from attnkit.data.rows import Counts, Row
from attnkit.data.synthetic.generators import generator_of
from attnkit.data.text_form import clean, normal_form
from attnkit.errors import DataError, MissingInputError, RecipeError
from attnkit.recipe import corpus_cards
from attnkit.recipe.data_rules import SPLITS, available_splits, data_issues, files_of, format_of
from attnkit.recipe.schema import DataConfig
from attnkit.storage.cache import cache_dir
from attnkit.storage.files import require_folder, sha256_json
from attnkit.text import counted, nearest, quoted

RECORDS = ("jsonl", "csv", "tsv", "parquet")
"""Formats of files with named fields."""
VERSION = 1
"""Version of the readers; increased when the same files and options would give other rows."""
Languages = tuple[str | None, str | None]


class SplitPart(NamedTuple):
    """File, or two aligned files, of a split; the parts of a split are read in order."""

    format: str
    files: tuple[corpus_cards.File | Path, ...]


class Corpus:
    """Rows by split. Created by `Corpus.open`."""

    def __init__(
        self,
        name: str,
        languages: Languages,
        splits: Mapping[str, Sequence[SplitPart]],
        data: DataConfig,
        task: str,
        *,
        fields: tuple[str, str] = ("source", "target"),
        files: CardFiles | None = None,
        generator: Any = None,
        swapped: bool = False,
    ) -> None:
        self.name = name
        """Name of the corpus card, or the stem of the training file."""
        self.languages = languages
        """Languages of source and target; None if not applicable or unknown."""
        self.splits = tuple(splits)
        """Names of the splits, in the order of the card."""
        self.notes: list[str] = []
        """Messages to the user about splits taken from the training data, added when these are read."""
        self.generated = generator is not None
        """Whether a generator (see `generator_of`) makes the rows."""
        self.words = str(getattr(generator, "words", ""))
        """Words that the vocabulary must have, even if no training row has them."""
        self._parts, self._data, self._fields = splits, data, fields
        self._card_files, self._generator, self._swapped = files, generator, swapped
        self._split_off = [split for split in SPLITS if data.split_off(split)]
        self._causal = task == "language-modeling"
        self._answers = task == "question-answering"
        self._labels = data.labels if task == "classification" else ()

    @staticmethod
    def open(
        data: DataConfig,
        task: str,
        *,
        data_dir: Path | None = None,
        cache: Path | None = None,
        offline: bool = False,
        progress: Progress | None = None,
    ) -> "Corpus":
        """Open the corpus in the data section of a recipe.

        Files are downloaded and verified when a split is first used. In question-answering, `rows` yields questions
        after one passage or none, for training, and `questions` returns them with all passages.

        Args:
            data: Relative paths are resolved in the current folder, then in `data_dir`.
            task: With language-modeling, rows have only a target.
            data_dir: Folder of the corpora; default: $ATTNKIT_DATA.
            cache: Folder for downloads; default: `cache_dir()`.
            offline: Refuse downloads, as ATTNKIT_OFFLINE=1 does.
            progress: Called during downloads.

        Raises:
            RecipeError: Unknown corpus or language, or keys that do not fit together.
            MissingInputError: `data_dir` or a file of the data section does not exist.
        """
        default = os.environ.get("ATTNKIT_DATA")
        folder, cache = data_dir or (Path(default) if default else None), cache or cache_dir()
        if folder is not None:
            require_folder(folder, "folder", " (--data-dir)" if data_dir else " (ATTNKIT_DATA)")
        for text, key, *_ in data_issues(data, task):
            raise RecipeError(f"{key}: {text}")
        if data.corpus is None:
            return _from_files(data, task, folder, cache, offline)
        card = corpus_cards.load(data.corpus)
        source, target = data.source, data.target
        if card.task != "translation":
            source, target = source or card.languages[0], target or card.languages[0]
        elif source is target is None:
            source, target = card.languages[:2]
        languages = (None if task == "language-modeling" else source, target)
        if card.format == "generated":
            swapped = card.task == "translation" and target == card.languages[0]
            splits: dict[str, list[SplitPart]] = {split: [] for split in card.splits}
            return Corpus(card.name, languages, splits, data, task, generator=generator_of(card), swapped=swapped)
        files = CardFiles(card, folder, cache, offline=offline, progress=progress)
        return _from_card(card, languages, data, task, files)

    def rows(self, split: str, counts: Counts | None = None, length: int = 0) -> Iterator[Row]:
        """Yield the rows of a split in order; add the numbers of rows and repairs to `counts`.

        Training rows end after `data.rows`, validation rows after `data.valid_rows`. A generator with rows of any
        length makes rows of `length`; 0: its default lengths.

        Raises:
            MissingInputError: The split or one of its files does not exist.
            DataError: A file is malformed, not that of the card, or not as long as its aligned file; or there are no
                rows.
            UnavailableError: A file cannot be downloaded.
        """
        counts = Counts() if counts is None else counts
        for number, raw in enumerate(self._rows(split, counts, length, self._limit(split))):
            row = self._normal(raw)
            counts.rows += 1
            counts.normalized += row != raw
            if self._answers:
                row = questions.training_row(row, self._data, split, number)
            yield Row("", row.target) if self._causal else row

    def questions(self, split: str, contexts: int) -> list[Row]:
        """Return the questions of a split with their passages; raises as `rows`.

        A generator makes `contexts` passages per question; questions from files have all their passages.
        """
        return list(map(self._normal, self._rows(split, Counts(), contexts)))

    def fingerprint(self, split: str) -> str:
        """Return the SHA-256 of a split's content and of all settings that change its rows; raises as `rows`."""
        require_split(self.name, split, self.splits)
        data = self._data
        content = {
            "version": VERSION,
            "causal": self._causal,
            "rows": self._limit(split),
            **({"reading": [data.gold, data.other, data.seed]} if self._answers else {}),
            **({"labels": self._labels} if self._labels else {}),
            **({"normalize": form} if (form := data.normalize) != "none" else {}),
            **self._identity(split),
        }
        return sha256_json(content)

    def available(self, split: str) -> bool:
        """Return whether an existing split can be read without a download."""
        files = [file for part in self._parts[split] for file in part.files]
        return all(isinstance(file, Path) or self._files_of_card.has(file) for file in files)

    @property
    def recorded(self) -> dict[str, Any]:
        """Entry in a manifest: the number of rows of each split made by `data.split`."""
        return {"split": self._split_rows[1]} if self._split_off else {}

    def _rows(self, split: str, counts: Counts, amount: int, limit: int = 0) -> Iterator[Row]:
        """Yield the rows of a split as they are read; raise DataError if there are none."""
        require_split(self.name, split, self.splits)
        rows = self._generate(split, amount) if self.generated else self._read(split, counts)
        empty = True
        for row in islice(rows, limit or None):
            yield row
            empty = False
        if empty:
            place = self.name if self.generated else f"{self._first_path(split)}:1"
            raise DataError(f"{place}: the {split} split has no rows")

    def _normal(self, row: Row) -> Row:
        form = self._data.normalize
        # labels keep the spelling of the recipe
        target = row.target if self._labels else normal_form(row.target, form)
        references, contexts = (
            tuple(normal_form(text, form) for text in texts) for texts in (row.references, row.contexts)
        )
        return Row(normal_form(row.source, form), target, references, contexts, row.gold)

    def _limit(self, split: str) -> int:
        """Return the maximum number of rows of a split; 0: unlimited."""
        return {"train": self._data.rows, "valid": self._data.valid_rows}.get(split, 0)

    def _generate(self, split: str, amount: int) -> Iterator[Row]:
        """Yield the rows of a generator; `amount`, unless 0, is their length or number of passages."""
        options = (amount,) if amount else ()
        for row in self._generator.rows(split, self._size(split), self._data.seed, *options):
            yield Row(row.target, row.source) if self._swapped else row

    def _size(self, split: str) -> int:
        size = self._data.size if split == "train" else None
        return int(size or self._generator.SIZES[split])

    def _first_path(self, split: str) -> Path:
        return self._path(self._parts[split][0].files[0])

    def _path(self, file: corpus_cards.File | Path) -> Path:
        return file if isinstance(file, Path) else self._files_of_card.path(file)

    @property
    def _files_of_card(self) -> CardFiles:
        assert self._card_files is not None
        return self._card_files

    def _read(self, split: str, counts: Counts) -> Iterator[Row]:
        """Yield the rows of files; if `data.split` divides the training data, only the rows of `split`."""
        if not self._split_off or split not in ("train", *self._split_off):
            yield from self._read_files(split, counts)
            return
        chosen, _ = self._split_rows
        for row in self._read_files("train", counts):
            if chosen.get(self._source_digest(row), "train") == split:
                yield row

    @cached_property
    def _split_rows(self) -> tuple[dict[bytes, str], dict[str, int]]:
        """Split of each source digest outside train, and the number of rows of each split.

        Sources are selected in random order, each if all its rows still fit, so that the numbers are met unless few
        sources have very many rows. Raises DataError if there are too few rows, or none is left for training.
        """
        name, data, chosen = self._first_path("train"), self._data, dict[bytes, str]()
        sizes = Counter(map(self._source_digest, self._read_files("train", Counts())))
        if not sizes:
            raise DataError(f"{name}: the train split has no rows")
        requested = {split: data.split_off(split) for split in self._split_off}
        room = dict(requested)
        for key in Draw(f"split/{data.seed}").sample(list(sizes)):
            if split := next((split for split, number in room.items() if sizes[key] <= number), None):
                chosen[key] = split
                room[split] -= sizes[key]
        selected = {split: number - room[split] for split, number in requested.items()}
        rows = {"train": sizes.total() - sum(selected.values()), **selected}
        if not all(rows.values()):
            numbers = ", ".join(f"{number:,} {split}" for split, number in requested.items())
            kind = ("text" if self._causal else "source") + "s" * (len(sizes) != 1)
            found = f"{counted(sizes.total(), 'row')} ({len(sizes):,} distinct {kind})"
            raise DataError(f"{name}: {found}: too few for {numbers} rows and a training split; lower data.split")
        parts = ", ".join(f"{number:,} {split}" for split, number in rows.items())
        self.notes.append(f"data.split: {parts} rows, seed {data.seed}")
        return chosen, rows

    def _source_digest(self, row: Row) -> bytes:
        """Hash the source (of a language model: the text) as a tokenizer reads it; equal digests share a split."""
        text = clean(normal_form(row.target if self._causal else row.source, self._data.normalize))
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).digest()

    def _read_files(self, split: str, counts: Counts) -> Iterator[Row]:
        for part in self._parts[split]:
            paths = [self._path(file) for file in part.files]
            rows = self._read_part(part.format, paths, counts)
            if self._labels:
                rows = labeled(rows, self._labels, self._data.normalize, paths[-1])
            yield from rows

    def _read_part(self, format: str, paths: Sequence[Path], counts: Counts) -> Iterator[Row]:
        errors = self._data.errors
        if format == "lines":
            return formats.read_pairs(paths[0], paths[1], errors, counts)
        if format == "parlai":
            return formats.read_parlai(paths[0], errors, counts)
        if format in RECORDS:
            source, target = self._fields
            return read_rows(
                paths[0],
                format,
                errors,
                counts,
                source=None if self._causal else source,
                target=target,
                defaults=None if self._card_files else ("source", _default_target(self._causal)),
                labels=self._labels,
            )
        return (Row("", line) for line in formats.read_text(paths[0], errors, counts))

    def _identity(self, split: str) -> dict[str, Any]:
        """Return all values that determine the rows of an existing split, as JSON."""
        if self.generated:
            return {
                "generator": self.name,
                "generator_version": self._generator.VERSION,
                "split": split,
                "size": self._size(split),
                "seed": self._data.seed,
                "swapped": self._swapped,
            }
        parts = self._parts[split]
        divided = [split, dict(self._data.split), self._data.seed] if self._split_off else None
        return {
            "formats": [part.format for part in parts],
            "fields": self._fields if any(part.format in RECORDS for part in parts) else None,
            **({"split": divided} if divided else {}),
            "errors": self._data.errors,
            "files": [[file_digest(self._path(file)) for file in part.files] for part in parts],
        }


def _default_target(causal: bool) -> str:
    """Return the default target field."""
    return "text" if causal else "target"


def splits_of(data: DataConfig) -> tuple[str, ...]:
    """Return the names of the splits of a data section without reading data."""
    if data.corpus is not None:
        return tuple(corpus_cards.load(data.corpus).splits)
    return available_splits(data)


def require_split(name: str, split: str, splits: Sequence[str]) -> None:
    """Raise MissingInputError unless the corpus `name` has the split."""
    if split not in splits:
        near = nearest(split, splits)
        hint = f"did you mean {near}? " if near else ""
        raise MissingInputError(f"{name}: no split {quoted(split)}; {hint}it has {', '.join(splits)}")


def _from_card(card: corpus_cards.Card, languages: Languages, data: DataConfig, task: str, files: CardFiles) -> Corpus:
    columns = card.columns
    fields = (columns.get("source", "source"), columns.get("target", "target"))
    if card.task == "translation":
        source, target = (language or "" for language in languages)
        fields = (columns.get(source, source), columns.get(target, target))
    if card.format == "lines":  # one file per language, aligned by line
        chosen = [language for language in languages if language is not None]
        kind = "lines" if len(chosen) == 2 else "plain"
        splits = {
            split: [SplitPart(kind, part) for part in zip(*(sides[c] for c in chosen), strict=True)]
            for split, sides in card.splits.items()
        }
    else:
        splits = {
            split: [SplitPart(card.format, (file,)) for file in sides["rows"]] for split, sides in card.splits.items()
        }
    return Corpus(card.name, languages, splits, data, task, fields=fields, files=files)


def _from_files(data: DataConfig, task: str, folder: Path | None, cache: Path, offline: bool) -> Corpus:
    causal = task == "language-modeling"
    splits: dict[str, list[SplitPart]] = {}
    for split in SPLITS:
        if names := files_of(data, split):
            files = tuple(resolve_file(split, name, folder, cache, offline) for name in names)
            splits[split] = [SplitPart(format_of(names, data.format), files)]
    for split in available_splits(data):
        splits.setdefault(split, splits.get("train", []))
    fields = (data.source or "source", data.target or _default_target(causal))
    first = Path(files_of(data, next(iter(splits)))[0]).name
    name = first.partition(".")[0] or first
    return Corpus(name, (data.source, data.target), splits, data, task, fields=fields)
