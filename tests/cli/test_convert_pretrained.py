"""`attnkit convert` of a Hugging Face model: what it prints, what opens it, what it refuses."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from helpers.called import Done, called
from helpers.pretrained import saved

QUICK = (
    "--text",
    "text.txt",
    "--length",
    "16",
    "--transfer",
    "2",
    "--tune",
    "1",
    "--device",
    "cpu",
)
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


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["train.lr=0"], "must be a number above 0"),
        (["train.lr=nan"], "must be a number above 0"),
        (["train.lr"], "must be a number"),
        (["train.batch_tokens=1e4"], "must be a whole number"),
        (["train.precision=fp16"], "must be fp32 or bf16"),
        (["model.width=3"], "these can be set: train.lr"),
        (["--text", "absent.txt"], "absent.txt"),
        (["--fresh", "--out", "text.txt"], "is no folder to write in"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: list[str], text: str, convert: Any) -> None:
    done = convert("--attention", "linear", *QUICK, *words)
    assert done.code
    (line,) = [line for line in done.err.splitlines() if "error" in line]
    assert text in line
    assert not Path("runs").exists()


@pytest.mark.parametrize("model", ["my model", "someone/language-model"])
def test_without_a_text_the_option_is_named(model: str, convert: Any) -> None:
    done = convert("--attention", "linear", model=model)
    assert done.code
    assert f"{model}: no run is here; a Hugging Face model needs --text FILE" in done.err
