"""--nproc as a user meets it: processes of their own, signals, a process that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.called import called
from helpers.shell import attnkit_in
from helpers.small import write_corpus

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recipes of 100 updates and of so many that one is stopped."""
    folder = tmp_path_factory.mktemp("ranks")
    data = write_corpus(folder)
    sides = {split: list(getattr(data, split)) for split in ("train", "valid", "test")}
    for name, steps in (("short", 100), ("long", 100_000)):
        (folder / f"{name}.yaml").write_text(RECIPE.format(steps=steps, **sides))
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The first recipe is trained."""
    done = attnkit_in(folder)("train", "short.yaml", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert "BLEU" in done.stdout
    assert done.stderr.count("done at step 100") == 1
    return folder


def begin(folder: Path, *words: str, until: str = "validated") -> subprocess.Popen[str]:
    """A training of two processes: just started, or after its first event of some kind."""
    process = subprocess.Popen(
        [sys.executable, "-m", "attnkit", "train", *words, "--nproc", "2", "--json"], text=True,
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    while until == "" and len(ranks_of(process)) < 2:
        time.sleep(0.01)
    for line in process.stdout if until else ():
        if json.loads(line)["event"] == until:
            break
    return process


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
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
def test_the_run_says_how_it_was_trained(trained: Path) -> None:
    run = Run.open(trained / "runs" / "short" / "base" / "seed-1")
    assert (run.manifest["world_size"], run.manifest["parallel"]) == (2, "ddp")


@pytest.mark.slow
def test_eval_and_generate_give_what_one_process_gives(trained: Path) -> None:
    run, text = "runs/short/base/seed-1", "red dog\n\nold cat sees two\n" * 20
    alone, together = (
        attnkit_in(trained)("generate", run, "--nproc", nproc, stdin=text) for nproc in "12"
    )
    assert alone.stdout == together.stdout
    assert together.stdout.count("\n") == 60
    tables = [
        attnkit_in(trained)("eval", run, "--fresh", "--metrics", "bleu,perplexity", "--format",
                           "json", "--nproc", nproc)
        for nproc in "12"
    ]  # fmt: skip
    one, two = (json.loads(done.stdout)["rows"][0]["metrics"] for done in tables)
    assert one == two


@pytest.mark.slow
def test_a_killed_process_is_named_and_the_rest_resumes_bit_for_bit(trained: Path) -> None:
    process = begin(trained, "short.yaml", "--out", "killed")
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    start = time.monotonic()
    _, said = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - start < PATIENCE
    assert process.returncode == 69, said
    assert "error: rank 1 ended or can no longer be reached; step" in said
    assert "Traceback" not in said
    done = attnkit_in(trained)("train", "short.yaml", "--nproc", "2", "--out", "killed")
    assert done.returncode == 0, done.stderr
    assert "resum" in done.stderr
    assert weights(trained / "killed" / "short") == weights(trained / "runs" / "short")


@pytest.mark.slow
@pytest.mark.parametrize("until", ["", "prepared", "started", "saved", "finished"])
def test_a_lost_process_is_named_at_any_time(folder: Path, until: str) -> None:
    """While the ranks start and meet, check what they are to train, train, and begin anew."""
    out = f"lost-{until}"
    process = begin(folder, "short.yaml", "train.seeds=[1,2]", "--out", out, until=until)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 69, said
    assert "error: rank 1 " in said
    assert "run the same command again" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("until", ["", "prepared", "started", "validated", "saved"])
def test_ranks_end_with_their_launcher(folder: Path, until: str) -> None:
    """It is killed at start-up, or while they train: they save, and leave the run to others."""
    process = begin(folder, "long.yaml", "--out", f"orphans-{until}", until=until)
    ranks = ranks_of(process)
    process.kill()
    await_end(ranks)
    process.communicate(timeout=PATIENCE)
    if until in ("started", "validated", "saved"):
        run = Run.open(folder / f"orphans-{until}" / "long" / "base" / "seed-1")
        assert not run.in_training
        assert run.checkpoint_steps()


@pytest.mark.slow
def test_a_signal_stops_all_after_one_save(folder: Path) -> None:
    process = begin(folder, "long.yaml", "train.parallel=fsdp", "--out", "stopped")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75, said
    assert "stopped by SIGINT after step" in said
    assert "--nproc 2" in said.splitlines()[-1]
    run = Run.open(folder / "stopped" / "long" / "base" / "seed-1")
    assert f"step-{run.checkpoint_steps()[0]}" in " ".join(os.listdir(run.checkpoints))
    assert not run.finished


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--nproc", "2", "--jobs", "2"], "choose one of them"), (["--nproc", "0"], "--nproc")],
)
def test_what_cannot_be_is_refused_in_one_line(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = called(capsys, "train", str(folder / "short.yaml"), *words)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert said in done.refusal


@pytest.mark.slow
def test_ranks_refuse_in_one_line(folder: Path) -> None:
    words = ("train", "short.yaml", "--nproc", "2", "train.parallel=none", "--out", "refused")
    done = attnkit_in(folder)(*words)
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
    done = called(capsys, "train", str(folder / "short.yaml"))
    assert (done.code, done.err.count("\n")) == (69, 1)
    assert "MASTER_ADDR" in done.refusal
    assert "torchrun" in done.refusal
