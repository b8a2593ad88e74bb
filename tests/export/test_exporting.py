"""Tests of exports: contents, model card, checks against the run, existing folders, errors."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.peers import peer
from helpers.trained import make_run

from attnkit.errors import DataError, MissingInputError, OutputPathError, UnavailableError
from attnkit.export import exporting
from attnkit.runs import Run
from attnkit.runs.json_files import StoredMetric, StoredSplit
from attnkit.runs.layout import MODEL
from attnkit.search import translate

peer("transformers")
to_huggingface = pytest.importorskip("attnkit.export.to_huggingface")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path)


def test_folder_contains_facts_card_and_no_path_of_this_machine(run: Run, tmp_path: Path) -> None:
    run.write_scores("test", ["x"], StoredSplit(metrics={"bleu": StoredMetric(score=12.345, signature="s|t")}))
    folder = tmp_path / "new" / "model"
    checks = exporting.export(run, "huggingface", folder)
    assert all(check.passed for check in checks)
    facts = json.loads((folder / "export.json").read_text("utf-8"))
    assert facts["checks"] == [check._asdict() for check in checks]
    assert (facts["split"], facts["to"], facts["weights"]) == ("test", "huggingface", run.manifest.files[MODEL])
    card = (folder / "README.md").read_text("utf-8")
    assert "# toy base" in card
    assert "| test | BLEU | 12.35 |" in card
    assert "AutoModelForSeq2SeqLM" in card
    assert "licence" in card.lower()
    for file in folder.iterdir():
        assert str(tmp_path).encode() not in file.read_bytes(), file.name
    assert [*folder.parent.iterdir()] == [folder]


@pytest.mark.parametrize("target", ["huggingface", "ctranslate2", pytest.param("onnx", marks=pytest.mark.slow)])
def test_code_of_the_card_gives_the_outputs_of_the_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Long texts are truncated as in the run; the code returns one output or a list of one."""
    folder = tmp_path / "model"
    exporting.export(run, target, folder)
    code = (folder / "README.md").read_text("utf-8").split("```")[1].removeprefix("python\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "tokenizer", raising=False)
    greedy = run.recipe.search.model_copy(update={"method": "greedy"})
    spec = greedy if target == "onnx" else run.recipe.search
    for text in ("one red dog", "two very red cats and " * 12):
        scope: dict[str, Any] = {}
        exec(code.replace("TEXT", text), scope)
        found = eval(code.rsplit("\n", 2)[-2], scope)
        results = translate(run.model(), run.tokenizer(), [text], spec, max_source=run.recipe.data.max_length)
        ((expected, _),) = next(results)
        assert found in (expected, [expected])


def test_export_with_different_outputs_leaves_no_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = to_huggingface._weights

    def wrong_weights(model: Any) -> Any:
        named = weights(model)
        name = "model.encoder.layers.0.fc1.weight"
        return named | {name: named[name] * 1.01}

    monkeypatch.setattr(to_huggingface, "_weights", wrong_weights)
    with pytest.raises(DataError, match=r"logits, largest difference: \S+ \(at most 1e-04\)"):
        exporting.export(run, "huggingface", tmp_path / "model")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("model")]


def test_only_an_empty_folder_is_filled(run: Run, tmp_path: Path) -> None:
    folder, link = tmp_path / "model", tmp_path / "link"
    folder.mkdir()
    exporting.export(run, "huggingface", folder)
    before = sorted(folder.iterdir())
    link.symlink_to(tmp_path / "nowhere")
    for path in (folder, folder / "README.md", link):
        with pytest.raises(OutputPathError, match="already exists"):
            exporting.check("huggingface", path)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("target", ["ctranslate2", "onnx"])
def test_missing_library_raises_with_the_command_to_install_it(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=rf"pip install 'attnkit\[{target}\]'"):
        exporting.check(target)


def test_export_without_weights_or_test_rows_raises(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(MissingInputError, match=r"test\.jsonl"):
        exporting.export(run, "huggingface", tmp_path / "model")
    (run.path / MODEL).unlink()
    with pytest.raises(MissingInputError, match="training is not finished"):
        exporting.export(run, "huggingface", tmp_path / "model")
    assert not (tmp_path / "model").exists()
