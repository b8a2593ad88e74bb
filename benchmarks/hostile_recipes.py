"""Thousands of damaged recipes given to the command line: exit codes, time, memory, positions.

    python benchmarks/hostile_recipes.py [--count 10000]

Each is a recipe with one to three random faults (those of tests/recipe/test_recipe_fuzz.py, other
numbers), read by `attnkit train FILE --dry-run`.  Writes results/hostile-recipes.md.
"""

import argparse
import io
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from common import ROOT, command, load_before, publish, spread, table, versions

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "recipe")]

from test_recipe_fuzz import SEED, mutated  # noqa: E402 (made importable above)

from attnkit.cli import main as attnkit  # noqa: E402

ALLOWED = (0, 2, 65, 66, 78)
SECONDS, MEGABYTES = 1.0, 300
PLACED = re.compile(r"f\.yaml:\d+:\d+: \S")


def peak() -> float:
    """The most memory that this process had so far, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def main() -> None:
    """Read all, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    before, codes, seconds, faults = load_before(), Counter[int](), list[float](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.yaml"

        def read(content: bytes) -> tuple[int, str]:
            path.write_bytes(content)
            errors, start = io.StringIO(), time.process_time()
            with redirect_stderr(errors), redirect_stdout(io.StringIO()):
                code = attnkit(["train", str(path), "--dry-run", "--out", folder])
            seconds.append(time.process_time() - start)
            return code, errors.getvalue()

        assert read(SEED.encode())[0] == 0, "the recipe that is damaged is right"
        start_memory = peak()  # what is imported once is
        seconds.clear()
        for number in range(1000, 1000 + options.count):
            code, text = read(mutated(number))
            codes[code] += 1
            if code not in ALLOWED or "Traceback" in text:
                faults.append(f"{number}: exit {code}")
            if code == 78 and not PLACED.search(text):
                faults.append(f"{number}: no position: {text.strip()[:80]}")
            if code and seconds[-1] > SECONDS:
                faults.append(f"{number}: {seconds[-1]:.1f} s")
    grown = peak() - start_memory
    if grown > MEGABYTES:
        faults.append(f"memory grew by {grown:.0f} MB")
    facts = {
        "command": command(options),
        "versions": versions("attnkit", "torch"),
        "load": before,
        "result": f"**{len(faults)} faults in {options.count:,} recipes**",
        "processor time": f"median {spread(seconds, 3)[0]} s, the longest {max(seconds):.2f} s "
        "(an accepted model is built, without its weights)",
        "memory": f"{grown:.0f} MB more at the end than after the first recipe",
    }
    rows = [[code, f"{many:,}"] for code, many in sorted(codes.items())]
    lines = [*table(["exit code", "recipes"], rows), "", *(f"- {fault}" for fault in faults[:50])]
    publish("hostile-recipes", "Damaged recipes", facts, lines)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
