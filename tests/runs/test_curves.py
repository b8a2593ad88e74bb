"""Tests of curves: their points are those of logs and scores, and curves that cannot be drawn raise."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.logged import make_logged

from attnkit.errors import DataError, UsageError
from attnkit.runs import Run, find_runs
from attnkit.runs.curves import CURVES, Curves, learning_curves
from attnkit.storage.files import sha256_file


def draw(root: Path, *names: str, x: str | None = None, note: Any = pytest.fail) -> list[Curves]:
    """Return the curves of all runs below a folder; a note fails the test by default."""
    return learning_curves(find_runs([root], unfinished=True), names, x, note=note)


def points(plot: Curves) -> dict[str, list[list[tuple[float, float]]]]:
    return {series.name: [list(line) for line in series.lines] for series in plot.series}


def test_training_loss_and_validation_are_drawn_by_default(tmp_path: Path) -> None:
    make_logged(tmp_path, losses=(4, 3, 2, 1))
    make_logged(tmp_path, "half", finished=False, losses=(5, 4))
    training, validation = draw(tmp_path)
    assert (training.title, training.x) == ("training loss", "updates")
    assert points(training) == {"base": [[(10, 4), (20, 3), (30, 2), (40, 1)]], "half": [[(10, 5), (20, 4)]]}
    assert validation.title == "validation loss"
    assert points(validation) == {"base": [[(20, 3.5), (40, 1.5)]], "half": [[(20, 4.5)]]}


def test_validated_metric_has_its_name_in_the_title(tmp_path: Path) -> None:
    make_logged(tmp_path, train={"monitor": "bleu"})
    assert [plot.title for plot in draw(tmp_path)] == ["training loss", "validation BLEU"]


@pytest.mark.parametrize(
    ("x", "first", "last", "title"),
    [
        ("updates", 10, 20, "updates"),
        ("tokens", 1000, 2000, "target tokens"),
        ("time", 10, 20, "training time (seconds)"),
    ],
)
def test_axis_has_the_values_of_the_log(x: str, first: float, last: float, title: str, tmp_path: Path) -> None:
    make_logged(tmp_path, losses=(3, 2))
    rate, validation = draw(tmp_path, "learning-rate", "validation-loss", x=x)
    assert (rate.x, rate.title) == (title, "learning rate")
    assert points(rate) == {"base": [[(first, 1e-3), (last, 1e-3)]]}
    assert points(validation) == {"base": [[(last, 2.5)]]}


@pytest.mark.parametrize(("count", "unit", "last"), [(29, "seconds", 290), (30, "minutes", 5), (720, "hours", 2)])
def test_long_times_have_a_longer_unit(count: int, unit: str, last: float, tmp_path: Path) -> None:
    make_logged(tmp_path, losses=[1.0] * count)
    (plot,) = draw(tmp_path, "training-loss", x="time")
    assert plot.x == f"training time ({unit})"
    assert plot.series[0].lines[0][-1][0] == pytest.approx(last)


@pytest.mark.parametrize("name", CURVES)
def test_every_curve_is_drawn_from_the_log(name: str, tmp_path: Path) -> None:
    make_logged(tmp_path)
    (plot,) = draw(tmp_path, name)
    assert plot.from_zero
    assert plot.series[0].lines


def test_seeds_are_lines_of_one_series_if_recipes_are_equal(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_logged(tmp_path / "one", seed=seed)
    make_logged(tmp_path / "one", seed=3, train={"steps": 20})
    make_logged(tmp_path / "two")
    (plot,) = draw(tmp_path / "one", "training-loss")
    assert {name: len(lines) for name, lines in points(plot).items()} == {
        "base (train.steps: 100)": 2,
        "base (train.steps: 20)": 1,
    }
    runs = find_runs([tmp_path / "one/toy/base/seed-1", tmp_path / "two"])
    (plot,) = learning_curves(runs, ["training-loss"], note=pytest.fail)
    assert {*points(plot)} == {f"base ({tmp_path}/one/toy)", f"base ({tmp_path}/two/toy)"}


def test_runs_of_several_recipes_have_the_recipe_in_their_names(tmp_path: Path) -> None:
    make_logged(tmp_path, name="a/b")
    make_logged(tmp_path, name="c")
    assert [*points(draw(tmp_path, "training-loss")[0])] == ["a/b base", "c base"]


@pytest.mark.parametrize(("x", "cost"), [("time", 30), ("tokens", 3000), ("updates", 30), ("parameters", 1000)])
def test_scores_are_drawn_against_their_cost(x: str, cost: float, tmp_path: Path) -> None:
    for seed in (1, 2):
        make_logged(tmp_path, seed=seed, scores={"chrf": 50.0 + seed, "bleu": 20.0 + seed})
    (plot,) = draw(tmp_path, "score", x=x)
    assert (plot.title, plot.from_zero) == ("BLEU on test", False)
    assert points(plot) == {"base": [[(cost, 21)], [(cost, 22)]]}
    (plot,) = draw(tmp_path, "chrf", x=x)
    assert points(plot) == {"base": [[(cost, 51)], [(cost, 52)]]}


@pytest.mark.parametrize(
    ("text", "message"), [(None, "has no records yet"), ("", "has no records yet"), ("{x\n", ":1: not valid JSON")]
)
def test_run_without_a_readable_log_is_not_drawn(text: str | None, message: str, tmp_path: Path) -> None:
    log = make_logged(tmp_path, "bad").log.path
    log.unlink() if text is None else log.write_text(text)
    with pytest.raises(DataError, match=message):
        draw(tmp_path)
    make_logged(tmp_path)
    notes: list[str] = []
    (plot,) = draw(tmp_path, "training-loss", note=notes.append)
    assert [*points(plot)] == ["base"]
    (note,) = notes
    assert note.startswith(f"not drawn: {log}")
    assert message in note


def test_converted_runs_without_a_log_have_one_note(tmp_path: Path) -> None:
    for name in ("swapped", "transferred"):
        run = make_logged(tmp_path, name)
        run.log.path.unlink()
        run.update(finished={"reason": "converted"})
    make_logged(tmp_path)
    notes: list[str] = []
    draw(tmp_path, "training-loss", note=notes.append)
    (note,) = notes
    assert "swapped/seed-1, " in note
    assert note.endswith("converted, not trained, so there are no curves")


def test_scores_are_drawn_without_a_log(tmp_path: Path) -> None:
    make_logged(tmp_path, scores={"bleu": 20.0}).log.path.write_text("{x\n")
    assert points(draw(tmp_path, "score")[0]) == {"base": [[(30, 20)]]}


def test_run_without_a_curve_has_a_note(tmp_path: Path) -> None:
    make_logged(tmp_path)
    make_logged(tmp_path, "new", losses=[3.0], finished=False)
    notes: list[str] = []
    draw(tmp_path, note=notes.append)
    assert notes == ["new: no validation loss yet"]


def write_scores(run: Run, text: str) -> None:
    path = run.path / "scores.json"
    path.write_text(text)
    run.record(path.name, sha256_file(path))


def test_runs_that_are_not_comparable_have_notes(tmp_path: Path) -> None:
    make_logged(tmp_path, scores={"bleu": 20.0})
    other = make_logged(tmp_path, "other", scores={"bleu": 30.0})
    write_scores(other, (other.path / "scores.json").read_text().replace('"beam": 5', '"beam": 2'))
    other.update(hashes={"data": "another"})
    notes: list[str] = []
    draw(tmp_path, "training-loss", "score", note=notes.append)
    assert notes == [
        "BLEU on test was measured with different search, references or settings: not comparable",
        "the runs differ in data or tokenizer: their losses are not comparable",
    ]


@pytest.mark.parametrize(
    ("names", "x", "message"),
    [
        (["traning-loss"], None, "did you mean training-loss"),
        (["training-loss"], "parameters", "no axis parameters"),
        (["training-loss"], "length", "training-loss has no axis length"),
        (["rouge1"], None, "no run is scored by rouge1; run `attnkit eval"),
        (["score"], None, "no run is scored; run `attnkit eval"),
    ],
)
def test_curve_that_does_not_exist_raises(names: list[str], x: str | None, message: str, tmp_path: Path) -> None:
    make_logged(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        draw(tmp_path, *names, x=x)
    assert "\n" not in str(caught.value)


def test_scores_without_lengths_have_no_axis_length(tmp_path: Path) -> None:
    make_logged(tmp_path, scores={"bleu": 20.0})
    with pytest.raises(UsageError, match="no run is scored at several lengths; set eval.lengths"):
        draw(tmp_path, x="length")


def test_different_tasks_or_metrics_raise(tmp_path: Path) -> None:
    make_logged(tmp_path)
    other = make_logged(tmp_path, "other", train={"monitor": "bleu"})
    with pytest.raises(UsageError, match=r"^.*different metrics \(loss, bleu\).*$"):
        draw(tmp_path, "validation-metric")
    other.replace_recipe(other.recipe.model_copy(update={"task": "dialogue"}))
    with pytest.raises(UsageError, match=r"^.*different tasks .*: translation \(.*\) and dialogue \(.*\).*$"):
        draw(tmp_path)


def test_scores_by_length_are_a_line_of_each_run(tmp_path: Path) -> None:
    scores = {f"test.length-{n}": {"metrics": {"bleu": {"score": s}}} for n, s in ((512, 9.0), (64, 8.0), (128, 7.0))}
    for variant in ("base", "other"):
        write_scores(make_logged(tmp_path, variant), json.dumps(scores))
    (plot,) = draw(tmp_path, x="length")
    assert (plot.title, plot.x) == ("BLEU on test", "length of the text (tokens)")
    assert plot.log_x
    line = [(64.0, 8.0), (128.0, 7.0), (512.0, 9.0)]
    assert points(plot) == {"base": [line], "other": [line]}
    (plot,) = draw(tmp_path, "bleu", x="parameters")
    assert plot.title == "BLEU on test at length 512"
