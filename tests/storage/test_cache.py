"""A cache folder is complete or absent, whatever happens while it is made."""

import json
import os
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, NonNegativeInt

from attnkit.errors import DataError, OutputPathError
from attnkit.storage.cache import fill_folder, read_note, read_or_build, write_note
from attnkit.storage.files import Filesystem, sha256_json

NOTE = tuple[list[str], Annotated[str, Field(pattern="^[0-9a-f]{64}$")], NonNegativeInt]


def read(path: Path) -> str:
    text = (path / "value").read_text()
    if text == "damaged":
        raise DataError("value is damaged")
    return text


def write(draft: Path) -> None:
    (draft / "value").write_text("good")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_folder_is_read_and_not_built_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    assert read_or_build(path, read, write) == "good"

    def refuse(draft: Path) -> None:
        raise AssertionError(f"{draft} is built again")

    assert read_or_build(path, read, refuse) == "good"
    assert names(path.parent) == ["key"]


def test_a_damaged_folder_is_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.mkdir()
    (path / "value").write_text("damaged")
    assert read_or_build(path, read, write) == "good"
    assert (path / "value").read_text() == "good"


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
def test_a_fault_while_building_leaves_nothing(tmp_path: Path, fault: type) -> None:
    def fail(draft: Path) -> None:
        (draft / "value").write_text("half")
        raise fault

    with pytest.raises(fault):
        read_or_build(tmp_path / "key", read, fail)
    assert [name for name in names(tmp_path) if not name.endswith(".lock")] == []
    assert read_or_build(tmp_path / "key", read, write) == "good"


def test_a_signal_as_soon_as_the_folder_is_there_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, *_: Any, **__: Any) -> None:
        os.mkdir(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill_folder(tmp_path / "out", lambda _: None)
    assert not [*tmp_path.iterdir()]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    # No process has this number: it is above the kernel's limit.
    half = tmp_path / "key.tmp-99999999"
    half.mkdir()
    (half / "value").write_text("half")
    read_or_build(tmp_path / "key", read, write)
    assert names(tmp_path) == ["key"]


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    started, built = threading.Barrier(2), []

    def slow(draft: Path) -> None:
        built.append(draft)
        write(draft)

    def run() -> None:
        started.wait()
        assert read_or_build(tmp_path / "key", read, slow) == "good"

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


@pytest.mark.parametrize(
    "changed",
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
def test_a_note_with_wrong_content_is_made_anew(changed: Any, tmp_path: Path) -> None:
    """Also where its hash agrees."""
    path, value = tmp_path / "note.json", [["x"], "f" * 64, 40]
    write_note(path, value)
    assert read_note(path, NOTE) == (value[0], value[1], 40)
    told = changed and {"sha256": sha256_json(changed.get("value"))} | changed
    path.write_text(json.dumps(told))
    assert read_note(path, NOTE) is None


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputPathError, match="file"):
        read_or_build(tmp_path / "file" / "key", read, write)


def test_what_other_libraries_wrote_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    class Recording(Filesystem):
        def fsync_path(self, path: Path) -> None:
            super().fsync_path(path)
            synced.append(path)

        def rename(self, old: Path, new: Path) -> None:
            assert {old, *old.rglob("*")} <= {*synced}
            super().rename(old, new)

    def build(folder: Path) -> None:
        (folder / "part").mkdir()
        (folder / "part" / "weights").write_bytes(b"1")

    monkeypatch.setattr("attnkit.storage.cache.DISK", Recording())
    fill_folder(tmp_path / "made", build)
    assert (tmp_path / "made" / "part" / "weights").read_bytes() == b"1"
    assert len(synced) == 4
