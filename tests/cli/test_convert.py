"""`attnkit convert`: its table, the runs that it makes, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.called import Done, called
from helpers.convertible import make_run

QUICK = ("--transfer", "2", "--tune", "1", "--device", "cpu")
STAGES = ["base", *(f"base-linear-{stage}" for stage in ("swapped", "transferred", "tuned"))]


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """`attnkit WORDS` in a folder with a run in runs/small/base/seed-1."""
    make_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str, run: str = "runs/small/base/seed-1") -> Done:
        return called(capsys, "convert", run, *words)

    return call


def test_the_table_compares_each_stage_with_the_run_before(convert: Any, capsys: Any) -> None:
    done = convert("--attention", "linear", *QUICK)
    assert done.code == 0, done.err
    rows = [line.split()[0] for line in done.out.splitlines() if line.startswith("base")]
    assert rows == STAGES
    assert "difference: to base;" in done.out
    assert " kept, 0 new, 0 left out" in done.err
    assert "mean squared error of the layers" in done.err
    last = "runs/small/base-linear-tuned/seed-1"
    assert f"attnkit generate {last} < input.txt" in done.err
    for words in (("generate", last), ("visualize-attn", last, "red dog"), ("eval", last)):
        used = called(capsys, *words, stdin="red dog\n")
        assert used.code == 0, used.err
        assert used.out
    listed = called(capsys, "runs", "list", "runs", "--format", "json")
    assert {row["variant"] for row in json.loads(listed.out)["rows"]} == {*STAGES}


@pytest.mark.slow
def test_the_command_can_be_repeated_also_where_the_runs_have_moved(convert: Any) -> None:
    """The fine-tuned run names the one before it relative to itself."""
    assert convert("--attention", "linear", *QUICK).code == 0
    recipe = Path("runs/small/base-linear-tuned/seed-1/recipe.yaml")
    assert "init: ../../base-linear-transferred/seed-1\n" in recipe.read_text()
    Path("runs").rename("moved")
    again = convert(
        "--attention", "linear", *QUICK, "--out", "moved", run="moved/small/base/seed-1"
    )
    assert again.code == 0
    assert again.err.count("skipped: already") == 3
    assert "recipe changed" not in again.err


def test_stages_can_be_left_out(convert: Any) -> None:
    done = convert("--attention", "{encoder: nystrom}", "--transfer", "0", "--tune", "0", "-q")
    assert done.code == 0
    assert done.err == ""
    found = sorted(path.name for path in Path("runs/small").iterdir())
    assert found == ["base", "base-nystrom-swapped"]


REFUSED = [
    ([], 2, "missing option '--attention'"),
    (["--attention", "liner"], 78, "did you mean linear?"),
    (["--attention", "local"], 78, "local cannot be cross attention"),
    (["--attention", "{decoder: linformer}"], 78, "cannot be decoder attention"),
    (["--attention", "{encoder: {name: local, wndow: 3}}"], 78, "did you mean window?"),
    (["--attention", "{encoder: {name: local, window: -1}}"], 78, "window"),
    (["--attention", "linear,performer"], 2, "give one mechanism, and each key one value"),
    (["--attention", "linear", "train.lr=1e-3,1e-4"], 2, "each key one value"),
    (["--attention", "linear", "model.width=32"], 2, "model.width: convert keeps that of the run"),
    (["--attention", "linear", "train.seeds=[2]"], 2, "train.seeds: convert keeps that of the run"),
    (["--attention", "linear", "train.steps=9"], 2, "train.steps: give --tune 9 instead"),
    (["--attention", "linear", "train.lr=fast"], 78, "train.lr: must be a number"),
    (["--attention", "linear", "--transfer", "-1"], 2, "'--transfer'"),
    (["--attention", "linear", "--data-dir", "nowhere"], 66, "nowhere"),
]


@pytest.mark.parametrize(("words", "code", "text"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(
    words: list[str], code: int, text: str, convert: Any
) -> None:
    done = convert(*words, "--tune", "1") if "-1" not in words else convert(*words)
    assert done.code == code, done.err
    assert text in done.refusal
    assert done.err.count("error:") == 1
    assert [path.name for path in Path("runs/small").iterdir()] == ["base"]


def test_a_run_that_is_none_or_has_no_end_is_refused(convert: Any, tmp_path: Path) -> None:
    assert convert("--attention", "linear", run="nowhere").code == 66
    (tmp_path / "runs/small/base/seed-1/model.safetensors").unlink()
    done = convert("--attention", "linear")
    assert done.code == 66
    assert "training is not finished" in done.refusal
