"""Commands called in this process with damaged files, and the judgment of their results."""

import json
from pathlib import Path
from typing import NamedTuple

from attnkit.storage.files import sha256_file
from helpers import mutations


class Case(NamedTuple):
    """One attempt."""

    kind: str
    verdict: str
    """The result, by which attempts are counted; "FAULT" is a bug."""
    detail: str = ""


def run_attnkit(*words: str) -> tuple[int, str]:
    """Return exit code and standard error of a command; an uncaught exception as 1 and a traceback."""
    try:
        code, _, err = mutations.call(*words)
    except BaseException as error:
        return 1, f"Traceback {error!r}"
    return code, err


def judge(kind: str, code: int, err: str) -> Case:
    """Check that a command with damaged input succeeded, or failed with one error message."""
    errors = [line for line in err.splitlines() if line.startswith("attnkit: error: ")]
    if code == 0 or (code in (2, 65, 66, 69, 73, 78) and len(errors) == 1):
        return Case(kind, "refused" if code else "went on")
    return Case(kind, "FAULT", f"{code}: {err[-300:]}")


def sign_rows(path: Path) -> None:
    """Update the hash of a file of rows in its .json file, and the hash of that file in the manifest."""
    note = path.with_suffix(".json")
    note.write_text(json.dumps(json.loads(note.read_bytes()) | {"sha256": sha256_file(path)}))
    mutations.sign(note)
