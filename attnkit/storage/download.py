"""Downloads: https only, streamed to a temporary file, verified, then renamed into place."""

import gzip
import hashlib
import http.client
import os
import re
import ssl
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO
from urllib.parse import urlsplit

from attnkit import __version__
from attnkit.errors import AttnkitError, DataError, UnavailableError
from attnkit.storage.files import (
    DISK,
    input_error,
    make_folder,
    remove_leftovers,
    temporary,
    writing,
)
from attnkit.storage.input import GZIP, open_file

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and, where it is known, their total."""

BLOCK = 1 << 18
LIMIT = 16 << 30
"""Largest download in bytes."""
MEMBERS = 100_000
"""Most members of an archive."""
HEADER_FAULTS = (TypeError, ValueError, IndexError)
"""What tarfile lets through when a header is damaged in ways that it does not expect."""
TRIES = 3
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP answers after which trying again may help."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class _Interrupted(Exception):
    """A transfer that broke off and may succeed when it is tried again."""


def is_offline(offline: bool = False) -> bool:
    """True with the flag, or when ATTNKIT_OFFLINE is set to anything but 0, false or no."""
    return offline or os.environ.get("ATTNKIT_OFFLINE", "").lower() not in ("", "0", "false", "no")


def fetch(
    url: str,
    path: Path,
    sha256: str | None = None,
    progress: Progress | None = None,
    *,
    size: int | None = None,
    limit: int = LIMIT,
    offline: bool = False,
    timeout: float = 30.0,
    wait: float = 1.0,
) -> str:
    """Download a file and return its SHA-256 in hexadecimal.

    The bytes go to a temporary file beside `path`, which is renamed only when they are complete
    and right; nothing is left behind otherwise.  Transient faults are tried again after `wait`
    and 2 `wait` seconds; `timeout` is the longest silence of the server in seconds.

    Raises:
        UnavailableError: offline, no connection, an answer other than 200, or a broken transfer;
            the message says where to put the file by hand.
        DataError: the address is not https, or the file is not the expected one.
        OutputPathError, OutputError: `path` cannot be written.
    """
    if is_offline(offline):
        raise _unavailable(url, path, "downloads are off (--offline or ATTNKIT_OFFLINE)")
    _check_address(url)
    make_folder(path.parent)
    remove_leftovers(path.parent)
    for attempt in range(1, TRIES + 1):
        try:
            return _attempt(url, path, sha256, size, limit, timeout, progress)
        except _Interrupted as error:
            if attempt == TRIES:
                raise _unavailable(url, path, f"{error} ({TRIES} tries)") from error
            time.sleep(wait * 2 ** (attempt - 1))
    raise AssertionError("unreachable")


def extract(
    archive: Path,
    members: Mapping[str, Path],
    *,
    limit: int = 4 * LIMIT,
    progress: Progress | None = None,
) -> dict[str, str]:
    """Write the named members of a tar archive (plain or gzip) to files; member -> SHA-256.

    The archive is read as a stream.  Only regular files with exactly these names are taken: no
    other name, link or device of the archive ever becomes a file.  After a fault none is left.

    Raises:
        DataError: damaged, without one of the members, of more than `limit` bytes or 100,000
            members.
        OutputPathError, OutputError: a file cannot be written.
    """
    digests: dict[str, str] = {}
    try:
        with _damage(archive), open_file(archive) as raw:
            _extract(archive, raw, members, digests, limit, progress)
        if missing := sorted(members.keys() - digests.keys()):
            raise DataError(f"{archive}: has no regular file {missing[0]}")
    except BaseException:
        for name in digests:
            members[name].unlink(missing_ok=True)
        raise
    return digests


def _extract(
    archive: Path,
    raw: BufferedReader,
    members: Mapping[str, Path],
    digests: dict[str, str],
    limit: int,
    progress: Progress | None,
) -> None:
    """Read an open archive to its end and note in `digests` what was written."""
    total, seen = archive.stat().st_size, 0
    packed = raw.peek(len(GZIP)).startswith(GZIP)
    stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for count, info in enumerate(tar, 1):
            seen += info.size
            if seen > limit or count > MEMBERS:
                raise DataError(f"{archive}: holds more than {limit:,} bytes or {MEMBERS:,} files")
            if info.name in members and info.isreg() and info.name not in digests:
                content = tar.extractfile(info)
                assert content is not None
                digests[info.name] = _store(archive, content, members[info.name])
            if progress:
                progress(raw.tell(), total)
    while packed and stream.read(BLOCK):  # gzip's checksum stands at the end
        pass


@contextmanager
def _damage(archive: Path) -> Iterator[None]:
    """Turn what a damaged or unreadable archive raises into errors of attnkit."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise input_error(error, archive) from error
        raise DataError(f"{archive}: damaged archive ({error})") from error
    except (tarfile.TarError, EOFError, zlib.error, *HEADER_FAULTS) as error:
        raise DataError(f"{archive}: damaged archive ({error})") from error


