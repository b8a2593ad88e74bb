"""Tests of the list of runs (state, order, differences) and of removing checkpoints that are not needed."""

from itertools import product
from pathlib import Path

import pytest
from helpers.logged import make_logged

from attnkit.errors import MissingInputError
from attnkit.recipe.dumping import flat
from attnkit.runs import Run, find_runs
from attnkit.runs.status import RunStatus, clean, differences, remove_checkpoints, statuses


def states(root: Path) -> dict[str, RunStatus]:
    return {status.variant: status for status in statuses(root)}


def test_list_has_the_states_steps_and_values_of_the_files(tmp_path: Path) -> None:
    make_logged(tmp_path, "done", losses=(4, 3, 2, 1), scores={"chrf": 50.0, "bleu": 20.0})
    make_logged(tmp_path, "half", finished=False)
    make_logged(tmp_path, "wrong", finished=False, failed="step 30: the loss is not finite")
    make_logged(tmp_path, "broken")
    (tmp_path / "toy/broken/seed-1/manifest.json").write_text("{")
    found = states(tmp_path)
    assert {name: (s.state, s.step, s.steps) for name, s in found.items()} == {
        "done": ("done", 40, 100),
        "half": ("unfinished", 30, 100),
        "wrong": ("failed", 30, 100),
        "broken": ("damaged", None, None),
    }
    done = found["done"]
    assert (done.metric, done.split, done.score) == ("bleu", "test", 20.0)
    assert (done.monitor, done.validation, found["half"].validation) == ("loss", 1.5, 2.5)
    assert found["wrong"].fault == "step 30: the loss is not finite"
    assert (found["broken"].fault or "").startswith("manifest.json: not valid JSON")
    assert str(tmp_path) not in (found["broken"].fault or "")
    assert list(found)[-1] == "broken"
    assert (done.removable, found["half"].removable) == (1000, 0)
    assert done.bytes == sum(path.stat().st_size for path in done.path.rglob("*") if path.is_file())


def test_listing_does_not_release_the_lock_of_a_training(tmp_path: Path) -> None:
    run = make_logged(tmp_path, finished=False)
    with run.lock():
        assert [statuses(tmp_path)[0].state for _ in range(2)] == ["training"] * 2
    assert statuses(tmp_path)[0].state == "unfinished"


def test_other_values_of_a_run_with_a_damaged_log_are_listed(tmp_path: Path) -> None:
    run = make_logged(tmp_path, scores={"bleu": 20.0})
    run.log.path.write_text("{broken\n")
    (status,) = statuses(tmp_path)
    assert (status.state, status.step, status.score) == ("done", 30, 20.0)
    assert (status.fault or "").startswith("metrics.jsonl:1: not valid JSON")


def test_runs_are_in_the_order_of_their_recipe(tmp_path: Path) -> None:
    variants = ["z", "base", "a"]
    for variant, seed in product(("a", "base", "z"), (10, 2)):
        make_logged(tmp_path, variant, seed, variants=variants)
    expected = [*product(variants, (2, 10))]
    assert [(status.variant, status.seed) for status in statuses(tmp_path)] == expected
    assert [(run.variant, run.seed) for run in find_runs([tmp_path])] == expected


def test_converted_runs_follow_the_runs_of_the_recipe(tmp_path: Path) -> None:
    for variant in ("base", "other", "z"):
        make_logged(tmp_path, variant, variants=["base", "other", "z"])
    make_logged(tmp_path, "base-linear-swapped")
    make_logged(tmp_path, "base-linear-tuned", variants=["base-linear-tuned"])
    expected = ["base", "other", "z", "base-linear-swapped", "base-linear-tuned"]
    assert [run.variant for run in find_runs([tmp_path])] == expected


def test_runs_of_earlier_versions_have_the_baseline_first(tmp_path: Path) -> None:
    for variant in ("z", "base", "a"):
        make_logged(tmp_path, variant)
    assert [run.variant for run in find_runs([tmp_path])] == ["base", "a", "z"]


