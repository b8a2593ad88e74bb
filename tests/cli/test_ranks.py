"""Tests of --nproc: equal results, signals, lost processes and errors."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.forked_command import ForkedCommand
from helpers.small import write_corpus

from attnkit.distributed.launch import NOTICE
from attnkit.runs import Run
from attnkit.storage.tensors import read

RECIPE = """task: translation
data: {{train: {train}, valid: {valid}, test: {test}, max_length: 32}}
tokenizer: {{type: word, size: 40}}
model: {{width: 16, layers: 1, heads: 2, ff: 32, dropout: 0.2}}
train: {{steps: {steps}, batch_tokens: 56, valid_every: 20, log_every: 10, precision: fp32}}
search: {{method: greedy, max_length: 12}}
"""
RARE = [pytest.param(event, marks=pytest.mark.every) for event in ("started", "saved")]
"""Moments of a training that are handled like the other moments that are tested."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe of 40 updates, and one of more updates than a test waits for."""
    folder = tmp_path_factory.mktemp("ranks")
    data = write_corpus(folder)
    sides = {split: list(getattr(data, split)) for split in ("train", "valid", "test")}
    for name, steps in (("short", 40), ("long", 100_000)):
        (folder / f"{name}.yaml").write_text(RECIPE.format(steps=steps, **sides))
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The folder after the short recipe is trained."""
    done = ForkedCommand(folder, "train", "short.yaml", "--nproc", "2").wait()
    assert done.returncode == 0, done.stderr
    assert "BLEU" in done.stdout
    assert done.stderr.count("done at step 40") == 1
    run = Run.open(folder / "runs" / "short" / "base" / "seed-1")
    assert (run.manifest.world_size, run.manifest.parallel) == (2, "ddp")
    return folder


def start(folder: Path, *words: str, until: str = "validated", notice: float = NOTICE) -> ForkedCommand:
    """Start a training of two ranks; wait for its first event of this kind, or for the ranks if `until` is empty."""
    process = ForkedCommand(folder, "train", *words, "--nproc", "2", "--json", notice=notice)
    while until == "" and len(ranks_of(process)) < 2:
        time.sleep(0.01)
    return process.until(until)


def ranks_of(process: ForkedCommand) -> list[int]:
    """Return the process ids of the ranks, in order."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return sorted(map(int, children.split()))


def wait_for_end(processes: list[int]) -> None:
    """Wait until these processes are gone, or zombies that a container's init has not reaped."""
    limit = time.monotonic() + 60
    for process in processes:
        stat = Path(f"/proc/{process}/stat")
        while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < limit, "a rank outlives its launcher"
            time.sleep(0.05)


def weights(out: Path) -> dict[str, bytes]:
    found = read(out / "short" / "base" / "seed-1" / "model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in found.items()}


@pytest.mark.slow
def test_eval_and_generate_give_the_results_of_one_process(
    trained: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    run = "runs/short/base/seed-1"
    Path("text").write_text("red dog\n\nold cat sees two\n" * 20)

    def outputs(*words: str) -> tuple[str, str]:
        parallel = ForkedCommand(trained, *words, "--nproc", "2").wait()
        assert parallel.returncode == 0, parallel.stderr
        return cli(*words).out, parallel.stdout

    single, parallel = outputs("generate", run, "text")
    assert single == parallel
    assert single.count("\n") == 60
    tables = outputs("eval", run, "--fresh", "--metrics", "bleu,perplexity", "--format", "json")
    first, second = (json.loads(table)["rows"][0]["metrics"] for table in tables)
    assert first == second


@pytest.mark.slow
def test_training_resumes_bit_for_bit_after_a_rank_is_killed(trained: Path) -> None:
    errors = kill_rank_1(start(trained, "short.yaml", "--out", "killed"))
    assert "error: rank 1 ended or cannot be reached; step" in errors
    done = ForkedCommand(trained, "train", "short.yaml", "--nproc", "2", "--out", "killed").wait()
    assert done.returncode == 0, done.stderr
    assert "resum" in done.stderr
    assert weights(trained / "killed") == weights(trained / "runs")


def kill_rank_1(process: ForkedCommand) -> str:
    """Kill rank 1, check that all ranks end and that the errors name rank 1, and return the errors."""
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    done = process.wait()
    assert done.returncode == 69, done.stderr
    assert "error: rank 1 " in done.stderr
    assert "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("until", ["", "prepared", *RARE, "finished"])
def test_lost_rank_is_named_at_any_time(folder: Path, until: str) -> None:
    """While the ranks start, compare their recipes, train, and begin the next run."""
    words = ("short.yaml", "train.seeds=[1,2]", "--out", f"lost-{until}")
    # at startup, rank 0 does not notice by itself that rank 1 never comes
    kill_rank_1(start(folder, *words, until=until, notice=NOTICE if until else 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("until", ["", "prepared", "validated", *RARE])
def test_ranks_end_with_their_launcher(folder: Path, until: str) -> None:
    """If the launcher is killed during training, the ranks save a checkpoint and release the run."""
    process = start(folder, "long.yaml", "--out", f"orphans-{until}", until=until)
    ranks = ranks_of(process)
    process.process.kill()
    wait_for_end(ranks)
    process.wait()
    if until in ("started", "validated", "saved"):
        run = Run.open(folder / f"orphans-{until}" / "long" / "base" / "seed-1")
        assert not run.in_training
        assert run.checkpoint_steps()


@pytest.mark.slow
def test_signal_stops_all_ranks_after_one_checkpoint(folder: Path) -> None:
    process = start(folder, "long.yaml", "train.parallel=fsdp", "--out", "stopped")
    os.kill(process.pid, signal.SIGINT)
    done = process.wait()
    assert done.returncode == 75, done.stderr
    assert "stopped by SIGINT after step" in done.stderr
    assert "--nproc 2" in done.stderr.splitlines()[-1]
    run = Run.open(folder / "stopped" / "long" / "base" / "seed-1")
    assert f"step-{run.checkpoint_steps()[0]}" in " ".join(os.listdir(run.checkpoints))
    assert not run.finished


@pytest.mark.slow
def test_error_of_all_ranks_is_one_line(folder: Path) -> None:
    words = ("train", "short.yaml", "--nproc", "2", "train.parallel=none", "--out", "refused")
    done = ForkedCommand(folder, *words).wait()
    assert done.returncode == 78, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    assert "ddp or fsdp" in line
    assert "Traceback" not in done.stderr


def test_rank_without_a_rendezvous_names_what_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = cli("train", str(folder / "short.yaml"), code=69)
    assert done.err.count("\n") == 1
    assert "MASTER_ADDR" in done.error
    assert "torchrun" in done.error
