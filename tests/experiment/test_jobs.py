"""Trainings side by side: the same results, stops, failures and refusals."""

import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
data: {{train: {train}, valid: {valid}, test: {test}, max_length: 32}}
tokenizer: {{type: word, size: 40}}
model: {{width: 16, heads: 2, layers: 1, ff: 32, dropout: 0.2}}
train: {{steps: 40, batch_tokens: 56, lr: 5e-3, warmup: 4, valid_every: 20, save_every: 5,
        log_every: 1, precision: fp32}}
search: {{method: greedy, max_length: 12}}
eval: {{bootstrap: 50}}
variants:
"""
TWO = "  one: {}\n  two: {model.attention: linear}\n"
LIMIT = 60
"""Seconds that a process may take to end."""
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

    def __init__(self, shape: Shape, *, how: str = "killed") -> None:
        super().__init__(shape)
        self.how, self.calls = how, 0

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        self.calls += 1
        if self.calls > 9 and multiprocessing.parent_process() is not None:
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise IndexError("out of plug-in")
        return super().scores(q, k, mask)
'''


def write_recipe(folder: Path, variants: str = TWO) -> Path:
    """A recipe of a tiny model that counts backwards."""
    data = write_corpus(folder)
    files = {name: list(getattr(data, name)) for name in ("train", "valid", "test")}
    path = folder / "tiny.yaml"
    path.write_text(RECIPE.format(**files) + variants)
    return path


def settings_of(file: RecipeFile, folder: Path, **more: Any) -> TrainingSettings:
    return TrainingSettings(file=file, out=folder / "runs", device="cpu", **more)


def session(recipe: Path, watch: Watch = events.ignore) -> list[events.Event]:
    """The events of a session with two jobs."""
    settings = settings_of(load(recipe), recipe.parent)
    return record_events(training.train, settings, jobs=2, watch=watch)


def weights(folder: Path) -> dict[str, str]:
    """SHA-256 of the weights of every run."""
    found = folder.glob("tiny/*/seed-*/model.safetensors")
    return {str(path.relative_to(folder)): sha256_file(path) for path in sorted(found)}


def scores(scored: events.Event) -> list[Any]:
    """What a table says, without places and speeds."""
    assert isinstance(scored, events.ScoredEvent)
    found = scored.comparison.json()
    rows = [(row["variant"], row["seed"], row["split"], row["metrics"]) for row in found["rows"]]
    compared = [{k: v for k, v in one.items() if "per_second" not in k} for one in found["comparisons"]]
    return [rows, found["baseline"], json.dumps(compared, default=str)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[Any]]:
    """Weights and scores of the two runs one after the other, in this process, on one thread."""
    recipe = write_recipe(tmp_path_factory.mktemp("alone"))
    *_, scored = record_events(training.train, settings_of(load(recipe), recipe.parent))
    return weights(recipe.parent / "runs"), scores(scored)


def test_two_jobs_give_what_one_gives(tmp_path: Path, alone: tuple[dict[str, str], list[Any]]) -> None:
    told = session(write_recipe(tmp_path))
    assert (weights(tmp_path / "runs"), scores(told[-1])) == alone
    assert told[0] == events.NoteEvent("2 runs at a time, 1 thread each")
    assert sum(isinstance(event, events.PreparedEvent) for event in told) == 1
    of_runs = [event for event in told if isinstance(event, events.ProgressEvent)]
    assert {(event.variant, event.seed) for event in of_runs} == {("one", 1), ("two", 1)}
    assert len(of_runs) == 80
    manifests = [Run.open(tmp_path / f"runs/tiny/{name}/seed-1").manifest for name in ("one", "two")]
    assert [manifest.threads for manifest in manifests] == [1, 1]
    assert not multiprocessing.active_children()


def interrupting(*sent: tuple[int, int]) -> Watch:
    """Send signals after so many updates, to this process, or SIGKILL to one of its children."""
    waiting = list(sent)
    updates = 0

    def watch(event: events.Event) -> None:
        nonlocal updates
        updates += isinstance(event, events.ProgressEvent)
        while waiting and updates > waiting[0][0]:
            _, number = waiting.pop(0)
            if number == signal.SIGKILL:
                child = random.choice(multiprocessing.active_children())
                assert child.pid is not None
                os.kill(child.pid, number)
            else:
                signal.raise_signal(number)

    return watch


@pytest.mark.slow
def test_interrupted_again_and_again_it_ends_with_the_same_table(
    tmp_path: Path, alone: tuple[dict[str, str], list[Any]]
) -> None:
    """Stopped twice at random moments, and once one of its processes is killed."""
    recipe, draw = write_recipe(tmp_path), random.Random()
    first = [(draw.randrange(1, 12), signal.SIGKILL), (draw.randrange(12, 30), signal.SIGTERM)]
    with pytest.raises(errors.AttnkitError, match=r"\w+ seed 1: its process was killed \(SIGKILL"):
        session(recipe, interrupting(*first))
    with suppress(errors.StoppedError):  # on a busy machine both may be done before it is sent
        session(recipe, interrupting((draw.randrange(30), signal.SIGINT)))
    assert not multiprocessing.active_children()
    *_, scored = session(recipe)
    assert (weights(tmp_path / "runs"), scores(scored)) == alone


@pytest.mark.slow
def test_a_stop_before_the_first_update_is_resumable_too(tmp_path: Path) -> None:

    def stop(event: events.Event) -> None:
        if isinstance(event, events.NoteEvent) and event.text.startswith("starting"):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(errors.StoppedError, match="stopped by SIGTERM; all progress is saved"):
        session(write_recipe(tmp_path), stop)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_second_interrupt_leaves_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        session(write_recipe(tmp_path), interrupting((0, signal.SIGINT), (0, signal.SIGINT)))
    assert left.value.code == 130
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_runs_that_fail_do_not_take_the_others_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Divergence, a process that is killed, a fault of a plug-in; each is told once, one table."""
    plugin = tmp_path / "failing_dot.py"
    plugin.write_text(FAILS)
    monkeypatch.chdir(tmp_path)
    failing = "model.attention: {{name: failing-dot, how: {}}}"
    variants = {
        "good": "",
        "wild": "train.lr: 1e30, train.warmup: 1",
        "killed": failing.format("killed"),
        "faulty": failing.format("fault"),
    }
    write_recipe(tmp_path, "".join(f"  {name}: {{{text}}}\n" for name, text in variants.items()))
    monkeypatch.setattr(mechanism_registry, "_plugged", {})
    code = main(["train", "tiny.yaml", "--plugin", str(plugin), "--jobs", "2"])
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    told = [line for line in lines if " seed 1: failed: " in line]
    names = ", ".join(line.split(": ")[0] for line in told)
    final = f"attnkit: error: 3 of 4 runs failed, for the reasons above: {names}"
    assert [line for line in lines if line.startswith("attnkit: error: ")] == [final]
    reasons = dict(line.split(" seed 1: failed: ", 1) for line in told)
    assert set(reasons) == {"wild", "killed", "faulty"}
    assert "is not finite" in reasons["wild"]
    assert reasons["killed"].startswith("its process was killed (SIGKILL), probably because memory ran out")
    line = next(n for n, text in enumerate(FAILS.splitlines(), 1) if "raise IndexError" in text)
    assert reasons["faulty"] == f"{plugin}:{line}: IndexError: out of plug-in"
    assert any("Traceback" in line for line in lines)
    first = told[0].split(" seed")[0]
    assert code == {"wild": 3, "killed": 71, "faulty": 1}[first]
    assert {line.split()[0] for line in shown.out.splitlines()} & variants.keys() == {"good"}
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
def test_what_a_worker_reports(tmp_path: Path, error: Exception, code: int, text: str) -> None:
    recipe = load(write_recipe(tmp_path)).variants["one"]
    found = training.end_of(error, recipe)
    assert found.error is not None
    assert found.error.code == code
    assert pytest.raises(errors.AttnkitError, _raise, found.error).match(text)
    assert bool(found.details) == (code == 1)


