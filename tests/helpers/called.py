"""The command line in this process."""

import io
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from attnkit.cli import main


class Done(NamedTuple):
    """How a command ended: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The message of the error that it ended with."""
        assert self.code != 0
        last = self.err.splitlines()[-1]
        assert last.startswith("attnkit: error: ")
        return last


Caller = Callable[..., Done]
"""`called` without its first argument."""


def called(capsys: Any, *words: str, stdin: bytes | str = "") -> Done:
    """`attnkit WORDS` with bytes or text as standard input; earlier output is dropped."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)), encoding="utf-8")
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", stream)
        code = main(words)
    return Done(code, *capsys.readouterr())
