"""Tests of edge cases: closed streams, decompression bombs, full disks, bad plug-ins, signals, damaged runs."""

import errno
import gzip
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import Cli
from helpers.scored_runs import scored_run
from helpers.trained import make_run

import attnkit
from attnkit.cli.console import outcome
from attnkit.errors import out_of_memory
from attnkit.recipe import mechanism_registry
from attnkit.runs import Run
from attnkit.storage import files

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(attnkit.__file__).parents[1])}
CLOSED = "standard output is closed: redirect it to a file or to /dev/null\n"


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new Python process."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def make_scored(folder: Path, variant: str = "base") -> Run:
    """Return a scored run with a log of one record."""
    run = scored_run(folder, variant, ["ein roter hund"] * 5, ("bleu",))
    run.log.append({"step": 1, "loss": 2.0, "seconds": 1.0})
    return run


def test_closed_standard_output_is_an_error(tmp_path: Path) -> None:
    command = ["bash", "-c", f"{sys.executable} -m attnkit --version >&-"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr[-len(CLOSED) :]) == (1, CLOSED)
    assert "Traceback" not in done.stderr


BOMB = (b" " * 1_000_000 + b"\n") * 8
"""The first line is an error already: errors in later lines must not hide the growth."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        "generate RUN bomb",
        "align RUN bomb text",
        "nbce RUN --context bomb --prompt x",
        "eval --hyp bomb --ref text",
        "eval --hyp text --ref bomb.xz",
        "eval --hyp text --ref text --metrics embedding-greedy --vectors bomb",
    ],
)
def test_decompression_bomb_is_an_error(words: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.data.formats.FREE", 1 << 16)
    Path("bomb").write_bytes(gzip.compress(BOMB))
    Path("bomb.xz").write_bytes(lzma.compress(BOMB))
    Path("text").write_text("one red dog\n" * 3)
    done = cli(*words.replace("RUN", str(make_run(tmp_path).path)).split(), code=65)
    assert re.search("bomb.*more than 100 times as long", done.error)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        "slurm quickstart --save a",
        "visualize-attn RUN dog --save a.npz",
        "plot RUN --save a.svg",
        "visualize-attn RUN dog --save a.csv",
        "report RUN -o a.html",
    ],
)
def test_full_disk_leaves_no_partial_output(
    words: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_scored(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.Filesystem, "write", full)
    assert "No space left" in cli(*words.replace("RUN", str(run.path)).split(), code=74).error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libx.so: failed to map segment from shared object"),
        ImportError("libx.so: cannot open shared object file: Cannot allocate memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_out_of_memory_is_not_reported_as_a_bug(error: Exception) -> None:
    assert out_of_memory(error)
    assert outcome(error).code == 71
    assert not out_of_memory(ImportError("No module named x"))


PLUGIN = '''"""Bad: softmax(q k^T).

Source: none.

Worked number: q = 1, key 1, weight 1.
"""

import sys
import tempfile
from attnkit.attention import Out, Scored


class Bad(Scored):
    """Bad."""

    causal, cross, limit, map, cost = True, True, None, "exact", "T*S*D"

    {body}
'''
TOY = """task: translation
data: {corpus: toy-translation, size: 60, max_length: 64}
tokenizer: {size: 120}
model: {width: 16, ff: 16, layers: 1, heads: 2}
train: {steps: 2, batch_tokens: 256, precision: fp32, seeds: [1, 2]}
search: {method: greedy, max_length: 3}
eval: {bootstrap: 10}
"""
BODIES = {
    "nothing": "def scores(self, q, k, *more): return None",
    "text": "def scores(self, q, k, *more): return 'scores'",
    "no out": "def forward(self, *given, **named): return None",
    "a signature": "def scores(self): return 1",
    "ends": "def scores(self, q, k, *more): sys.exit(0)",
    "ends at import": "sys.exit(0)",
    "ends with text": "def scores(self, q, k, *more): sys.exit('done')",
    "raises": "def scores(self, q, k, *more): raise KeyError('x')",
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("body", BODIES)
def test_error_of_a_plug_in_names_the_plug_in(body: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism_registry, "_plugged", {})  # other tests must not see the plug-in
    name = "bad_" + body.replace(" ", "_")
    Path(f"{name}.py").write_text(PLUGIN.replace("{body}", BODIES[body]))
    Path("toy.yaml").write_text(TOY)
    word = name.replace("_", "-")
    options = (f"model.attention={word}", "--plugin", f"{name}.py", "--device", "cpu")
    done = cli("train", "toy.yaml", *options, code=None)
    assert name in done.error or word in done.error
    assert "bug in attnkit" not in done.err


SIGNALLED = """
import os, signal, time
from attnkit import cli, errors

