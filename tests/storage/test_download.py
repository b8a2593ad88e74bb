"""Downloads over loopback: what arrives whole and right is kept, anything else leaves nothing."""

import errno
import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from attnkit.errors import DataError, OutputError, OutputPathError, UnavailableError
from attnkit.storage import download
from attnkit.storage.download import extract, fetch
from attnkit.storage.files import DISK

BODY = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(BODY).hexdigest()
Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers a path by the function that the test put there, and remembers the requests."""

    answers: dict[str, Answer]
    seen: list[str]
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.answers[self.path](self)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def head(self, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()


class Server:
    """A server on loopback with scripted answers."""

    def __init__(self) -> None:
        kind = type("Scripted", (Handler,), {"answers": {}, "seen": []})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        self.answers: dict[str, Answer] = kind.answers
        self.seen: list[str] = kind.seen
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "WAIT", 0)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of these tests may be asked, too."""
    monkeypatch.setattr(download, "ADDRESSES", ("https://", "http://127.0.0.1"))


def whole(handler: Handler) -> None:
    handler.head(Content_Length=str(len(BODY)))
    handler.wfile.write(BODY)


def cut(handler: Handler) -> None:
    handler.head(Content_Length=str(len(BODY)))
    handler.wfile.write(BODY[:1000])


def refuse(server: Server, path: Path, kind: type[Exception], **options: object) -> str:
    with pytest.raises(kind) as caught:
        fetch(f"{server.url}/file", path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert list(path.parent.iterdir()) == []
    return str(caught.value)


def packed(handler: Handler) -> None:
    """As servers are set up that call a .gz an encoding of what is in it."""
    handler.head(Content_Length=str(len(BODY)), Content_Encoding="x-gzip")
    handler.wfile.write(BODY)


def test_an_answer_without_content_is_no_file(server: Server, tmp_path: Path) -> None:
    server.answers["/file"] = lambda handler: handler.head(204)
    assert "the server answered 204" in refuse(server, tmp_path / "file", UnavailableError)


def unannounced(handler: Handler) -> None:
    handler.head()
    handler.wfile.write(BODY)


@pytest.mark.parametrize(("answer", "total"), [(whole, len(BODY)), (packed, len(BODY)), (unannounced, None)])
def test_a_file_arrives_whole_with_progress(server: Server, tmp_path: Path, answer: Answer, total: int | None) -> None:
    server.answers["/file"] = answer
    path, steps = tmp_path / "new" / "file", []
    fetch(f"{server.url}/file", path, SHA256, lambda *step: steps.append(step))
    assert path.read_bytes() == BODY
    assert steps[-1] == (len(BODY), total)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert [file.name for file in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("fault", [cut, lambda handler: handler.head(503)])
def test_a_transfer_that_breaks_off_is_tried_again(server: Server, tmp_path: Path, fault: Answer) -> None:
    server.answers["/file"] = lambda handler: (fault if len(handler.seen) < 3 else there)(handler)
    server.answers["/there"] = whole

    def there(handler: Handler) -> None:
        handler.head(302, Location="/there")

    fetch(f"{server.url}/file", tmp_path / "file", SHA256)
    assert server.seen == ["/file"] * 3 + ["/there"]


def test_a_transfer_that_keeps_breaking_off_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.answers["/file"] = cut
    message = refuse(server, tmp_path / "file", UnavailableError)
    assert message.startswith("file: the transfer was interrupted: ")
    assert message.endswith(
        f"(3 tries); to continue offline, fetch {server.url}/file elsewhere and put the file at {tmp_path / 'file'}"
    )


def test_an_absent_file_is_not_tried_again(server: Server, tmp_path: Path) -> None:
    server.answers["/file"] = lambda handler: handler.send_error(404)
    message = refuse(server, tmp_path / "file", UnavailableError)
    assert message.startswith("file: the server answered 404 Not Found; to continue offline")
    assert len(server.seen) == 1


def test_a_silent_server_is_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.05)
    done = threading.Event()

    def answer(handler: Handler) -> None:
        handler.head(Content_Length=str(len(BODY)))
        handler.wfile.write(BODY[:1000])
        handler.wfile.flush()
        done.wait(10)

    server.answers["/file"] = answer
    try:
        message = refuse(server, tmp_path / "file", UnavailableError)
    finally:
        done.set()
    assert "timed out" in message
    assert "(3 tries)" in message


def test_a_server_that_is_not_there_is_named(server: Server, tmp_path: Path) -> None:
    server.close()
    message = refuse(server, tmp_path / "file", UnavailableError)
    assert message.startswith("file: no connection: ")
    assert "refused" in message
    assert "(3 tries)" in message


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"sha256": "0" * 64}, f"SHA-256 must be {'0' * 64}, got {SHA256}"),
        ({"size": 1000}, "must have 1,000 bytes, got 1,024,000"),
    ],
)
def test_another_file_than_expected_leaves_nothing(
    server: Server, tmp_path: Path, expected: dict[str, object], message: str
) -> None:
    server.answers["/file"] = whole
    assert message in refuse(server, tmp_path / "file", DataError, **expected)
    assert len(server.seen) == 1


