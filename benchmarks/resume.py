"""Whether interrupted trainings end bit for bit like uninterrupted ones, through the command line.

    python benchmarks/resume.py [--kills 10] [--jobs 2] [--part training|signals|comparison]

training: a small recipe is trained without a stop. Then `--kills` trainings are killed with SIGKILL one to three
times and started again until they finish: every other one at random moments, the rest inside a save, at a random file
operation. Other trainings are stopped at fixed places (the first step, inside an accumulation window, mid-epoch, at
the end of an epoch, three times within one epoch), once by SIGTERM and once by SIGKILL, which the process sends to
itself there. The SHA-256 of model.safetensors, of the tensors of the last checkpoint (weights, optimizer, random
state) and of the loss log must be those of the uninterrupted training.

signals: `--kills` trainings get SIGTERM, SIGINT, or SIGINT twice at a random moment: while data is prepared, during
training, validation, saving, decoding or comparing. They must end within 10 s with exit code 75 (130 after two
signals, unless the first had ended the training), and have the same hashes when started again.

comparison: two variants with two seeds are trained by `attnkit train --jobs N`, interrupted `--kills` times at
random moments: by SIGTERM, by Ctrl-C, by SIGKILL of one of its processes and a SIGTERM after it, by SIGKILL of the
command. Weights, loss logs, scores and tests of significance must be those of an uninterrupted `--jobs 1`.
Writes results/resume.md.
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
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from common import arguments, attnkit, environment, facts, publish, say, table

from attnkit.runs import Run
from attnkit.runs.log import WALL_CLOCK
from attnkit.storage.files import sha256_file, sha256_json

STEPS, ACCUMULATE = 300, 2
RECIPE = f"""\
task: translation
data: {{train: [train.a, train.b], valid: [valid.a, valid.b], test: [valid.a, valid.b], max_length: 48}}
tokenizer: {{type: unigram, size: 60, sampling: 0.3}}
model: {{width: 32, layers: 1, heads: 2, ff: 64, dropout: 0.1}}
train: {{steps: {STEPS}, batch_tokens: 128, accumulate: {ACCUMULATE}, lr: 3e-3, warmup: 20, precision: fp32,
        average: 3, valid_every: 20, save_every: 5, log_every: 1, monitor: loss, choose: best}}
