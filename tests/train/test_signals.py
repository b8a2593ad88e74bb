"""Tests of signal handlers: a stop is recorded, and the previous handlers are restored."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from attnkit.train.signals import StopSignals

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in SIGNALS]


def run_python(program: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_is_recorded_and_work_continues(number: signal.Signals) -> None:
    before = handlers()
    with StopSignals() as stop:
        assert stop.requested is None
        signal.raise_signal(number)
        assert stop.requested == number.name
    assert handlers() == before


def test_only_the_first_signal_is_reported() -> None:
    notices: list[str] = []
    with StopSignals(notices.append) as stop:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        assert stop.requested == "SIGTERM"
    assert notices == ["SIGTERM"]


def test_second_interrupt_exits_with_130() -> None:
    before = handlers()
    with StopSignals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(SystemExit) as exit_info:
            signal.raise_signal(signal.SIGINT)
    assert exit_info.value.code == 130
    assert handlers() == before


def test_third_interrupt_exits_even_if_the_second_was_suppressed() -> None:
    process = run_python("""
import signal
from attnkit.train.signals import StopSignals
with StopSignals():
    for _ in range(3):
        try:
            signal.raise_signal(signal.SIGINT)
        except SystemExit:
            pass
    print("still running")
""")
    assert (process.returncode, process.stdout) == (130, b"")


def test_ignored_signal_stays_ignored() -> None:
    """A run under nohup must survive the end of its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.requested is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_restored_after_an_error() -> None:
    before = handlers()
    with pytest.raises(ZeroDivisionError), StopSignals():
        raise ZeroDivisionError
    assert handlers() == before


def test_outside_the_main_thread_nothing_is_recorded() -> None:
    def requested() -> str | None:
        with StopSignals() as stop:
            return stop.requested

    before = handlers()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(requested).result() is None
    assert handlers() == before


def test_forked_child_is_killed_by_the_signal() -> None:
    process = run_python("""
import os, signal
from attnkit.train.signals import StopSignals
with StopSignals() as stop:
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGTERM)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(os.WTERMSIG(status), stop.requested)
""")
    assert process.stdout.split() == [b"%d" % signal.SIGTERM, b"None"], process.stderr
