"""The command line, called in this process."""

import io
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from attnkit.cli import main


class Result(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error message of a command that failed."""
        assert self.code != 0
        last = self.err.splitlines()[-1]
        assert last.startswith("attnkit: error: ")
        return last


Cli = Callable[..., Result]
"""`run_cli` without its first argument."""


def run_cli(capsys: Any, *words: str, stdin: bytes | str = "") -> Result:
    """Run `attnkit WORDS` with this standard input; discard earlier output."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)), encoding="utf-8"))
        code = main(words)
    return Result(code, *capsys.readouterr())
