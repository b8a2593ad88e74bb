"""`attnkit train` for real: a tiny training in a process of its own, stopped and gone on with."""

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
    """The current folder, with a recipe, 100 rows to train on, and 10 to test with."""
    write_backwards(tmp_path, 100)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.slow
def test_a_stopped_training_goes_on_and_ends_in_a_table(folder: Path, cli: Cli) -> None:
    """SIGTERM in the middle: code 75 within 10 s, a checkpoint, and a command that resumes."""
    process = ForkedCommand(folder, "train", "tiny.yaml", "--json").until("progress")
    os.kill(process.pid, signal.SIGTERM)
    done = process.ended(10)
    assert done.returncode == 75, done.stderr
    saved = [e for e in map(json.loads, done.stdout.splitlines()) if e["event"] == "saved"][-1]
    assert Path(saved["path"]).is_dir()
    assert done.stderr.splitlines()[-1].endswith(": attnkit train tiny.yaml --json")

    words = ["train", "tiny.yaml", f"train.steps={saved['step'] + 10}"]
    first = cli(*words, "--allow-change")
    assert first.code == 0
    assert f"resumed from step {saved['step']:,}" in first.err
    assert first.out.startswith("tiny: test\n")
    assert not set("\x1b\r") & set(first.out + first.err)
    assert cli(*words, "--quiet") == (0, first.out, "")


@pytest.mark.slow
def test_on_a_terminal_the_board_is_drawn_and_a_stop_leaves_it_in_order(folder: Path) -> None:
    """Standard error is a terminal of 80 columns; SIGINT after the first numbers."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "attnkit", "train", "tiny.yaml"],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=folder,
        env=environment(),
    )
    os.close(theirs)
    shown = b""
    sent = False
    while True:
        if not select.select([ours], [], [], 60)[0]:
            break
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if b"tokens/s" in shown and not sent:
            process.send_signal(signal.SIGINT)
            sent = True
    os.close(ours)
    assert process.wait(timeout=60) == 75
    text = shown.decode()
    assert "\x1b[?25l" in text, "the cursor hides while the board is redrawn"
    assert "\x1b[?25h" in text.split("\x1b[?25l")[-1], "and comes back"
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
def test_what_a_metric_needs_is_missed_before_anything_is_trained(
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
        done = cli("train", "tiny.yaml", *settings, *flag)
    assert done.code == code
    assert reason in done.err
    assert not list(folder.glob("runs/**/manifest.json"))


@pytest.mark.parametrize("flag", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("text", "reason"), [(b"", "c.tgt:1: the test split has no rows"), (b"w01\nw\xff\n", "c.tgt:2:2: malformed UTF-8")]
)
def test_a_faulty_test_file_is_told_before_anything_is_trained(
    cli: Cli, flag: list[str], text: bytes, reason: str
) -> None:
    """It was told after the training, when the run was to be scored."""
    Path("c.src").write_bytes(b"w01\nw02\n" if text else b"")
    Path("c.tgt").write_bytes(text)
    done = cli("train", "tiny.yaml", "data.test=[c.tgt, c.src]", *flag)
    assert done.code == 65
    assert reason in done.err
    assert not list(Path().glob("runs/**/manifest.json"))


@pytest.mark.slow
def test_a_sweep_goes_on_with_one_value_more(cli: Cli) -> None:
    few = ["tiny.yaml", "train.steps=3", "train.warmup=1,2"]
    assert cli("train", *few, "--quiet", "--jobs", "2").code == 0
    more = ["tiny.yaml", "train.steps=3", "train.warmup=1,2,3"]
    planned = cli("train", *more, "--dry-run", "--json")
    assert planned.code == 0
    assert [json.loads(line)["state"] for line in planned.out.splitlines()] == ["done", "done", "new"]
    done = cli("train", *more, "--quiet")
    assert done.code == 0
    rows = [line.split()[0] for line in done.out.splitlines() if "warmup=" in line]
    assert rows[:3] == ["warmup=1", "warmup=2", "warmup=3"]
    scored = cli("eval", "tiny.yaml", "train.warmup=1,3", "--format", "json")
    assert scored.code == 0
    assert [row["variant"] for row in json.loads(scored.out)["rows"]] == ["warmup=1", "warmup=3"]
    assert "tiny,warmup=2,1,done,3,3" in cli("runs", "--format", "csv").out
    one = cli("train", *more, "--variant", "warmup=2", "--dry-run")
    assert (one.code, "warmup=3" in one.out) == (0, False)
    absent = cli("eval", "tiny.yaml", "train.warmup=7,8")
    assert absent.code == 66
    assert "no finished run in runs/tiny; train one" in absent.err


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--jobs", "2", "train.seeds=1,2"]])
def test_a_log_that_is_not_installed_is_refused_before_training(
    more: list[str], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = cli("train", "tiny.yaml", "train.log_to=[wandb]", "--quiet", *more)
    assert done.code == 69
    [line] = done.err.splitlines()
    assert "train.log_to: wandb is not installed: pip install 'attnkit[wandb]'" in line
    assert not Path("runs").exists()
