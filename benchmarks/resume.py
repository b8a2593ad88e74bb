"""Does an interrupted training end bit for bit as an uninterrupted one?  Through the command line.

    python benchmarks/resume.py [--kills 10] [--jobs 2] [--seed 1]
        [--part training|signals|comparison]

Part "training": a small recipe is trained once without a stop.  Then, each in a folder of its own:

- `--kills` runs are killed with SIGKILL one to three times, and started again until they finish:
  every other one at random moments, the rest by themselves inside a save, at a random file
  operation;
- runs are stopped at chosen places (the first step, inside an accumulation window, mid-epoch, an
  epoch's boundary, three times within one epoch), once by SIGTERM and once by SIGKILL, which the
  process sends to itself when it gets there.

Of each, the SHA-256 of model.safetensors, of the last checkpoint's tensors (weights, optimiser,
random state) and of the loss log must be those of the first.

Part "signals": `--kills` runs get SIGTERM, SIGINT, or SIGINT twice, each at a random moment from
their start to their end: while data is prepared, while they train, validate, save, decode, compare.
They must end within 10 s with exit code 75 (130 after two, where the first one had not ended it
yet), and have the same hashes when started again.

Part "comparison": two variants with two seeds are trained by `attnkit train --jobs N`, which is
interrupted `--kills` times at random moments: by SIGTERM, by Ctrl-C, by SIGKILL of one of its
processes and a SIGTERM after it, by SIGKILL of the command.  Weights, loss logs, scores and tests
of significance must be those of `--jobs 1` left alone.  Writes results/resume.md.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from common import attnkit, command, environment, load_before, publish_part, say, table, versions

RECIPE = """\
task: translation
data: {{train: [train.a, train.b], valid: [valid.a, valid.b], test: [valid.a, valid.b], \
max_length: 48}}
tokenizer: {{type: unigram, size: 60, sampling: 0.3}}
model: {{width: 32, layers: 1, heads: 2, ff: 64, dropout: 0.1}}
train: {{steps: {steps}, batch_tokens: 128, accumulate: {accumulate}, lr: 3e-3, warmup: 20,
        precision: fp32, average: 3, valid_every: 20, save_every: 5, log_every: 1,
        monitor: loss, choose: best}}
search: {{method: greedy, max_length: 16}}
eval: {{metrics: [bleu], bootstrap: 0}}
"""
SCORED = {"test: [valid.a, valid.b]": "test: [test.a, test.b]", "bootstrap: 0": "bootstrap: 1000"}
"""What is other where signals are sent: there is more to prepare and to score."""
VARIANTS = "variants: {plain: {}, linear: {model.attention: linear}}\n"
PARTS = {"training": "One training", "signals": "Signals at any moment", "comparison": "A comparison with `--jobs`"}
ACCUMULATE = 2
STOPPED, LEFT = 75, 130
"""Exit codes of a training that a signal stopped, and of one that was left at once."""
LATEST = 10.0
"""Seconds from a signal to the end of the process, at most."""
OPERATIONS = 12
"""File operations (fsync, rename) from the beginning of a save on, one of which is chosen."""
MEMORY = 71
"""Exit code of a comparison of which one process was killed."""
FINGERPRINTS = ("model.safetensors", "tensors of the last checkpoint", "loss log")
MOST_STARTS = 12
START = 2.0
"""Seconds that the interpreter may take to start, with no handler of signals yet."""


def write_data(folder: Path) -> None:
    """Pairs of words and their spelling backwards, from a seeded generator."""
    generator = random.Random(1)
    for split, rows in (("train", 2400), ("valid", 24), ("test", 2400)):
        pairs = []
        for _ in range(rows):
            words = [
                "".join(generator.choices("abcdefghij", k=generator.randint(2, 5)))
                for _ in range(generator.randint(1, 5))
            ]
            pairs.append((" ".join(words), " ".join(word[::-1] for word in reversed(words))))
        for side in (0, 1):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{'ab'[side]}").write_text(text)


@dataclass(frozen=True)
class Place:
    """A moment of a training: the `batch`-th backward pass of an update (both from 1).

    With `boundary` the first update from `step` on whose last batch is the last of its epoch; with
    `operation` the so many-th file operation behind update `step`, as saves have them.
    """

    step: int
    batch: int
    boundary: bool = False
    operation: int = 0

    def reached(self, step: int, batch: int, at_end: bool) -> bool:
        """Whether the training is there now; `at_end`: the update's batches end the epoch."""
        if self.operation:
            return False
        if self.boundary:
            return step >= self.step and batch == self.batch and at_end
        return (step, batch) == (self.step, self.batch)


