"""Paths of corpus files: the files of a card, and files named in a recipe.

The file of a card is in the data folder, in the cache, or downloaded. It must have the size and hash in the card, if
any.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from attnkit.errors import AttnkitError, DataError, MissingInputError, UnavailableError
from attnkit.recipe.corpus_cards import Archive, Card, File
from attnkit.recipe.data_rules import HUGGING_FACE
from attnkit.storage import download
from attnkit.storage.cache import read_or_build
from attnkit.storage.files import check_file, sha256_file, sha256_json
from attnkit.text import quoted

Progress = Callable[[str, int, int | None], None]
"""Callback for the stage, the amount done and, if known, the total.

A stage is "tokenizer" or a split (in rows), or the name of a file during its download (in bytes).
"""

SETTLED = 100_000_000
"""Nanoseconds after which another write certainly changes the modification time."""

SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
"""Names of each split in data sets of Hugging Face."""
DATASET_ROWS = "rows.jsonl"

known_digests: dict[tuple[str, int, int, int], str] = {}
"""Digests of files already read, by path, size and times."""


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, cached by size and times. Raises MissingInputError if it is not a regular file."""
    status = check_file(path)
    state = os.path.abspath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns
    if state in known_digests:
        return known_digests[state]
    digest = sha256_file(path)
    # A file written just now may change again within one tick of the clock.
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED:
        known_digests[state] = digest
    return digest


class CardFiles:
    """Files of one card: found or downloaded, and verified."""

    def __init__(
        self,
        card: Card,
        data_dir: Path | None,
        cache: Path,
        *,
        offline: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._card = card
        self._downloads = cache / "corpora" / card.name
        self._given = data_dir / (card.folder or card.name) if data_dir else None
        self._offline, self._progress = offline, progress

    def has(self, file: File) -> bool:
        """Return whether the file exists without a download."""
        return self._find(file.path) is not None

    def path(self, file: File) -> Path:
        """Return the verified file, downloaded if necessary.

        Raises:
            MissingInputError: The file does not exist, and its card has no address.
            UnavailableError: The file cannot be downloaded.
            DataError: The size or hash is not that of the card.
        """
        if path := self._find(file.path):
            self._verify(path, file)
            return path
        path = self._downloads / file.path
        if file.url:
            self._fetch(file.url, path, file)
        elif file.archive:
            self._unpack(self._card.archives[file.archive], file.archive)
        else:
            name = self._card.name
            where = f"neither in {self._given} nor in {self._downloads}"
            if self._given is None:
                where = f"not in {self._downloads}, and no data folder is set"
            homepage = f" ({self._card.homepage})" if self._card.homepage else ""
            raise MissingInputError(
                f"data.corpus: {name}: {file.path} is {where}; set ATTNKIT_DATA or --data-dir to a "
                f"folder with {self._card.folder or name}/{file.path}. How to obtain it{homepage}: {self._card.obtain}"
            )
        return path

    def _find(self, name: str) -> Path | None:
        for root in (self._given, self._downloads):
            if root is not None and os.path.lexists(root / name):
                return root / name
        return None

    def _verify(self, path: Path, file: File | Archive) -> None:
        card, size = f"the corpus card of {self._card.name}", check_file(path).st_size
        if file.size is not None and size != file.size:
            raise DataError(f"{path}: has {size:,} bytes, but {card} lists {file.size:,}; fetch the file again")
        if file.sha256 is not None and (sha256 := file_digest(path)) != file.sha256:
            raise DataError(f"{path}: SHA-256 is {sha256}, but {card} lists {file.sha256}; fetch the file again")

    def _fetch(self, url: str, path: Path, file: File | Archive) -> None:
        report = self._progress
        watch = (lambda done, total: report(path.name, done, total)) if report else None
        download.fetch(url, path, file.sha256, watch, size=file.size, offline=self._offline)

    def _unpack(self, archive: Archive, name: str) -> None:
        """Extract the card's files from an archive; delete the archive if it was downloaded for this."""
        path = self._downloads / PurePosixPath(urlsplit(archive.url).path).name
        existed = os.path.lexists(path)
        if existed:
            self._verify(path, archive)
        else:
            self._fetch(archive.url, path, archive)
        members = {
            file.member: self._downloads / file.path
            for file in self._card.files()
            if file.archive == name and file.member
        }
        download.extract(path, members)
        if not existed:
            path.unlink(missing_ok=True)


def resolve_file(split: str, name: str, folder: Path | None, cache: Path, offline: bool) -> Path:
    """Return the path of a file named in the data section.

    The path is used as it is (relative paths in a recipe are resolved when it is read), otherwise in the data folder,
    also by its last component alone, which a run moved away from its data needs. Data sets of Hugging Face are files
    in the cache.
    """
    if name.startswith(HUGGING_FACE):
        return _dataset_rows(name, split, cache, offline=offline)
    named = Path(os.path.expanduser(name))
    candidates = [named]
    if folder is not None and not named.is_absolute():
        candidates += dict.fromkeys((folder / named, folder / named.name))
    for path in candidates:
        if os.path.lexists(path):
            check_file(path)
            return path
    paths = " and ".join(str(path.absolute()) for path in candidates)
    hint = "" if folder else "; ATTNKIT_DATA or --data-dir can add a folder to search"
    beside = "" if named.is_absolute() else ", and in the recipe's folder"
    raise MissingInputError(f"data.{split}: no such file {quoted(name, 200)}: looked for {paths}{beside}{hint}")


def _dataset_rows(name: str, split: str, cache: Path, *, offline: bool = False) -> Path:
    """Return the file with the rows of hf:NAME or hf:NAME:CONFIG, written with `datasets` at first use.

    NAME is a data set, or a folder with files in a format that `datasets` reads.

    Raises:
        UnavailableError: `datasets` is not installed.
        MissingInputError: The data set does not exist, cannot be reached or lacks the split.
        DataError: The files of the data set are damaged.
    """
    try:
        import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise UnavailableError(f"data.{split}: {name} needs datasets: pip install 'attnkit[datasets]'") from error
    dataset, _, config = name.removeprefix(HUGGING_FACE).partition(":")
    if offline:
        datasets.config.HF_HUB_OFFLINE = datasets.config.HF_DATASETS_OFFLINE = True
    try:
        datasets.disable_progress_bars()
        splits: Mapping[str, Any] = datasets.load_dataset(dataset, config or None)
    except AttnkitError:
        raise
    except Exception as error:  # datasets raises many types
        reason = (str(error) or type(error).__name__).splitlines()[0]
        error_type = MissingInputError if isinstance(error, FileNotFoundError | ConnectionError) else DataError
        raise error_type(f"data.{split}: {name}: {reason}") from error
    split_name = next((split_name for split_name in SPLIT_NAMES[split] if split_name in splits), None)
    if split_name is None:
        raise MissingInputError(f"data.{split}: {name} has no {split} split; it has {', '.join(splits)}")
    rows = splits[split_name]
    key = sha256_json([dataset, config, split_name, str(getattr(rows, "_fingerprint", ""))])

    def write(folder: Path) -> None:
        with (folder / DATASET_ROWS).open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")

    def read(folder: Path) -> Path:
        check_file(folder / DATASET_ROWS)
        return folder / DATASET_ROWS

    return read_or_build(cache / "datasets" / key[:32], read, write)