def _raise(error: Exception) -> None:
    raise error


def test_free_memory_is_known_on_linux() -> None:
    free = free_memory()
    if sys.platform == "linux":
        assert free is not None
        assert free > 1 << 20


def test_a_run_of_another_recipe_is_refused_before_any_training(tmp_path: Path) -> None:
    """It was refused when its turn came, after hours of other trainings."""
    recipe = write_recipe(tmp_path)
    made = load(recipe, ["train.steps=1"])
    Run.create(tmp_path / "runs/tiny/two/seed-1", made.variants["two"], name="tiny", variant="two", seed=1)
    for count in (1, 2):
        words = ["train", str(recipe), "--out", str(tmp_path / "runs"), "--jobs", str(count)]
        assert main([*words, "--quiet"]) == 78
    assert not (tmp_path / "runs/tiny/one").exists()


@pytest.mark.slow
def test_precision_is_chosen_once_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("attnkit.experiment.cost.choose_precision", lambda *_: asked.append(1) or ("bf16", "measured"))
    recipe = write_recipe(tmp_path)
    recipe.write_text(recipe.read_text().replace("fp32", "auto").replace("steps: 40", "steps: 2"))
    told = session(recipe)
    started = [event for event in told if isinstance(event, events.StartedEvent)]
    assert [event.precision for event in started] == ["bf16", "bf16"]
    assert told.index(events.NoteEvent("precision: bf16 (measured)")) < told.index(started[0])
    assert len(asked) == 1


