"""Downloads with requests: https only, retried, verified, then renamed into place.

pooch is not used: it limits neither sizes nor redirects, and leaves connections open after an error.
"""

import hashlib
import lzma
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from attnkit import __version__
from attnkit.errors import AttnkitError, DataError, UnavailableError
from attnkit.storage.files import atomic_write, input_error, make_folder, open_file, remove_leftovers

if TYPE_CHECKING:
    import requests

ByteProgress = Callable[[int, int | None], None]
"""Callback for the number of bytes received and, if known, their total."""

BLOCK = 1 << 18
LIMIT = 16 << 30
"""Maximum size of a download in bytes."""
EXTRACTED_LIMIT = 4 * LIMIT
"""Maximum size of an archive's content in bytes."""
TRIES = 3
WAIT = 1.0
"""Seconds before the second attempt; doubled before the third."""
TIMEOUT = 30.0
"""Maximum silence of the server in seconds."""
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP status codes after which a download is retried."""
ADDRESSES = ("https://",)
"""Allowed beginnings of addresses, redirects included."""


def is_offline(offline: bool = False) -> bool:
    """Return whether downloads are off: by the flag, or ATTNKIT_OFFLINE other than empty, 0, false or no."""
    return offline or os.environ.get("ATTNKIT_OFFLINE", "").lower() not in ("", "0", "false", "no")


def fetch(
    url: str,
    path: Path,
    sha256: str | None = None,
    progress: ByteProgress | None = None,
    *,
    size: int | None = None,
    offline: bool = False,
) -> None:
    """Download a file.

    The content goes to a temporary file beside `path`, which is renamed once complete and verified; otherwise nothing
    is left behind. Transient errors are retried.

    Raises:
        UnavailableError: Offline, no connection, a status other than 200, or a broken transfer; the message says where
            to put the file by hand.
        DataError: The address is not https, or the file is too large or not the expected one.
        OutputPathError, OutputError: `path` cannot be written.
    """
    if is_offline(offline):
        raise _unavailable(url, path, "downloads are off (--offline or ATTNKIT_OFFLINE)")
    make_folder(path.parent)
    remove_leftovers(path.parent)
    for attempt in range(TRIES):
        try:
            atomic_write(path, _body(url, path, sha256, size, progress))
            return
        except _BrokenTransfer as error:
            if attempt == TRIES - 1:
                raise _unavailable(url, path, f"{error} ({TRIES} tries)") from error
            time.sleep(WAIT * 2**attempt)


class _BrokenTransfer(Exception):
    """Failed transfer that may succeed when retried."""


def _body(
    url: str, path: Path, sha256: str | None, size: int | None, progress: ByteProgress | None
) -> Iterator[bytes]:
    """Yield the content of an address in blocks; check its size and hash after the last block."""
    received, digest = 0, hashlib.sha256()
    with _response(url, path) as response:
        announced = response.headers.get("Content-Length", "")
        total = int(announced) if announced.isdecimal() else size
        # not decoded: a .gz file served with `Content-Encoding: x-gzip` stays compressed
        for block in response.raw.stream(BLOCK, decode_content=False):
            received += len(block)
            if max(received, total or 0, size or 0) > LIMIT:
                raise DataError(f"{url}: larger than the limit of {LIMIT:,} bytes")
            digest.update(block)
            yield block
            if progress:
                progress(received, total)
    if size is not None and received != size:
        raise DataError(f"{url}: must have {size:,} bytes, got {received:,}; nothing was saved")
    if sha256 not in (None, digest.hexdigest()):
        raise DataError(
            f"{url}: SHA-256 must be {sha256}, got {digest.hexdigest()}: the file at this address has changed or "
            "the transfer was tampered with; nothing was saved"
        )


@contextmanager
def _response(url: str, path: Path) -> Iterator["requests.Response"]:
    """Open the response with status 200; errors, also of reading its body, become errors about `path` or `url`."""
    import requests
    import urllib3
    from requests.adapters import HTTPAdapter

    headers = {"User-Agent": f"attnkit/{__version__}", "Accept-Encoding": "identity"}
    try:
        with requests.Session() as session:
            session.auth = lambda request: request  # no credentials from ~/.netrc
            session.adapters.clear()
            for address in ADDRESSES:
                session.mount(address, HTTPAdapter())
            with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
                response.raise_for_status()
                if response.status_code != requests.codes.ok:
                    raise _unavailable(url, path, f"the server answered {response.status_code}")
                yield response
    except requests.HTTPError as error:
        status = f"the server answered {response.status_code} {response.reason}"
        if response.status_code in TRANSIENT:
            raise _BrokenTransfer(status) from error
        raise _unavailable(url, path, status) from error
    except ValueError as error:  # requests: invalid address
        raise DataError(f"{url}: only https addresses are downloaded ({error})") from error
    except requests.exceptions.SSLError as error:
        raise _unavailable(url, path, f"its certificate is not valid ({error})") from error
    except urllib3.exceptions.HTTPError as error:  # while the body is read
        raise _BrokenTransfer(f"the transfer was interrupted: {error}") from error
    except (requests.ConnectionError, requests.Timeout) as error:
        raise _BrokenTransfer(f"no connection: {error}") from error
    except requests.RequestException as error:
        raise _unavailable(url, path, str(error)) from error


def _unavailable(url: str, path: Path, reason: str) -> AttnkitError:
    advice = f"to continue offline, fetch {url} elsewhere and put the file at {path}"
    return UnavailableError(f"{path.name}: {reason}; {advice}")


@contextmanager
def _archive_errors(archive: Path) -> Iterator[None]:
    """Turn errors in an archive's format into DataError, and errors of the disk as `input_error` does."""
    damage = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, IndexError)
    try:
        yield
    except (*damage, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise input_error(error, archive) from error
        raise DataError(f"{archive}: damaged archive ({error})") from error


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Write the named members of a tar archive, compressed or not, to files.

    Only regular files with exactly these names are extracted: no other name, link or device of the archive ever
    becomes a file. An error leaves no file behind.

    Raises:
        DataError: The archive is damaged or too large, or lacks a member.
        OutputPathError, OutputError: A file cannot be written.
    """
    written: list[str] = []
    try:
        with open_file(archive) as file, _archive_errors(archive), tarfile.open(fileobj=file) as tar:
            size = 0
            for info in tar:
                size += info.size
                if size > EXTRACTED_LIMIT:
                    raise DataError(f"{archive}: holds more than {EXTRACTED_LIMIT:,} bytes")
                content = tar.extractfile(info) if info.isreg() else None
                if content and info.name in members and info.name not in written:
                    make_folder(members[info.name].parent)
                    atomic_write(members[info.name], _blocks(archive, content))
                    written.append(info.name)
            stream: Any = tar.fileobj
            while stream.read(BLOCK):  # the checksum of gzip is at the end
                pass
        if missing := sorted(members.keys() - written):
            raise DataError(f"{archive}: has no regular file {missing[0]}")
    except BaseException:
        for name in written:
            members[name].unlink(missing_ok=True)
        raise


def _blocks(archive: Path, content: IO[bytes]) -> Iterator[bytes]:
    with _archive_errors(archive):
        while block := content.read(BLOCK):
            yield block