search: {{method: greedy, max_length: 16}}
eval: {{metrics: [bleu], bootstrap: 0}}
"""
MORE_TO_SCORE = RECIPE.replace("test: [valid.a, valid.b]", "test: [test.a, test.b]").replace("p: 0}", "p: 1000}")
VARIANTS = RECIPE.replace("p: 0}", "p: 200}") + "variants: {plain: {}, linear: {model.attention: linear}}\n"
PARTS = {"training": "One training", "signals": "Signals at any moment", "comparison": "A comparison with `--jobs`"}
STOPPED, STOPPED_TWICE, CHILD_KILLED = 75, 130, 71
"""Exit codes of commands after a signal, after a second signal, and if a child was killed."""
MAX_SECONDS = 10.0
"""From a signal to the end of the process."""
START = 2.0
"""Seconds that the interpreter may take to start, without a signal handler yet."""
OPERATIONS = 12
"""File operations (fsync, rename) of a save, of which one is chosen."""
FINGERPRINTS = ("model.safetensors", "tensors of the last checkpoint", "loss log")
MAX_STARTS = 12


def write_data(work: Path, recipe: str) -> None:
    """Write the recipe, and pairs of words and their reversed spelling, from a seeded generator."""
    (work / "small.yaml").write_text(recipe)
    generator = random.Random(1)
    for split, rows in (("train", 2400), ("valid", 24), ("test", 2400)):
        texts = ["", ""]
        for _ in range(rows):
            words = [
                "".join(generator.choices("abcdefghij", k=generator.randint(2, 5)))
                for _ in range(generator.randint(1, 5))
            ]
            texts[0] += " ".join(words) + "\n"
            texts[1] += " ".join(word[::-1] for word in reversed(words)) + "\n"
        for side, text in zip("ab", texts, strict=True):
            (work / f"{split}.{side}").write_text(text)


def last_step(run: Path) -> int:
    """Return the last update in the log of a run."""
    records = Run(run).log.records()
    return int(records[-1]["step"]) if records else 0


def fingerprints(path: Path) -> dict[str, str]:
    """Return the SHA-256 of everything that must be equal."""
    run = Run.open(path)
    checkpoints = run.checkpoints.glob("step-*/tensors.safetensors")
    last = max(checkpoints, key=lambda file: int(file.parent.name.removeprefix("step-")))
    digests = (sha256_file(path / "model.safetensors"), sha256_file(last), run.log.digest())
    return dict(zip(FINGERPRINTS, digests, strict=True))


@dataclass(frozen=True)
class Place:
    """A moment of a training: before the backward pass of batch `batch` of update `step` (both from 1).

    With `at_end`, the first update from `step` on whose last batch ends an epoch; with `operation`, the file
    operation of this number after update `step`, as saves have them.
    """

    step: int
    batch: int
    at_end: bool = False
    operation: int = 0

    def reached(self, step: int, batch: int, at_end: bool) -> bool:
        """Whether the training has reached the place; `at_end`: whether the batches of the update end the epoch."""
        if self.operation:
            return False
        return (step >= self.step and at_end if self.at_end else step == self.step) and batch == self.batch


@dataclass
class Trial:
    """One training in a folder of its own, interrupted or not."""

    name: str
    folder: Path
    stops: list[str] = field(default_factory=list)
    """Each signal that was sent, and the last update in the log then."""
    found: Mapping[str, str] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        return self.folder / "small/base/seed-1"

    def words(self) -> list[str]:
        return ["train", str(self.folder.parent / "small.yaml"), "--out", str(self.folder), "--json"]

    def start(self, stdout: Any = subprocess.DEVNULL, command: Sequence[str] = ()) -> "subprocess.Popen[str]":
        """Start the training, or another command, with one thread; the cache is shared."""
        env = environment(1, ATTNKIT_CACHE=str(self.folder.parent / "cache"))
        command = command or attnkit(*self.words())
        return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env)

    def finish(self) -> None:
        """Start the training until it is done."""
        for _ in range(1, MAX_STARTS):
            process = self.start()
            _, errors = process.communicate()
            if process.returncode == 0:
                self.found = fingerprints(self.run)
                return
            if process.returncode != STOPPED:
                break
        raise SystemExit(f"{self.name}: exit code {process.returncode}\n{errors[-2000:]}")

    def stop_at(self, place: Place, number: signal.Signals) -> None:
        """Start a process that sends itself a signal at a place.

        Raises:
            SystemExit: it ended otherwise, so the place was never reached.
        """
        words = [sys.executable, __file__, "--child", json.dumps([*astuple(place), number]), *self.words()]
        process = self.start(command=words)
        _, errors = process.communicate()
        expected = STOPPED if number == signal.SIGTERM else -number
        if process.returncode != expected:
            raise SystemExit(f"{self.name}: ended with {process.returncode}, not {expected}\n{errors[-2000:]}")
        inside = f", operation {place.operation} of a save" if place.operation else ""
        self.stops.append(f"{number.name} at update {last_step(self.run)}{inside}")

    def kill_after(self, seconds: float, training: bool) -> bool:
        """Kill the process this long after its start, or after the start of training; return whether it ran."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "events").open("w+") as events:
            process = self.start(events)
            while training and process.poll() is None and '"started"' not in (self.folder / "events").read_text():
                time.sleep(0.01)
            time.sleep(seconds)
            running = process.poll() is None
            process.kill()
            process.communicate()
            events.seek(0)
            text = events.read()
        if running:
            phase = f"at update {last_step(self.run)}" if '"progress"' in text else "before the first update"
            self.stops.append(phase + (", while scoring" if '"finished"' in text else ""))
        return running


def child(place: Place, number: int, words: Sequence[str]) -> int:
    """Run the command line in this process, which sends itself a signal when the training reaches a place."""
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
        if place.reached(current.progress.step, batches, stream.position >= len(stream.batches)):
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


