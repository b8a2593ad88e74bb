"""`attnkit export` and `generate --engine`: what they say and refuse."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import run_cli
from helpers.peers import peer
from helpers.trained import make_run

from attnkit.cli.commands import generate
from attnkit.export import to_ctranslate2
from attnkit.runs import Run

TEXT = "one red dog\n\ncats\na very red cat and two dogs\n"


@pytest.mark.parametrize(("target", "library"), [("huggingface", "transformers"), ("ctranslate2", "ctranslate2")])
def test_a_run_is_exported(target: str, library: str, run: Run, tmp_path: Path, capsys: Any) -> None:
    peer(library)
    folder = tmp_path / "out"
    done = run_cli(capsys, "export", str(run.path), str(folder), "--to", target)
    assert done.code == 0, done.err
    assert "outputs equal" in done.out
    assert "largest difference" in done.out
    assert (folder / "README.md").is_file()
    assert f"wrote {folder}" in done.err
    again = run_cli(capsys, "export", str(run.path), "--to", target, str(folder))
    assert (again.code, "already exists" in again.error) == (73, True)


def test_what_has_no_class_is_told_what_works(tmp_path: Path, capsys: Any) -> None:
    run = make_run(tmp_path, model_options={"positions": "alibi"})
    done = run_cli(capsys, "export", str(run.path), str(tmp_path / "out"), "--to", "huggingface")
    assert done.code == 2
    assert done.error.endswith("model.positions: alibi cannot be exported to transformers; use --to onnx")
    done = run_cli(capsys, "generate", str(run.path), "--engine", "ctranslate2", stdin=TEXT)
    assert done.code == 2
    assert done.error.endswith("--engine ctranslate2 does not support model.positions: alibi; remove --engine")


def test_the_engine_gives_the_same_lines(run: Run, capsys: Any) -> None:
    peer("ctranslate2")
    command = ("generate", str(run.path), "--beam", "1", "--max-length", "6")
    ours = run_cli(capsys, *command, stdin=TEXT)
    theirs = run_cli(capsys, *command, "--engine", "ctranslate2", stdin=TEXT)
    assert theirs == ours
    assert ours.out.strip()
    assert "outputs differ" not in theirs.err
    banned = run_cli(capsys, *command, "--engine", "ctranslate2", "--min-length", "2", stdin=TEXT)
    assert (banned.code, "outputs differ" in banned.err) == (0, True)
    sampled = run_cli(capsys, *command[:2], "--sample", "--engine", "ctranslate2", stdin=TEXT)
    assert (sampled.code, "does not support sampling" in sampled.error) == (2, True)


def with_a_broken_library(name: str) -> Any:
    if name.startswith("ctranslate2"):
        raise ImportError("broken library")
    return import_module(name)


def test_auto_takes_the_engine_for_lines_one_at_a_time(
    run: Run, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    peer("ctranslate2")
    opened, taken = to_ctranslate2.open_run, list[str]()

    def watched(run: Run, device: str) -> Any:
        taken.append(device)
        return opened(run, device)

    monkeypatch.setattr(to_ctranslate2, "open_run", watched)

    def answers(run: Run, *words: str) -> Any:
        command = ("generate", str(run.path), "--max-length", "6", *words)
        return run_cli(capsys, *command, stdin=TEXT)

    alone = ("--engine", "auto", "--block", "1")
    ours = answers(run)
    assert (ours.code, answers(run, *alone), taken) == (0, ours, ["cpu"])
    other = make_run(tmp_path, model_options={"positions": "alibi"})
    assert answers(run, "--engine", "auto") == ours
    for words in (["--min-length", "2"], ["--sample"], ["--scores"], ["--n-best", "2"], ["--json"]):
        assert answers(run, *alone, *words) == answers(run, "--block", "1", *words)
    assert answers(other, *alone) == answers(other)
    with monkeypatch.context() as broken:
        broken.setattr(to_ctranslate2.importlib, "import_module", with_a_broken_library)
        fallen_back = answers(run, *alone)
        assert (fallen_back.code, fallen_back.out) == (0, ours.out)
        assert "attnkit decodes, because CTranslate2 cannot: ctranslate2 cannot be" in fallen_back.err
        refused = answers(run, "--engine", "ctranslate2")
        assert (refused.code, "ctranslate2 cannot be imported" in refused.error) == (69, True)
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "file/cache"))
    fallen_back = answers(run, *alone)
    assert (fallen_back.code, fallen_back.out) == (0, ours.out)
    assert "attnkit decodes, because CTranslate2 cannot" in fallen_back.err
    taken.clear()
    monkeypatch.setattr(generate, "find_spec", lambda _: None)
    assert (answers(run, *alone), taken) == (ours, [])


def test_explain_says_what_a_model_can_be_exported_to(capsys: Any) -> None:
    done = run_cli(capsys, "recipe", "explain", "quickstart", "--quick")
    lines = " ".join(done.out.split())
    assert "export of scaled-dot: huggingface (Pegasus), ctranslate2, onnx" in lines
    done = run_cli(capsys, "recipe", "explain", "quickstart", "--quick", "--variant", "linear")
    assert "export: onnx; not huggingface, ctranslate2 (linear)" in " ".join(done.out.split())
