"""Thousands of damaged recipes for the command line: exit codes, time, memory, positions in messages.

    python benchmarks/hostile_recipes.py [--count 10000]

Each is a recipe with one to three random faults (those of tests/recipe/test_recipe_fuzz.py, with other numbers), read
by `attnkit train FILE --dry-run`. Writes results/hostile-recipes.md.
"""

import io
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from common import ROOT, arguments, facts, publish, spread, table

from attnkit.cli import main as attnkit

ALLOWED = (0, 2, 65, 66, 78)
SECONDS, MEGABYTES = 1.0, 300
POSITION = re.compile(r"f\.yaml:\d+:\d+: \S")


def peak() -> float:
    """Return the maximum memory of this process so far, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests/recipe"))
    from test_recipe_fuzz import SEED, mutated

    options = arguments(__doc__, count=10_000)
    about, codes, seconds, faults = facts(options), Counter[int](), list[float](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.yaml"

        def read(content: bytes) -> tuple[int, str]:
            path.write_bytes(content)
            errors, start = io.StringIO(), time.process_time()
            with redirect_stderr(errors), redirect_stdout(io.StringIO()):
                code = attnkit(["train", str(path), "--dry-run", "--out", folder])
            seconds.append(time.process_time() - start)
            return code, errors.getvalue()

        assert read(SEED.encode())[0] == 0, "the undamaged recipe is refused"
        memory = peak()  # with everything imported
        seconds.clear()
        for number in range(1000, 1000 + options.count):
            code, text = read(mutated(number))
            codes[code] += 1
            if code not in ALLOWED or "Traceback" in text:
                faults.append(f"{number}: exit {code}")
            if code == 78 and not POSITION.search(text):
                faults.append(f"{number}: no position: {text.strip()[:80]}")
            if code and seconds[-1] > SECONDS:
                faults.append(f"{number}: {seconds[-1]:.1f} s")
    memory = peak() - memory
    if memory > MEGABYTES:
        faults.append(f"memory grew by {memory:.0f} MB")
    about |= {
        "result": f"**{len(faults)} faults in {options.count:,} recipes**",
        "processor time": f"median {spread(seconds, 3)[0]} s, the longest {max(seconds):.2f} s "
        "(an accepted model is built, without its weights)",
        "memory": f"{memory:.0f} MB more at the end than after the first recipe",
    }
    counts = table("exit code | recipes", [[code, f"{many:,}"] for code, many in sorted(codes.items())])
    publish("hostile-recipes", "Damaged recipes", about, [counts, "\n".join(f"- {fault}" for fault in faults[:50])])
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
