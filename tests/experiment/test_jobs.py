"""Tests of parallel trainings (--jobs): equal results, stops, failures and errors."""

import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from helpers.events import record_events
from helpers.shell import environment
from helpers.small import write_corpus

from attnkit import errors
from attnkit.cli import main
from attnkit.experiment import training
from attnkit.experiment.settings import TrainingSettings
from attnkit.memory import free_memory
from attnkit.recipe import RecipeFile, load, mechanism_registry
from attnkit.runs import Run
from attnkit.storage.files import sha256_file
from attnkit.train import events

RECIPE = """\
task: translation
data: {train: [train.source, train.target], valid: [valid.source, valid.target],
       test: [test.source, test.target], max_length: 32}
tokenizer: {type: word, size: 40}
model: {width: 16, heads: 2, layers: 1, ff: 32, dropout: 0.2}
train: {steps: 40, batch_tokens: 56, lr: 5e-3, warmup: 4, valid_every: 20, save_every: 5,
        log_every: 1, precision: fp32}
search: {method: greedy, max_length: 12}
eval: {bootstrap: 50}
variants:
"""
TWO = "  one: {}\n  two: {model.attention: linear}\n"
LIMIT = 60
"""Maximum number of seconds until a process ends."""
Watch = Callable[[events.Event], object]

FAILS = '''"""Scaled dot product that can fail in several ways: A = softmax(q k^T / sqrt(D)).

Source: these tests.

Worked number: that of scaled-dot.
"""

import multiprocessing
import os
import signal

from torch import Tensor

from attnkit.attention import Mask, Scored, Shape
from attnkit.mechanisms.scaled_dot import ScaledDot


class FailingDot(ScaledDot):
    """softmax(q k^T / sqrt(D)) v, until it fails."""

    fused = Scored.fused

    def __init__(self, shape: Shape, *, fault: str = "killed") -> None:
        super().__init__(shape)
        self.fault, self.calls = fault, 0

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        self.calls += 1
        if self.calls > 9 and multiprocessing.parent_process() is not None:
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise IndexError("out of plug-in")
        return super().scores(q, k, mask)
'''


def write_recipe(folder: Path, variants: str = TWO) -> Path:
    """Write a recipe of a tiny model and its corpus."""
    write_corpus(folder)
    path = folder / "tiny.yaml"
    path.write_text(RECIPE + variants)
    return path


def settings(file: RecipeFile, folder: Path) -> TrainingSettings:
    return TrainingSettings(file=file, out=folder / "runs", device="cpu")


def session(recipe: Path, watch: Watch = events.ignore, jobs: int = 2) -> list[events.Event]:
    return record_events(training.train, settings(load(recipe), recipe.parent), jobs=jobs, watch=watch)


def open_runs(runs: Path) -> list[Run]:
    return [Run.open(runs / f"tiny/{name}/seed-1") for name in ("one", "two")]


Results = tuple[dict[str, str], list[Any]]


