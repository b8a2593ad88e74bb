"""`attnkit nbce` with a Hugging Face model: its templates, its sources."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
from helpers.cli import Result, run_cli
from helpers.pretrained import save_pretrained


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pretrained(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture
def ask(model: Path, tmp_path: Path, capsys: Any) -> Any:
    """The command's code, output and messages, with two short contexts."""
    words = ["nbce", str(model), "--offline", "--prompt", "Who fishes?", "--max-length", "16"]
    for name, text in (("a.txt", "A river runs."), ("b.txt", "Gr\u00fc\u00dfe aus K\u00f6ln!")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        words += ["--context", str(tmp_path / name)]

    def call(*more: str) -> Result:
        return run_cli(capsys, *words, *more)

    return call


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
    assert "a template needs {context} once, and {prompt} after {context}" in err
