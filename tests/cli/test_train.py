"""Tests of `attnkit train` with tiny trainings: stops, the board, missing requirements, sweeps."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.forked_command import ForkedCommand
from helpers.shell import environment
from helpers.small import write_backwards
from helpers.wordnet import only_wordnet

RECIPE = """\
task: translation
data: {train: [a.src, a.tgt], valid: [b.src, b.tgt], test: [b.src, b.tgt]}
tokenizer: {type: word, size: 60}
model: {width: 16, heads: 2, layers: 1, ff: 32}
train: {steps: 4000, batch_tokens: 256, valid_every: 0, log_every: 5, precision: fp32}
search: {method: greedy, max_length: 20}
eval: {bootstrap: 0}
"""


@pytest.fixture(autouse=True)
def folder(cli: Cli, tmp_path: Path) -> Path:
    """The current folder, with a recipe, 100 training rows and 10 test rows."""
    write_backwards(tmp_path, 100)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.slow
def test_stopped_training_resumes_and_ends_with_a_table(folder: Path, cli: Cli) -> None:
    """SIGTERM ends the training within 10 s with code 75, a checkpoint, and a command that resumes it."""
    process = ForkedCommand(folder, "train", "tiny.yaml", "--json").until("progress")
    os.kill(process.pid, signal.SIGTERM)
    done = process.wait(10)
    assert done.returncode == 75, done.stderr
    saved = [e for e in map(json.loads, done.stdout.splitlines()) if e["event"] == "saved"][-1]
    assert Path(saved["path"]).is_dir()
    assert done.stderr.splitlines()[-1].endswith(": attnkit train tiny.yaml --json")

    words = ["train", "tiny.yaml", f"train.steps={saved['step'] + 10}"]
    resumed = cli(*words, "--allow-change")
    assert f"resumed from step {saved['step']:,}" in resumed.err
    assert resumed.out.startswith("tiny: test\n")
    assert not set("\x1b\r") & set(resumed.out + resumed.err)
    assert cli(*words, "--quiet") == (0, resumed.out, "")


@pytest.mark.slow
def test_stop_restores_the_cursor_of_a_terminal(folder: Path) -> None:
    """Standard error is a terminal of 80 columns; SIGINT comes after the first progress."""
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-m", "attnkit", "train", "tiny.yaml"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, cwd=folder, env=environment())
    os.close(stderr)
    shown = b""
    sent = False
    while select.select([terminal], [], [], 60)[0]:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # the process has ended
            break
        if b"tokens/s" in shown and not sent:
            process.send_signal(signal.SIGINT)
            sent = True
    os.close(terminal)
    assert process.wait(timeout=60) == 75
    text = shown.decode()
    assert "\x1b[?25l" in text, "the board did not hide the cursor"
    assert "\x1b[?25h" in text.split("\x1b[?25l")[-1], "the cursor stayed hidden"
    assert "stopped by SIGINT after step" in text


@pytest.mark.parametrize("flag", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("settings", "code", "reason"),
    [
        (["eval.metrics=bleu,meteor"], 69, "meteor needs WordNet, which is not installed"),
        (["train.monitor=meteor"], 69, "meteor needs WordNet, which is not installed"),
        (["eval.tokenize=13a,ja-mecab"], 69, "pip install 'attnkit[ja]'"),
        (["eval.metrics=embedding-average", "eval.vectors=no.vec"], 66, "word vectors: no.vec"),
    ],
)
def test_missing_requirement_of_a_metric_is_an_error_before_training(
    folder: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    flag: list[str],
    settings: list[str],
    code: int,
    reason: str,
) -> None:
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with only_wordnet(folder):
        assert reason in cli("train", "tiny.yaml", *settings, *flag, code=code).err
    assert not list(folder.glob("runs/**/manifest.json"))


@pytest.mark.parametrize("flag", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("text", "reason"), [(b"", "c.tgt:1: the test split has no rows"), (b"w01\nw\xff\n", "c.tgt:2:2: malformed UTF-8")]
)
def test_bad_test_file_is_an_error_before_training(cli: Cli, flag: list[str], text: bytes, reason: str) -> None:
    """The error came after the training, when the run was scored."""
    Path("c.src").write_bytes(b"w01\nw02\n" if text else b"")
    Path("c.tgt").write_bytes(text)
    assert reason in cli("train", "tiny.yaml", "data.test=[c.tgt, c.src]", *flag, code=65).err
    assert not list(Path().glob("runs/**/manifest.json"))


@pytest.mark.slow
def test_sweep_is_continued_with_one_more_value(cli: Cli) -> None:
    cli("train", "tiny.yaml", "train.steps=3", "train.warmup=1,2", "--quiet", "--jobs", "2")
    more = ["train", "tiny.yaml", "train.steps=3", "train.warmup=1,2,3"]
    plan = cli(*more, "--dry-run", "--json").out.splitlines()
    assert [json.loads(line)["state"] for line in plan] == ["done", "done", "new"]
    table = cli(*more, "--quiet").out
    rows = [line.split()[0] for line in table.splitlines() if "warmup=" in line]
    assert rows[:3] == ["warmup=1", "warmup=2", "warmup=3"]
    scored = cli("eval", "tiny.yaml", "train.warmup=1,3", "--format", "json").out
    assert [row["variant"] for row in json.loads(scored)["rows"]] == ["warmup=1", "warmup=3"]
    assert "tiny,warmup=2,1,done,3,3" in cli("runs", "--format", "csv").out
    assert "warmup=3" not in cli(*more, "--variant", "warmup=2", "--dry-run").out
    error = cli("eval", "tiny.yaml", "train.warmup=7,8", code=66).error
    assert "no finished run in runs/tiny; train one" in error


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--jobs", "2", "train.seeds=1,2"]])
def test_missing_logging_package_is_an_error_before_training(
    more: list[str], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = cli("train", "tiny.yaml", "train.log_to=[wandb]", "--quiet", *more, code=69)
    (line,) = done.err.splitlines()
    assert "train.log_to: wandb is not installed: pip install 'attnkit[wandb]'" in line
    assert not Path("runs").exists()
