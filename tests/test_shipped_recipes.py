"""Every shipped recipe trains, scores and prints its table, scaled down by overrides."""

from pathlib import Path

import pytest
from helpers.shell import attnkit_in

from attnkit.recipe import load, shipped

SMALL = [
    "data.valid_rows=20",
    "train.steps=2",
    "train.batch_tokens=400",
    "train.valid_every=1",
    "train.monitor=loss",
    "train.precision=fp32",
    "search.method=greedy",
    "search.max_length=3",
    "eval.bootstrap=10",
    "eval.splits=[valid]",
]
FEW = ["contexts.counts=[1, 3]", "contexts.rows=4"]


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_trains_and_prints_its_table(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = load(name)
    embedded = str(next(iter(file.variants.values())).data.corpus).startswith("toy-")
    if not embedded:
        request.getfixturevalue("corpora")
    asked = next(iter(file.variants.values())).task == "question-answering"
    rows = "data.size=300" if embedded else "data.rows=300"
    # a short form has the variants of the recipe that it shortens, which is tested too
    chosen = list(file.variants)[-1:] if name.endswith("-quick") else list(file.variants)
    words = [word for variant in chosen for word in ("--variant", variant)]
    few = FEW if asked else []
    done = attnkit_in(tmp_path)("train", name, rows, *SMALL, *few, *words, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    for variant in chosen:
        assert ("entropy" if asked else variant) in done.stdout
        folder = tmp_path / "runs" / name / variant / "seed-1"
        assert (folder / "scores.json").is_file()
        name_of = "valid.mean.3.hyp.txt" if asked else "valid.hyp.txt"
        assert (folder / "outputs" / name_of).is_file()


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_opens_with_its_command_score_time_and_machine(name: str) -> None:
    text = shipped()[name].read_text(encoding="utf-8")
    comments = [line for line in text.split("\n") if line.startswith("#")]
    assert comments[0].startswith("# attnkit train ")
    assert any("minutes" in line or "min" in line for line in comments)
    assert any("cores" in line for line in comments)
