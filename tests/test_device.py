"""Where models compute, and how threads share the processor."""

import os
import subprocess
import sys

import pytest

from attnkit.cli import main
from attnkit.device import CACHES, SPINS, THREADS, load_note, load_warning, pick_device, process_count, use_threads
from attnkit.errors import UnavailableError, UsageError


@pytest.mark.parametrize(
    ("variables", "spins"), [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)]
)
def test_commands_spin_briefly_unless_the_user_says_otherwise(
    variables: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begun(monkeypatch, variables)["GOMP_SPINCOUNT"] == spins


def test_commands_keep_few_compiled_products_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    found = begun(monkeypatch, {})
    assert {name: found[name] for name in CACHES} == CACHES
    found = begun(monkeypatch, dict.fromkeys(CACHES, "9"))
    assert {found[name] for name in CACHES} == {"9"}


def begun(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> dict[str, str | None]:
    """Variables of the environment once a command has begun."""
    decided = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", *CACHES)
    for name in decided:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["--version"]) == 0
    return {name: os.environ.get(name) for name in decided}


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
    show = "import sys, attnkit.cli as c; c.main(sys.argv[1:]); import torch as t; "
    show += "print(t.get_num_threads())"
    words = ["recipe", "explain", "quickstart", "--quick", "--variant", "linear", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-c", show, *words],
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "1"


@pytest.mark.parametrize(("chosen", "number"), [("3", 3), ("0", 1), ("1", 1)])
def test_as_many_processes_as_threads_were_chosen(chosen: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS[0], chosen)
    assert process_count() == number


def test_otherwise_there_is_a_process_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS[0], raising=False)
    assert 1 <= process_count() <= (os.cpu_count() or 1)


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.9, 0.0, 0.0))
    assert load_warning() is None
    monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 0.0, 0.0))
    assert "load 2.5 on 4 cores" in str(load_warning())


def test_the_training_itself_does_not_make_the_machine_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for threads, load, note in (("2", 3.9, ""), ("2", 4.1, "machine busy (load 4.1 on 4 cores)"), ("", 5.9, "")):
        monkeypatch.setenv(THREADS[0], threads)
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert load_note() == note


def test_processes_of_a_machine_have_a_gpu_each_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.empty", lambda *_, **__: None)
    for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert [pick_device(name) for name in ("auto", "cuda", "cpu")] == ["cuda:1", "cuda:1", "cpu"]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(UnavailableError, match="3 processes on this machine need one GPU each, but it has 2"):
        pick_device("auto")


@pytest.mark.parametrize("name", ["tpu", "gpu", "cuda:x", "cuda:1 ", ""])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="must be auto, cpu, cuda, cuda:N or mps"):
        pick_device(name)
