"""`attnkit runs pack`: an archive that opens elsewhere."""

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from helpers import questioned as asked
from helpers.called import Done, called
from helpers.shell import attnkit_in
from helpers.trained import make_run

from attnkit.errors import OutputPathError
from attnkit.nbce import question_sets
from attnkit.runs import Run, packing, run_corpus
from attnkit.scoring.evaluation import evaluate


@pytest.fixture
def pack(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command in this process, in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*words: str | Path) -> Done:
        return called(capsys, "runs", "pack", *map(str, words), stdin="")

    return call


@pytest.fixture
def mine(tmp_path: Path) -> Run:
    """A run that may change."""
    return make_run(tmp_path)


def names(path: str) -> list[str]:
    with tarfile.open(path) as opened:
        return opened.getnames()


@pytest.mark.slow
def test_a_packed_run_opens_elsewhere_with_equal_scores_and_texts(
    pack: Any, mine: Run, tmp_path: Path
) -> None:
    """In another process, home and folder, with neither data nor the run that was packed."""
    scores = evaluate(mine, ["test"], mine.recipe.eval)[0].json()["metrics"]
    texts = attnkit_in(tmp_path)("generate", str(mine.path), stdin="two cats\n").stdout
    done = pack(mine.path, "-o", "run.tar.gz")
    assert done.code == 0, done.err
    assert "wrote run.tar.gz: 1 run, " in done.err
    away = tmp_path / "away"
    (away / "home").mkdir(parents=True)
    shutil.unpack_archive("run.tar.gz", away, filter="data")
    shutil.rmtree(mine.path)
    (tmp_path / "test.jsonl").unlink()
    there = {"HOME": str(away / "home"), "ATTNKIT_DATA": "", "XDG_CACHE_HOME": ""}
    command = attnkit_in(away)
    again = command("eval", "toy", "--fresh", "--format", "json", **there)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["rows"][0]["metrics"] == scores
    run = "toy/base/seed-1"
    assert command("generate", run, stdin="two cats\n", **there).stdout == texts


def test_the_same_runs_give_the_same_bytes(pack: Any, mine: Run) -> None:
    pack(mine.path, "-o", "a.tar.gz")
    for path in mine.path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    pack(mine.path, "-o", "b.tgz")
    assert Path("a.tar.gz").read_bytes() == Path("b.tgz").read_bytes()


def test_what_is_in_an_archive(pack: Any, mine: Run, tmp_path: Path) -> None:
    for name in ("checkpoints/step-7/state.json", "tensorboard/events", "model.tmp-1", ".lock"):
        path = mine.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (mine.path / "link").symlink_to(tmp_path)
    assert pack(mine.path).code == 0
    run = "toy/base/seed-1"
    plain = [
        f"{run}/{name}"
        for name in ("data/test.json", "data/test.jsonl", "manifest.json", "model.safetensors",
                     "recipe.yaml", "tokenizer.model")
    ]  # fmt: skip
    assert names("toy-base-seed-1.tar.gz") == plain
    assert pack(mine.path, "--checkpoints").code == 0
    with_checkpoints = sorted([*plain, f"{run}/checkpoints/step-7/state.json"])
    assert names("toy-base-seed-1.tar.gz") == with_checkpoints


def test_a_folder_of_runs_is_one_archive(pack: Any, mine: Run, tmp_path: Path) -> None:
    make_run(tmp_path, "other", 2)
    done = pack(tmp_path / "runs")
    assert "wrote toy.tar.gz: 2 runs" in done.err
    folders = {name.rsplit("/", 1)[0] for name in names("toy.tar.gz") if "/data/" not in name}
    assert folders == {"toy/base/seed-1", "toy/other/seed-2"}


def test_questions_are_packed_with_their_passages(pack: Any, tmp_path: Path) -> None:
    run = asked.make_run(tmp_path)
    done = pack(run.path)
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert "toy/base/seed-1/data/test.jsonl" in names("toy-base-seed-1.tar.gz")
    line = (run.path / "data/test.jsonl").read_text().split("\n")[0]
    assert len(json.loads(line)["contexts"]) == 4
    question_sets.evaluate(run, ["test"], run.recipe.eval)
    assert (run.path / "data/test.jsonl").read_text().startswith(line)


def test_what_a_packed_run_lacks_is_told(
    pack: Any, mine: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine.update(plugins={"mine": {"from": "mine.py", "sha256": "0" * 64}, "gone": None})
    monkeypatch.setattr("attnkit.runs.plugins.require", lambda *_: None)
    monkeypatch.setattr(run_corpus, "LARGEST", 10)
    done = pack(mine.path)
    assert done.code == 0
    assert "test: its rows are not in the archive; scoring it needs the corpus\n" in done.err
    assert "needs the mechanism mine from mine.py: send it along\n" in done.err
    shutil.rmtree(mine.path / "data")
    (tmp_path / "test.jsonl").unlink()
    assert "needs the corpus (data.test: no such file" in pack(mine.path).err


def test_what_is_refused(pack: Any, mine: Run, tmp_path: Path) -> None:
    def refused(code: int, message: str, *words: str | Path) -> None:
        done = pack(*words)
        assert (done.code, done.out) == (code, "")
        assert message in done.err
        assert done.err.count("\n") == 1

    refused(2, "run.zip: the archive is a .tar.gz; name it so", mine.path, "-o", "run.zip")
    refused(73, "is inside the run that is packed", mine.path, "-o", mine.path / "x.tar.gz")
    refused(73, "there/x.tar.gz: cannot be created", mine.path, "-o", "there/x.tar.gz")
    refused(66, "absent: no such folder of runs", "absent")
    shutil.copytree(mine.path, tmp_path / "copy")
    refused(73, "a second run called toy/base/seed-1", mine.path, tmp_path / "copy")
    (mine.path / "model.safetensors").write_bytes(b"other")
    refused(65, "model.safetensors: is not the file that was written", mine.path)
    assert not list(Path().iterdir())


def test_a_name_that_would_leave_the_archive_is_refused(mine: Run, tmp_path: Path) -> None:
    mine.update(recipe="../../etc")
    with pytest.raises(OutputPathError, match="cannot be the name of a folder"):
        packing.pack([mine], tmp_path / "x.tar.gz")
    assert not (tmp_path / "x.tar.gz").exists()
