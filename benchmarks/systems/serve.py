"""A benchmarked system as a process that answers requests: one JSON object a line, in both directions.

It runs in the system's own virtual environment, so it uses the standard library only. What the system prints goes to
standard error.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Action = Callable[..., dict[str, Any]]


def memory() -> dict[str, Any]:
    """Return the bytes in use now, and the maximum since the last call (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    now, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return {"now": now, "peak": peak}


def serve(actions: Mapping[str, Action]) -> None:
    """Answer {"do": name, ...arguments} with the result of actions[name](...) or `memory`, until the input ends."""
    actions = {"memory": memory, **actions}
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(actions[request.pop("do")](**request)), file=answers, flush=True)