def results(folder: Path, scored: Any) -> Results:
    """Return the SHA-256 of the weights of every run, and the contents of the table except paths and speeds."""
    paths = sorted((folder / "runs").glob("tiny/*/seed-*/model.safetensors"))
    weights = {str(path.relative_to(folder)): sha256_file(path) for path in paths}
    table = scored.comparison.json()
    rows = [(row["variant"], row["seed"], row["split"], row["metrics"]) for row in table["rows"]]
    comparisons = [{k: v for k, v in row.items() if "per_second" not in k} for row in table["comparisons"]]
    return weights, [rows, table["baseline"], json.dumps(comparisons, default=str)]


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of the two runs one after the other, in this process, on one thread."""
    recipe = write_recipe(tmp_path_factory.mktemp("sequential"))
    return results(recipe.parent, session(recipe, jobs=1)[-1])


def test_two_jobs_give_the_results_of_one(tmp_path: Path, sequential: Results) -> None:
    recorded = session(write_recipe(tmp_path))
    assert results(tmp_path, recorded[-1]) == sequential
    assert recorded[0] == events.NoteEvent("2 runs at a time, 1 thread each")
    assert sum(isinstance(event, events.PreparedEvent) for event in recorded) == 1
    progress = [(event.variant, event.seed) for event in recorded if isinstance(event, events.ProgressEvent)]
    assert Counter(progress) == {("one", 1): 40, ("two", 1): 40}
    assert [run.manifest.threads for run in open_runs(tmp_path / "runs")] == [1, 1]
    assert not multiprocessing.active_children()


def send(*signals: tuple[int, int]) -> Watch:
    """Send signals after numbers of updates to this process, but SIGKILL to one of its children."""
    waiting = list(signals)
    updates = 0

    def watch(event: events.Event) -> None:
        nonlocal updates
        updates += isinstance(event, events.ProgressEvent)
        while waiting and updates > waiting[0][0]:
            _, number = waiting.pop(0)
            if number == signal.SIGKILL:
                os.kill(random.choice(multiprocessing.active_children()).pid, number)
            else:
                signal.raise_signal(number)

    return watch


@pytest.mark.slow
def test_interrupted_sessions_end_with_the_same_results(tmp_path: Path, sequential: Results) -> None:
    """Sessions are stopped twice at random times, and one of their processes is killed."""
    recipe, draw = write_recipe(tmp_path), random.Random()
    first = [(draw.randrange(1, 12), signal.SIGKILL), (draw.randrange(12, 30), signal.SIGTERM)]
    with pytest.raises(errors.AttnkitError, match=r"\w+ seed 1: its process was killed \(SIGKILL"):
        session(recipe, send(*first))
    with suppress(errors.StoppedError):  # on a busy machine both trainings may end before the signal
        session(recipe, send((draw.randrange(30), signal.SIGINT)))
    assert not multiprocessing.active_children()
    assert results(tmp_path, session(recipe)[-1]) == sequential


@pytest.mark.slow
def test_stop_before_the_first_update_can_be_resumed(tmp_path: Path) -> None:
    def stop(event: events.Event) -> None:
        if isinstance(event, events.NoteEvent) and event.text.startswith("starting"):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(errors.StoppedError, match="stopped by SIGTERM; all progress is saved"):
        session(write_recipe(tmp_path), stop)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_second_interrupt_ends_all_processes_at_once(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        session(write_recipe(tmp_path), send((0, signal.SIGINT), (0, signal.SIGINT)))
    assert caught.value.code == 130
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_failed_runs_do_not_stop_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Divergence, a killed process and an exception of a plug-in are reported once each."""
    plugin = tmp_path / "failing_dot.py"
    plugin.write_text(FAILS)
    monkeypatch.chdir(tmp_path)
    failing = "model.attention: {{name: failing-dot, fault: {}}}"
    variants = {
        "good": "",
        "wild": "train.lr: 1e30, train.warmup: 1",
        "killed": failing.format("killed"),
        "faulty": failing.format("error"),
    }
    write_recipe(tmp_path, "".join(f"  {name}: {{{text}}}\n" for name, text in variants.items()))
    monkeypatch.setattr(mechanism_registry, "_plugged", {})
    code = main(["train", "tiny.yaml", "--plugin", str(plugin), "--jobs", "2"])
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    reasons = dict(line.split(" seed 1: failed: ", 1) for line in lines if " seed 1: failed: " in line)
    assert set(reasons) == {"wild", "killed", "faulty"}
    names = ", ".join(f"{name} seed 1" for name in reasons)
    final = f"attnkit: error: 3 of 4 runs failed, for the reasons above: {names}"
    assert [line for line in lines if line.startswith("attnkit: error: ")] == [final]
    assert "is not finite" in reasons["wild"]
    assert reasons["killed"].startswith("its process was killed (SIGKILL), probably because memory ran out")
    line = next(n for n, text in enumerate(FAILS.splitlines(), 1) if "raise IndexError" in text)
    assert reasons["faulty"] == f"{plugin}:{line}: IndexError: out of plug-in"
    assert any("Traceback" in line for line in lines)
    assert code == {"wild": 3, "killed": 71, "faulty": 1}[next(iter(reasons))]
    assert {line.split()[0] for line in captured.out.splitlines()} & variants.keys() == {"good"}
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (MemoryError(), 71, "out of memory: try train.batch_tokens=28"),
        (RuntimeError("can't allocate memory"), 71, "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device", "x.npz"), 74, "x.npz: writing failed"),
        (errors.DivergedError("step 7"), 3, "step 7"),
        (KeyError("x"), 1, "KeyError: 'x'; this is a bug in attnkit"),
    ],
)
def test_exception_of_a_worker_becomes_an_error_with_a_code(
    tmp_path: Path, error: Exception, code: int, text: str
) -> None:
    end = training.end_of(error, load(write_recipe(tmp_path)).variants["one"])
    assert isinstance(end.error, errors.AttnkitError)
    assert end.error.code == code
    assert text in str(end.error)
    assert bool(end.details) == (code == 1)


def test_free_memory_is_known_only_on_linux() -> None:
    free = free_memory()
    assert free > 1 << 20 if sys.platform == "linux" else free is None


def test_run_of_another_recipe_raises_before_any_training(tmp_path: Path) -> None:
    """It raised when its turn came, after hours of other trainings."""
    recipe = write_recipe(tmp_path)
    other = load(recipe, ["train.steps=1"]).variants["two"]
    Run.create(tmp_path / "runs/tiny/two/seed-1", other, name="tiny", variant="two", seed=1)
    for jobs in ("1", "2"):
        assert main(["train", str(recipe), "--out", str(tmp_path / "runs"), "--jobs", jobs, "--quiet"]) == 78
    assert not (tmp_path / "runs/tiny/one").exists()