@dataclass
class Trial:
    """One training, interrupted or not."""

    name: str
    folder: Path
    work: Path
    stops: list[str] = field(default_factory=list)
    """What was sent, and the last update that had been logged then."""
    found: Mapping[str, str] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        """Its run directory."""
        return self.folder / "small" / "base" / "seed-1"

    def words(self) -> list[str]:
        """Arguments of attnkit."""
        return ["train", str(self.work / "small.yaml"), "--out", str(self.folder), "--json"]

    def environment(self) -> dict[str, str]:
        """One thread each; the cache is shared."""
        return environment(1, ATTNKIT_CACHE=str(self.work / "cache"))

    def finish(self) -> int:
        """Start until it is done; how many starts that took."""
        for start in range(1, MOST_STARTS):
            done = subprocess.run(
                attnkit(*self.words()), capture_output=True, text=True, cwd=self.work, env=self.environment()
            )
            if done.returncode == 0:
                self.found = fingerprints(self.run)
                return start
            if done.returncode != STOPPED:
                break
        raise SystemExit(f"{self.name}: exit code {done.returncode}\n{done.stderr[-2000:]}")

    def started(self) -> subprocess.Popen[str]:
        """A process of the command."""
        return subprocess.Popen(
            attnkit(*self.words()),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.work,
            env=self.environment(),
        )

    def stop_at(self, place: Place, number: signal.Signals) -> None:
        """Start a process that sends itself a signal at a place.

        Raises:
            SystemExit: it ended otherwise, so that the place was never reached.
        """
        there = json.dumps([*astuple(place), number])
        words = [sys.executable, __file__, "--child", there, "--", *self.words()]
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.work, env=self.environment())
        wanted = STOPPED if number == signal.SIGTERM else -number
        if done.returncode != wanted:
            raise SystemExit(f"{self.name}: ended with {done.returncode}, not {wanted}\n{done.stderr[-2000:]}")
        inside = f", operation {place.operation} of a save" if place.operation else ""
        self.stops.append(f"{number.name} {self._where()}{inside}")

    def kill_after(self, seconds: float, training: bool) -> bool:
        """Start, and kill so long after the process or its training began; was it still there?"""
        child = subprocess.Popen(
            attnkit(*self.words()),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self.work,
            env=self.environment(),
        )
        assert child.stdout is not None
        seen: Counter[str] = Counter()
        if training:
            for line in child.stdout:
                if json.loads(line)["event"] == "started":
                    break
        reader = threading.Thread(target=count_events, args=(child.stdout, seen))
        reader.start()
        time.sleep(seconds)
        alive = child.poll() is None
        child.kill()
        child.wait()
        reader.join()
        child.stdout.close()
        if alive:
            where = self._where()
            phase = "before the first update" if not seen and where == "at update 0" else where
            after = ", while scoring" if seen["finished"] else ""
            self.stops.append(f"{phase}{after}")
        return alive

    def _where(self) -> str:
        """The last update in the log."""
        from attnkit.runs import Run

        records = Run(self.run).log.records()
        return f"at update {records[-1]['step'] if records else 0}"


def count_events(lines: Iterator[str], seen: Counter[str]) -> None:
    """Count the kinds of events, and keep the pipe from filling up."""
    for line in lines:
        if line.endswith("\n"):
            seen[json.loads(line)["event"]] += 1


def fingerprints(path: Path) -> dict[str, str]:
    """SHA-256 of what must be equal."""
    from attnkit.runs import Run
    from attnkit.storage.files import sha256_file

    run = Run.open(path)
    checkpoints = run.checkpoints.glob("step-*/tensors.safetensors")
    last = max(checkpoints, key=lambda one: int(one.parent.name.removeprefix("step-")))
    digests = (sha256_file(path / "model.safetensors"), sha256_file(last), run.log.digest())
    return dict(zip(FINGERPRINTS, digests, strict=True))


