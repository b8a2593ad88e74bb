"""Signals are recorded, obeyed at the boundary, and given back."""

import signal
import subprocess
import sys
import threading

import pytest

from attnkit.train.signals import StopSignals

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def send(number: int) -> None:
    """Deliver a signal to this process and let Python run its handler."""
    signal.raise_signal(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_recorded_and_the_work_goes_on(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert stop.requested is None
        send(number)
        assert stop.requested == number.name
    assert signal.getsignal(number) == before


def test_the_first_signal_names_the_reason() -> None:
    heard: list[str] = []
    with StopSignals(heard.append) as stop:
        send(signal.SIGTERM)
        send(signal.SIGINT)
        send(signal.SIGTERM)
        assert stop.requested == "SIGTERM"
    assert heard == ["SIGTERM"]


def test_a_second_interrupt_leaves_at_once_with_130() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopSignals():
        send(signal.SIGINT)
        with pytest.raises(SystemExit) as exit_info:
            send(signal.SIGINT)
    assert exit_info.value.code == 130
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_third_interrupt_leaves_even_when_the_second_was_swallowed() -> None:
    program = """
import signal
from attnkit.train.signals import StopSignals
with StopSignals():
    for _ in range(3):
        try:
            signal.raise_signal(signal.SIGINT)
        except SystemExit:
            pass
    print("still here")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (130, b"")


def test_an_ignored_signal_stays_ignored() -> None:
    """A run under nohup must survive the end of its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            send(signal.SIGHUP)
            assert stop.requested is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_given_back_after_an_error() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ZeroDivisionError), StopSignals():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_outside_the_main_thread_it_does_nothing() -> None:
    seen: list[object] = []

    def work() -> None:
        with StopSignals() as stop:
            seen.append(stop.requested)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_forked_child_dies_of_the_signal_as_usual() -> None:
    program = """
import os, signal
from attnkit.train.signals import StopSignals
with StopSignals() as stop:
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGTERM)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(os.WTERMSIG(status), stop.requested)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30)
    assert done.stdout.split() == [b"%d" % signal.SIGTERM, b"None"], done.stderr
