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
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from attnkit import __version__
from attnkit.errors import AttnkitError, DataError, UnavailableError
from attnkit.storage.files import (
    GZIP,
    atomic_write,
    input_error,
    make_folder,
    open_file,
    remove_leftovers,
)

ByteProgress = Callable[[int, int | None], None]
"""Called with the bytes so far and, where it is known, their total."""

BLOCK = 1 << 18
LIMIT = 16 << 30
"""Largest download in bytes."""
EXTRACTED_LIMIT = 4 * LIMIT
"""Largest content of an archive in bytes."""
MEMBERS = 100_000
"""Most members of an archive."""
HEADER_FAULTS = (TypeError, ValueError, IndexError)
"""What tarfile lets through when a header is damaged in ways that it does not expect."""
TRIES = 3
WAIT = 1.0
"""Seconds before the second try; twice as many before the third."""
TIMEOUT = 30.0
"""Longest silence of the server in seconds."""
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP answers after which trying again may help."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class _BrokenTransfer(Exception):
    """A transfer that failed and may succeed when it is tried again."""


def is_offline(offline: bool = False) -> bool:
    """True with the flag, or when ATTNKIT_OFFLINE is set to anything but 0, false or no."""
    return offline or os.environ.get("ATTNKIT_OFFLINE", "").lower() not in ("", "0", "false", "no")


def fetch(
    url: str,
    path: Path,
    sha256: str | None = None,
    progress: ByteProgress | None = None,
    *,
    size: int | None = None,
    offline: bool = False,
) -> str:
    """Download a file and return its SHA-256 in hexadecimal.

    The bytes go to a temporary file beside `path`, which is renamed only once they are complete
    and verified; nothing is left behind otherwise.  Transient faults are tried again.

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
    for attempt in range(TRIES):
        digest = hashlib.sha256()
        try:
            with _response(url, path) as response:
                atomic_write(path, _verified(response, url, digest, sha256, size, progress))
            return digest.hexdigest()
        except _BrokenTransfer as error:
            if attempt == TRIES - 1:
                raise _unavailable(url, path, f"{error} ({TRIES} tries)") from error
            time.sleep(WAIT * 2**attempt)
    raise AssertionError("unreachable")


def extract(archive: Path, members: Mapping[str, Path]) -> dict[str, str]:
    """Write the named members of a tar archive (plain or gzip) to files; member -> SHA-256.

    The archive is read as a stream.  Only regular files with exactly these names are taken: no
    other name, link or device of the archive ever becomes a file.  After a fault none is left.

    Raises:
        DataError: damaged, without one of the members, or too large.
        OutputPathError, OutputError: a file cannot be written.
    """
    digests: dict[str, str] = {}
    try:
        with _damage(archive), open_file(archive) as raw:
            gzipped = raw.peek(len(GZIP)).startswith(GZIP)
            stream: Any = gzip.GzipFile(fileobj=raw) if gzipped else raw
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                _write_members(archive, tar, members, digests)
            while gzipped and stream.read(BLOCK):  # gzip's checksum is at the end
                pass
        if missing := sorted(members.keys() - digests.keys()):
            raise DataError(f"{archive}: has no regular file {missing[0]}")
    except BaseException:
        for name in digests:
            members[name].unlink(missing_ok=True)
        raise
    return digests


def _write_members(
    archive: Path, tar: tarfile.TarFile, members: Mapping[str, Path], digests: dict[str, str]
) -> None:
    """Write the wanted members and note in `digests` those that are written."""
    size = 0
    for count, info in enumerate(tar, 1):
        size += info.size
        if size > EXTRACTED_LIMIT or count > MEMBERS:
            raise DataError(
                f"{archive}: holds more than {EXTRACTED_LIMIT:,} bytes or {MEMBERS:,} files"
            )
        content = tar.extractfile(info) if info.name in members and info.isreg() else None
        if content is not None and info.name not in digests:
            path, digest = members[info.name], hashlib.sha256()
            make_folder(path.parent)
            atomic_write(path, _blocks(content, digest, lambda: _damage(archive)))
            digests[info.name] = digest.hexdigest()


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


@contextmanager
def _broken() -> Iterator[None]:
    """Turn a fault of the network while a body is read into _BrokenTransfer."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        reason = error or type(error).__name__
        raise _BrokenTransfer(f"the transfer broke off: {reason}") from error


