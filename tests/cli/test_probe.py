"""`attnkit probe`: the tables of its studies, and what they refuse."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import Cli, Result
from helpers.map_recording import model_config, save_run
from helpers.trained import make_run

from attnkit.runs import Run


@pytest.fixture
def probe(run: Run, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`attnkit probe STUDY WORDS` in an empty folder, with a link to a run: `run`."""
    monkeypatch.delenv("COLUMNS")
    Path("run").symlink_to(run.path)

    def call(study: str, *words: str) -> Result:
        split = ("--split", "test") if "run" in words and "--split" not in words else ()
        return cli("probe", study, *words, *split)

    return call


def rows(done: Result) -> list[dict[str, Any]]:
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)["rows"]
    return found


def test_each_head_has_a_row_below_the_whole_model(probe: Any) -> None:
    found = rows(probe("heads", "run", "--format", "json"))
    assert [(row["kind"], row["layer"], row["head"]) for row in found] == [
        (None, None, None),
        *[(kind, 0, head) for kind in ("encoder", "decoder", "cross") for head in (0, 1)],
    ]
    for row in found[1:]:
        assert row["perplexity_loss"] == pytest.approx(row["perplexity"] - found[0]["perplexity"])


def test_noise_of_a_run_has_a_row_for_each_part_and_sigma(probe: Any) -> None:
    words = ("--by", "layer", "--sigma", "2,0.5,0.5", "--seeds", "2", "--format", "json")
    found = rows(probe("noise", "run", *words))
    assert [(row["kind"], row["layer"], row["sigma"]) for row in found] == [
        (None, None, 0.0),
        *[(kind, 0, sigma) for kind in ("encoder", "decoder", "cross") for sigma in (0.5, 2.0)],
    ]
    for row in found[1:]:
        assert row["perplexity_loss"] == row["perplexity"] - found[0]["perplexity"]
        assert row["perplexity_sd"] > 0


def test_one_draw_of_the_noise_has_no_spread(probe: Any) -> None:
    words = ("--seeds", "1", "--sigma", "1", "--metrics", "accuracy,bleu", "--kind", "cross")
    found = rows(probe("noise", "run", *words, "--format", "json"))
    assert found[1]["accuracy_sd"] is None
    assert "chosen layers" in probe("noise", "run", *words).out
    assert found[1]["bleu_loss"] == found[0]["bleu"] - found[1]["bleu"]
    assert "over" not in probe("noise", "run", *words).out.split("rows:")[1].split("\n\n")[0]


def test_entropy_has_a_row_for_each_head_and_stage(probe: Any) -> None:
    found = rows(probe("entropy", "run", "--format", "json"))
    places = [(row["kind"], row["layer"], row["head"], row["stage"]) for row in found]
    kinds = ("encoder", "decoder", "cross")
    assert places == [(k, 0, head, s) for k in kinds for head in (0, 1) for s in ("start", "end")]
    for row in found:
        assert (row["step"] == 0) == (row["stage"] == "start")
        assert 0 < row["share"] <= 1
        assert 0 < row["gradient"] < 1


def test_entropy_of_a_mechanism_without_softmax_says_why_there_is_none(probe: Any, tmp_path: Path) -> None:
    other = save_run(tmp_path / "other", model_config("nystrom", "encoder", {"landmarks": 2}))
    (other.path / "none.jsonl").write_text('{"source": "one red dog and", "target": "a"}\n')
    path = str(other.path)
    done = probe("entropy", path, "--split", "test", "--kind", "encoder")
    assert done.code == 0, done.err
    assert "a map without a softmax has no gradient" in done.out
    assert "rows are not distributions" in done.out


def test_rank_of_runs_names_them_where_there_are_several(probe: Any, run: Run, tmp_path: Path) -> None:
    make_run(tmp_path, "other")
    make_run(tmp_path, "other", seed=2)
    done = probe("rank", str(tmp_path / "runs"), "--split", "test", "--format", "json")
    assert {row["run"] for row in rows(done)} == {"toy/other/seed-1", "toy/other/seed-2"}
    alone = rows(probe("rank", "run", "--format", "json"))
    assert [(row["attention"], row["layer"]) for row in alone] == [("encoder", 0), ("decoder", 0), ("cross", 0)]
    for row in alone:
        assert row["lowest"] <= row["effective_rank"] <= row["highest"] <= row["numerical_rank"] + 1


ALL = [("noise", "run", "--sigma", "1", "--seeds", "1"), ("entropy", "run"), ("rank", "run")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_study_comes_in_every_format(
    probe: Any, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rows(probe(*words, "--format", "json"))
    done = probe(*words, "--format", "csv")
    assert len(list(csv.DictReader(io.StringIO(done.out)))) == len(found)
    assert probe(*words, "--format", "markdown").out.count("\n| ") == len(found) + 2
    assert r"\midrule" in probe(*words, "--format", "latex").out
    for width in (60, 80, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = probe(*words).out.splitlines()
        assert max(map(len, shown)) <= width


def test_a_mechanism_without_scores_is_refused_before_any_scoring(probe: Any, tmp_path: Path) -> None:
    other = save_run(tmp_path / "other", model_config("linear", "encoder", shape="encoder-decoder"))
    (other.path / "none.jsonl").write_text('{"source": "one", "target": "a"}\n')
    done = probe("noise", str(other.path), "--split", "test")
    assert done.code == 2
    assert done.error == (
        "attnkit: error: encoder attention is linear, which has no attention scores to add noise to; "
        "choose another --kind or --layer"
    )
    assert len(done.err.splitlines()) == 1
