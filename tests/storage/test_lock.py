"""Tests of locks between processes, and of looking at a lock without blocking its holder."""

import threading
from pathlib import Path

import pytest

from attnkit.errors import OutputPathError
from attnkit.storage import lock


def test_held_lock_is_seen_and_refuses_a_second_holder(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not lock.is_held(path)
    with lock.held(path, "run"):
        assert lock.is_held(path)
        with pytest.raises(OutputPathError, match=r"^run: is being trained by process \d+"):
            lock.held(path, "run").__enter__()
    assert not lock.is_held(path)


def test_is_held_does_not_follow_links(tmp_path: Path) -> None:
    with lock.held(tmp_path / "target", "run"):
        (tmp_path / ".lock").symlink_to(tmp_path / "target")
        assert not lock.is_held(tmp_path / ".lock")


def test_is_held_does_not_block_training(tmp_path: Path) -> None:
    """The moment for which `is_held` locks the file was enough to refuse a training."""
    path, stop = tmp_path / ".lock", threading.Event()
    path.touch()

    def look() -> None:
        while not stop.is_set():
            lock.is_held(path)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(200):
            with lock.held(path, "run"):
                pass
    finally:
        stop.set()
        watcher.join()


def test_exclusive_waits_and_leaves_a_read_only_folder_empty(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    order = list[str]()

    def second() -> None:
        with lock.exclusive(tmp_path):
            order.append("second")

    other = threading.Thread(target=second)
    with lock.exclusive(tmp_path):
        other.start()
        other.join(0.1)
        order.append("first")
    other.join()
    tmp_path.chmod(0o700)
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_exclusive_does_not_recreate_a_moved_folder(tmp_path: Path) -> None:
    """An empty file in its place kept the folder from being moved back."""
    with pytest.raises(OutputPathError, match="seed-1: cannot be created: No such file"):
        lock.exclusive(tmp_path / "seed-1").__enter__()
    with lock.exclusive(tmp_path / "cache.lock", file=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["cache.lock"]