def main():
    def library():  # like compiled code that replaces the exception of a signal handler with its own
        try:
            os.kill(os.getpid(), {number})
            time.sleep(10)
        except BaseException as error:
            raise {raised} from error
    return cli.console.run(library, [])

cli.main = main
cli.script()
"""


@pytest.mark.parametrize(
    ("number", "raised", "code", "message"),
    [
        (signal.SIGTERM, "errors.DataError('not a valid file')", 143, "terminated"),
        (signal.SIGHUP, "errors.DataError('not a valid file')", 129, "hung up"),
        (signal.SIGINT, "errors.DataError('not a valid file')", 130, "interrupted"),
        (signal.SIGTERM, "ValueError('x')", 143, "terminated"),
        (signal.SIGTERM, "SystemExit(0)", 143, "terminated"),
        (signal.SIGTERM, "errors.StoppedError('saved')", 75, "saved"),
    ],
)
def test_signal_replaced_by_another_error_is_reported_as_the_signal(
    number: int, raised: str, code: int, message: str
) -> None:
    done = run_python(SIGNALLED.format(number=int(number), raised=raised))
    assert (done.returncode, done.stderr) == (code, f"attnkit: {message}\n")


IGNORED = """
import gc, os, time, weakref
from attnkit import cli

class Held:
    pass

def signaled(*_):
    os.kill(os.getpid(), {number})
    for _ in range(1000): pass  # give the handler time to run

def main():
    def command():
        held = Held()
        {place}
        del held
        gc.collect()
        time.sleep(10)
    return cli.console.run(command, [])

