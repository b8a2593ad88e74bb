"""Tests of `attnkit probe`: the tables of the studies in every format, and errors."""

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
    """Run `attnkit probe STUDY WORDS --split test` in a folder with a link to a run, `run`."""
    monkeypatch.delenv("COLUMNS")
    Path("run").symlink_to(run.path)

    def call(study: str, *words: str, code: int = 0) -> Result:
        split = () if "--split" in words else ("--split", "test")
        return cli("probe", study, *words, *split, code=code)

    return call


def rows(done: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.out)["rows"]
    return found


def test_heads_table_has_a_row_for_the_model_and_each_head(probe: Any) -> None:
    model, *heads = rows(probe("heads", "run", "--format", "json"))
    assert [(row["kind"], row["layer"], row["head"]) for row in (model, *heads)] == [
        (None, None, None),
        *[(kind, 0, head) for kind in ("encoder", "decoder", "cross") for head in (0, 1)],
    ]
    for row in heads:
        assert row["perplexity_loss"] == pytest.approx(row["perplexity"] - model["perplexity"])


def test_noise_table_has_a_row_for_each_layer_and_sigma(probe: Any) -> None:
    words = ("--by", "layer", "--sigma", "2,0.5,0.5", "--seeds", "2", "--format", "json")
    plain, *noisy = rows(probe("noise", "run", *words))
    assert [(row["kind"], row["layer"], row["sigma"]) for row in (plain, *noisy)] == [
        (None, None, 0.0),
        *[(kind, 0, sigma) for kind in ("encoder", "decoder", "cross") for sigma in (0.5, 2.0)],
    ]
    for row in noisy:
        assert row["perplexity_loss"] == row["perplexity"] - plain["perplexity"]
        assert row["perplexity_sd"] > 0


def test_one_seed_of_noise_has_no_standard_deviation(probe: Any) -> None:
    words = ("--seeds", "1", "--sigma", "1", "--metrics", "accuracy,bleu", "--kind", "cross")
    plain, noisy = rows(probe("noise", "run", *words, "--format", "json"))
    assert noisy["accuracy_sd"] is None
    assert noisy["bleu_loss"] == plain["bleu"] - noisy["bleu"]
    table = probe("noise", "run", *words).out
    assert "chosen layers" in table
    assert "over" not in table.split("rows:")[1].split("\n\n")[0]


def test_entropy_table_has_a_row_for_each_head_and_stage(probe: Any) -> None:
    found = rows(probe("entropy", "run", "--format", "json"))
    places = [(row["kind"], row["layer"], row["head"], row["stage"]) for row in found]
    kinds = ("encoder", "decoder", "cross")
    assert places == [(k, 0, head, s) for k in kinds for head in (0, 1) for s in ("start", "end")]
    for row in found:
        assert (row["step"] == 0) == (row["stage"] == "start")
        assert 0 < row["share"] <= 1
        assert 0 < row["gradient"] < 1


def test_entropy_of_a_mechanism_without_softmax_has_a_note(probe: Any, tmp_path: Path) -> None:
    other = save_run(tmp_path / "other", model_config("nystrom", "encoder", {"landmarks": 2}))
    (other.path / "none.jsonl").write_text('{"source": "one red dog and", "target": "a"}\n')
    table = probe("entropy", str(other.path), "--kind", "encoder").out
    assert "a map without a softmax has no gradient" in table
    assert "rows are not distributions" in table


def test_rank_table_names_each_of_several_runs(probe: Any, tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path, "other", seed=seed)
    found = rows(probe("rank", "runs", "--format", "json"))
    assert {row["run"] for row in found} == {"toy/other/seed-1", "toy/other/seed-2"}
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
    assert len(list(csv.DictReader(io.StringIO(probe(*words, "--format", "csv").out)))) == len(found)
    assert probe(*words, "--format", "markdown").out.count("\n| ") == len(found) + 2
    assert r"\midrule" in probe(*words, "--format", "latex").out
    for width in (60, 80, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        assert max(map(len, probe(*words).out.splitlines())) <= width


def test_noise_of_a_mechanism_without_scores_is_an_error_before_scoring(probe: Any, tmp_path: Path) -> None:
    other = save_run(tmp_path / "other", model_config("linear", "encoder", shape="encoder-decoder"))
    (other.path / "none.jsonl").write_text('{"source": "one", "target": "a"}\n')
    assert probe("noise", str(other.path), code=2).err == (
        "attnkit: error: encoder attention is linear, which has no attention scores to add noise to; "
        "choose another --kind or --layer\n"
    )