def workers_of(session: int) -> list[int]:
    """The processes of a session that compute, and the one that they are forked from."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            belongs = int(status.read_text().rpartition(")")[2].split()[3])
            words = (status.parent / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if belongs == session and b"forkserver" in words:
            found.append(int(status.parent.name))
    return found


def is_saved(run: Run) -> bool:
    """Whether the last update that it logged is in a checkpoint."""
    steps = [int(path.name.removeprefix("step-")) for path in run.checkpoints.iterdir()]
    logged: int = run.log.records()[-1]["step"]
    return max(steps) == logged


def endless(recipe: Path) -> Path:
    """The recipe with more updates than a test waits for."""
    recipe.write_text(recipe.read_text().replace("steps: 40", "steps: 100000"))
    return recipe


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which processes there are")
def test_ctrl_c_in_a_terminal_comes_to_all_processes_and_every_run_is_saved(tmp_path: Path) -> None:
    words = ["train", str(endless(write_recipe(tmp_path))), "--jobs", "2", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "attnkit", *words, "--out", str(tmp_path / "runs")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )
    assert process.stdout is not None
    seen = set()
    for line in process.stdout:
        event = json.loads(line)
        seen |= {event["variant"]} if event["event"] == "progress" else set()
        if len(seen) == 2:
            break
    assert len(workers_of(process.pid)) == 3
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=LIMIT)
    assert process.returncode == 75, told
    assert told.splitlines()[-1].startswith("attnkit: stopped by SIGINT; all progress")
    assert "Traceback" not in told
    deadline = time.monotonic() + LIMIT
    while workers_of(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert all(is_saved(Run.open(tmp_path / f"runs/tiny/{name}/seed-1")) for name in ("one", "two"))


@pytest.mark.slow
def test_a_worker_whose_parent_is_gone_saves_and_ends(tmp_path: Path) -> None:
    """The parent's end of the pipe is closed, as when it is killed."""
    file = load(endless(write_recipe(tmp_path)))
    start = training.Start(TrainingSettings(file=file, out=tmp_path, device="cpu"), 1, ())
    worker = training.Job(start, tmp_path / "out.txt", ("one", 1))
    while not isinstance(worker.receive(), events.ProgressEvent):
        pass
    worker.connection.close()
    worker.process.join(LIMIT)
    assert worker.process.exitcode == 0, (tmp_path / "out.txt").read_text()
    assert is_saved(Run.open(tmp_path / "tiny/one/seed-1"))


@pytest.mark.parametrize("told", [None, "SIGTERM"])
@pytest.mark.parametrize("error", [EOFError, ConnectionResetError, ConnectionRefusedError, BrokenPipeError])
def test_a_server_of_processes_that_was_killed_is_no_bug(
    error: type[Exception], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal to the whole group ended it before the first worker was there."""
    stop = SimpleNamespace(requested=None)

    def started(*_: object) -> None:
        stop.requested = told  # type: ignore[assignment]
        raise error

    monkeypatch.setattr(training, "Job", started)
    experiment: Any = SimpleNamespace(stop=stop, emit=events.ignore)
    start = training.Start(settings_of(load("quickstart"), Path()), 1, ())
    with pytest.raises(errors.StoppedError if told else errors.MemoryLimitError, match="again"):
        training.run_jobs(experiment, start, [("one", 1)], 2)


def test_the_end_of_a_process_without_a_word_is_explained(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("Fatal Python error: Segmentation fault\n")
    died = training.end_of_process(-signal.SIGSEGV, output)
    assert str(died.error).startswith("its process was killed by SIGSEGV; run the same command again")
    assert died.details == "Fatal Python error: Segmentation fault"
    assert "ended with code 5" in str(training.end_of_process(5, output).error)
    assert isinstance(training.end_of_process(-signal.SIGTERM, output).error, errors.StoppedError)
