"""Pages of results, computed from stored runs.

    python benchmarks/publish.py [--check]

Each recipe below results/runs/ (files of `attnkit runs pack --results`) has one page in results/kept/: the output of
`attnkit eval`, and the versions and machine of the training. claims.md judges the statements of claims.yaml,
recall.svg shows the diagnostics, and results/published.md compares the runs with published.yaml. Numbers in README,
docs and the headers of recipes are replaced where quotes.py finds them. With --check nothing is written, and the exit
code is 1 if a page differs from the result of its runs.
"""

import argparse
import io
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import claims
import overview
import prediction
import quotes
import recall
import referee
from common import ROOT, say, table

from attnkit.cli import main as attnkit
from attnkit.runs import Run
from attnkit.runs.find import find_runs

RUNS = Path("benchmarks/results/runs")  # pages name it relative to the root
PAGES = ROOT / "benchmarks/results/kept"


def recipes(folder: Path = ROOT / RUNS) -> dict[str, list[Run]]:
    """Return the stored runs by the name of their recipe."""
    found: dict[str, list[Run]] = {}
    for run in find_runs([folder]) if folder.is_dir() else ():
        found.setdefault(run.name, []).append(run)
    return found


def page(name: str, runs: list[Run]) -> str:
    """Return the page of one recipe."""
    words = ["eval", str(RUNS / name), "--format", "markdown"]
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = attnkit(words)
    if code:
        raise SystemExit(f"attnkit {' '.join(words)} ended with {code}")
    if len({run.manifest.code for run in runs}) > 1:
        raise SystemExit(f"{RUNS / name}: rows were trained by different code; train them again")
    trained = sorted(set(training_facts(runs)))
    lines = [
        f"# {name}",
        "",
        f"- command: `attnkit {' '.join(words)}`",
        f"- runs: {len(runs)}, kept in `{RUNS / name}`",
        "",
        printed.getvalue().strip(),
        "",
        table("trained by | precision | threads | machine", trained),
        "",
        "Trained beside other work: times, speeds and memory say nothing of the mechanisms.",
    ]
    return "\n".join(lines).rstrip() + "\n"


def training_facts(runs: list[Run]) -> Iterator[tuple[str, ...]]:
    """Yield versions, precision, threads and machine of each training: rows are comparable if all are equal."""
    for run in runs:
        facts = run.manifest
        version = f"attnkit {facts.attnkit}, torch {facts.torch}, Python {facts.python}"
        yield f"{version}, code {facts.code or '':.8}", *map(str, (facts.precision, facts.threads, facts.machine))


def file_of(name: str) -> Path:
    """Return the path of the page of a recipe."""
    return PAGES / f"{name.replace('/', '-')}.md"


def main() -> None:
    """Write the pages, or compare them with the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    os.chdir(ROOT)  # pages name runs relative to it
    kept = recipes(RUNS)
    pages = {file_of(name): page(name, runs) for name, runs in kept.items()}
    pages[PAGES / "claims.md"] = claims.page(kept)
    pages[referee.PAGE] = referee.page(kept)
    pages |= quotes.quoted(kept)
    pages[PAGES / "recall.svg"] = recall.chart(kept)
    pages[PAGES / "overview.svg"] = overview.chart(kept)
    correlations = prediction.correlations(kept)
    pages[PAGES / "recall-predicts.md"] = prediction.page(correlations)
    pages[PAGES / "recall-predicts.svg"] = prediction.chart(correlations)
    if options.check:
        there = {path: path.read_text("utf-8") for path in {*pages, *PAGES.iterdir()} if path.exists()}
        wrong = [path for path in sorted(pages | there) if pages.get(path) != there.get(path)]
        for path in wrong:
            say(f"{os.path.relpath(path)}: not what the kept runs give")
        sys.exit(bool(wrong))
    PAGES.mkdir(parents=True, exist_ok=True)
    for path in PAGES.iterdir():
        path.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            say(f"wrote {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
