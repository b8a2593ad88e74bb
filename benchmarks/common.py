"""What the benchmarks share: commands of this attnkit, the machine in words, Markdown, results."""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attnkit.experiment.provenance import machine

RESULTS = Path(__file__).resolve().parent / "results"
ROOT = Path(__file__).resolve().parents[1]
RECIPE = "translation/multi30k"
UPDATES_ALONE = (
    *("train", RECIPE, "--variant", "vanilla", "--json", "--fresh", "train.log_every=1", "train.valid_every=0"),
    *("train.average=1", "train.choose=last", "eval.splits=[valid]", "data.valid_rows=8"),
)
"""Words of a training whose updates are timed (`steady_speed`): next to nothing else is done."""
WARM = 2
"""Reports of a training before its speed is steady."""


def attnkit(*words: object) -> list[str]:
    """The command line of this Python's attnkit, as a user types it where it is installed."""
    script = Path(sys.executable).parent / "attnkit"
    start = [str(script)] if script.exists() else [sys.executable, "-m", "attnkit"]
    return [*start, *map(str, words)]


def json_of(*words: object, threads: int | None = None) -> Any:
    """What a command of attnkit prints with --format json."""
    done = subprocess.run(
        attnkit(*words, "--format", "json"), env=environment(threads), stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def last_event(*words: object) -> dict[str, Any]:
    """What a command of attnkit that prints events ends with."""
    made = attnkit(*words, "--json")
    say(" ".join(made))
    done = subprocess.run(made, env=environment(), stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def steady_speed(training: "subprocess.Popen[str]", seconds: float) -> float:
    """Target tokens a second of a running `train --json train.log_every=1`, over so many seconds.

    The first `WARM` reports do not count.
    """
    assert training.stdout is not None
    speeds, began = list[float](), 0.0
    for line in training.stdout:
        event = json.loads(line)
        if event["event"] == "progress":
            began = began or time.monotonic()
            speeds.append(event["tokens_per_second"])
            if len(speeds) > WARM and time.monotonic() - began > seconds:
                break
    return statistics.median(speeds[WARM:])


def environment(threads: int | None = None, **more: str) -> dict[str, str]:
    """Environment of a child: this attnkit can be imported, colours and hubs are off."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    quiet = {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    counted = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} if threads else {}
    return {**os.environ, **quiet, **counted, "PYTHONPATH": os.pathsep.join(paths), **more}


def cores() -> int:
    """Threads to use: OMP_NUM_THREADS where it is set, else the cores of this process."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) else len(os.sched_getaffinity(0))


def versions(*packages: str) -> str:
    """Python's and the packages' versions, as far as they are installed."""
    found = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            if package == "attnkit":
                found.append(f"attnkit {attnkit_version()}")
    return ", ".join(found)


def attnkit_version() -> str:
    """The version of the attnkit that is imported, installed or not."""
    import attnkit as package

    return package.__version__


def command(options: argparse.Namespace, **hidden: str) -> str:
    """The command of this run; the value of each option in `hidden` becomes that word."""
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}"]
    values = {str(getattr(options, name)): word for name, word in hidden.items()}
    for word in sys.argv[1:]:
        name, equals, value = word.partition("=")
        if equals and value in values:
            words.append(f"{name}={values[value]}")
        else:
            words.append(values.get(word, word))
    return shlex.join(words)


def spread(values: Sequence[float], digits: int = 0) -> tuple[str, str]:
    """Median, and the range from the least to the greatest, as text."""
    low, high = f"{min(values):,.{digits}f}", f"{max(values):,.{digits}f}"
    return f"{statistics.median(values):,.{digits}f}", low if low == high else f"{low} to {high}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> list[str]:
    """Lines of a Markdown table; all but the first `left` columns are aligned to the right."""
    marks = [":--" if number < left else "--:" for number in range(len(header))]
    lines = [list(map(str, header)), marks, *([str(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def publish(name: str, title: str, facts: Mapping[str, str], body: Sequence[str]) -> Path:
    """Write results/<name>.md (title, facts, body) and print it.

    Raises:
        ValueError: the text holds a path of this machine.
    """
    facts = {**facts, "date": date.today().isoformat(), "machine": machine()}
    lines = [f"# {title}", "", *(f"- {key}: {value}" for key, value in facts.items()), "", *body]
    text = "\n".join(lines) + "\n"
    _refuse_paths(text)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    path.write_text(text, encoding="utf-8")
    print(text)
    return path


def publish_part(
    name: str, title: str, part: str, order: Sequence[str], facts: Mapping[str, str], body: Sequence[str]
) -> Path:
    """Write one section of results/<name>.md (heading, facts, body), keep the rest, print it.

    `order` has the headings of all sections.

    Raises:
        ValueError: the text holds a path of this machine.
    """
    facts = {**facts, "date": date.today().isoformat(), "machine": machine()}
    lines = [f"## {part}", "", *(f"- {key}: {value}" for key, value in facts.items()), "", *body]
    text = "\n".join(lines) + "\n"
    _refuse_paths(text)
    path = RESULTS / f"{name}.md"
    old = path.read_text(encoding="utf-8") if path.exists() else f"# {title}"
    top, *blocks = old.split("\n## ")
    sections = {block.partition("\n")[0]: f"## {block}" for block in blocks}
    sections[part] = text
    kept = [sections[heading].rstrip("\n") for heading in order if heading in sections]
    RESULTS.mkdir(exist_ok=True)
    path.write_text("\n\n".join([top.rstrip("\n"), *kept]) + "\n", encoding="utf-8")
    print(text)
    return path


def keep_others(path: Path, objects: Mapping[str, Any], order: Sequence[str]) -> None:
    """Write objects by name to a JSON file; those of other names that it has stay."""
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    merged = {**old, **objects}
    text = json.dumps({name: merged[name] for name in order if name in merged}, indent=1, ensure_ascii=False)
    _refuse_paths(text)
    path.write_text(text + "\n", encoding="utf-8")


def _refuse_paths(text: str) -> None:
    for place in {str(ROOT), str(Path.home()), str(Path.cwd()), sys.prefix} - {"/"}:
        if place in text:
            raise ValueError(f"the result would hold the path {place}")


def python_of(name: str, packages: Sequence[Sequence[str | Path]], work: Path) -> Path:
    """The Python of an environment in `work`, which is made where it is not there yet.

    `packages` are what one pip command after the other installs; torch is that of this Python.

    Raises:
        SystemExit: pip failed; its last lines are shown.
    """
    folder = work / "environments" / name
    recorded = folder / "complete.json"
    build = version("torch")
    wanted = json.dumps([[list(map(str, some)) for some in packages], build, sys.version])
    python = folder / "bin" / "python"
    if recorded.exists() and recorded.read_text() == wanted:
        return python
    say(f"{name}: making its environment")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    same = folder / "constraints.txt"
    same.write_text(f"torch=={build}\n")
    for some in packages:
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", "-c", same, *some], capture_output=True, text=True
        )
        if done.returncode:
            words = " ".join(map(str, some))
            raise SystemExit(f"{name}: pip install {words} failed:\n{done.stderr}")
    recorded.write_text(wanted)
    return python


def load_before() -> str:
    """The load of the machine now, so that a reader sees whether it was quiet."""
    return f"{os.getloadavg()[0]:.1f} in the minute before"


def say(text: str) -> None:
    """Progress for a person."""
    print(text, file=sys.stderr, flush=True)