def _store(archive: Path, stream: IO[bytes], path: Path) -> str:
    """Copy a member to a file through a temporary one; the SHA-256 of its bytes."""
    digest = hashlib.sha256()
    make_folder(path.parent)
    with _prepared(path) as file:
        while block := _read(archive, stream):
            digest.update(block)
            DISK.write(file, block)
    return digest.hexdigest()


def _read(archive: Path, stream: IO[bytes]) -> bytes:
    """A block of a member."""
    with _damage(archive):
        return stream.read(BLOCK)


@contextmanager
def _prepared(path: Path) -> Iterator[BinaryIO]:
    """A temporary file that becomes `path` when the block ends well, and vanishes otherwise."""
    part = temporary(path)
    try:
        with writing(path):
            with DISK.open(part) as file:
                yield file
                DISK.fsync(file)
            DISK.rename(part, path)
            DISK.fsync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            DISK.unlink(part)
        raise


def _attempt(
    url: str, path: Path, sha256: str | None, size: int | None, limit: int, timeout: float,
    progress: Progress | None,
) -> str:  # fmt: skip
    """One try of a download."""
    with _answer(url, path, timeout) as answer, _prepared(path) as file:
        total = _length(answer, size)
        if max(total or 0, size or 0) > limit:
            raise DataError(f"{url}: larger than the {limit:,} bytes that are allowed")
        digest, done = hashlib.sha256(), 0
        for block in _body(answer):
            done += len(block)
            if done > limit:
                raise DataError(f"{url}: larger than the {limit:,} bytes that are allowed")
            digest.update(block)
            DISK.write(file, block)
            if progress:
                progress(done, total)
        if total is not None and done < total:
            raise _Interrupted(f"the transfer broke off after {done:,} of {total:,} bytes")
        if size is not None and done != size:
            raise DataError(f"{url}: has {done:,} bytes, {size:,} were expected; nothing was kept")
        if sha256 is not None and digest.hexdigest() != sha256:
            raise DataError(
                f"{url}: SHA-256 is {digest.hexdigest()}, {sha256} was expected: the file at this "
                "address has changed or the transfer was tampered with; nothing was kept"
            )
    return digest.hexdigest()


@contextmanager
def _answer(url: str, path: Path, timeout: float) -> Iterator[http.client.HTTPResponse]:
    """The server's answer with status 200."""
    headers = {"User-Agent": f"attnkit/{__version__}", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers=headers)
    try:
        answer = _opener(url).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        said = f"the server answered {error.code} {' '.join(str(error.reason).split())}"
        if error.code in TRANSIENT:
            raise _Interrupted(said) from error
        raise _unavailable(url, path, said) from error
    except (OSError, http.client.HTTPException) as error:
        inner = getattr(error, "reason", error)
        if isinstance(inner, ssl.SSLCertVerificationError):
            raise _unavailable(url, path, f"its certificate is not valid ({inner})") from error
        raise _Interrupted(f"no connection: {inner or type(inner).__name__}") from error
    except ValueError as error:
        raise _unavailable(url, path, f"not an address ({error})") from error
    with answer:
        if answer.status != http.HTTPStatus.OK:
            raise _unavailable(url, path, f"the server answered {answer.status} {answer.reason}")
        yield answer


def _body(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The bytes of an answer in blocks."""
    while True:
        try:
            block = answer.read(BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(
                f"the transfer broke off: {error or type(error).__name__}"
            ) from error
        if not block:
            return
        yield block


def _length(answer: http.client.HTTPResponse, size: int | None) -> int | None:
    """Bytes that the server announces, else those of the card, else None."""
    announced = answer.headers.get("Content-Length", "")
    return int(announced) if re.fullmatch("[0-9]{1,18}", announced) else size


def _opener(url: str) -> urllib.request.OpenerDirector:
    """An opener for http and https alone, which follows redirects to https alone."""
    director = urllib.request.OpenerDirector()
    local = urlsplit(url).hostname in LOOPBACK
    for handler in (
        urllib.request.ProxyHandler({} if local else None),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(local),
    ):
        director.add_handler(handler)
    return director


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https; from a loopback server also to itself."""

    def __init__(self, local: bool) -> None:
        self._local = local

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The next request, or the error that its address is not allowed."""
        _check_address(newurl, local=self._local, what=f"{req.full_url}: redirects to ")
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
    ) -> Any:
        """As in urllib, but the answer is closed when its redirect is refused."""
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except Exception:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _check_address(url: str, *, local: bool = True, what: str = "") -> None:
    """Refuse any address but https, and http on the loopback interface."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if not (local and parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise DataError(f"{what}{url}: only https addresses are downloaded")


def _unavailable(url: str, path: Path, reason: str) -> AttnkitError:
    return UnavailableError(
        f"{path.name}: {reason}; to do without, fetch {url} elsewhere and put it at {path}"
    )