def child(place: Place, number: int, words: Sequence[str]) -> int:
    """The command line in a process that signals itself when training reaches a place."""
    from attnkit.cli import main as run
    from attnkit.train import fit, precision

    backward: Callable[..., None] = precision.GradientWorker.backward
    advance: Callable[[fit.Training], None] = fit.Training.advance
    batches = operations = 0
    current: fit.Training | None = None

    def watched_advance(training: fit.Training) -> None:
        nonlocal batches, current
        batches, current = 0, training
        advance(training)

    def watched_backward(worker: precision.GradientWorker, *arguments: object) -> None:
        nonlocal batches
        batches += 1
        assert current is not None
        stream = current.stream
        at_end = stream.position >= len(stream.batches)
        if place.reached(current.progress.step, batches, at_end):
            os.kill(os.getpid(), number)
        backward(worker, *arguments)

    def watched(operation: Callable[..., None]) -> Callable[..., None]:
        def perform(*arguments: object, **options: object) -> None:
            nonlocal operations
            operations += current is not None and current.progress.step >= place.step
            if place.operation and operations == place.operation:
                os.kill(os.getpid(), number)
            operation(*arguments, **options)

        return perform

    os.fsync, os.replace = watched(os.fsync), watched(os.replace)
    fit.Training.advance = watched_advance  # type: ignore[method-assign, assignment]
    precision.GradientWorker.backward = watched_backward  # type: ignore[method-assign, assignment]
    return run(words)


