"""`attnkit convert` of a Hugging Face model: what it prints, what opens it, what it refuses."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from helpers.called import Done, called
from helpers.pretrained import saved

QUICK = ("--text", "text.txt", "--length", "16", "--transfer", "2", "--tune", "1", "--device", "cpu")
STAGES = ["before", "swapped", "transferred", "tuned"]


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """`attnkit convert WORDS` in a folder with a model and a text."""
    saved(tmp_path / "my model", "llama")
    (tmp_path / "text.txt").write_text("A small river runs behind the mill. " * 40)
    monkeypatch.chdir(tmp_path)

    def call(*words: str, model: str = "my model") -> Done:
        return called(capsys, "convert", model, *words)

    return call


def test_the_command_that_it_prints_opens_the_model(convert: Any, capsys: Any) -> None:
    done = convert("--attention", "linear", *QUICK)
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()[3:7]] == STAGES
    assert "attnkit nbce 'runs/my model-linear' --contexts" in done.err
    Path("passages.jsonl").write_text('{"text": "A mill."}\n')
    Path("questions.txt").write_text("Where?\n")
    words = ("--contexts", "passages.jsonl", "--prompts", "questions.txt", "--max-length", "2")
    used = called(capsys, "nbce", "runs/my model-linear", *words)
    assert used.code == 0, used.err