@pytest.mark.parametrize("answer", [whole, unannounced])
def test_a_file_over_the_limit_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(download, "LIMIT", 300_000)
    server.answers["/file"] = answer
    message = refuse(server, tmp_path / "file", DataError)
    assert "larger than the limit of 300,000 bytes" in message


@pytest.mark.parametrize(
    ("location", "kind", "message"),
    [
        ("http://example.org/file", DataError, "only https addresses are downloaded"),
        ("file:///etc/passwd", DataError, "only https"),
        ("https://[broken/file", DataError, "only https"),
        ("/file", UnavailableError, "Exceeded 30 redirects"),
    ],
)
def test_redirects_elsewhere_than_https_are_refused(
    server: Server, tmp_path: Path, location: str, kind: type[Exception], message: str
) -> None:
    server.answers["/file"] = lambda handler: handler.head(302, Location=location)
    assert message in refuse(server, tmp_path / "file", kind)


@pytest.mark.parametrize("url", ["http://example.org/x", "ftp://127.0.0.1/x", "file:///etc/passwd", "https:x", ""])
def test_only_https_is_downloaded(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match="only https addresses are downloaded"):
        fetch(url, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_offline_says_what_to_fetch_and_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "variable":
        monkeypatch.setenv("ATTNKIT_OFFLINE", "1")
    with pytest.raises(UnavailableError) as caught:
        fetch("https://example.org/train.en", tmp_path / "train.en", offline=by == "flag")
    assert str(caught.value) == (
        "train.en: downloads are off (--offline or ATTNKIT_OFFLINE); to continue offline, fetch "
        f"https://example.org/train.en elsewhere and put the file at {tmp_path / 'train.en'}"
    )


def test_a_stopped_download_leaves_nothing(server: Server, tmp_path: Path) -> None:
    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    server.answers["/file"] = whole
    with pytest.raises(KeyboardInterrupt):
        fetch(f"{server.url}/file", tmp_path / "file", None, stop)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(OutputPathError, match="file"):
        fetch(f"{server.url}/x", tmp_path / "file" / "below")


def test_a_full_disk_leaves_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object, data: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    server.answers["/file"] = whole
    monkeypatch.setattr(DISK, "write", full)
    message = refuse(server, tmp_path / "file", OutputError)
    assert "No space left on device" in message


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
def test_named_members_are_extracted_and_no_others(tmp_path: Path, mode: str) -> None:
    archive = pack(
        tmp_path / "a.tar", [(member("../evil"), b"x"), (member("d/one"), BODY), (member("two"), b"2")], mode
    )
    out = tmp_path / "out"
    extract(archive, {"d/one": out / "1", "two": out / "2"})
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    assert (out / "1").read_bytes() == BODY
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "out"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_not_extracted(tmp_path: Path, kind: bytes) -> None:
    archive = pack(tmp_path / "a.tar", [(member("one", kind, "/etc/passwd"), b"")])
    with pytest.raises(DataError, match="has no regular file one"):
        extract(archive, {"one": tmp_path / "out" / "1"})
    assert not (tmp_path / "out").exists()


def test_archives_over_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "EXTRACTED_LIMIT", 1000)
    archive = pack(tmp_path / "a.tar", [(member("one"), BODY), (member("two"), b"2")])
    with pytest.raises(DataError, match="holds more than 1,000 bytes"):
        extract(archive, {"two": tmp_path / "2"})


@pytest.mark.parametrize("fault", ["cut", "flipped", "checksum", "text", "empty", "xz"])
def test_damaged_archives_are_refused_and_leave_nothing(tmp_path: Path, fault: str) -> None:
    mode, members = "w:xz" if fault == "xz" else "w:gz", [(member("one"), BODY)]
    archive = pack(tmp_path / "a.tar", [*members, (member("two"), b"2")], mode)
    data = bytearray(archive.read_bytes())
    half = len(data) // 2
    if fault in ("flipped", "checksum", "xz"):
        data[-6 if fault == "checksum" else half] ^= 0xFF
    archive.write_bytes({"cut": data[:half], "text": b"no", "empty": b""}.get(fault, bytes(data)))
    with pytest.raises(DataError, match=r"a\.tar: (damaged archive|has no regular file)"):
        extract(archive, {"one": tmp_path / "1", "two": tmp_path / "2"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]
