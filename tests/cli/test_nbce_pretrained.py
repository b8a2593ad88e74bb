"""Tests of `attnkit nbce` with a Hugging Face model: traces, sources and templates."""

import json
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("transformers")
from helpers.cli import Cli
from helpers.pretrained import save_pretrained


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pretrained(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture
def ask(model: Path, cli: Cli) -> Cli:
    """Run `attnkit nbce` with a prompt and two short contexts."""
    Path("a.txt").write_text("A river runs.")
    Path("b.txt").write_text("Gr\u00fc\u00dfe aus K\u00f6ln!", encoding="utf-8")
    words = ("--offline", "--prompt", "Who fishes?", "--max-length", "16", "--context", "a.txt", "b.txt")
    return partial(cli, "nbce", str(model), *words)


def test_trace_holds_the_tokens_of_the_answer_and_their_contexts(ask: Cli) -> None:
    out = ask("--trace", "--json", "--baseline", "window", "--baseline", "retrieval").out
    merged, window, retrieval = map(json.loads, out.splitlines())
    assert "".join(token["text"] for token in merged["trace"]["tokens"]) == merged["text"]
    assert all(token["context"] in (1, 2) for token in merged["trace"]["tokens"])
    assert window["source"] is None
    assert Path(retrieval["source"]).name in ("a.txt", "b.txt")


def test_template_changes_the_input_of_the_model(ask: Cli, model: Path) -> None:
    plain = ask()
    assert f"loading {model}\n" in plain.err
    assert ask("--template", "{context}\\n\\n{prompt}").out == plain.out
    assert ask("--template", "Text: {context} Question: {prompt} Answer:").out != plain.out
    error = ask("--template", "{prompt}", code=2).error
    assert "a template needs {context} once, and {prompt} after {context}" in error
