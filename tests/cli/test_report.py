"""`attnkit report`: as a page, as Markdown with drawings; and what it refuses."""

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
    """Two scored runs, and others that do not belong to them."""
    made = tmp_path_factory.mktemp("runs")
    for variant, outputs in (("good", GOOD), ("bad", BAD)):
        run = scored_run(made, variant, outputs, ("bleu",))
        for step in (10, 20, 30):
            run.log.append({"step": step, "epoch": 0, "loss": 9.0 / step, "seconds": float(step)})
    changes = [{"step": 5, "key": "train.lr", "old": "0.001", "new": "0.002"}]
    run.update(changes=changes)
    (made / "other").mkdir()
    trained.make_run(made / "other", "unscored")
    for seed in (1, 2):
        asked = question_runs.make_run(made / "asked", seed=seed)
        question_sets.evaluate(asked, ["test"], asked.recipe.eval)
    return made


@pytest.fixture
def attnkit(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command in this process, in the folder."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS")
    return lambda *words, command="report": cli(command, *words)


@pytest.mark.slow
def test_it_holds_the_table_of_eval(attnkit: Any, tmp_path: Path) -> None:
    shown = attnkit("runs/toy", "--format", "markdown", command="eval").out
    for name in ("r.md", "r.html"):
        assert attnkit("runs/toy", "-o", str(tmp_path / name)).code == 0
    assert shown.strip() in (tmp_path / "r.md").read_text(encoding="utf-8")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page.replace("<wbr>", ""))
    for line in shown.splitlines():
        if line.startswith("| bad") or line.startswith("| good"):
            expected = [cell.strip().replace("\\", "") for cell in line.split("|")[1:-1]]
            marked = [re.sub(r"\*\*([\d.]+)\*\*", r"<b>\1</b>", cell) for cell in expected]
            at = cells.index(marked[0])
            assert cells[at : at + len(marked)] == marked


def test_a_picture_shows_systems_by_tasks(attnkit: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for variant, outputs in (("good", GOOD), ("worse", GOOD[:3] + ["a", "a"])):
        scored_run(tmp_path, variant, outputs)
    picture = tmp_path / "o.svg"
    done = attnkit(str(tmp_path / "runs"), "-o", str(picture))
    assert done.code == 0, done.err
    drawn = picture.read_text(encoding="utf-8")
    assert all(f">{word}<" in drawn for word in ("toy", "good", "worse", "better", "baseline"))
    done = attnkit("other", "-o", str(picture))
    assert done.code == 66
    assert done.error.endswith(": not scored; skipped")


def test_the_page_is_one_file_in_which_texts_stay_texts(attnkit: Any, tmp_path: Path) -> None:
    """And the same bytes when it is made again in its place."""
    page, content = tmp_path / "r.html", b""
    for _ in range(2):
        done = attnkit("runs/toy", "-o", str(page))
        assert done.code == 0, done.err
        assert content in (b"", page.read_bytes())
        content = page.read_bytes()
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
    text = content.decode()
    for words in (
        "Results",
        "Learning curves",
        "Examples",
        "Recipes",
        "Environment",
        "good gains most over bad",
        "changed after training began: train.lr 0.001 -&gt; 0.002 after step 5",
        "(empty)",
        "attnkit report runs/toy",
    ):
        assert words in text, words


def test_without_matplotlib_there_are_no_figures(
    attnkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnkit.show import figure

    monkeypatch.setattr(figure, "find_spec", lambda _: None)
    assert attnkit("runs/toy", "-o", str(tmp_path / "r.md")).code == 0
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert text.count("matplotlib for svg: pip install 'attnkit\\[plot\\]'") == 1
    assert "![" not in text


@pytest.mark.slow
def test_markdown_has_its_drawings_beside_it(attnkit: Any, tmp_path: Path) -> None:
    done = attnkit("runs/toy", "-o", str(tmp_path / "my appendix.md"))
    assert done.code == 0, done.err
    text = (tmp_path / "my appendix.md").read_text(encoding="utf-8")
    names = re.findall(r"\]\(my%20appendix-figures/([^)]*)\)", text)
    assert len(names) == len(set(names)) >= 3
    assert sorted(names) == sorted(p.name for p in (tmp_path / "my appendix-figures").iterdir())
    for path in (tmp_path / "my appendix-figures").iterdir():
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert "| bad |" in text
    assert "\\<b\\>zwei\\</b\\>" in text
    tags = set(re.findall("<[^>]*>", re.sub(r"\\[<>]", "", text)))
    assert not tags
    assert not re.search("[\x00-\x08\x1b\u202e]", text)


def test_questions_have_the_table_by_contexts(attnkit: Any, tmp_path: Path) -> None:
    done = attnkit("asked/runs/toy", "-o", str(tmp_path / "q.md"))
    assert done.code == 0, done.err
    text = (tmp_path / "q.md").read_text(encoding="utf-8")
    shown = attnkit("asked/runs/toy", "--format", "markdown", command="eval").out
    assert shown.strip() in text
    assert "mean against entropy" in text


@pytest.mark.slow
def test_an_interrupted_writing_leaves_the_old_page(
    attnkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnkit.show.figure.find_spec", lambda _: None)  # drawings take long
    page = tmp_path / "r.html"
    words = ("runs/toy", "-o")
    assert attnkit(*words, str(page)).code == 0
    before = page.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.Filesystem, "fsync", full)
    for name in ("r.html", "r.md"):
        assert attnkit(*words, str(tmp_path / name)).code == 74
    assert page.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_runs_of_other_test_lines_are_named(attnkit: Any, tmp_path: Path) -> None:
    copy = tmp_path / "runs/toy/bad/seed-1"
    shutil.copytree("runs/toy/bad/seed-1", copy)
    scores = json.loads((copy / "scores.json").read_text(encoding="utf-8"))
    scores["test"]["digests"]["source"] = "0" * 64
    (copy / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    Run(copy).record("scores.json", Run(copy).sha256("scores.json"))
    done = attnkit("runs/toy/good", str(copy), "-o", str(tmp_path / "r.md"))
    assert done.code == 0, done.err
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert "No examples: " in text
    assert "and runs/toy/good/seed-1" in text
    assert "not comparable" in text
