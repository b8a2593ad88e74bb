"""Tests with runs that version 0.1.0 wrote: formats and names of weights must not change.

written_by_0.1.0/ holds two trainings of one recipe (12 updates, 724 parameters): `finished`, without its
checkpoints, and `stopped` by a signal after update 4.
"""

import shutil
from pathlib import Path

import pytest
import torch
from helpers.small import run_training

from attnkit.cli import main
from attnkit.data.preparation import prepare
from attnkit.runs import Run
from attnkit.scoring.evaluation import evaluate
from attnkit.train.events import FinishedEvent, StartedEvent
from attnkit.train.fit import TrainingJob
from attnkit.train.signals import StopSignals

STORED = Path(__file__).parent / "written_by_0.1.0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORED, tmp_path / "runs"))


def test_finished_run_generates_a_line_for_each_input(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("two red dogs\n\nfive\n")
    assert main(["generate", str(folder / "finished"), str(tmp_path / "in.txt")]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [bool(line) for line in lines] == [True, False, True, False]


def test_finished_run_has_the_same_score(folder: Path) -> None:
    run = Run.open(folder / "finished")
    assert (run.name, run.variant, run.seed, run.finished) == ("tiny", "base", 1, True)
    assert [record["step"] for record in run.log.records()] == [3, 6, 6, 9, 12, 12]
    entry = evaluate(run, ["test"], run.recipe.eval)[0]
    assert entry.json()["metrics"]["chrf"]["score"] == pytest.approx(2.17, abs=0.1)


def test_stopped_run_resumes_to_the_weights_of_the_finished_run(folder: Path) -> None:
    run, finished = Run.open(folder / "stopped"), Run.open(folder / "finished")
    # use the stored vocabulary: another version of sentencepiece might learn a different one
    stored = {"model": str(run.path / "tokenizer.model")}
    recipe = run.recipe.model_copy(update={"tokenizer": run.recipe.tokenizer.model_copy(update=stored)})
    job = TrainingJob(recipe, prepare(recipe), run, 1, torch.device("cpu"), "fp32", StopSignals())
    events = run_training(job)
    started = next(event for event in events if isinstance(event, StartedEvent))
    assert started.resumed_from == 4
    assert isinstance(events[-1], FinishedEvent)
    assert run.weights().keys() == finished.weights().keys()
    for name, weight in finished.weights().items():  # equal except for the arithmetic of different processors
        # a key bias adds the same number to all scores of a query: its gradient is only rounding error
        if not name.endswith(".k.bias"):
            torch.testing.assert_close(run.weights()[name], weight, atol=1e-4, rtol=1e-4)
