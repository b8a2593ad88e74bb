"""The command line in forked processes, which start faster because the parent has imported torch."""

import json
import os
import signal
import subprocess
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any, NoReturn

from attnkit.distributed import launch
from helpers.rank_pool import PRELOAD
from helpers.shell import environment

CONTEXT = get_context("forkserver")


class ForkedCommand:
    """`attnkit WORDS` in a folder, as a process that tests can observe and signal.

    `notice` is the number of seconds in which ranks have to notice that another rank has failed.
    """

    def __init__(self, folder: Path, *words: str, notice: float = launch.NOTICE) -> None:
        CONTEXT.set_forkserver_preload([*PRELOAD, "attnkit.cli.commands.train"])
        reader, writer = CONTEXT.Pipe(duplex=False)
        self.errors = folder / f"stderr-{writer.fileno()}.txt"
        args = (words, folder, environment(), writer, self.errors, notice)
        self.process = CONTEXT.Process(target=_command, args=args)
        self.process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid

    def until(self, event: str) -> "ForkedCommand":
        """Read events up to the first of a kind; read none if `event` is empty."""
        while event and json.loads(next(self.stdout))["event"] != event:
            pass
        return self

    def wait(self, timeout: float = 60.0) -> "subprocess.CompletedProcess[str]":
        """Wait for the end; return exit code and unread output. Kill the process after the timeout."""
        timer = Timer(timeout, self.process.kill)
        timer.start()
        with self.stdout:
            out = self.stdout.read()
        self.process.join()
        timer.cancel()
        return subprocess.CompletedProcess([], self.process.exitcode, out, self.errors.read_text(encoding="utf-8"))


def _command(
    words: tuple[str, ...], folder: Path, env: dict[str, str], writer: Connection, errors: Path, notice: float
) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a fork server that a training has started blocks signals
    os.chdir(folder)
    os.dup2(writer.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stdout, sys.stderr = (open(n, "w", 1, "utf-8") for n in (1, 2))  # noqa: SIM115
    launch.NOTICE = notice
    launch.subprocess = SimpleNamespace(Popen=_Rank, DEVNULL=subprocess.DEVNULL)  # type: ignore
    _run(["attnkit", *words], env)


class _Rank(subprocess.Popen[bytes]):
    """A rank that the launcher forks instead of starting a new Python."""

    def _execute_child(self, args: Any, *more: Any) -> None:
        self.pid = os.fork()
        self._child_created = True
        if self.pid == 0:
            try:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.closerange(3, 1 << 12)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                _run(args[2:], more[5])
            finally:
                os._exit(99)


def _run(words: list[str], env: dict[str, str]) -> NoReturn:
    from attnkit.cli import script

    os.environ.clear()
    os.environ |= env
    sys.argv = words
    script()
