"""The command line in a new process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attnkit

SCREEN_VARIABLES = {
    *("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "TERM", "COLUMNS", "LINES"),
    *("LC_ALL", "LC_CTYPE", "LANG", "PYTHONIOENCODING", "PYTHONUTF8"),
}

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(**changes: str) -> dict[str, str]:
    """Return environment variables without settings of the screen, in which this attnkit is imported."""
    kept = {key: value for key, value in os.environ.items() if key not in SCREEN_VARIABLES}
    source = str(Path(attnkit.__file__).parents[1])
    return kept | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "TERM": "xterm"} | changes


def attnkit_in(folder: Path) -> Command:
    """Return a function that runs `attnkit WORDS` in a folder; further keywords are environment variables."""

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
