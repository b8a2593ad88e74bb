"""`attnkit nbce` with a Hugging Face model: its bytes on a terminal, its templates, its sources."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
from helpers.called import Done, called
from helpers.pretrained import saved

from attnkit.cli import streams


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture
def ask(model: Path, tmp_path: Path, capsys: Any) -> Any:
    """The command's code, output and messages, with two short contexts."""
    words = ["nbce", str(model), "--offline", "--prompt", "Who fishes?", "--max-length", "16"]
    for name, text in (("a.txt", "A river runs."), ("b.txt", "Gr\u00fc\u00dfe aus K\u00f6ln!")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        words += ["--context", str(tmp_path / name)]

    def call(*more: str) -> Done:
        return called(capsys, *words, *more)

    return call


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_sampled_bytes_reach_a_terminal_as_the_final_text(
    ask: Any, monkeypatch: pytest.MonkeyPatch, seed: str
) -> None:
    """A model with random weights writes bytes that are no character, and parts of some."""
    words = ("--temperature", "3", "--top-p", "1", "--seed", seed)
    code, final, err = ask(*words)
    assert code == 0, err
    monkeypatch.setattr(streams, "terminal", lambda stream: True)
    monkeypatch.setattr("attnkit.cli.nbce_output.safe_text", lambda text: text)
    assert ask(*words)[1] == final


def test_a_trace_spells_the_answer_and_names_its_sources(ask: Any) -> None:
    code, out, err = ask("--trace", "--json", "--baseline", "window", "--baseline", "retrieval")
    assert code == 0, err
    merged, window, retrieval = map(json.loads, out.splitlines())
    assert "".join(token["text"] for token in merged["trace"]["tokens"]) == merged["text"]
    assert all(token["context"] in (1, 2) for token in merged["trace"]["tokens"])
    assert window["source"] is None
    assert Path(retrieval["source"]).name in ("a.txt", "b.txt")


def test_a_template_changes_what_is_read(ask: Any, model: Path) -> None:
    _, plain, err = ask()
    assert f"loading {model}\n" in err
    assert ask("--template", "{context}\\n\\n{prompt}")[1] == plain
    assert ask("--template", "Text: {context} Question: {prompt} Answer:")[1] != plain
    code, _, err = ask("--template", "{prompt}")
    assert code == 2
    assert "a template needs {context} once and {prompt} behind it" in err
