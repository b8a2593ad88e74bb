"""Where the files of a card lie: in the data folder, in the cache, or at an address to fetch.

A file whose card has a hash must have it.  Where the card has none, the hash of the first
download is recorded beside the file, and a later change is an error.
"""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from attnkit.data.file_facts import facts
from attnkit.errors import DataError, MissingInputError
from attnkit.recipe.corpus_cards import Archive, Card, File
from attnkit.storage.files import atomic_write, check_file

Progress = Callable[[str, int, int | None], None]
"""Called with the name of a file, its bytes so far and, where it is known, their total."""


class Places:
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
        self.card, self.cache = card, cache
        self.notes: list[str] = []
        """One line for each download that the user should know of."""
        self._own = cache / "corpora" / card.name
        self._given = data_dir / card.name if data_dir else None
        self._offline, self._progress = offline, progress

    def at_hand(self, file: File) -> bool:
        """Whether the file is there without a download."""
        return self._find(file.path) is not None

    def path(self, file: File) -> Path:
        """The verified file, downloaded if need be.

        Raises:
            MissingInputError: it is not there and the card has no address.
            UnavailableError: it cannot be downloaded.
            DataError: its size or hash is not the expected one.
        """
        found = self._find(file.path)
        if found is not None:
            self._verify(found, file)
            return found
        target = self._own / file.path
        if file.url:
            self._fetch(file.url, target, file.size, file.sha256)
        elif file.archive:
            self._unpack(self.card.archives[file.archive], file.archive)
        else:
            raise self._missing(file)
        return target

    def _find(self, name: str) -> Path | None:
        for root in (self._given, self._own):
            if root is not None and os.path.lexists(root / name):
                return root / name
        return None

    def _verify(self, path: Path, file: File | Archive) -> None:
        """Compare a file with its card, or with what was recorded when it was downloaded."""
        size = check_file(path).st_size
        if file.size is not None and size != file.size:
            raise DataError(
                f"{path}: has {size:,} bytes, the card of {self.card.name} says {file.size:,}; get "
                "the file again, or name your own files by data.train, data.valid and data.test"
            )
        recorded = _recorded(path)
        expected = file.sha256 or recorded
        if expected is None:
            if path.is_relative_to(self._own):
                self._record(path, facts(path, self.cache).sha256)
            return
        found = facts(path, self.cache).sha256
        if found != expected:
            by = f"the card of {self.card.name}" if file.sha256 else f"{path.name}.sha256 beside it"
            raise DataError(
                f"{path}: SHA-256 is {found}, {by} says {expected}; get the file again, or name "
                "your own files by data.train, data.valid and data.test"
            )

    def _fetch(self, url: str, path: Path, size: int | None, sha256: str | None) -> None:
        from attnkit.storage.download import fetch

        report = self._progress
        watch = (lambda done, total: report(path.name, done, total)) if report else None
        digest = fetch(url, path, sha256, watch, size=size, offline=self._offline)
        if sha256 is None:
            self._record(path, digest)

    def _unpack(self, archive: Archive, name: str) -> None:
        """Fetch an archive, write the members that the card wants, and remove it."""
        from attnkit.storage.download import extract

        packed = self._own / PurePosixPath(urlsplit(archive.url).path).name
        given = os.path.lexists(packed)
        if given:
            self._verify(packed, archive)
        else:
            self._fetch(archive.url, packed, archive.size, archive.sha256)
        wanted = {
            file.member: self._own / file.path
            for file in self.card.files()
            if file.archive == name and file.member
        }
        for member, digest in extract(packed, wanted).items():
            self._record(wanted[member], digest, note=False)
        if not given:
            packed.unlink(missing_ok=True)
            _record_path(packed).unlink(missing_ok=True)

    def _record(self, path: Path, digest: str, note: bool = True) -> None:
        """Write the hash beside the file, in the form of `sha256sum`."""
        atomic_write(_record_path(path), f"{digest}  {path.name}\n")
        if note:
            self.notes.append(
                f"{self.card.name}: no published hash of {path.name}; recorded its SHA-256 {digest}"
            )

    def _missing(self, file: File) -> MissingInputError:
        where = f"neither in {self._given} nor in {self._own}"
        if self._given is None:
            unset = "no data folder (ATTNKIT_DATA and --data-dir are not set)"
            where = f"not in {self._own}, and there is {unset}"
        return MissingInputError(
            f"data.corpus: {self.card.name}: {file.path} is {where}; "
            f"set ATTNKIT_DATA or --data-dir to a folder with {self.card.name}/{file.path}. How to "
            f"obtain it ({self.card.homepage}): {self.card.obtain}"
        )


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _recorded(path: Path) -> str | None:
    """The hash recorded beside a file, if there is one.

    Raises:
        DataError: the record holds something else.
    """
    record = _record_path(path)
    if not record.is_file():
        return None
    with record.open("rb") as file:
        words = file.read(1024).decode("utf-8", "replace").split()
    if not words or len(words[0]) != 64:
        raise DataError(f"{record}: not a SHA-256; delete it to have the file recorded anew")
    return words[0].lower()
