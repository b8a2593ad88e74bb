"""Tests of `attnkit export`, of `attnkit generate --engine`, and of their errors."""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import Cli, Result
from helpers.peers import peer
from helpers.trained import make_run

from attnkit.cli.commands import generate
from attnkit.export import to_ctranslate2
from attnkit.runs import Run

TEXT = "one red dog\n\ncats\na very red cat and two dogs\n"


@pytest.mark.parametrize(("target", "library"), [("huggingface", "transformers"), ("ctranslate2", "ctranslate2")])
def test_run_is_exported(target: str, library: str, run: Run, tmp_path: Path, cli: Cli) -> None:
    peer(library)
    command = ("export", str(run.path), str(tmp_path / "out"), "--to", target)
    done = cli(*command)
    assert "outputs equal" in done.out
    assert "largest difference" in done.out
    assert Path("out/README.md").is_file()
    assert f"wrote {tmp_path / 'out'}" in done.err
    assert "already exists" in cli(*command, code=73).error


def test_unsupported_model_names_an_alternative(tmp_path: Path, cli: Cli) -> None:
    run = str(make_run(tmp_path, model_options={"positions": "alibi"}).path)
    error = cli("export", run, "out", "--to", "huggingface", code=2).error
    assert error.endswith("model.positions: alibi cannot be exported to transformers; use --to onnx")
    error = cli("generate", run, "--engine", "ctranslate2", stdin=TEXT, code=2).error
    assert error.endswith("--engine ctranslate2 does not support model.positions: alibi; remove --engine")


def test_ctranslate2_engine_gives_the_same_lines(run: Run, cli: Cli) -> None:
    peer("ctranslate2")
    generate = partial(cli, "generate", str(run.path), stdin=TEXT)
    options, engine = ("--beam", "1", "--max-length", "6"), ("--engine", "ctranslate2")
    ours = generate(*options)
    assert generate(*options, *engine) == ours
    assert ours.out.strip()
    assert "outputs differ" not in ours.err
    assert "outputs differ" in generate(*options, *engine, "--min-length", "2").err
    assert "does not support sampling" in generate("--sample", *engine, code=2).error


def import_all_but_ctranslate2(name: str) -> Any:
    if name.startswith("ctranslate2"):
        raise ImportError("broken library")
    return import_module(name)


def test_auto_engine_is_ctranslate2_for_one_line_at_a_time(
    run: Run, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer("ctranslate2")
    open_run, devices = to_ctranslate2.open_run, list[str]()

    def open_and_record(run: Run, device: str) -> Any:
        devices.append(device)
        return open_run(run, device)

    monkeypatch.setattr(to_ctranslate2, "open_run", open_and_record)

    def answers(run: Run, *words: str, code: int = 0) -> Result:
        done: Result = cli("generate", str(run.path), "--max-length", "6", *words, stdin=TEXT, code=code)
        return done

    auto = ("--engine", "auto", "--block", "1")
    ours = answers(run)
    assert (answers(run, *auto), devices) == (ours, ["cpu"])
    other = make_run(tmp_path, model_options={"positions": "alibi"})
    assert answers(run, "--engine", "auto") == ours
    for words in (["--min-length", "2"], ["--sample"], ["--scores"], ["--n-best", "2"], ["--json"]):
        assert answers(run, *auto, *words) == answers(run, "--block", "1", *words)
    assert answers(other, *auto) == answers(other)
    with monkeypatch.context() as broken:
        broken.setattr(to_ctranslate2.importlib, "import_module", import_all_but_ctranslate2)
        fallback = answers(run, *auto)
        assert fallback.out == ours.out
        assert "attnkit decodes, because CTranslate2 cannot: ctranslate2 cannot be" in fallback.err
        error = answers(run, "--engine", "ctranslate2", code=69).error
        assert "ctranslate2 cannot be imported" in error
    Path("file").touch()
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "file/cache"))
    fallback = answers(run, *auto)
    assert fallback.out == ours.out
    assert "attnkit decodes, because CTranslate2 cannot" in fallback.err
    devices.clear()
    monkeypatch.setattr(generate, "find_spec", lambda _: None)
    assert (answers(run, *auto), devices) == (ours, [])


def test_explain_lists_export_formats(cli: Cli) -> None:
    words = ("recipe", "explain", "quickstart", "--quick")
    shown = " ".join(cli(*words).out.split())
    assert "export of scaled-dot: huggingface (Pegasus), ctranslate2, onnx" in shown
    shown = " ".join(cli(*words, "--variant", "linear").out.split())
    assert "export: onnx; not huggingface, ctranslate2 (linear)" in shown
