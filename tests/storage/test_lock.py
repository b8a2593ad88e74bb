"""Locks keep two trainings apart, and looking at one keeps nobody out."""

import threading
from pathlib import Path

import pytest

from attnkit.errors import OutputPathError
from attnkit.storage import lock


def test_a_lock_is_seen_while_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not lock.is_held(path)
    with lock.held(path, "run"):
        assert lock.is_held(path)
        with pytest.raises(OutputPathError, match=r"^run: is being trained by process \d+"):
            lock.held(path, "run").__enter__()
    assert not lock.is_held(path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    with lock.held(tmp_path / "target", "run"):
        (tmp_path / ".lock").symlink_to(tmp_path / "target")
        assert not lock.is_held(tmp_path / ".lock")


def test_who_only_looks_does_not_stop_a_training(tmp_path: Path) -> None:
    """The moment of a look was enough to have a training refused."""
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


def test_a_folder_is_held_by_one_at_a_time_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    """Also by who may only read it."""
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


def test_a_folder_that_was_moved_away_is_not_made_again(tmp_path: Path) -> None:
    """An empty file in its place kept it from being moved back."""
    with pytest.raises(OutputPathError, match="seed-1: cannot be created: No such file"):
        lock.exclusive(tmp_path / "seed-1").__enter__()
    with lock.exclusive(tmp_path / "cache.lock", file=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["cache.lock"]
