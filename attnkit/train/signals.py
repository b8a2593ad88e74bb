"""Graceful stops: signals are recorded at once and obeyed at the next step boundary."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from attnkit.distributed import group
from attnkit.errors import StoppedError

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_INTERRUPTED = 130


class StopSignals:
    """Context manager that records SIGINT, SIGTERM and SIGHUP, for the loop to poll `requested`.

    A second SIGINT raises SystemExit with code 130, a third exits without cleanup; files stay intact, since every save
    is atomic. A signal that was ignored before (nohup, a background job) stays ignored. Outside the main thread, where
    Python allows no handlers, nothing is recorded. The previous handlers are restored on exit.

    `notice` is called from the handler with the name of the first signal, to tell the user that it was received; it
    must be short and must not raise.
    """

    def __init__(self, notice: Callable[[str], object] | None = None) -> None:
        self._notice = notice
        self._received: list[str] = []
        self._previous: dict[signal.Signals, Any] = {}
        self._process = os.getpid()

    @property
    def requested(self) -> str | None:
        """Name of the first signal received (e.g. SIGTERM), or None."""
        return self._received[0] if self._received else None

    def request(self, name: str) -> None:
        """Record a request to stop, as if the signal `name` had arrived."""
        self._received.append(name)

    def obey(self, hint: str) -> None:
        """Raise StoppedError if the main rank received a signal (other ranks end with it); `hint` ends the message."""
        if (name := self.requested) and group.is_main_process():
            raise StoppedError(f"stopped by {name}{hint}")

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._process = os.getpid()
            for name in _NAMES:
                number = getattr(signal.Signals, name, None)
                if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Record the signal; a forked child, which inherits this handler, gets the default action instead."""
        if os.getpid() != self._process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        name = signal.Signals(number).name
        self._received.append(name)
        if name == "SIGINT" and (interrupts := self._received.count("SIGINT")) > 1:
            if interrupts > 2:
                os._exit(_INTERRUPTED)
            raise SystemExit(_INTERRUPTED)
        if len(self._received) == 1 and self._notice is not None:
            self._notice(name)
