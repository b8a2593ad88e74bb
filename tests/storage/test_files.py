"""Tests of writing files as a whole or not at all, and of the errors for faults of the system."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.faults import FAULTS, FaultyDisk, Killed, use_disk

from attnkit.errors import AttnkitError, DataError, MissingInputError, OutputError, OutputPathError
from attnkit.storage import files


def test_atomic_write_replaces_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    files.atomic_write(path, "first, \u00e9")
    files.atomic_write(path, b"second")
    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["scores.json"]


def test_error_between_pieces_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "maps.csv"
    files.atomic_write(path, (b"piece %d\n" % number for number in range(3)))
    with pytest.raises(ZeroDivisionError):
        files.atomic_write(path, (b"%d" % (1 // number) for number in (1, 0)))
    assert os.listdir(tmp_path) == ["maps.csv"]
    assert path.read_text() == "piece 0\npiece 1\npiece 2\n"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("old", [None, "old content"])
def test_after_any_failed_operation_the_content_is_old_or_new(tmp_path: Path, fault: str, old: str | None) -> None:
    counter = FaultyDisk()
    with use_disk(counter):
        files.atomic_write(tmp_path / "dry", "new content")
    assert counter.count == 5
    for operation in range(1, counter.count + 1):
        path = tmp_path / f"{operation}"
        if old is not None:
            path.write_text(old)
        with pytest.raises((AttnkitError, Killed)), use_disk(FaultyDisk(operation, **FAULTS[fault])):
            files.atomic_write(path, "new content")
        content = path.read_text() if path.exists() else None
        assert content in (old, "new content")
        files.remove_leftovers(tmp_path)
        assert not list(tmp_path.glob("*.tmp-*"))


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, OutputError, "No space left on device; free some space"),
        (errno.EDQUOT, OutputError, "quota exceeded; free some space"),
        (errno.EIO, OutputError, "Input/output error; check the disk"),
        (errno.EACCES, OutputPathError, "Permission denied; choose another place"),
        (errno.EROFS, OutputPathError, "Read-only file system; choose another place"),
        (errno.ENOTDIR, OutputPathError, "Not a directory; choose another place"),
        (errno.EISDIR, OutputPathError, "Is a directory; choose another place"),
        (errno.ENAMETOOLONG, OutputPathError, "File name too long; choose another place"),
    ],
)
def test_system_errors_have_a_class_and_advice(
    tmp_path: Path, number: int, kind: type[AttnkitError], message: str
) -> None:
    with pytest.raises(kind, match=message) as error, use_disk(FaultyDisk(2, number)):
        files.atomic_write(tmp_path / "x", "content")
    assert str(error.value).startswith(f"{tmp_path / 'x'}: cannot be ")


def test_device_is_written_in_place() -> None:
    files.write_output(Path("/dev/null"), "content")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OutputError, match="No space left"):
        files.write_output(Path("/dev/full"), "content")


def test_atomic_write_to_a_pipe_raises(tmp_path: Path) -> None:
    """Opening a pipe without a reader would block."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputPathError, match="pipe: is a pipe .*a regular file is needed here"):
        files.atomic_write(tmp_path / "pipe", "content")
    assert os.listdir(tmp_path) == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_link_under_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("precious")
    files.temporary(path).symlink_to(victim)
    with pytest.raises(OutputPathError):
        files.atomic_write(path, "content")
    assert victim.read_text() == "precious"


def test_only_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    own, parent = f"b.tmp-{os.getpid()}", f"c.tmp-{os.getppid()}"
    kept = [parent, "d.tmp-x", "e.tmp-", "f", "g.tmp-\u0663"]
    for name in (f"a.tmp-{dead.pid}", own, *kept, "h.tmp-" + "9" * 30):
        (tmp_path / name).write_text("")
    (tmp_path / f"folder.tmp-{dead.pid}" / "sub").mkdir(parents=True)
    files.remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)
    files.remove_leftovers(tmp_path, dead_only=False)
    assert parent not in os.listdir(tmp_path)
    files.remove_leftovers(tmp_path / "absent")


def test_removing_a_folder_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "precious")
    files.remove(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["precious"]
    assert (tmp_path / "precious" / "file").read_text() == "kept"


@pytest.mark.parametrize("name", ["absent", "pipe", ".", "n" * 300, "nul\0"])
def test_reading_other_than_a_regular_file_raises(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MissingInputError, match="no such file|a regular file is needed"):
        files.sha256_file(tmp_path / name)
    with pytest.raises(MissingInputError):
        files.read_json(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON: Expecting value"),
        ("[1]", "must hold a JSON object, got list"),
        ('{"a": Infinity}', "Infinity is not a JSON number"),
        ('{"a": 1}' + " " * 100, "longer than 50 bytes"),
    ],
)
def test_invalid_json_raises(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(DataError, match=reason) as error:
        files.read_json(path, limit=50)
    assert str(error.value).startswith(str(path))


def test_too_little_space_raises(tmp_path: Path) -> None:
    files.check_space(tmp_path / "a" / "b", 1)
    with pytest.raises(OutputError, match="MB are needed, but only .* MB are free"):
        files.check_space(tmp_path / "a" / "b", shutil.disk_usage(tmp_path).free * 2)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("runs/toi/base/seed-1", "runs/toy/base/seed-1"),
        ("rusn/toy", "runs/toy"),
        ("runs/toy/bas/seed-1", "runs/toy/base/seed-1"),
        ("runs/toy/base/seed-12", None),  # names that differ only in their numbers
        ("runs/toi/base/seed-7", None),  # the similar name does not lead to a folder
        ("runs/other", None),
        ("runs/toy", None),  # exists
        ("runs/notes/toy", None),  # below a file
        ("n\0ne", None),
    ],
)
def test_nearest_folder_replaces_the_first_missing_part(
    path: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/toy/base/seed-1").mkdir(parents=True)
    Path("runs/notes").touch()
    assert files.nearest_folder(Path(path)) == (expected and Path(expected))
    assert files.nearest_folder(tmp_path / path) == (expected and tmp_path / expected)


def test_missing_folder_raises_and_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quikstart.md").touch()  # more similar, but not a folder
    message = "quikstart: no such run; train one; did you mean .*quickstart"
    with pytest.raises(MissingInputError, match=message):
        files.require_folder(tmp_path / "quikstart", "run", "; train one")
    with pytest.raises(MissingInputError, match="other: no such run; train one"):
        files.require_folder(tmp_path / "other", "run", "; train one")
