"""Tests of `attnkit convert` with a Hugging Face model."""

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from helpers.cli import Cli
from helpers.pretrained import save_pretrained

QUICK = ("--text", "text.txt", "--length", "16", "--transfer", "2", "--tune", "1", "--device", "cpu")
STAGES = ["before", "swapped", "transferred", "tuned"]


def test_printed_command_opens_the_converted_model(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    save_pretrained(tmp_path / "my model", "llama")
    Path("text.txt").write_text("A small river runs behind the mill. " * 40)
    done = cli("convert", "my model", "--attention", "linear", *QUICK)
    assert [line.split()[0] for line in done.out.splitlines()[3:7]] == STAGES
    assert "attnkit nbce 'runs/my model-linear' --contexts" in done.err
    Path("passages.jsonl").write_text('{"text": "A mill."}\n')
    Path("questions.txt").write_text("Where?\n")
    words = ("--contexts", "passages.jsonl", "--prompts", "questions.txt", "--max-length", "2")
    cli("nbce", "runs/my model-linear", *words)