def chosen(epochs: Mapping[int, int]) -> dict[str, list[Place]]:
    """The places, given the epoch (from 0) after each update of the uninterrupted training."""
    inside = [step for step, epoch in epochs.items() if epoch == 1]
    quarter = len(inside) // 4
    three = [Place(inside[n * quarter], 1 + n % ACCUMULATE) for n in (1, 2, 3)]
    return {
        "first step": [Place(1, 1)],
        "inside an accumulation window": [Place(inside[2], 2)],
        "mid-epoch": [Place(inside[len(inside) // 2], 1)],
        "boundary of an epoch": [Place(2, ACCUMULATE, boundary=True)],
        "three resumes in one epoch": three,
    }


def stopped(trial: Trial, places: Sequence[Place], number: signal.Signals) -> Trial:
    """A trial that is stopped at each of the places."""
    for place in places:
        trial.stop_at(place, number)
    trial.finish()
    return trial


def killed_inside_saves(trial: Trial, seed: int, steps: int) -> Trial:
    """A trial that kills itself inside one to three saves."""
    generator = random.Random(seed)
    for step in sorted(generator.sample(range(1, steps - 20), generator.choice((1, 1, 2, 3)))):
        trial.stop_at(Place(step, 0, operation=generator.randint(1, OPERATIONS)), signal.SIGKILL)
    trial.finish()
    return trial


def killed(trial: Trial, seed: int, training_seconds: float, start_seconds: float) -> Trial:
    """A trial that is killed one to three times at moments drawn with this seed.

    One kill in five falls before training begins, the rest anywhere from its first update to a
    little past its end.
    """
    generator = random.Random(seed)
    for _ in range(generator.choice((1, 1, 2, 3))):
        early = generator.random() < 0.2
        most = start_seconds if early else training_seconds
        if not trial.kill_after(generator.uniform(0.0, most), training=not early):
            break
    trial.finish()
    return trial


def baseline(work: Path) -> tuple[Trial, float, float, dict[int, int]]:
    """The uninterrupted run; seconds of start and of training; the epoch after each update."""
    from attnkit.runs import Run

    first = Trial("uninterrupted", work / "first", work)
    first.finish()  # fills the cache, so that the timed one is like those that are killed
    trial = Trial("uninterrupted", work / "uninterrupted", work)
    began = time.monotonic()
    process = subprocess.Popen(
        attnkit(*trial.words()), stdout=subprocess.PIPE, text=True, cwd=work, env=trial.environment()
    )
    assert process.stdout is not None
    moments = {}
    for line in process.stdout:
        moments[json.loads(line)["event"]] = time.monotonic()
    if process.wait():
        raise SystemExit(f"the uninterrupted training ended with {process.returncode}")
    trial.found = fingerprints(trial.run)
    if first.found != trial.found:
        raise SystemExit("two uninterrupted trainings differ: nothing else can be compared")
    records = [record for record in Run(trial.run).log.records() if "epoch" in record]
    epochs = {record["step"]: record["epoch"] for record in records}
    start = moments["started"] - began
    return trial, start, moments["scored"] - moments["started"], epochs


def rows_of(trials: Sequence[Trial], wanted: Mapping[str, str]) -> list[list[str]]:
    """What happened to each trial, and which of its fingerprints are those of the baseline."""
    return [
        [
            trial.name,
            "; ".join(trial.stops) or "none: it had finished",
            *("equal" if trial.found[key] == wanted[key] else "DIFFERENT" for key in FINGERPRINTS),
        ]
        for trial in trials
    ]


def measure(options: argparse.Namespace, work: Path) -> bool:
    """Run everything and write the report; whether all is equal."""
    load = load_before()
    write_data(work)
    (work / "small.yaml").write_text(RECIPE.format(steps=options.steps, accumulate=ACCUMULATE))
    say("without a stop, twice")
    first, start, training, epochs = baseline(work)
    if max(epochs.values()) < 2:
        raise SystemExit(f"--steps {options.steps}: too few for three epochs")
    trials = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for number in range(options.kills):
            trial = Trial(f"SIGKILL {number + 1}", work / f"killed-{number}", work)
            seed = 1000 * options.seed + number
            if number % 2:
                trials.append(pool.submit(killed_inside_saves, trial, seed, options.steps))
            else:
                trials.append(pool.submit(killed, trial, seed, training, start))
        for name, places in chosen(epochs).items():
            for kind in (signal.SIGTERM, signal.SIGKILL):
                trial = Trial(name, work / f"{kind.name}-{name.replace(' ', '-')}", work)
                trials.append(pool.submit(stopped, trial, places, kind))
        done = []
        for future in trials:
            done.append(future.result())
            say(f"{done[-1].name}: {'; '.join(done[-1].stops)}")
    equal = sum(trial.found == first.found for trial in done)
    kills = sum(len(trial.stops) for trial in done[: options.kills])
    facts = {
        "command": f"`{command(options)}`",
        "versions": versions("attnkit", "torch", "sentencepiece"),
        "load of the machine": load,
        "training": f"{options.steps} updates of {ACCUMULATE} micro-batches in"
        f" {max(epochs.values()) + 1} epochs, with subword sampling, dropout,"
        " averaging of 3 validations, the best weights chosen; a"
        f" checkpoint every 5 updates; one thread; {training:.1f} s on this machine",
        "result": f"**{equal} of {len(done)} interrupted trainings equal the uninterrupted one** in"
        f" all three SHA-256 ({kills} random kills, "
        f"{sum(len(trial.stops) for trial in done) - kills} chosen stops)",
    }
    body = [
        "Uninterrupted:",
        "",
        *table(["what", "SHA-256"], [(key, f"`{value}`") for key, value in first.found.items()], 2),
        "",
        *table(["stopped", "where", *FINGERPRINTS], rows_of(done, first.found), 5),
    ]
    _publish("training", facts, body)
    return equal == len(done)


def signalled(trial: Trial, kind: str, seconds: float) -> Trial:
    """A trial that gets a signal so long after its start."""
    first = signal.SIGTERM if kind == "SIGTERM" else signal.SIGINT
    child = trial.started()
    time.sleep(seconds)
    sent = time.monotonic()
    for _ in range(2 if kind == "SIGINT twice" else 1):
        child.send_signal(first)
        time.sleep(0.05)
    _, errors = child.communicate()
    code, taken = child.returncode, time.monotonic() - sent
    allowed = {STOPPED, 0} | ({LEFT} if first == signal.SIGINT else set())
    if seconds < START:  # the interpreter starts: nothing to save, and no handler yet
        allowed |= {-first, 128 + first}
        errors = ""
    trial.stops.append(f"{kind}, {seconds:.2f} s: exit {code} in {taken:.1f} s")
    if code not in allowed or taken > LATEST or "Traceback" in errors:
        say(errors)
        trial.stops.append("WRONG")
    again = trial.started()
    _, errors = again.communicate()
    if again.returncode:
        say(errors)
        trial.stops.append("WRONG")
    else:
        trial.found = fingerprints(trial.run)
    return trial


def send_signals(options: argparse.Namespace, work: Path) -> bool:
    """Signals at random moments, and the report; whether all is as it should be."""
    load = load_before()
    write_data(work)
    recipe = RECIPE.format(steps=options.steps, accumulate=ACCUMULATE)
    for old, new in SCORED.items():
        recipe = recipe.replace(old, new)
    (work / "small.yaml").write_text(recipe)
    first = Trial("uninterrupted", work / "uninterrupted", work)
    began = time.monotonic()
    if first.started().wait():
        raise SystemExit("the uninterrupted training ended otherwise")
    seconds = time.monotonic() - began
    first.found = fingerprints(first.run)
    kinds, generator, done = ("SIGTERM", "SIGINT", "SIGINT twice"), random.Random(options.seed), []
    for number in range(options.kills):
        trial = Trial(str(number + 1), work / f"signalled-{number}", work)
        kind, moment = kinds[number % len(kinds)], generator.uniform(0, seconds)
        if number % 4 == 0:  # the data is prepared again, which others find in the cache
            shutil.rmtree(work / "cache")
        done.append(signalled(trial, kind, moment))
        say(f"{number + 1}: {'; '.join(done[-1].stops)}")
    good = sum(trial.found == first.found and len(trial.stops) == 1 for trial in done)
    stopped = sum(": exit 0" not in trial.stops[0] for trial in done)
    facts = {
        "command": f"`{command(options)}`",
        "versions": versions("attnkit", "torch", "sentencepiece"),
        "load of the machine": load,
        "training": f"as above, {seconds:.1f} s in all on this machine",
        "result": f"**{good} of {len(done)} ended in time with the right exit code, and equal to "
        f"the uninterrupted one when started again**; {len(done) - stopped} had ended already",
    }
    body = table(["signal", "where", *FINGERPRINTS], rows_of(done, first.found), 5)
    _publish("signals", facts, body)
    return good == len(done)


def _publish(part: str, facts: Mapping[str, str], body: Sequence[str]) -> None:
    title, order = "Interrupted and resumed trainings", list(PARTS.values())
    publish_part("resume", title, PARTS[part], order, facts, body)


class Session:
    """One start of a comparison, in a session of its own, so that its processes can be found."""

    def __init__(self, work: Path, out: Path, jobs: int) -> None:
        words = ["train", work / "several.yaml", "train.seeds=[1,2]", "--jobs", jobs, "--json"]
        self.process = subprocess.Popen(
            attnkit(*words, "--out", out),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=work,
            start_new_session=True,
            env=environment(1, ATTNKIT_CACHE=str(work / "cache")),
        )
        self.out = out

    def until_training(self) -> bool:
        """Wait for the first update of a run; False where all of them were done."""
        assert self.process.stdout is not None
        return any(json.loads(line)["event"] == "started" for line in self.process.stdout)

    def send(self, kind: str, generator: random.Random) -> None:
        """Interrupt it in one of the four ways."""
        if kind == "SIGKILL of a process":
            workers = self._workers()
            if workers:
                os.kill(generator.choice(workers), signal.SIGKILL)
            time.sleep(generator.uniform(0, 0.3))
        if kind == "Ctrl-C":
            os.killpg(self.process.pid, signal.SIGINT)
        elif kind == "SIGKILL of the command":
            self.process.kill()
        else:
            self.process.send_signal(signal.SIGTERM)

    def _workers(self) -> list[int]:
        """The processes that train: children of the one that imported torch."""
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(state[3]) == self.process.pid:
                parents[int(path.parent.name)] = int(state[1])
        return [pid for pid, parent in parents.items() if parents.get(parent) == self.process.pid]

    def end(self) -> tuple[int, dict[str, Any] | None]:
        """Its exit code, and its scores where it got so far; waits for all of its processes."""
        out, errors = self.process.communicate()
        while self._workers():
            time.sleep(0.05)
        if self.process.returncode not in (0, STOPPED, MEMORY, -signal.SIGKILL):
            raise SystemExit(f"exit code {self.process.returncode}\n{errors[-2000:]}")
        records = [json.loads(line) for line in out.splitlines() if line.endswith("}")]
        scored = [record for record in records if record["event"] == "scored"]
        return self.process.returncode, scored[-1] if scored else None

    def updates(self) -> str:
        """The last update that each run has logged."""
        from attnkit.runs import Run

        steps = []
        for path in sorted(self.out.glob("several/*/seed-*")):
            records = Run(path).log.records()
            steps.append(str(records[-1]["step"] if records else 0))
        return ", ".join(steps) or "none"


def without_clock(value: Any) -> Any:
    """Scores without what depends on the speed, the place and the moment."""
    from attnkit.runs.log import WALL_CLOCK

    if isinstance(value, dict):
        return {
            key: without_clock(item)
            for key, item in value.items()
            if not key.endswith(WALL_CLOCK) and key not in ("run", "decode")
        }
    return [without_clock(item) for item in value] if isinstance(value, list) else value


def result(out: Path, scored: dict[str, Any] | None) -> dict[str, str]:
    """SHA-256 of the weights and logs of every run, and of the scores."""
    from attnkit.runs import Run
    from attnkit.storage.files import sha256_file, sha256_json

    paths = sorted(out.glob("several/*/seed-*"))
    return {
        "weights": sha256_json([sha256_file(path / "model.safetensors") for path in paths]),
        "loss logs": sha256_json([Run(path).log.digest() for path in paths]),
        "scores and tests": sha256_json(without_clock(scored)),
    }


def compare(options: argparse.Namespace, work: Path) -> bool:
    """Interrupt a comparison again and again, and write the report; whether all is equal."""
    load = load_before()
    write_data(work)
    recipe = RECIPE.format(steps=options.steps, accumulate=ACCUMULATE)
    (work / "several.yaml").write_text(recipe.replace("bootstrap: 0", "bootstrap: 200") + VARIANTS)
    wanted, seconds = {}, 0.0
    for name, jobs in (("one job", 1), (f"{options.jobs} jobs", options.jobs)):
        alone = Session(work, work / name, jobs)
        alone.until_training()
        began = time.monotonic()
        wanted[name] = result(alone.out, alone.end()[1])
        seconds = time.monotonic() - began
    generator, rows = random.Random(options.seed), list[list[str]]()
    kinds = ["SIGTERM", "Ctrl-C", "SIGKILL of a process", "SIGKILL of the command"]
    for number in range(options.kills):
        session = Session(work, work / "interrupted", options.jobs)
        if not session.until_training():
            session.end()
            break
        time.sleep(generator.uniform(0, seconds / options.kills))
        session.send(kinds[number % len(kinds)], generator)
        code, _ = session.end()
        if code == 0:  # the signal came after its end
            break
        rows.append([kinds[number % len(kinds)], str(code), session.updates()])
        say(f"interruption {number + 1}: {', '.join(rows[-1])}")
    last = Session(work, work / "interrupted", options.jobs)
    code, scored = last.end()
    found = result(last.out, scored)
    equal = code == 0 and all(one == found for one in wanted.values())
    what = [[key, *(f"`{one[key][:16]}`" for one in (*wanted.values(), found))] for key in found]
    facts = {
        "command": f"`{command(options)}`",
        "versions": versions("attnkit", "torch", "sentencepiece"),
        "load of the machine": load,
        "comparison": f"two variants with two seeds, {options.steps} updates each, one thread a"
        f" job; {seconds:.0f} s with {options.jobs} jobs on this machine",
        "result": f"**interrupted {len(rows)} times, weights, loss logs, scores and tests"
        f" {'equal' if equal else 'DIFFER FROM'} those of a comparison left alone**",
    }
    body = [
        *table(["SHA-256, its beginning", *wanted, "interrupted"], what, 4),
        "",
        *table(["interrupted by", "exit code", "last update of each run begun"], rows, 3),
    ]
    _publish("comparison", facts, body)
    return equal


def main() -> int:
    """Read the arguments, then measure, or be the child that signals itself."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="of trainings, of the comparison")
    parser.add_argument("--steps", type=int, default=300, help="updates of each training")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at the same time")
    parser.add_argument("--part", choices=PARTS, help="only this part")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        *place, number = json.loads(options.child)
        return child(Place(*place), number, options.words)
    equal = True
    for part, run in (("training", measure), ("signals", send_signals), ("comparison", compare)):
        if options.part in (None, part):
            with tempfile.TemporaryDirectory() as temporary:
                equal = run(options, Path(temporary)) and equal
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