def fixed_places(epochs: Mapping[int, int]) -> dict[str, list[Place]]:
    """Return the places, given the epoch (from 0) after each update of the uninterrupted training."""
    inside = [step for step, epoch in epochs.items() if epoch == 1]
    quarter = len(inside) // 4
    return {
        "first step": [Place(1, 1)],
        "inside an accumulation window": [Place(inside[2], 2)],
        "mid-epoch": [Place(inside[len(inside) // 2], 1)],
        "boundary of an epoch": [Place(2, ACCUMULATE, at_end=True)],
        "three resumes in one epoch": [Place(inside[n * quarter], 1 + n % ACCUMULATE) for n in (1, 2, 3)],
    }


def stop_at_places(trial: Trial, places: Sequence[Place], number: signal.Signals) -> Trial:
    for place in places:
        trial.stop_at(place, number)
    trial.finish()
    return trial


def kill_inside_saves(trial: Trial, seed: int) -> Trial:
    """Kill a training inside one to three saves."""
    generator = random.Random(seed)
    steps = sorted(generator.sample(range(1, STEPS - 20), generator.choice((1, 1, 2, 3))))
    places = [Place(step, 0, operation=generator.randint(1, OPERATIONS)) for step in steps]
    return stop_at_places(trial, places, signal.SIGKILL)


def kill_at_random(trial: Trial, seed: int, training_seconds: float, start_seconds: float) -> Trial:
    """Kill a training one to three times: one kill in five before its first update, the rest after it."""
    generator = random.Random(seed)
    for _ in range(generator.choice((1, 1, 2, 3))):
        early = generator.random() < 0.2
        longest = start_seconds if early else training_seconds
        if not trial.kill_after(generator.uniform(0.0, longest), training=not early):
            break
    trial.finish()
    return trial


def uninterrupted(work: Path) -> tuple[Trial, float, float, dict[int, int]]:
    """Return the uninterrupted training, its seconds of start and of training, and the epoch after each update."""
    first, trial = Trial("first", work / "first"), Trial("uninterrupted", work / "uninterrupted")
    first.finish()  # fills the cache, so that the timed training is like those that are killed
    began, moments = time.monotonic(), dict[str, float]()
    process = trial.start(subprocess.PIPE)
    for line in process.stdout or ():
        moments[json.loads(line)["event"]] = time.monotonic()
    if process.wait():
        raise SystemExit(f"the uninterrupted training ended with {process.returncode}")
    trial.found = fingerprints(trial.run)
    if first.found != trial.found:
        raise SystemExit("two uninterrupted trainings differ: nothing else can be compared")
    epochs = {record["step"]: record["epoch"] for record in Run(trial.run).log.records() if "epoch" in record}
    return trial, moments["started"] - began, moments["scored"] - moments["started"], epochs


def results_table(header: str, trials: Sequence[Trial], expected: Mapping[str, str]) -> str:
    """Return a table of trials, with their stops and whether each fingerprint is the expected one."""
    rows = []
    for trial in trials:
        equal = ("equal" if trial.found.get(key) == expected[key] else "DIFFERENT" for key in FINGERPRINTS)
        rows.append([trial.name, "; ".join(trial.stops) or "none: it had finished", *equal])
    return table([*header.split(" | "), *FINGERPRINTS], rows, 5)


def measure_training(options: argparse.Namespace, work: Path) -> bool:
    """Stop trainings at random moments and fixed places; return whether all end like the uninterrupted one."""
    about = facts(options, "sentencepiece")
    write_data(work, RECIPE)
    first, start_seconds, seconds, epochs = uninterrupted(work)
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = []
        for number in range(options.kills):
            trial, seed = Trial(f"SIGKILL {number + 1}", work / f"killed-{number}"), 1000 + number
            if number % 2:
                futures.append(pool.submit(kill_inside_saves, trial, seed))
            else:
                futures.append(pool.submit(kill_at_random, trial, seed, seconds, start_seconds))
        for name, places in fixed_places(epochs).items():
            for kind in (signal.SIGTERM, signal.SIGKILL):
                trial = Trial(name, work / f"{kind.name}-{name.replace(' ', '-')}")
                futures.append(pool.submit(stop_at_places, trial, places, kind))
        trials = []
        for future in futures:
            trials.append(future.result())
            say(f"{trials[-1].name}: {'; '.join(trials[-1].stops)}")
    equal = sum(trial.found == first.found for trial in trials)
    kills = sum(len(trial.stops) for trial in trials[: options.kills])
    stops = sum(len(trial.stops) for trial in trials) - kills
    about |= {
        "training": f"{STEPS} updates of {ACCUMULATE} micro-batches, {max(epochs.values()) + 1} epochs, with subword "
        "sampling, dropout, averaging of 3 validations, the best weights chosen; a checkpoint every 5 updates; one "
        f"thread; {seconds:.1f} s on this machine",
        "result": f"**{equal} of {len(trials)} interrupted trainings equal the uninterrupted one** in all three "
        f"SHA-256 ({kills} random kills, {stops} chosen stops)",
    }
    digests = [(key, f"`{value}`") for key, value in first.found.items()]
    body = ["Uninterrupted:", table("what | SHA-256", digests, 2)]
    write_page("training", about, [*body, results_table("stopped | where", trials, first.found)])
    return equal == len(trials)


def send_signal(trial: Trial, kind: str, seconds: float) -> None:
    """Send a signal to a training `seconds` after its start, check how it ends, and finish it."""
    number = signal.SIGTERM if kind == "SIGTERM" else signal.SIGINT
    process = trial.start()
    time.sleep(seconds)
    sent = time.monotonic()
    for _ in range(2 if kind == "SIGINT twice" else 1):
        process.send_signal(number)
        time.sleep(0.05)
    _, errors = process.communicate()
    code, taken = process.returncode, time.monotonic() - sent
    allowed = {STOPPED, 0} | ({STOPPED_TWICE} if number == signal.SIGINT else set())
    if seconds < START:  # the interpreter starts: nothing to save, and no handler yet
        allowed |= {-number, 128 + number}
        errors = ""
    trial.stops.append(f"{kind}, {seconds:.2f} s: exit {code} in {taken:.1f} s")
    wrong = code not in allowed or taken > MAX_SECONDS or "Traceback" in errors
    again = trial.start()
    errors += again.communicate()[1]
    if again.returncode == 0:
        trial.found = fingerprints(trial.run)
    if wrong or again.returncode:
        say(errors)
        trial.stops.append("WRONG")


def measure_signals(options: argparse.Namespace, work: Path) -> bool:
    """Send signals at random moments; return whether all trainings end as they should."""
    about = facts(options, "sentencepiece")
    write_data(work, MORE_TO_SCORE)
    first, began = Trial("uninterrupted", work / "uninterrupted"), time.monotonic()
    first.finish()
    seconds = time.monotonic() - began
    kinds, generator, trials = ("SIGTERM", "SIGINT", "SIGINT twice"), random.Random(1), []
    for number in range(options.kills):
        trial = Trial(str(number + 1), work / f"signaled-{number}")
        if number % 4 == 0:  # the data is prepared again; the others find it in the cache
            shutil.rmtree(work / "cache")
        send_signal(trial, kinds[number % len(kinds)], generator.uniform(0, seconds))
        trials.append(trial)
        say(f"{trial.name}: {'; '.join(trial.stops)}")
    right = sum(trial.found == first.found and len(trial.stops) == 1 for trial in trials)
    finished = sum(": exit 0" in trial.stops[0] for trial in trials)
    about |= {
        "training": f"as above, {seconds:.1f} s in all on this machine",
        "result": f"**{right} of {len(trials)} ended in time with the right exit code, and equal to the uninterrupted "
        f"one when started again**; {finished} had ended already",
    }
    write_page("signals", about, [results_table("signal | where", trials, first.found)])
    return right == len(trials)


class Session:
    """One start of a comparison, in a session of its own, so that its processes can be found."""

    def __init__(self, out: Path, jobs: int) -> None:
        words = ["train", out.parent / "small.yaml", "train.seeds=[1,2]", "--jobs", jobs, "--json", "--out", out]
        env = environment(1, ATTNKIT_CACHE=str(out.parent / "cache"))
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        self.process = subprocess.Popen(attnkit(*words), text=True, env=env, **pipes)
        self.out = out

    def wait_for_training(self) -> bool:
        """Wait for the first update of a run; return False if all of them were done."""
        return any(json.loads(line)["event"] == "started" for line in self.process.stdout or ())

    def interrupt(self, kind: str, generator: random.Random) -> None:
        if kind == "SIGKILL of a process":
            if workers := self._workers():
                os.kill(generator.choice(workers), signal.SIGKILL)
            time.sleep(generator.uniform(0, 0.3))
        if kind == "Ctrl-C":
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGKILL if kind == "SIGKILL of the command" else signal.SIGTERM)

    def _workers(self) -> list[int]:
        """Return the processes that train: children of the one that imported torch."""
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(state[3]) == self.process.pid:
                parents[int(path.parent.name)] = int(state[1])
        return [pid for pid, parent in parents.items() if parents.get(parent) == self.process.pid]

    def end(self) -> tuple[int, dict[str, str]]:
        """Wait for all processes; return the exit code, and digests of all weights, logs and scores."""
        printed, errors = self.process.communicate()
        while self._workers():
            time.sleep(0.05)
        code = self.process.returncode
        if code not in (0, STOPPED, CHILD_KILLED, -signal.SIGKILL):
            raise SystemExit(f"exit code {code}\n{errors[-2000:]}")
        events = [json.loads(line) for line in printed.splitlines() if line.endswith("}")]
        scored = [event for event in events if event["event"] == "scored"]
        if code or not scored:
            return code, {}
        paths = sorted(self.out.glob("small/*/seed-*"))
        return code, {
            "weights": sha256_json([sha256_file(path / "model.safetensors") for path in paths]),
            "loss logs": sha256_json([Run(path).log.digest() for path in paths]),
            "scores and tests": sha256_json(without_clock(scored[-1])),
        }


def without_clock(value: Any) -> Any:
    """Return scores without entries that depend on the speed, the place and the moment."""
    if isinstance(value, dict):
        kept = {key for key in value if not key.endswith(WALL_CLOCK) and key not in ("run", "decode")}
        return {key: without_clock(value[key]) for key in value if key in kept}
    return [without_clock(item) for item in value] if isinstance(value, list) else value


def measure_comparison(options: argparse.Namespace, work: Path) -> bool:
    """Interrupt a comparison again and again; return whether it ends like an uninterrupted one."""
    about = facts(options, "sentencepiece")
    write_data(work, VARIANTS)
    expected, seconds = {}, 0.0
    for name, jobs in {"one job": 1, f"{options.jobs} jobs": options.jobs}.items():
        session = Session(work / name, jobs)
        session.wait_for_training()
        began = time.monotonic()
        expected[name] = session.end()[1]
        seconds = time.monotonic() - began
    generator, rows = random.Random(1), list[list[str]]()
    kinds = ["SIGTERM", "Ctrl-C", "SIGKILL of a process", "SIGKILL of the command"]
    for number in range(options.kills):
        session = Session(work / "interrupted", options.jobs)
        if not session.wait_for_training():
            session.end()
            break
        time.sleep(generator.uniform(0, seconds / options.kills))
        session.interrupt(kinds[number % len(kinds)], generator)
        code, _ = session.end()
        if code == 0:  # the signal came after the end
            break
        steps = [str(last_step(path)) for path in sorted(session.out.glob("small/*/seed-*"))]
        rows.append([kinds[number % len(kinds)], str(code), ", ".join(steps) or "none"])
        say(f"interruption {number + 1}: {', '.join(rows[-1])}")
    code, found = Session(work / "interrupted", options.jobs).end()
    equal = code == 0 and all(digests == found for digests in expected.values())
    about |= {
        "comparison": f"two variants with two seeds, {STEPS} updates each, one thread a job; {seconds:.0f} s with "
        f"{options.jobs} jobs on this machine",
        "result": f"**interrupted {len(rows)} times, weights, loss logs, scores and tests "
        f"{'equal' if equal else 'DIFFER FROM'} those of an uninterrupted comparison**",
    }
    digests = [[key, *(f"`{one[key][:16]}`" for one in (*expected.values(), found))] for key in found]
    body = [table(["start of the SHA-256", *expected, "interrupted"], digests, 4)]
    body.append(table("interrupted by | exit code | last update of each run begun", rows, 3))
    write_page("comparison", about, body)
    return equal


def write_page(part: str, about: Mapping[str, str], body: Sequence[str]) -> None:
    publish("resume", "Interrupted and resumed trainings", about, body, PARTS[part], PARTS.values())


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        *place, number = json.loads(sys.argv[2])
        return child(Place(*place), number, sys.argv[3:])
    options = arguments(__doc__, kills=10, jobs=2, part=tuple(PARTS))
    measures = {"training": measure_training, "signals": measure_signals, "comparison": measure_comparison}
    equal = True
    for part in [options.part] if options.part else PARTS:
        with tempfile.TemporaryDirectory() as temporary:
            equal = measures[part](options, Path(temporary)) and equal
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
