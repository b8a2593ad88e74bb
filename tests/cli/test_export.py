"""`attnkit export`: what it says and refuses."""

from pathlib import Path
from typing import Any

import pytest
from helpers.called import called
from helpers.peers import peer
from helpers.trained import make_run

from attnkit.runs import Run

TEXT = "one red dog\n\ncats\na very red cat and two dogs\n"


@pytest.mark.parametrize(("target", "library"), [("huggingface", "transformers"), ("ctranslate2", "ctranslate2")])
def test_a_run_is_exported(target: str, library: str, run: Run, tmp_path: Path, capsys: Any) -> None:
    peer(library)
    folder = tmp_path / "out"
    done = called(capsys, "export", str(run.path), str(folder), "--to", target)
    assert done.code == 0, done.err
    assert "outputs equal" in done.out
    assert "largest difference" in done.out
    assert (folder / "README.md").is_file()
    assert f"wrote {folder}" in done.err
    again = called(capsys, "export", str(run.path), "--to", target, str(folder))
    assert (again.code, "is there already" in again.refusal) == (73, True)


def test_what_has_no_class_is_told_what_works(tmp_path: Path, capsys: Any) -> None:
    run = make_run(tmp_path, model_options={"positions": "alibi"})
    done = called(capsys, "export", str(run.path), str(tmp_path / "out"), "--to", "huggingface")
    assert done.code == 2
    assert done.refusal.endswith("model.positions: alibi cannot be exported to transformers; use --to onnx")


def test_explain_says_what_a_model_can_be_exported_to(capsys: Any) -> None:
    done = called(capsys, "recipe", "explain", "quickstart", "--quick")
    lines = " ".join(done.out.split())
    assert "export of scaled-dot: huggingface (Pegasus), ctranslate2, onnx" in lines
    done = called(capsys, "recipe", "explain", "quickstart", "--quick", "--variant", "linear")
    assert "export: onnx; not huggingface, ctranslate2 (linear)" in " ".join(done.out.split())
