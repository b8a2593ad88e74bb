"""A benchmarked system as a process that answers requests: one JSON object a line, both ways.

It runs in the system's own virtual environment, so it needs the standard library only.  What the
system prints goes to standard error.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Action = Callable[..., dict[str, Any]]


def serve(actions: Mapping[str, Action]) -> None:
    """Answer {"do": name, ...arguments} with what actions[name](...) returns, until the end."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(actions[request.pop("do")](**request)), file=answers, flush=True)
