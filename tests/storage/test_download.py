"""Tests of downloads over loopback and of extracting archives: a complete, verified file, or none."""

import errno
import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from attnkit.errors import DataError, OutputError, OutputPathError, UnavailableError
from attnkit.storage import download
from attnkit.storage.download import extract, fetch
from attnkit.storage.files import DISK

BODY = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(BODY).hexdigest()
Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers each path with the function that the test set for it."""

    server: "Server"

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.server.answers[self.path](self)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def head(self, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "WAIT", 0)
    monkeypatch.setattr(download, "ADDRESSES", ("https://", "http://127.0.0.1"))
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def complete(handler: Handler) -> None:
    handler.head(Content_Length=str(len(BODY)))
    handler.wfile.write(BODY)


def truncated(handler: Handler) -> None:
    handler.head(Content_Length=str(len(BODY)))
    handler.wfile.write(BODY[:1000])


def gzip_encoded(handler: Handler) -> None:
    """Answer as servers do that declare the compression of a .gz file as its encoding."""
    handler.head(Content_Length=str(len(BODY)), Content_Encoding="x-gzip")
    handler.wfile.write(BODY)


def without_length(handler: Handler) -> None:
    handler.head()
    handler.wfile.write(BODY)


def redirect(location: str) -> Answer:
    return lambda handler: handler.head(302, Location=location)


def check_error(server: Server, path: Path, kind: type[BaseException], message: str, **options: Any) -> None:
    """Check that a download raises an error with this message in one line, and leaves no file."""
    with pytest.raises(kind, match=message) as caught:
        fetch(f"{server.url}/file", path, **options)
    text = str(caught.value)
    assert "\n" not in text
    if kind is UnavailableError:
        assert text.endswith(f"; to continue offline, fetch {server.url}/file elsewhere and put the file at {path}")
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "total"), [(complete, len(BODY)), (gzip_encoded, len(BODY)), (without_length, None)]
)
def test_file_is_complete_and_progress_reported(
    server: Server, tmp_path: Path, answer: Answer, total: int | None
) -> None:
    server.answers["/file"] = answer
    path, steps = tmp_path / "new" / "file", []
    fetch(f"{server.url}/file", path, SHA256, lambda *step: steps.append(step))
    assert path.read_bytes() == BODY
    assert steps[-1] == (len(BODY), total)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert [file.name for file in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("fault", [truncated, lambda handler: handler.head(503)])
def test_transient_errors_are_retried_and_redirects_followed(server: Server, tmp_path: Path, fault: Answer) -> None:
    server.answers["/file"] = lambda handler: (fault if len(server.requests) < 3 else redirect("/target"))(handler)
    server.answers["/target"] = complete
    fetch(f"{server.url}/file", tmp_path / "file", SHA256)
    assert server.requests == ["/file"] * 3 + ["/target"]


@pytest.mark.parametrize(
    ("answer", "options", "kind", "message", "requests"),
    [
        (truncated, {}, UnavailableError, r"^file: the transfer was interrupted: .* \(3 tries\);", 3),
        (partial(Handler.head, status=204), {}, UnavailableError, "^file: the server answered 204;", 1),
        (partial(Handler.head, status=404), {}, UnavailableError, "^file: the server answered 404 Not Found;", 1),
        (complete, {"sha256": "0" * 64}, DataError, f"SHA-256 must be {'0' * 64}, got {SHA256}", 1),
        (complete, {"size": 1000}, DataError, "must have 1,000 bytes, got 1,024,000", 1),
        (redirect("http://example.org/file"), {}, DataError, "only https addresses are downloaded", 1),
        (redirect("file:///etc/passwd"), {}, DataError, "only https", 1),
        (redirect("https://[broken/file"), {}, DataError, "only https", 1),
        (redirect("/file"), {}, UnavailableError, "Exceeded 30 redirects", 31),
    ],
)
def test_failed_download_leaves_no_file(
    server: Server, tmp_path: Path, answer: Answer, options: Any, kind: type[Exception], message: str, requests: int
) -> None:
    server.answers["/file"] = answer
    check_error(server, tmp_path / "file", kind, message, **options)
    assert len(server.requests) == requests


def test_silent_server_times_out(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.05)
    done = threading.Event()

    def stall(handler: Handler) -> None:
        truncated(handler)
        handler.wfile.flush()
        done.wait(10)

    server.answers["/file"] = stall
    try:
        check_error(server, tmp_path / "file", UnavailableError, r"timed out.*\(3 tries\)")
    finally:
        done.set()


def test_refused_connection_is_reported(server: Server, tmp_path: Path) -> None:
    server.shutdown()
    server.server_close()
    check_error(server, tmp_path / "file", UnavailableError, r"^file: no connection: .*refused.*\(3 tries\)")


@pytest.mark.parametrize("answer", [complete, without_length])
def test_file_over_the_limit_raises(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(download, "LIMIT", 300_000)
    server.answers["/file"] = answer
    check_error(server, tmp_path / "file", DataError, "larger than the limit of 300,000 bytes")


@pytest.mark.parametrize("url", ["http://example.org/x", "ftp://127.0.0.1/x", "file:///etc/passwd", "https:x", ""])
def test_other_addresses_than_https_raise(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match="only https addresses are downloaded"):
        fetch(url, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("offline", [True, False])
def test_offline_message_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    if not offline:
        monkeypatch.setenv("ATTNKIT_OFFLINE", "1")
    with pytest.raises(UnavailableError) as caught:
        fetch("https://example.org/train.en", tmp_path / "train.en", offline=offline)
    assert str(caught.value) == (
        "train.en: downloads are off (--offline or ATTNKIT_OFFLINE); to continue offline, fetch "
        f"https://example.org/train.en elsewhere and put the file at {tmp_path / 'train.en'}"
    )


def test_interrupted_download_leaves_no_file(server: Server, tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    server.answers["/file"] = complete
    check_error(server, tmp_path / "file", KeyboardInterrupt, "^$", progress=interrupt)


def test_download_below_a_file_raises(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputPathError, match="file"):
        fetch(f"{server.url}/x", tmp_path / "file" / "below")


def test_full_disk_leaves_no_file(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: object, data: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    server.answers["/file"] = complete
    monkeypatch.setattr(DISK, "write", write)
    check_error(server, tmp_path / "file", OutputError, "No space left on device")


def pack(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_only_named_members_are_extracted(tmp_path: Path, mode: str) -> None:
    members = [(member("../evil"), b"x"), (member("d/one"), BODY), (member("two"), b"2")]
    out = tmp_path / "out"
    extract(pack(tmp_path / "a.tar", members, mode), {"d/one": out / "1", "two": out / "2"})
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    assert (out / "1").read_bytes() == BODY
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "out"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_not_extracted(tmp_path: Path, kind: bytes) -> None:
    archive = pack(tmp_path / "a.tar", [(member("one", kind, "/etc/passwd"), b"")])
    with pytest.raises(DataError, match="has no regular file one"):
        extract(archive, {"one": tmp_path / "out" / "1"})
    assert not (tmp_path / "out").exists()


def test_archive_over_the_limit_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "EXTRACTED_LIMIT", 1000)
    archive = pack(tmp_path / "a.tar", [(member("one"), BODY), (member("two"), b"2")])
    with pytest.raises(DataError, match="holds more than 1,000 bytes"):
        extract(archive, {"two": tmp_path / "2"})


@pytest.mark.parametrize("fault", ["cut", "flipped", "checksum", "text", "empty", "xz"])
def test_damaged_archive_leaves_no_file(tmp_path: Path, fault: str) -> None:
    members = [(member("one"), BODY), (member("two"), b"2")]
    archive = pack(tmp_path / "a.tar", members, "w:xz" if fault == "xz" else "w:gz")
    data = bytearray(archive.read_bytes())
    half = len(data) // 2
    if fault in ("flipped", "checksum", "xz"):
        data[-6 if fault == "checksum" else half] ^= 0xFF
    archive.write_bytes({"cut": data[:half], "text": b"no", "empty": b""}.get(fault, bytes(data)))
    with pytest.raises(DataError, match=r"a\.tar: (damaged archive|has no regular file)"):
        extract(archive, {"one": tmp_path / "1", "two": tmp_path / "2"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]
