"""Tests of the rows that a run stores of the splits on which it is scored."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.trained import ROWS, make_run

from attnkit.data.rows import Row
from attnkit.errors import DataError, MissingInputError
from attnkit.recipe.schema import DataConfig, SplitSizes
from attnkit.runs import Run, run_corpus
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring.evaluation import evaluate

OTHER = json.dumps(Row("cats", "hunde")._asdict()) + "\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path)


def with_data(run: Run, task: str, data: DataConfig) -> Run:
    """Change the task and the data section of a run in memory."""
    run.__dict__["recipe"] = run.recipe.model_copy(update={"task": task, "data": data})
    return run


def test_run_is_scored_without_its_corpus_from_any_folder(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    eval = run.recipe.eval
    first = evaluate(run, ["test"], eval)[0]
    assert list(RunCorpus(run, keep=True).rows("test")) == ROWS
    (tmp_path / "test.jsonl").unlink()
    shutil.move(run.path, tmp_path / "moved")
    monkeypatch.chdir("/")
    second = evaluate(Run.open(tmp_path / "moved"), ["test"], eval, force=True)[0]
    assert second.json()["metrics"] == first.json()["metrics"]
    assert second.references == first.references


def test_changed_corpus_warns_and_is_not_used(tmp_path: Path, run: Run) -> None:
    list(RunCorpus(run, keep=True).rows("test"))
    (tmp_path / "test.jsonl").write_text(OTHER)
    with pytest.warns(UserWarning, match=r"the corpus has changed since test was scored .*stored rows"):
        assert list(RunCorpus(run, keep=True).rows("test")) == ROWS
    assert list(RunCorpus(run, fresh=True, keep=True).rows("test")) == [Row("cats", "hunde")]
    assert list(RunCorpus(run, keep=True).rows("test")) == [Row("cats", "hunde")]


def test_of_a_large_split_only_the_hash_is_stored(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_corpus, "MAX_BYTES", 100)
    corpus = RunCorpus(run, keep=True)
    assert list(corpus.rows("test")) == ROWS
    assert not corpus.stores("test")
    assert [path.name for path in (run.path / "data").iterdir()] == ["test.json"]
    (tmp_path / "test.jsonl").write_text(OTHER)
    with pytest.warns(UserWarning, match="the new rows are used"):
        assert list(corpus.rows("test")) == [Row("cats", "hunde")]
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(MissingInputError, match="rows are too many to store in a run: data.test: no such"):
        corpus.rows("test")


@pytest.mark.parametrize(
    "data",
    [
        DataConfig(test="../gone/test.jsonl"),
        DataConfig(train="gone.jsonl", test="test.jsonl", split=SplitSizes(valid=1)),
    ],
)
def test_file_is_found_by_its_name_in_the_data_folder(tmp_path: Path, run: Run, data: DataConfig) -> None:
    """A run may have moved away from its data, or need only a part of it."""
    assert list(RunCorpus(with_data(run, "translation", data), tmp_path).rows("test")) == ROWS


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: (data / "test.jsonl").write_text(OTHER), "was changed after scoring"),
        (lambda data: (data / "test.json").write_text("{}"), "test.json: was changed"),
    ],
)
def test_damage_raises(run: Run, damage: Callable[[Path], None], message: str) -> None:
    corpus = RunCorpus(run, keep=True)
    corpus.rows("test")
    damage(run.path / "data")
    with pytest.raises(DataError, match=message):
        corpus.rows("test")
    (run.path / "data/test.json").unlink()  # as the message advises
    assert list(corpus.rows("test")) == ROWS


def test_generated_questions_are_stored_by_number_of_passages(run: Run) -> None:
    corpus = RunCorpus(with_data(run, "question-answering", DataConfig(corpus="toy-passages")), keep=True)
    two, three = corpus.questions("test", 2), corpus.questions("test", 3)
    assert {len(row.contexts) for row in two} != {len(row.contexts) for row in three}
    assert corpus.questions("test", 3) == three
    assert corpus.stores("test")


def test_nothing_is_written_without_keep(run: Run) -> None:
    assert list(RunCorpus(run).rows("test")) == ROWS
    assert not (run.path / "data").exists()


def test_training_rows_are_not_stored(run: Run) -> None:
    corpus = RunCorpus(with_data(run, "translation", DataConfig(corpus="toy-translation", size=3)), keep=True)
    assert len(list(corpus.rows("train"))) == 3
    assert not (run.path / "data").exists()


def test_rows_are_read_if_they_cannot_be_stored(run: Run) -> None:
    (run.path / "data").write_text("a file in place of the folder")
    assert list(RunCorpus(run, keep=True).rows("test")) == ROWS


def test_unknown_split_or_folder_raises(run: Run, tmp_path: Path) -> None:
    for split in ("tset", "../test"):
        with pytest.raises(MissingInputError, match="no split .*test"):
            RunCorpus(run, keep=True).rows(split)
    with pytest.raises(MissingInputError, match=r"no such folder \(--data-dir\)"):
        RunCorpus(run, tmp_path / "absent")
