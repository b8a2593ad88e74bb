"""Helpers of the benchmarks: arguments, commands of attnkit, Markdown tables and pages of results."""

import argparse
import json
import os
import platform
import resource
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

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # this attnkit, and the helpers of its tests
WARM_UP = 2
"""Reports of a training before its speed is steady."""


def arguments(doc: str, *paths: str, **options: Any) -> argparse.Namespace:
    """Parse positional paths, and options that are named with their default.

    A type stands for an option without a default, a tuple for the choices of one, a list for the choices of one that
    takes several, False for a flag. Every script has `--data-dir DIR`, which replaces $ATTNKIT_DATA.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    for name in paths:
        parser.add_argument(name, type=Path)
    for name, default in {**options, "data_dir": Path}.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, choices=default)
        elif isinstance(default, list):
            parser.add_argument(flag, choices=default, nargs="+", action="extend")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    parsed = parser.parse_args()
    if parsed.data_dir:
        os.environ["ATTNKIT_DATA"] = str(parsed.data_dir.resolve())
    return parsed


def attnkit(*words: object) -> list[str]:
    """Return the command line of this Python's attnkit, as a user types it where it is installed."""
    script = Path(sys.executable).parent / "attnkit"
    start = [str(script)] if script.exists() else [sys.executable, "-m", "attnkit"]
    return [*start, *map(str, words)]


def output(*words: object, threads: int | None = None) -> str:
    """Return the standard output of a command of attnkit."""
    say(f"attnkit {' '.join(map(str, words))}")
    env = environment(threads)
    return subprocess.run(attnkit(*words), env=env, stdout=subprocess.PIPE, check=True, encoding="utf-8").stdout


def json_of(*words: object, threads: int | None = None) -> Any:
    """Return the output of a command with `--format json`."""
    return json.loads(output(*words, "--format", "json", threads=threads))


def last_event(*words: object) -> dict[str, Any]:
    """Return the last event of a command with `--json`."""
    return dict(json.loads(output(*words, "--json").splitlines()[-1]))


def start_updates(out: Path, *words: str, **env: str) -> "subprocess.Popen[str]":
    """Start a training of translation/multi30k that does little else than updates, for `steady_speed`."""
    command = attnkit(
        *("train", "translation/multi30k", "--variant", "vanilla", "--json", "--fresh", "--out", out),
        *("train.log_every=1", "train.valid_every=0", "train.average=1", "train.choose=last"),
        *("eval.splits=[valid]", "data.valid_rows=8", *words),
    )
    env = environment(None, ATTNKIT_CACHE=str(out.parent / "cache"), **env)
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def steady_speed(training: "subprocess.Popen[str]", seconds: float) -> float:
    """Return the median target tokens per second of a training during `seconds`, after `WARM_UP` reports."""
    assert training.stdout is not None
    speeds, began = list[float](), 0.0
    for line in training.stdout:
        event = json.loads(line)
        if event["event"] == "progress":
            began = began or time.monotonic()
            speeds.append(event["tokens_per_second"])
            if len(speeds) > WARM_UP and time.monotonic() - began > seconds:
                break
    return statistics.median(speeds[WARM_UP:])


def environment(threads: int | None = None, **more: str) -> dict[str, str]:
    """Return the environment of a child: this attnkit can be imported, colors and hubs are off."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    fixed = {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(paths)}
    counts = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} if threads else {}
    return {**os.environ, **fixed, **counts, **more}


def cores() -> int:
    """Return the number of threads to use: OMP_NUM_THREADS if it is set, otherwise the cores of this process."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) else len(os.sched_getaffinity(0))


def children_seconds() -> float:
    """Return the processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def versions(*packages: str) -> str:
    """Return the versions of Python, attnkit and the packages, as far as they are installed."""
    import attnkit as package

    found = [f"Python {platform.python_version()}", f"attnkit {package.__version__}"]
    for name in packages:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def facts(options: argparse.Namespace, *packages: str) -> dict[str, str]:
    """Return the command, versions (torch's too) and the present load; to be called before measuring.

    In the command, paths are replaced by the names of their options.
    """
    names = {str(path): key.upper() for key, path in vars(options).items() if isinstance(path, Path)}
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}"]
    for word in sys.argv[1:]:
        flag, equals, value = word.partition("=")
        words.append(f"{flag}={names[value]}" if equals and value in names else names.get(word, word))
    return {
        "command": f"`{shlex.join(words)}`",
        "versions": versions("torch", *packages),
        "load of the machine": f"{os.getloadavg()[0]:.1f} in the minute before",
    }


def spread(values: Sequence[float], digits: int = 0) -> tuple[str, str]:
    """Return the median, and the range from the minimum to the maximum, as text."""
    low, high = f"{min(values):,.{digits}f}", f"{max(values):,.{digits}f}"
    return f"{statistics.median(values):,.{digits}f}", low if low == high else f"{low} to {high}"


def table(header: str | Sequence[object], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Return a Markdown table; all but the first `left` columns are aligned to the right.

    A header that is text has ` | ` between its cells.
    """
    heads = header.split(" | ") if isinstance(header, str) else [str(cell) for cell in header]
    marks = [":--" if number < left else "--:" for number in range(len(heads))]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (heads, marks, *rows))


def publish(
    name: str, title: str, facts: Mapping[str, str], body: Sequence[str], section: str = "", order: Iterable[str] = ()
) -> None:
    """Write results/<name>.md (title, facts, paragraphs and tables of the body) and print it.

    With `section`, only the section of this heading is written; the others stay, in this order.

    Raises:
        ValueError: the text contains a path of this machine.
    """
    from attnkit.experiment.provenance import machine

    facts = {**facts, "date": date.today().isoformat(), "machine": machine()}
    head = f"## {section}" if section else f"# {title}"
    text = "\n\n".join([head, "\n".join(f"- {key}: {value}" for key, value in facts.items()), *body])
    print(text)
    path = RESULTS / f"{name}.md"
    if section:
        top, *blocks = (path.read_text("utf-8") if path.exists() else f"# {title}").split("\n## ")
        sections = {block.partition("\n")[0]: f"## {block}" for block in blocks} | {section: text}
        text = "\n\n".join([top.rstrip(), *(sections[key].rstrip() for key in order if key in sections)])
    _write(path, text)


def write_json(name: str, objects: Mapping[str, Any], order: Iterable[str] | None = None) -> None:
    """Write named objects to results/<name>.json; those that the file has of other names in `order` stay."""
    path = RESULTS / f"{name}.json"
    old = json.loads(path.read_text("utf-8")) if order and path.exists() else {}
    merged = {**old, **objects}
    _write(
        path, json.dumps({key: merged[key] for key in order or merged if key in merged}, indent=1, ensure_ascii=False)
    )


def _write(path: Path, text: str) -> None:
    for place in {str(ROOT), str(Path.home()), str(Path.cwd()), sys.prefix} - {"/"}:
        if place in text:
            raise ValueError(f"{path.name} would contain the path {place}")
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)