def _blocks(
    stream: IO[bytes], digest: "hashlib._Hash", faults: Callable[[], AbstractContextManager[None]]
) -> Iterator[bytes]:
    """The bytes of a stream in blocks, added to `digest`; `faults` surrounds each read."""
    while True:
        with faults():
            block = stream.read(BLOCK)
        if not block:
            return
        digest.update(block)
        yield block


def _verified(
    response: http.client.HTTPResponse, url: str, digest: "hashlib._Hash", sha256: str | None,
    size: int | None, progress: ByteProgress | None,
) -> Iterator[bytes]:  # fmt: skip
    """The body of a response in blocks; after the last one its size and hash are checked."""
    announced = response.headers.get("Content-Length", "")
    total = int(announced) if re.fullmatch("[0-9]{1,18}", announced) else size
    too_large = DataError(f"{url}: larger than the limit of {LIMIT:,} bytes")
    if max(total or 0, size or 0) > LIMIT:
        raise too_large
    done = 0
    for block in _blocks(response, digest, _broken):
        done += len(block)
        if done > LIMIT:
            raise too_large
        yield block
        if progress:
            progress(done, total)
    if total is not None and done < total:
        raise _BrokenTransfer(f"the transfer broke off after {done:,} of {total:,} bytes")
    if size is not None and done != size:
        raise DataError(f"{url}: has {done:,} bytes, {size:,} were expected; nothing was saved")
    if sha256 is not None and digest.hexdigest() != sha256:
        raise DataError(
            f"{url}: SHA-256 is {digest.hexdigest()}, {sha256} was expected: the file at this "
            "address has changed or the transfer was tampered with; nothing was saved"
        )


@contextmanager
def _response(url: str, path: Path) -> Iterator[http.client.HTTPResponse]:
    """The server's response with status 200."""
    headers = {"User-Agent": f"attnkit/{__version__}", "Accept-Encoding": "identity"}
    local = urlsplit(url).hostname in LOOPBACK
    proxies = urllib.request.ProxyHandler({} if local else None)
    opener = urllib.request.build_opener(proxies, _Redirects(local))
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        status = f"the server answered {error.code} {' '.join(str(error.reason).split())}"
        if error.code in TRANSIENT:
            raise _BrokenTransfer(status) from error
        raise _unavailable(url, path, status) from error
    except (OSError, http.client.HTTPException) as error:
        inner = getattr(error, "reason", error)
        if isinstance(inner, ssl.SSLCertVerificationError):
            raise _unavailable(url, path, f"its certificate is not valid ({inner})") from error
        raise _BrokenTransfer(f"no connection: {inner or type(inner).__name__}") from error
    except ValueError as error:
        raise _unavailable(url, path, f"not an address ({error})") from error
    with response:
        if response.status != http.HTTPStatus.OK:
            status = f"the server answered {response.status} {response.reason}"
            raise _unavailable(url, path, status)
        yield response


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https alone; from a loopback server also to itself."""

    def __init__(self, local: bool) -> None:
        self._local = local

    def redirect_request(self, req: Any, *rest: Any) -> urllib.request.Request | None:
        """The next request, or the error that its address is not allowed."""
        _check_address(rest[-1], local=self._local, what=f"{req.full_url}: redirects to ")
        return super().redirect_request(req, *rest)

    def http_error_302(self, *args: Any, **options: Any) -> Any:
        """As in urllib, but the response is closed when its redirect is refused."""
        try:
            return super().http_error_302(*args, **options)
        except Exception:
            args[1].close()
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
