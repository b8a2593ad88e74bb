"""Tests of cache folders and notes: complete or absent, and rebuilt if damaged."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, NonNegativeInt

from attnkit.errors import DataError, OutputPathError
from attnkit.storage.cache import cache_dir, fill_folder, read_note, read_or_build, write_note
from attnkit.storage.files import Filesystem, sha256_json


def read(path: Path) -> str:
    text = (path / "value").read_text()
    if text == "damaged":
        raise DataError("value is damaged")
    return text


def build(draft: Path) -> None:
    (draft / "value").write_text("good")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_complete_folder_is_not_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    assert read_or_build(path, read, build) == "good"
    assert read_or_build(path, read, lambda draft: pytest.fail(f"{draft} is built again")) == "good"
    assert names(path.parent) == ["key"]


def test_damaged_folder_is_rebuilt(tmp_path: Path) -> None:
    (tmp_path / "value").write_text("damaged")
    assert read_or_build(tmp_path, read, build) == "good"
    assert (tmp_path / "value").read_text() == "good"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_error_while_building_leaves_no_folder(tmp_path: Path, error: type[BaseException]) -> None:
    def fail(draft: Path) -> None:
        (draft / "value").write_text("half")
        raise error

    with pytest.raises(error):
        read_or_build(tmp_path / "key", read, fail)
    assert [name for name in names(tmp_path) if not name.endswith(".lock")] == []
    assert read_or_build(tmp_path / "key", read, build) == "good"


def test_interrupt_right_after_mkdir_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, *_: Any, **__: Any) -> None:
        os.mkdir(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill_folder(tmp_path / "out", lambda _: None)
    assert not [*tmp_path.iterdir()]


def test_leftovers_of_killed_process_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "key.tmp-99999999"  # above the kernel's maximum process ID
    leftover.mkdir()
    (leftover / "value").write_text("half")
    read_or_build(tmp_path / "key", read, build)
    assert names(tmp_path) == ["key"]


def test_of_two_concurrent_builders_one_builds(tmp_path: Path) -> None:
    barrier, drafts = threading.Barrier(2), []

    def counted_build(draft: Path) -> None:
        drafts.append(draft)
        build(draft)

    def run(_: int) -> str:
        barrier.wait()
        return read_or_build(tmp_path / "key", read, counted_build)

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(run, range(2))] == ["good", "good"]
    assert len(drafts) == 1


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        {},
        {"sha256": None},
        {"value": [["x"], "f" * 64, -1]},
        {"value": [["x"], "f" * 64, True]},
        {"value": [["x"], "text", 1]},
        {"value": [["x"], "f" * 64, 1.5]},
        {"value": [5, "f" * 64, 1]},
    ],
)
def test_damaged_note_is_ignored(damaged: Any, tmp_path: Path) -> None:
    """A value of another type is ignored even if its hash agrees."""
    form = tuple[list[str], Annotated[str, Field(pattern="^[0-9a-f]{64}$")], NonNegativeInt]
    path = tmp_path / "note.json"
    write_note(path, [["x"], "f" * 64, 40])
    assert read_note(path, form) == (["x"], "f" * 64, 40)
    path.write_text(json.dumps(damaged and {"sha256": sha256_json(damaged.get("value"))} | damaged))
    assert read_note(path, form) is None


def test_cache_below_a_file_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputPathError, match="file"):
        read_or_build(tmp_path / "file" / "key", read, build)


def test_folder_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other libraries do not sync the files that they write into it."""
    synced: list[Path] = []

    class Recording(Filesystem):
        def fsync_path(self, path: Path) -> None:
            super().fsync_path(path)
            synced.append(path)

        def rename(self, old: Path, new: Path) -> None:
            assert {old, *old.rglob("*")} <= {*synced}
            super().rename(old, new)

    def build_nested(folder: Path) -> None:
        (folder / "part").mkdir()
        (folder / "part" / "weights").write_bytes(b"1")

    monkeypatch.setattr("attnkit.storage.cache.DISK", Recording())
    fill_folder(tmp_path / "out", build_nested)
    assert (tmp_path / "out" / "part" / "weights").read_bytes() == b"1"
    assert len(synced) == 4


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_dir() == Path("/a")
    monkeypatch.delenv("ATTNKIT_CACHE")
    assert cache_dir() == Path("/b/attnkit")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == Path("/c/.cache/attnkit")


def test_without_a_home_folder_cache_dir_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError

    monkeypatch.delenv("ATTNKIT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(OutputPathError, match="set ATTNKIT_CACHE"):
        cache_dir()
