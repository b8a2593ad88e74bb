"""Tests of `attnkit report`: HTML pages, Markdown with figures, and errors."""

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers import question_runs, trained
from helpers.cli import Cli
from helpers.pages import Document
from helpers.scored_runs import scored_run

from attnkit.nbce import question_sets
from attnkit.runs import Run
from attnkit.storage import files

GOOD = ["ein roter hund", "zwei katzen", "ein hund und eine katze", "katzen", "eine katze"]
BAD = [
    "\x1b[31mein \u202eroter hund",
    "<b>zwei</b> </script><script>alert(1)",
    "",
    "\u05d7\u05ea\u05d5\u05dc | [katzen]",
    "eine sehr rote katze und zwei hunde",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two scored runs of sentences, two of questions, and one run without scores."""
    folder = tmp_path_factory.mktemp("runs")
    for variant, outputs in (("good", GOOD), ("bad", BAD)):
        run = scored_run(folder, variant, outputs, ("bleu",))
        for step in (10, 20, 30):
            run.log.append({"step": step, "epoch": 0, "loss": 9.0 / step, "seconds": float(step)})
    run.update(changes=[{"step": 5, "key": "train.lr", "old": "0.001", "new": "0.002"}])
    (folder / "other").mkdir()
    trained.make_run(folder / "other", "unscored")
    for seed in (1, 2):
        run = question_runs.make_run(folder / "questions", seed=seed)
        question_sets.evaluate(run, ["test"], run.recipe.eval)
    return folder


@pytest.fixture
def report(folder: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `attnkit report RUNS -o OUTPUT` in the folder, and return the text of the output, which is in tmp_path."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS")

    def call(*runs: str, output: str = "r.md") -> str:
        cli("report", *runs, "-o", str(tmp_path / output))
        return (tmp_path / output).read_bytes().decode()

    return call


@pytest.mark.slow
def test_report_holds_the_table_of_eval(report: Any, cli: Cli) -> None:
    table = cli("eval", "runs/toy", "--format", "markdown").out
    assert table.strip() in report("runs/toy")
    page = report("runs/toy", output="r.html")
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page.replace("<wbr>", ""))
    for line in table.splitlines():
        if line.startswith(("| bad", "| good")):
            expected = [cell.strip().replace("\\", "") for cell in line.split("|")[1:-1]]
            marked = [re.sub(r"\*\*([\d.]+)\*\*", r"<b>\1</b>", cell) for cell in expected]
            at = cells.index(marked[0])
            assert cells[at : at + len(marked)] == marked


def test_picture_shows_systems_by_tasks(report: Any, cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for variant, outputs in (("good", GOOD), ("worse", GOOD[:3] + ["a", "a"])):
        scored_run(tmp_path, variant, outputs)
    picture = report(str(tmp_path / "runs"), output="o.svg")
    assert all(f">{word}<" in picture for word in ("toy", "good", "worse", "better", "baseline"))
    error = cli("report", "other", "-o", str(tmp_path / "o.svg"), code=66).error
    assert error.endswith(": not scored; skipped")


def test_page_is_one_harmless_reproducible_file(report: Any) -> None:
    text = report("runs/toy", output="r.html")
    assert report("runs/toy", output="r.html") == text
    content = text.encode()
    document = Document(content)
    tags = [tag for tag, _ in document.elements]
    assert tags.count("script") == 2
    assert tags.count("link") == 0
    pictures = [attributes for tag, attributes in document.elements if tag == "img"]
    assert len(pictures) >= 3
    for attributes in pictures:
        assert (attributes["src"] or "").startswith("data:image/svg+xml;base64,")
        assert attributes["alt"]
    assert b"\x1b" not in content
    assert b"http" not in content.replace(b"http-equiv", b"")
    assert b"innerHTML" not in content
    assert not [attributes for _, attributes in document.elements if "style" in attributes]
    shown = ["Results", "Learning curves", "Examples", "Recipes", "Environment", "good gains most over bad", "(empty)"]
    shown += ["changed after training began: train.lr 0.001 -&gt; 0.002 after step 5", "attnkit report runs/toy"]
    for words in shown:
        assert words in text, words


def test_without_matplotlib_there_are_no_figures(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.show.figure.find_spec", lambda _: None)
    text = report("runs/toy")
    assert text.count("matplotlib for svg: pip install 'attnkit\\[plot\\]'") == 1
    assert "![" not in text


@pytest.mark.slow
def test_markdown_has_its_figures_in_a_folder(report: Any, tmp_path: Path) -> None:
    text = report("runs/toy", output="my appendix.md")
    names = re.findall(r"\]\(my%20appendix-figures/([^)]*)\)", text)
    assert len(names) == len(set(names)) >= 3
    assert sorted(names) == sorted(p.name for p in (tmp_path / "my appendix-figures").iterdir())
    for path in (tmp_path / "my appendix-figures").iterdir():
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert "| bad |" in text
    assert "\\<b\\>zwei\\</b\\>" in text
    assert not re.findall("<[^>]*>", re.sub(r"\\[<>]", "", text))
    assert not re.search("[\x00-\x08\x1b\u202e]", text)


def test_report_of_questions_has_the_table_by_contexts(report: Any, cli: Cli) -> None:
    text = report("questions/runs/toy")
    assert cli("eval", "questions/runs/toy", "--format", "markdown").out.strip() in text
    assert "mean against entropy" in text


@pytest.mark.slow
def test_full_disk_leaves_the_old_page(report: Any, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.show.figure.find_spec", lambda _: None)  # figures take long
    before = report("runs/toy", output="r.html")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.Filesystem, "fsync", full)
    for name in ("r.html", "r.md"):
        cli("report", "runs/toy", "-o", str(tmp_path / name), code=74)
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    assert (tmp_path / "r.html").read_bytes() == before.encode()


def test_runs_of_different_test_lines_have_no_examples(report: Any, tmp_path: Path) -> None:
    copy = tmp_path / "runs/toy/bad/seed-1"
    shutil.copytree("runs/toy/bad/seed-1", copy)
    scores = json.loads((copy / "scores.json").read_text(encoding="utf-8"))
    scores["test"]["digests"]["source"] = "0" * 64
    (copy / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    Run(copy).record("scores.json", Run(copy).sha256("scores.json"))
    text = report("runs/toy/good", str(copy))
    for words in ("No examples: ", "and runs/toy/good/seed-1", "not comparable"):
        assert words in text
