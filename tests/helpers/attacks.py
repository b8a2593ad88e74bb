"""A command that is given damaged files, in this process, and what it may make of them."""

import contextlib
import io
import json
from pathlib import Path
from typing import NamedTuple

from attnkit.cli import main
from attnkit.storage.files import sha256_file
from helpers import mutations


class Case(NamedTuple):
    """One attempt."""

    kind: str
    verdict: str
    """What came of it, for the count; "FAULT" where a promise was broken."""
    detail: str = ""


def run_attnkit(*words: str) -> tuple[int, str]:
    """A command in this process: exit code and messages; what leaves it is a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except BaseException as error:
            return 1, f"Traceback {error!r}"
    return code, err.getvalue()


def judge(kind: str, code: int, err: str) -> Case:
    """What a command with damaged input may do: go on, or refuse it in one line."""
    errors = [line for line in err.splitlines() if line.startswith("attnkit: error: ")]
    if code == 0 or (code in (2, 65, 66, 69, 73, 78) and len(errors) == 1):
        return Case(kind, "refused" if code else "went on")
    return Case(kind, "FAULT", f"{code}: {err[-300:]}")


def sign_rows(path: Path) -> None:
    """Make the note of rows, and the manifest, agree with them."""
    note = path.with_suffix(".json")
    told = json.loads(note.read_bytes()) | {"sha256": sha256_file(path)}
    note.write_text(json.dumps(told))
    mutations.sign(note)
