"""Fixtures shared by all tests."""

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Also of programs that tests start: two workers share the cores."""

LONGEST = ("test_docs.py", "test_shipped_recipes.py")
"""Files whose tests take longest, which come first: no worker waits for them in the end."""


MANY = 12
"""Cases of a test that repeat a promise; where there are fewer, each is another."""

hypothesis.settings.register_profile("plain", max_examples=15, deadline=None)
hypothesis.settings.register_profile("slow", max_examples=50, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """Drawn examples are few where slow tests do not run."""
    plain = config.getoption("markexpr") == "not slow"
    hypothesis.settings.load_profile("plain" if plain else "slow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of all workers; what is slow besides: browsers, and of `sampled(n)` all but a case.

    Of many cases one more of n runs with the slow tests; the others are for `pytest -m every`.
    """
    items.sort(key=lambda item: item.path.name not in LONGEST)
    total = Counter(item.nodeid.partition("[")[0] for item in items)
    counts = Counter[str]()
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
        if mark := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            turn = counts[test] % mark.args[0]
            if turn:
                item.add_marker("slow")
            if total[test] >= MANY and turn not in (0, mark.args[0] // 2):
                item.add_marker("every")
            counts[test] += 1


@pytest.fixture(autouse=True)
def _quiet_threads() -> None:
    """Two test workers share the cores: one thread each, whatever the test before has set."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _collect_garbage_of_tests_only() -> None:
    """Trainings collect garbage before they measure memory; what stays needs no look each time."""
    import sacrebleu  # noqa: F401
    import torch.fx.experimental.symbolic_shapes  # noqa: F401  (what autograd imports when used)

    gc.collect(1)
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """No test loses power; those of what is forced to the disk use a disk of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> None:
    """A shell starts background jobs with SIGINT ignored, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of real corpora, or a skip with the reason."""
    folder = os.environ.get("ATTNKIT_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real corpora are absent: set ATTNKIT_DATA to their folder")
    return Path(folder)


@pytest.fixture(autouse=True)
def _private_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache, or reads the user's settings of matplotlib."""
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
