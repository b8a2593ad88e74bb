"""The real command line in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attnkit

OF_THE_SCREEN = (
    "NO_COLOR",
    "FORCE_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "TERM",
    "COLUMNS",
    "LINES",
    "LC_ALL",
    "LC_CTYPE",
    "LANG",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
)

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(**changes: str) -> dict[str, str]:
    """This environment without what the screen depends on, and with the attnkit under test."""
    kept = {key: value for key, value in os.environ.items() if key not in OF_THE_SCREEN}
    source = str(Path(attnkit.__file__).parents[1])
    return kept | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "TERM": "xterm"} | changes


def attnkit_in(folder: Path) -> Command:
    """A function that runs `attnkit WORDS` in a folder; its other keywords are the environment."""

    def run(
        *words: str, stdin: str = "", stdout: int = subprocess.PIPE, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "attnkit", *words],
            input=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",
            cwd=folder,
            env=environment(**variables),
            timeout=120,
            check=False,
        )

    return run