def test_differences_are_those_to_the_baseline_without_the_seed(tmp_path: Path) -> None:
    make_logged(tmp_path, seed=1)
    make_logged(tmp_path, seed=2)
    make_logged(tmp_path, "other", attention="linear", train={"lr": 0.5})
    make_logged(tmp_path, "again", train={"steps": 7})
    assert {name: status.differs for name, status in states(tmp_path).items()} == {
        "base": (),
        "other": ("model.attention: linear", "train.lr: 0.5"),
        "again": ("train.steps: 7",),
    }


A, B = {"x": "1", "y": "1"}, {"x": "2", "y": "1"}
ENCODER, CROSS = "model.attention.encoder", "model.attention.cross"
LOCAL = {ENCODER: "local", f"{ENCODER}.window": "8"}


@pytest.mark.parametrize(
    ("recipes", "baselines", "expected"),
    [
        ([A, A, B], [], [(), (), ("x: 2",)]),
        ([A, B, B], [A], [(), ("x: 2",), ("x: 2",)]),
        ([A, {"x": "1"}], [], [(), ()]),
        ([{ENCODER: "a"}, LOCAL], [{ENCODER: "a"}], [(), (f"{ENCODER}: local", f"{ENCODER}.window: 8")]),
        ([{ENCODER: "b", CROSS: "b"}], [{ENCODER: "a", CROSS: "a"}], [("model.attention (encoder, cross): b",)]),
    ],
)
def test_differences_are_to_the_baseline_or_the_most_common_value(
    recipes: list[dict[str, str]], baselines: list[dict[str, str]], expected: list[tuple[str, ...]]
) -> None:
    assert differences(recipes, baselines) == expected


def test_all_keys_of_a_recipe_are_compared(tmp_path: Path) -> None:
    run = make_logged(tmp_path)
    assert statuses(tmp_path)[0].values == flat(run.recipe)


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_folder_without_runs_raises(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingInputError, match="`attnkit train RECIPE` makes one"):
        statuses(tmp_path / name)


def test_clean_removes_checkpoints_of_finished_runs_only(tmp_path: Path) -> None:
    done, half, busy = (make_logged(tmp_path, name, finished=name != "half") for name in ("done", "half", "busy"))
    (done.checkpoints / "step-20.damaged").mkdir()
    (done.checkpoints / "step-30.tmp-1").mkdir()
    (done.checkpoints / "mine.txt").write_text("notes")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    found, notes = statuses(tmp_path), list[str]()
    with busy.lock():
        assert clean(found, notes.append) == 1000
    assert notes == [f"{busy.path}: is being trained; its checkpoints stay"]
    after = {path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert {*before} - after == {done.checkpoints / "step-30/tensors.safetensors"}
    assert [path.name for path in done.checkpoints.iterdir()] == ["mine.txt"]
    assert Run.open(done.path).finished
    assert (half.checkpoints / "step-30").is_dir()


def test_clean_keeps_the_checkpoints_of_damaged_weights(tmp_path: Path) -> None:
    run = make_logged(tmp_path)
    (run.path / "model.safetensors").write_bytes(b"other")
    notes: list[str] = []
    assert clean(statuses(tmp_path), notes.append) == 0
    assert "was changed" in notes[0]
    assert notes[0].endswith("its checkpoints stay")
    assert (run.checkpoints / "step-30/tensors.safetensors").exists()


def test_clean_follows_no_link(tmp_path: Path) -> None:
    """Neither a link to another folder of checkpoints nor a link inside a checkpoint."""
    one, two = make_logged(tmp_path / "runs", "one"), make_logged(tmp_path / "runs", "two")
    kept = tmp_path / "kept"
    one.checkpoints.rename(kept)
    one.checkpoints.symlink_to(kept)
    (two.checkpoints / "step-30/link").symlink_to(kept)
    clean(statuses(tmp_path / "runs"), pytest.fail)
    assert (kept / "step-30/tensors.safetensors").exists()
    assert one.checkpoints.is_symlink()
    assert not (two.checkpoints / "step-30").exists()


def test_removing_the_checkpoints_of_an_unfinished_run_raises(tmp_path: Path) -> None:
    run = make_logged(tmp_path, finished=False)
    with pytest.raises(MissingInputError, match="training is not finished"):
        remove_checkpoints(run)