@pytest.mark.slow
def test_precision_is_chosen_once_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = Mock(return_value=("bf16", "measured"))
    monkeypatch.setattr("attnkit.experiment.cost.choose_precision", choose)
    recipe = write_recipe(tmp_path)
    recipe.write_text(recipe.read_text().replace("fp32", "auto").replace("steps: 40", "steps: 2"))
    recorded = session(recipe)
    started = [event for event in recorded if isinstance(event, events.StartedEvent)]
    assert [event.precision for event in started] == ["bf16", "bf16"]
    assert recorded.index(events.NoteEvent("precision: bf16 (measured)")) < recorded.index(started[0])
    choose.assert_called_once()


def workers_of(session: int) -> list[int]:
    """Return the ids of the processes of a session that train, and of the server that forks them."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            session_id = int(status.read_text().rpartition(")")[2].split()[3])
            command = (status.parent / "cmdline").read_bytes()
        except OSError:  # the process has ended
            continue
        if session_id == session and b"forkserver" in command:
            found.append(int(status.parent.name))
    return found


def is_saved(run: Run) -> bool:
    """Return whether a checkpoint contains the last logged update."""
    steps = [int(path.name.removeprefix("step-")) for path in run.checkpoints.iterdir()]
    return bool(max(steps) == run.log.records()[-1]["step"])


def write_endless_recipe(folder: Path) -> Path:
    """Write the recipe with more updates than a test can wait for."""
    recipe = write_recipe(folder)
    recipe.write_text(recipe.read_text().replace("steps: 40", "steps: 100000"))
    return recipe


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="lists processes by /proc")
def test_interrupt_of_the_process_group_saves_every_run(tmp_path: Path) -> None:
    """Ctrl-C in a terminal sends SIGINT to all processes."""
    words = ["train", str(write_endless_recipe(tmp_path)), "--jobs", "2", "--json"]
    command = [sys.executable, "-m", "attnkit", *words, "--out", str(tmp_path / "runs")]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, start_new_session=True, env=environment())
    variants = set()
    for line in process.stdout:
        event = json.loads(line)
        variants |= {event["variant"]} if event["event"] == "progress" else set()
        if len(variants) == 2:
            break
    assert len(workers_of(process.pid)) == 3
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 75, stderr
    assert stderr.splitlines()[-1].startswith("attnkit: stopped by SIGINT; all progress")
    assert "Traceback" not in stderr
    deadline = time.monotonic() + LIMIT
    while workers_of(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert all(is_saved(run) for run in open_runs(tmp_path / "runs"))


@pytest.mark.slow
def test_worker_without_a_parent_saves_and_ends(tmp_path: Path) -> None:
    """The parent's end of the pipe is closed, as if the parent was killed."""
    start = training.Start(settings(load(write_endless_recipe(tmp_path)), tmp_path), 1, ())
    worker = training.Job(start, tmp_path / "out.txt", ("one", 1))
    while not isinstance(worker.receive(), events.ProgressEvent):
        pass
    worker.connection.close()
    worker.process.join(LIMIT)
    assert worker.process.exitcode == 0, (tmp_path / "out.txt").read_text()
    assert is_saved(Run.open(tmp_path / "runs/tiny/one/seed-1"))


@pytest.mark.parametrize("requested", [None, "SIGTERM"])
@pytest.mark.parametrize("error", [EOFError, ConnectionResetError, ConnectionRefusedError, BrokenPipeError])
def test_killed_fork_server_is_not_reported_as_a_bug(
    error: type[Exception], requested: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal to the process group ends the server before it forks the first worker."""
    stop = SimpleNamespace(requested=None)

    def start_job(*_: object) -> None:
        stop.requested = requested
        raise error

    monkeypatch.setattr(training, "Job", start_job)
    experiment: Any = SimpleNamespace(stop=stop, emit=events.ignore)
    start = training.Start(settings(load("quickstart"), Path()), 1, ())
    with pytest.raises(errors.StoppedError if requested else errors.MemoryLimitError, match="again"):
        training.run_jobs(experiment, start, [("one", 1)], 2)


def test_process_that_ends_without_a_report_has_an_error(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("Fatal Python error: Segmentation fault\n")
    died = training.end_of_process(-signal.SIGSEGV, output)
    assert str(died.error).startswith("its process was killed by SIGSEGV; run the same command again")
    assert died.details == "Fatal Python error: Segmentation fault"
    assert "ended with code 5" in str(training.end_of_process(5, output).error)
    assert isinstance(training.end_of_process(-signal.SIGTERM, output).error, errors.StoppedError)