cli.main = main
cli.script()
"""


@pytest.mark.parametrize(
    ("number", "place"),
    [
        (signal.SIGTERM, "Held.__del__ = signaled"),
        (signal.SIGHUP, "Held.__del__ = signaled"),
        (signal.SIGINT, "Held.__del__ = signaled"),
        (signal.SIGTERM, "weak = weakref.ref(held, signaled)"),
        (signal.SIGTERM, "weakref.finalize(held, signaled)"),
        (signal.SIGTERM, "held.held, Held.__del__ = held, signaled"),
    ],
)
def test_signal_while_an_object_is_removed_ends_the_command(number: int, place: str) -> None:
    """Python ignores exceptions raised by finalizers, so the command continued."""
    done = run_python(IGNORED.format(number=int(number), place=place))
    message = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGINT: "interrupted"}[number]
    assert (done.returncode, done.stderr) == (128 + number, f"attnkit: {message}\n")


OUTPUTS = {
    "out.txt": "generate RUN text -o",
    "folder/out.txt": "generate RUN text -o",
    "out [1].txt": "generate RUN text -o",
    **{f"out.{kind}": "visualize-attn RUN dog --save" for kind in ("npz", "csv", "html", "svg")},
    "curves.svg": "plot RUN --save",
    "job.sh": "slurm quickstart --save",
    "my.yaml": "recipe copy quickstart",
    "exported": "export RUN --to huggingface",
}
"""The command that writes each file."""


@pytest.mark.parametrize(("output", "words"), OUTPUTS.items(), ids=OUTPUTS)
def test_temporary_file_of_a_killed_command_is_removed_by_the_next(
    output: str, words: str, cli: Cli, tmp_path: Path
) -> None:
    if "export" in words:
        pytest.importorskip("transformers")
    run = make_run(tmp_path)
    run.log.append({"step": 1, "loss": 2.0, "seconds": 1.0})
    Path(output).parent.mkdir(exist_ok=True)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    of_dead, of_living = (Path(f"{output}.tmp-{pid}") for pid in (dead.pid, os.getppid()))
    of_dead.touch()
    of_living.touch()
    Path("text").write_text("one red dog\n")
    cli(*words.replace("RUN", str(run.path)).split(), output)
    assert not of_dead.exists()
    assert of_living.exists()


JOBS = "train toy.yaml --jobs 2 --device cpu"
BENCH = "bench attention linear --lengths 64,128 --repeats 1 --budget 1"


@pytest.mark.slow
def test_commands_remove_their_temporary_files(tmp_path: Path) -> None:
    """A command ended by SIGTERM removes them itself; after SIGKILL, the next command does."""
    (tmp_path / "toy.yaml").write_text(TOY)
    folder = Path(tempfile.mkdtemp())  # a short path
    env = {**ENVIRONMENT, "TMPDIR": str(folder), "ATTNKIT_CACHE": str(tmp_path / "cache")}
    for words, number in ((JOBS, signal.SIGTERM), (BENCH, signal.SIGKILL), (JOBS, 0)):
        command = [sys.executable, "-m", "attnkit", *words.split()]
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE)
        while number and not list(folder.glob("attnkit-*/listener-*")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate()
        assert number or process.returncode == 0, err
        left = [path for path in folder.iterdir() if path.name[:5] != "torch"]  # the cache of PyTorch
        assert not left or number == signal.SIGKILL
    shutil.rmtree(folder)


def test_sockets_have_short_paths(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    # in a new process: a second folder of this process would replace the first
    program = "from attnkit.storage import files; print(files.process_folder())"
    done = run_python(f"import os; os.environ['TMPDIR'] = {str(long)!r}; {program}")
    folder = Path(done.stdout.strip())
    assert len(str(folder)) < 104 - len("/listener-12345678")
    assert not folder.exists()


def test_damaged_run_does_not_hide_other_runs(cli: Cli, tmp_path: Path) -> None:
    for variant in ("base", "other"):
        make_run(tmp_path, variant)
    manifest = Path("runs/toy/base/seed-1/manifest.json")
    for content in ("{", "5", json.dumps({"recipe": "\ud800"}), "[" * 100_000):
        manifest.write_text(content)
        assert "other" in cli("runs", "runs").out
        rows = json.loads(cli("verify", "runs", "--format", "json", code=65).out)["rows"]
        assert {row["run"] for row in rows if row["state"] == "same"} == {"runs/toy/other/seed-1"}
        assert {row["run"] for row in rows if row["state"] == "different"} == {str(manifest.parent)}
        cli("doctor", "--out", "runs")


@pytest.mark.parametrize(
    "words", ["eval RUNS", "report RUNS -o r.md", "plot RUNS", "runs RUNS", "runs pack RUNS --results", "verify RUNS"]
)
def test_skipped_run_is_named(words: str, cli: Cli, tmp_path: Path) -> None:
    for variant in ("base", "other"):
        make_scored(tmp_path, variant)
    bad = tmp_path / "runs/toy/base/seed-1"
    (bad / "manifest.json").unlink()
    done = cli(*words.replace("RUNS", str(tmp_path / "runs")).split(), code=65 if "verify" in words else 0)
    shown = " ".join((done.out + done.err).split())
    assert "not a run: manifest.json is missing" in shown
    assert str(bad) in shown or "base/seed-1" in shown
    assert "other" in shown or "wrote 1 run" in shown or Path("r.md").is_file()
