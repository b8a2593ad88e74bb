"""--nproc as a user meets it: processes of their own, signals, a process that dies."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from helpers.cli import run_cli
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
PATIENCE = 60.0
RARE = [pytest.param(event, marks=pytest.mark.every) for event in ("started", "saved")]
"""Moments of a training like those that follow."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recipes of 40 updates and of so many that one is stopped."""
    folder = tmp_path_factory.mktemp("ranks")
    data = write_corpus(folder)
    sides = {split: list(getattr(data, split)) for split in ("train", "valid", "test")}
    for name, steps in (("short", 40), ("long", 100_000)):
        (folder / f"{name}.yaml").write_text(RECIPE.format(steps=steps, **sides))
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The first recipe is trained."""
    done = ForkedCommand(folder, "train", "short.yaml", "--nproc", "2").ended()
    assert done.returncode == 0, done.stderr
    assert "BLEU" in done.stdout
    assert done.stderr.count("done at step 40") == 1
    run = Run.open(folder / "runs" / "short" / "base" / "seed-1")
    assert (run.manifest.world_size, run.manifest.parallel) == (2, "ddp")
    return folder


def begin(folder: Path, *words: str, until: str = "validated", notice: float = NOTICE) -> ForkedCommand:
    """A training of two processes: just started, or after its first event of some kind."""
    process = ForkedCommand(folder, "train", *words, "--nproc", "2", "--json", notice=notice)
    while until == "" and len(ranks_of(process)) < 2:
        time.sleep(0.01)
    return process.until(until)


def ranks_of(process: ForkedCommand) -> list[int]:
    """The process ids of the ranks, in order."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return sorted(map(int, children.split()))


def await_end(processes: list[int]) -> None:
    """Wait until they are gone, or zombies that a container's init has not reaped."""
    limit = time.monotonic() + PATIENCE
    for process in processes:
        stat = Path(f"/proc/{process}/stat")
        while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < limit, "a rank outlives its launcher"
            time.sleep(0.05)


def weights(out: Path) -> dict[str, bytes]:
    found = read(out / "base" / "seed-1" / "model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in found.items()}


@pytest.mark.slow
def test_eval_and_generate_give_what_one_process_gives(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    run = "runs/short/base/seed-1"
    Path("text").write_text("red dog\n\nold cat sees two\n" * 20)
    scored = ("eval", run, "--fresh", "--metrics", "bleu,perplexity", "--format", "json")
    for words in (("generate", run, "text"), scored):
        alone = run_cli(capsys, *words)
        together = ForkedCommand(trained, *words, "--nproc", "2").ended()
        assert (alone.code, together.returncode) == (0, 0), together.stderr
        if words is scored:
            one, two = (json.loads(text)["rows"][0]["metrics"] for text in (alone.out, together.stdout))
            assert one == two
        else:
            assert alone.out == together.stdout
            assert alone.out.count("\n") == 60


@pytest.mark.slow
def test_a_killed_process_is_named_and_the_rest_resumes_bit_for_bit(trained: Path) -> None:
    said = assert_named(begin(trained, "short.yaml", "--out", "killed"))
    assert "error: rank 1 ended or cannot be reached; step" in said
    done = ForkedCommand(trained, "train", "short.yaml", "--nproc", "2", "--out", "killed").ended()
    assert done.returncode == 0, done.stderr
    assert "resum" in done.stderr
    assert weights(trained / "killed" / "short") == weights(trained / "runs" / "short")


def assert_named(process: ForkedCommand) -> str:
    """Kill rank 1: all end, and say which was lost; what they say."""
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    done = process.ended()
    assert done.returncode == 69, done.stderr
    assert "error: rank 1 " in done.stderr
    assert "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("until", ["", "prepared", *RARE, "finished"])
def test_a_lost_process_is_named_at_any_time(folder: Path, until: str) -> None:
    """While the ranks start and meet, check what they are to train, train, and begin anew."""
    words = ("short.yaml", "train.seeds=[1,2]", "--out", f"lost-{until}")
    # a rank that waits for one that never came does not find out itself
    assert_named(begin(folder, *words, until=until, notice=NOTICE if until else 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("until", ["", "prepared", "validated", *RARE])
def test_ranks_end_with_their_launcher(folder: Path, until: str) -> None:
    """It is killed at start-up, or while they train: they save, and leave the run to others."""
    process = begin(folder, "long.yaml", "--out", f"orphans-{until}", until=until)
    ranks = ranks_of(process)
    process.process.kill()
    await_end(ranks)
    process.ended()
    if until in ("started", "validated", "saved"):
        run = Run.open(folder / f"orphans-{until}" / "long" / "base" / "seed-1")
        assert not run.in_training
        assert run.checkpoint_steps()


@pytest.mark.slow
def test_a_signal_stops_all_after_one_save(folder: Path) -> None:
    process = begin(folder, "long.yaml", "train.parallel=fsdp", "--out", "stopped")
    os.kill(process.pid, signal.SIGINT)
    done = process.ended()
    assert done.returncode == 75, done.stderr
    assert "stopped by SIGINT after step" in done.stderr
    assert "--nproc 2" in done.stderr.splitlines()[-1]
    run = Run.open(folder / "stopped" / "long" / "base" / "seed-1")
    assert f"step-{run.checkpoint_steps()[0]}" in " ".join(os.listdir(run.checkpoints))
    assert not run.finished


@pytest.mark.slow
def test_ranks_refuse_in_one_line(folder: Path) -> None:
    words = ("train", "short.yaml", "--nproc", "2", "train.parallel=none", "--out", "refused")
    done = ForkedCommand(folder, *words).ended()
    assert done.returncode == 78, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    assert "ddp or fsdp" in line
    assert "Traceback" not in done.stderr


def test_a_process_without_a_rendezvous_says_how_to_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = run_cli(capsys, "train", str(folder / "short.yaml"))
    assert (done.code, done.err.count("\n")) == (69, 1)
    assert "MASTER_ADDR" in done.error
    assert "torchrun" in done.error
