"""The command line in processes that find torch imported: forks of one that has run nothing."""

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
    """`attnkit WORDS` in a folder, as a process that can be watched and signalled.

    `notice` are the seconds that ranks have to find out that another one failed.
    """

    def __init__(self, folder: Path, *words: str, notice: float = launch.NOTICE) -> None:
        CONTEXT.set_forkserver_preload([*PRELOAD, "attnkit.cli.commands.train"])
        reader, writer = CONTEXT.Pipe(duplex=False)
        self.errors = folder / f"stderr-{writer.fileno()}.txt"
        given = (words, folder, environment(), writer, self.errors, notice)
        self.process = CONTEXT.Process(target=_command, args=given)
        self.process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid

    def until(self, event: str) -> "ForkedCommand":
        """Read events up to the first of a kind; nothing where there is none to wait for."""
        while event and json.loads(next(self.stdout))["event"] != event:
            pass
        return self

    def ended(self, timeout: float = 60.0) -> "subprocess.CompletedProcess[str]":
        """How it ended, and what it wrote that was not read before; killed where it goes on."""
        late = Timer(timeout, self.process.kill)
        late.start()
        with self.stdout:
            out = self.stdout.read()
        self.process.join()
        late.cancel()
        said = self.errors.read_text(encoding="utf-8")
        return subprocess.CompletedProcess([], self.process.exitcode, out, said)


def _command(
    words: tuple[str, ...], folder: Path, env: dict[str, str], writer: Connection, errors: Path, notice: float
) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # which a server that trainings started blocks
    os.chdir(folder)
    os.dup2(writer.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stdout, sys.stderr = (open(n, "w", 1, "utf-8") for n in (1, 2))  # noqa: SIM115
    launch.NOTICE = notice
    launch.subprocess = SimpleNamespace(Popen=_Rank, DEVNULL=subprocess.DEVNULL)  # type: ignore
    _run(["attnkit", *words], env)


class _Rank(subprocess.Popen[bytes]):
    """A rank that the launcher forks instead of starting Python anew; all else is Popen's."""

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
