"""What is drawn is what the logs and the scores say, and what cannot be drawn is one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.logged import make_logged

from attnkit.errors import AttnkitError, DataError, UsageError
from attnkit.runs import Run, find_runs
from attnkit.runs.curves import CURVES, Curves, learning_curves
from attnkit.storage.files import sha256_file


def drawn(root: Path, *names: str, x: str | None = None, **more: Any) -> list[Curves]:
    """Plots without notes."""
    return learning_curves(find_runs([root], unfinished=True), names, x, note=more.get("note", pytest.fail))


def points(plot: Curves) -> dict[str, list[list[tuple[float, float]]]]:
    return {one.name: [list(line) for line in one.lines] for one in plot.series}


def test_by_default_the_training_loss_and_what_is_validated_are_drawn(tmp_path: Path) -> None:
    make_logged(tmp_path, losses=(4, 3, 2, 1))
    make_logged(tmp_path, "half", finished=False, losses=(5, 4))
    training, validation = drawn(tmp_path)
    assert (training.title, training.x) == ("training loss", "updates")
    assert points(training) == {"base": [[(10, 4), (20, 3), (30, 2), (40, 1)]], "half": [[(10, 5), (20, 4)]]}
    assert validation.title == "validation loss"
    assert points(validation) == {"base": [[(20, 3.5), (40, 1.5)]], "half": [[(20, 4.5)]]}


def test_a_validated_metric_is_drawn_by_its_name(tmp_path: Path) -> None:
    make_logged(tmp_path, train={"monitor": "bleu"})
    assert [plot.title for plot in drawn(tmp_path)] == ["training loss", "validation BLEU"]


@pytest.mark.parametrize(
    ("x", "places", "title"),
    [
        ("updates", (10, 20), "updates"),
        ("tokens", (1000, 2000), "target tokens"),
        ("time", (10, 20), "training time (seconds)"),
    ],
)
def test_each_axis_is_what_the_log_says(x: str, places: tuple[float, float], title: str, tmp_path: Path) -> None:
    make_logged(tmp_path, losses=(3, 2))
    rate, validation = drawn(tmp_path, "learning-rate", "validation-loss", x=x)
    assert (rate.x, rate.title) == (title, "learning rate")
    assert points(rate) == {"base": [[(places[0], 1e-3), (places[1], 1e-3)]]}
    assert points(validation) == {"base": [[(places[1], 2.5)]]}


@pytest.mark.parametrize(("count", "unit", "last"), [(29, "seconds", 290), (30, "minutes", 5), (720, "hours", 2)])
def test_long_times_have_a_longer_unit(count: int, unit: str, last: float, tmp_path: Path) -> None:
    make_logged(tmp_path, losses=[1.0] * count)
    (plot,) = drawn(tmp_path, "training-loss", x="time")
    assert plot.x == f"training time ({unit})"
    assert plot.series[0].lines[0][-1][0] == pytest.approx(last)


@pytest.mark.parametrize("name", CURVES)
def test_every_curve_is_in_the_log(name: str, tmp_path: Path) -> None:
    make_logged(tmp_path)
    (plot,) = drawn(tmp_path, name)
    assert plot.from_zero
    assert plot.series[0].lines


def test_seeds_are_lines_of_one_series_only_where_recipes_are_equal(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_logged(tmp_path / "one", seed=seed)
    make_logged(tmp_path / "one", seed=3, train={"steps": 20})
    make_logged(tmp_path / "two")
    (plot,) = drawn(tmp_path / "one", "training-loss")
    assert {one.name: len(one.lines) for one in plot.series} == {
        "base (train.steps: 100)": 2,
        "base (train.steps: 20)": 1,
    }
    runs = find_runs([tmp_path / "one/toy/base/seed-1", tmp_path / "two"])
    (plot,) = learning_curves(runs, ["training-loss"], note=pytest.fail)
    assert {one.name for one in plot.series} == {f"base ({tmp_path}/one/toy)", f"base ({tmp_path}/two/toy)"}


def test_runs_of_several_recipes_are_told_apart(tmp_path: Path) -> None:
    make_logged(tmp_path, name="a/b")
    make_logged(tmp_path, name="c")
    (plot,) = drawn(tmp_path, "training-loss")
    assert [one.name for one in plot.series] == ["a/b base", "c base"]


@pytest.mark.parametrize(("x", "at"), [("time", 30), ("tokens", 3000), ("updates", 30), ("parameters", 1000)])
def test_scores_are_drawn_against_their_cost(x: str, at: float, tmp_path: Path) -> None:
    for seed in (1, 2):
        make_logged(tmp_path, seed=seed, scores={"chrf": 50.0 + seed, "bleu": 20.0 + seed})
    (plot,) = drawn(tmp_path, "score", x=x)
    assert (plot.title, plot.from_zero) == ("BLEU on test", False)
    assert points(plot) == {"base": [[(at, 21)], [(at, 22)]]}
    (plot,) = drawn(tmp_path, "chrf", x=x)
    assert points(plot) == {"base": [[(at, 51)], [(at, 52)]]}


def _broken(run: Run, text: str | None) -> None:
    run.log.path.unlink()
    if text is not None:
        run.log.path.write_text(text)


@pytest.mark.parametrize(
    ("text", "said"), [(None, "has no records yet"), ("", "has no records yet"), ("{x\n", ":1: not valid JSON")]
)
def test_runs_without_a_readable_log_are_named_and_left_out(text: str | None, said: str, tmp_path: Path) -> None:
    _broken(make_logged(tmp_path, "bad"), text)
    with pytest.raises(DataError, match=said):
        drawn(tmp_path)
    make_logged(tmp_path)
    notes: list[str] = []
    found = drawn(tmp_path, "training-loss", note=notes.append)
    assert [one.name for one in found[0].series] == ["base"]
    assert len(notes) == 1
    assert notes[0].startswith(f"not drawn: {tmp_path}/toy/bad/seed-1/metrics.jsonl")
    assert said in notes[0]


def test_converted_runs_without_a_log_are_named_in_one_note(tmp_path: Path) -> None:
    for name in ("swapped", "transferred"):
        run = make_logged(tmp_path, name)
        _broken(run, None)
        run.update(finished={"reason": "converted"})
    make_logged(tmp_path)
    notes: list[str] = []
    drawn(tmp_path, "training-loss", note=notes.append)
    (note,) = notes
    assert "swapped/seed-1, " in note
    assert note.endswith("converted, not trained, so there are no curves")


def test_scores_need_no_log(tmp_path: Path) -> None:
    _broken(make_logged(tmp_path, scores={"bleu": 20.0}), "{x\n")
    assert points(drawn(tmp_path, "score")[0]) == {"base": [[(30, 20)]]}


def test_a_run_without_the_curve_is_named(tmp_path: Path) -> None:
    make_logged(tmp_path)
    make_logged(tmp_path, "new", losses=[3.0], finished=False)
    notes: list[str] = []
    drawn(tmp_path, note=notes.append)
    assert notes == ["new: no validation loss yet"]


def test_what_is_not_comparable_is_said(tmp_path: Path) -> None:
    make_logged(tmp_path, scores={"bleu": 20.0})
    other = make_logged(tmp_path, "other", scores={"bleu": 30.0})
    text = (other.path / "scores.json").read_text().replace('"beam": 5', '"beam": 2')
    (other.path / "scores.json").write_text(text)
    other.record("scores.json", sha256_file(other.path / "scores.json"))
    other.update(hashes={"data": "another"})
    notes: list[str] = []
    drawn(tmp_path, "training-loss", "score", note=notes.append)
    assert notes == [
        "BLEU on test was measured with different search, references or settings: not comparable",
        "the runs differ in data or tokenizer: their losses are not comparable",
    ]


def _different_tasks(root: Path) -> None:
    run = make_logged(root, "other")
    run.replace_recipe(run.recipe.model_copy(update={"task": "dialogue"}))


def _different_monitors(root: Path) -> None:
    make_logged(root, "other", train={"monitor": "bleu"})


@pytest.mark.parametrize(
    ("prepare", "names", "x", "said"),
    [
        (_different_tasks, (), None, r"different tasks .*: translation \(.*\) and dialogue \(.*\)"),
        (_different_monitors, ("validation-metric",), None, r"different metrics \(loss, bleu\)"),
        (None, ("traning-loss",), None, "did you mean training-loss"),
        (None, ("training-loss",), "parameters", "no axis parameters"),
        (None, ("rouge1",), None, "no run is scored by rouge1; run `attnkit eval"),
        (None, ("score",), None, "no run is scored; run `attnkit eval"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    prepare: Any, names: tuple[str, ...], x: str | None, said: str, tmp_path: Path
) -> None:
    make_logged(tmp_path)
    if prepare is not None:
        prepare(tmp_path)
    with pytest.raises(UsageError, match=said) as caught:
        drawn(tmp_path, *names, x=x)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, AttnkitError)


def test_scores_by_length_are_a_line_of_each_run(tmp_path: Path) -> None:
    for variant in ("base", "other"):
        run = make_logged(tmp_path, variant)
        scores = {
            f"test.length-{n}": {"metrics": {"bleu": {"score": float(9 - place)}}}
            for place, n in enumerate((512, 64, 128))
        }
        (run.path / "scores.json").write_text(json.dumps(scores))
        run.record("scores.json", sha256_file(run.path / "scores.json"))
    (plot,) = drawn(tmp_path, x="length")
    assert (plot.title, plot.x) == ("BLEU on test", "length of the text (tokens)")
    assert plot.log_x
    line = ((64.0, 8.0), (128.0, 7.0), (512.0, 9.0))
    assert [one.lines for one in plot.series] == [(line,), (line,)]
    (plot,) = drawn(tmp_path, "bleu", x="parameters")
    assert plot.title == "BLEU on test at length 512"
    with pytest.raises(UsageError, match="training-loss has no axis length"):
        drawn(tmp_path, "training-loss", x="length")


def test_runs_without_lengths_say_how_they_get_some(tmp_path: Path) -> None:
    make_logged(tmp_path, scores={"bleu": 20.0})
    with pytest.raises(UsageError, match="no run is scored at several lengths; set eval.lengths"):
        drawn(tmp_path, x="length")
