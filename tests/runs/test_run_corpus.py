"""What a run keeps of the splits that it is scored on."""

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
    """The run with another data section, in memory."""
    run.__dict__["recipe"] = run.recipe.model_copy(update={"task": task, "data": data})
    return run


def test_a_run_is_scored_without_its_corpus_from_any_folder(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    eval = run.recipe.eval
    scored = evaluate(run, ["test"], eval)[0]
    assert list(RunCorpus(run, keep=True).rows("test")) == ROWS
    (tmp_path / "test.jsonl").unlink()
    moved = tmp_path / "elsewhere"
    shutil.move(run.path, moved)
    monkeypatch.chdir("/")
    again = evaluate(Run.open(moved), ["test"], eval, force=True)[0]
    assert again.json()["metrics"] == scored.json()["metrics"]
    assert again.references == scored.references


def test_another_corpus_is_told_of_and_not_used(tmp_path: Path, run: Run) -> None:
    list(RunCorpus(run, keep=True).rows("test"))
    (tmp_path / "test.jsonl").write_text(OTHER)
    with pytest.warns(UserWarning, match=r"the corpus has changed since test was scored .*stored rows"):
        assert list(RunCorpus(run, keep=True).rows("test")) == ROWS
    assert list(RunCorpus(run, fresh=True, keep=True).rows("test")) == [Row("cats", "hunde")]
    assert list(RunCorpus(run, keep=True).rows("test")) == [Row("cats", "hunde")]


def test_of_a_large_split_only_the_hash_is_kept(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_corpus_in_a_data_folder_is_found_by_its_name(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run that was moved away from its data needs it."""
    (tmp_path / "data").mkdir()
    shutil.move(tmp_path / "test.jsonl", tmp_path / "data/test.jsonl")
    moved = with_data(run, "translation", DataConfig(test="../gone/test.jsonl"))
    assert list(RunCorpus(moved, tmp_path / "data").rows("test")) == ROWS


def test_a_test_file_is_read_without_the_training_data_that_give_the_validation_rows(tmp_path: Path, run: Run) -> None:
    data = DataConfig(train="gone.jsonl", test="test.jsonl", split=SplitSizes(valid=1))
    split = with_data(run, "translation", data)
    assert list(RunCorpus(split, tmp_path).rows("test")) == ROWS


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: (data / "test.jsonl").write_text(OTHER), "was changed after scoring"),
        (lambda data: (data / "test.json").write_text("{}"), "test.json: was changed"),
    ],
)
def test_damage_is_refused(run: Run, damage: Callable[[Path], None], message: str) -> None:
    corpus = RunCorpus(run, keep=True)
    corpus.rows("test")
    damage(run.path / "data")
    with pytest.raises(DataError, match=message):
        corpus.rows("test")
    (run.path / "data/test.json").unlink()  # as the message says
    assert list(corpus.rows("test")) == ROWS


def test_generated_questions_are_kept_with_their_number_of_passages(run: Run) -> None:
    corpus = RunCorpus(with_data(run, "question-answering", DataConfig(corpus="toy-passages")), keep=True)
    two, three = corpus.questions("test", 2), corpus.questions("test", 3)
    assert {len(row.contexts) for row in two} != {len(row.contexts) for row in three}
    assert corpus.questions("test", 3) == three
    assert corpus.stores("test")


def test_nothing_is_written_unless_asked(run: Run) -> None:
    assert list(RunCorpus(run).rows("test")) == ROWS
    assert not (run.path / "data").exists()


def test_training_rows_are_not_kept(run: Run) -> None:
    corpus = RunCorpus(with_data(run, "translation", DataConfig(corpus="toy-translation", size=3)), keep=True)
    assert len(list(corpus.rows("train"))) == 3
    assert not (run.path / "data").exists()


def test_a_run_that_cannot_be_written_is_scored(run: Run) -> None:
    (run.path / "data").write_text("a file where the folder would be")
    assert list(RunCorpus(run, keep=True).rows("test")) == ROWS


def test_unknown_splits_and_folders_are_named(run: Run, tmp_path: Path) -> None:
    for split in ("tset", "../test"):
        with pytest.raises(MissingInputError, match="no split .*test"):
            RunCorpus(run, keep=True).rows(split)
    with pytest.raises(MissingInputError, match=r"no such folder \(--data-dir\)"):
        RunCorpus(run, tmp_path / "absent")
