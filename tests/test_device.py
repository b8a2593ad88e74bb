"""Tests of devices and threads."""

import os
import subprocess
import sys

import pytest

from attnkit.cli import main
from attnkit.device import CACHES, SPINS, THREADS, load_note, load_warning, pick_device, process_count, use_threads
from attnkit.errors import UnavailableError, UsageError


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": SPINS} | CACHES),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": None}),
        (dict.fromkeys(CACHES, "9"), dict.fromkeys(CACHES, "9")),
    ],
)
def test_commands_set_spins_and_caches_unless_the_user_does(
    variables: dict[str, str], expected: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", *CACHES):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["--version"]) == 0
    assert {name: os.environ.get(name) for name in expected} == expected


@pytest.mark.slow
def test_threads_are_set_before_and_after_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for name in THREADS:
        monkeypatch.setenv(name, "9")
    before = torch.get_num_threads()
    try:
        use_threads(1)
        assert torch.get_num_threads() == 1
        assert [os.environ[name] for name in THREADS] == ["1", "1"]
    finally:
        torch.set_num_threads(before)
    code = "import sys, attnkit.cli as c; c.main(sys.argv[1:]); import torch as t; print(t.get_num_threads())"
    words = ["recipe", "explain", "quickstart", "--quick", "--variant", "linear", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "1"


@pytest.mark.parametrize(("threads", "processes"), [("3", 3), ("0", 1), ("1", 1)])
def test_process_count_is_the_number_of_threads_if_set(
    threads: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(THREADS[0], threads)
    assert process_count() == processes


def test_process_count_is_otherwise_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS[0], raising=False)
    assert 1 <= process_count() <= (os.cpu_count() or 1)


def test_load_warning_names_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.9, 0.0, 0.0))
    assert load_warning() is None
    monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 0.0, 0.0))
    assert "load 2.5 on 4 cores" in str(load_warning())


@pytest.mark.parametrize(
    ("threads", "load", "note"), [("2", 3.9, ""), ("2", 4.1, "machine busy (load 4.1 on 4 cores)"), ("", 5.9, "")]
)
def test_load_note_excludes_the_training(
    threads: str, load: float, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setenv(THREADS[0], threads)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert load_note() == note


def test_each_process_of_a_machine_gets_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.empty", lambda *_, **__: None)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [pick_device(name) for name in ("auto", "cuda", "cpu")] == ["cuda:1", "cuda:1", "cpu"]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(UnavailableError, match="3 processes on this machine need one GPU each, but it has 2"):
        pick_device("auto")


@pytest.mark.parametrize("name", ["tpu", "gpu", "cuda:x", "cuda:1 ", ""])
def test_invalid_device_raises(name: str) -> None:
    with pytest.raises(UsageError, match="must be auto, cpu, cuda, cuda:N or mps"):
        pick_device(name)
