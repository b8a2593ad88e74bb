"""Files of corpora: where those of a card are, and where those that a recipe names.

A card's file is in the data folder, in the cache, or at an address to download it from.  If its
card has a size or a hash, the file must match it.
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
"""Called with a stage, how much is done, and the total where it is known.

A stage is "tokenizer" or a split (in rows), or the name of a file that is downloaded (in bytes).
"""

SETTLED = 100_000_000
"""Nanoseconds after which a further write surely shows in the time of the last change."""

SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
"""What a split may be called in a data set of Hugging Face."""
DATASET_ROWS = "rows.jsonl"

known_digests: dict[tuple[str, int, int, int], str] = {}
"""Of files that were read before, by path, size and times."""


def file_digest(path: Path) -> str:
    """SHA-256 of a file in hexadecimal; read once, while its size and times stay the same.

    Raises MissingInputError: the file is absent or not a file.
    """
    status = check_file(path)
    state = os.path.abspath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns
    if state in known_digests:
        return known_digests[state]
    digest = sha256_file(path)
    # A file written a moment ago may change again within one tick of the clock.
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED:
        known_digests[state] = digest
    return digest


class CardFiles:
    """Finds the files of one card, downloads what is missing, and verifies what is used."""

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
        """Whether the file is there without a download."""
        return self._find(file.path) is not None

    def path(self, file: File) -> Path:
        """The verified file, downloaded if need be.

        Raises MissingInputError: it is not there and the card has no address; UnavailableError: it cannot be
        downloaded; DataError: its size or hash is not the expected one.
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
                where = f"not in {self._downloads}, and there is no data folder"
            raise MissingInputError(
                f"data.corpus: {name}: {file.path} is {where}; set ATTNKIT_DATA or --data-dir to a "
                f"folder with {self._card.folder or name}/{file.path}. How to obtain it "
                f"({self._card.homepage}): {self._card.obtain}"
            )
        return path

    def _find(self, name: str) -> Path | None:
        for root in (self._given, self._downloads):
            if root is not None and os.path.lexists(root / name):
                return root / name
        return None

    def _verify(self, path: Path, file: File | Archive) -> None:
        """Compare a file with its card."""
        card, size = f"the card of {self._card.name}", check_file(path).st_size
        if file.size is not None and size != file.size:
            raise DataError(f"{path}: has {size:,} bytes, {card} says {file.size:,}; get the file again")
        if file.sha256 is not None and (sha256 := file_digest(path)) != file.sha256:
            raise DataError(f"{path}: SHA-256 is {sha256}, {card} says {file.sha256}; get the file again")

    def _fetch(self, url: str, path: Path, file: File | Archive) -> None:
        report = self._progress
        watch = (lambda done, total: report(path.name, done, total)) if report else None
        download.fetch(url, path, file.sha256, watch, size=file.size, offline=self._offline)

    def _unpack(self, archive: Archive, name: str) -> None:
        """Fetch an archive, write the members that the card wants, and remove it."""
        packed = self._downloads / PurePosixPath(urlsplit(archive.url).path).name
        given = os.path.lexists(packed)
        if given:
            self._verify(packed, archive)
        else:
            self._fetch(archive.url, packed, archive)
        members = {
            file.member: self._downloads / file.path
            for file in self._card.files()
            if file.archive == name and file.member
        }
        download.extract(packed, members)
        if not given:
            packed.unlink(missing_ok=True)


def own_path(split: str, name: str, folder: Path | None, cache: Path, offline: bool) -> Path:
    """A file that the section names: as it is (a recipe's are found when it is read), else in the
    data folder, there also by its last name alone, as a run that was moved away from its data needs
    it.  Data sets of Hugging Face are files in the cache."""
    if name.startswith(HUGGING_FACE):
        return _dataset_rows(name, split, cache, offline=offline)
    given = Path(os.path.expanduser(name))
    places = [given]
    if folder is not None and not given.is_absolute():
        places += dict.fromkeys((folder / given, folder / given.name))
    for path in places:
        if os.path.lexists(path):
            check_file(path)
            return path
    looked = " and ".join(str(path.absolute()) for path in places)
    hint = "" if folder else "; ATTNKIT_DATA or --data-dir may name a further folder to look in"
    beside = "" if given.is_absolute() else ", and beside the recipe"
    raise MissingInputError(f"data.{split}: no such file {quoted(name, 200)}: looked for {looked}{beside}{hint}")


def _dataset_rows(name: str, split: str, cache: Path, *, offline: bool = False) -> Path:
    """The file with the rows of hf:NAME or hf:NAME:CONFIG, written by `datasets` at first use.

    NAME is that of a data set, or a folder with files in a format that `datasets` reads.

    Raises UnavailableError: `datasets` is not installed; MissingInputError: there is no such data set, it cannot be
    reached, or has no such split; DataError: its files are damaged.
    """
    try:
        import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise UnavailableError(f"data.{split}: {name} needs datasets: pip install 'attnkit[datasets]'") from error
    place, _, config = name.removeprefix(HUGGING_FACE).partition(":")
    if offline:
        datasets.config.HF_HUB_OFFLINE = datasets.config.HF_DATASETS_OFFLINE = True
    try:
        datasets.disable_progress_bars()
        found: Mapping[str, Any] = datasets.load_dataset(place, config or None)
    except AttnkitError:
        raise
    except Exception as error:  # the library has many kinds
        what = (str(error) or type(error).__name__).splitlines()[0]
        absent = isinstance(error, FileNotFoundError | ConnectionError)
        kind = MissingInputError if absent else DataError
        raise kind(f"data.{split}: {name}: {what}") from error
    part = next((word for word in SPLIT_NAMES[split] if word in found), None)
    if part is None:
        raise MissingInputError(f"data.{split}: {name} has no such split; it has {', '.join(found)}")
    rows = found[part]
    key = sha256_json([place, config, part, str(getattr(rows, "_fingerprint", ""))])

    def write(folder: Path) -> None:
        with (folder / DATASET_ROWS).open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")

    def read(folder: Path) -> Path:
        check_file(folder / DATASET_ROWS)
        return folder / DATASET_ROWS

    return read_or_build(cache / "datasets" / key[:32], read, write)
