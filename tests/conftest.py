"""Fixtures and settings of all tests."""

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also in programs that tests start: test workers share the cores

SLOWEST_FILES = ("test_docs.py", "test_shipped_recipes.py")
"""Run first, so that at the end no test worker waits for another."""
MANY = 12
"""Number of cases from which on most cases of a test with `sampled(n)` run with `-m every` only."""

hypothesis.settings.register_profile("fast", max_examples=15, deadline=None)
hypothesis.settings.register_profile("slow", max_examples=50, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """Generate fewer examples in runs without slow tests."""
    hypothesis.settings.load_profile("fast" if config.getoption("markexpr") == "not slow" else "slow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests, and mark tests that use a browser and cases of `sampled(n)` as slow.

    Every n-th case is not slow. If there are MANY cases, another n-th is slow, and the rest runs with `-m every`.
    """
    items.sort(key=lambda item: item.path.name not in SLOWEST_FILES)
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
def _one_thread() -> None:
    """Set one thread before each test, whatever an earlier test has set."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _freeze_imported_modules() -> None:
    """Exclude imported modules from garbage collection, which every training runs before it measures memory."""
    import sacrebleu  # noqa: F401
    import torch.fx.experimental.symbolic_shapes  # noqa: F401  (autograd imports it when used)

    gc.collect(1)
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """Skip os.fsync, which is slow; tests of power loss use `helpers.faults.FaultyDisk`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _handle_sigint() -> None:
    """Restore the handler of SIGINT: a shell starts background jobs with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Return the folder of real corpora; skip the test without it."""
    folder = os.environ.get("ATTNKIT_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real corpora are absent: set ATTNKIT_DATA to their folder")
    return Path(folder)


@pytest.fixture(autouse=True)
def _private_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests away from the user's cache and settings of matplotlib."""
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
