"""Every shipped recipe trains, scores and prints its table, scaled down; each kind of row once."""

import re
from functools import cache
from pathlib import Path

import pytest
from helpers.cli import run_cli

from attnkit.data.synthetic import translation
from attnkit.experiment.cost import parameters
from attnkit.recipe import load, shipped

SMALL = [
    "data.valid_rows=8",
    "train.steps=1",
    "train.seeds=[1]",
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
QUICK = ("quickstart", "long-context/passages", "translation/baselines")
"""Recipes that are trained by a plain `pytest`, too."""


@cache
def kinds_first_seen() -> dict[str, list[str]]:
    """Recipe -> its variants of a task, objective, type or mechanism that none before has."""
    seen, found = set[object](), dict[str, list[str]]()
    for name in shipped():
        variants = load(name).variants
        found[name] = [*variants][-1:] if name in QUICK else []
        for variant, recipe in variants.items():
            attention = recipe.model.attention
            layers = [getattr(attention, role) for role in ("encoder", "decoder", "cross")]
            words = {one.name for one in layers if one} or {""}
            kind = (recipe.task, recipe.model.type)
            kinds = {(recipe.train.objective, *kind)} | {(*kind, word) for word in words}
            if kinds - seen and variant not in found[name]:
                found[name].append(variant)
            seen |= kinds
    return found


def stand_in(folder: Path) -> None:
    """Generated pairs in place of a corpus that may not be copied."""
    folder.mkdir()
    for split in ("train", "valid", "test"):
        pairs = [f"{row.source}\t{row.target}" for row in translation.rows(split, 300, 1)]
        (folder / f"{split}.tsv").write_text("\n".join(("de\ten", *pairs)), encoding="utf-8")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in shipped()]
)
def test_a_shipped_recipe_trains_and_prints_its_table(
    name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    file = load(name)
    chosen = kinds_first_seen()[name]
    if not chosen:
        pytest.skip("other recipes have its tasks, types and mechanisms")
    first = next(iter(file.variants.values()))
    corpus, asked = str(first.data.corpus), first.task == "question-answering"
    more = ["data.size=300" if corpus.startswith("toy-") else "data.rows=300"]
    if not corpus.startswith("toy-"):
        more.append("model.layers=2")
        if name == "published/iwslt14":
            stand_in(tmp_path / "iwslt14")
        else:
            request.getfixturevalue("corpora")
    # small tables, quickly saved
    if first.task != "tagging":  # whose words all need a piece
        more.append("tokenizer.size=500")
    types = {recipe.model.type for recipe in file.variants.values()}
    more.append("model.width=32")
    if "recurrent" not in types:  # some have a width of their own
        more.append("model.heads=4")
    if types == {"transformer"}:
        more.append("model.ff=32")
    words = [word for variant in chosen for word in ("--variant", variant)]
    more += FEW if asked else []
    longest = 16 if first.task == "recall" else 96
    more += [f"eval.lengths=[{longest // 2}, {longest}]"] if first.eval.lengths else []
    if first.task == "tagging":
        more.append("train.batch_tokens=1100")
    if first.task == "classification":
        more.append("train.monitor=label-accuracy")
    if origin := first.train.init:
        made = run_cli(capsys, "train", origin, *SMALL, *more[:-1], *words)
        assert made.code == 0, made.err
    done = run_cli(capsys, "train", name, *SMALL, *more, *words)
    assert done.code == 0, done.err
    for variant in chosen:
        assert ("entropy" if asked else variant) in done.out
        folder = tmp_path / "runs" / name / variant / "seed-1"
        assert (folder / "scores.json").is_file()
        end = ".mean.3" if asked else f".length-{longest}" if first.eval.lengths else ""
        if first.task != "tagging":  # which writes no text
            assert (folder / "outputs" / f"valid{end}.hyp.txt").is_file()


def test_a_shipped_recipe_opens_with_its_command_score_time_and_machine() -> None:
    for name, path in shipped().items():
        lines = path.read_text(encoding="utf-8").split("\n")
        comments = [line for line in lines if line.startswith("#")]
        assert comments[0].startswith("# attnkit train "), name
        assert any("min" in line for line in comments), name
        assert any("cores" in line for line in comments), name


def test_parameters_in_millions_are_those_in_the_header_and_differ_as_published() -> None:
    file, totals = load("translation/wmt14-en-de"), {}
    header = file.path.read_text(encoding="utf-8").partition("\ntask:")[0]
    for name, recipe in file.variants.items():
        size = recipe.tokenizer.size
        totals[name] = parameters(recipe, (size, size)).total / 1e6
        if name in header:
            assert re.search(rf"{re.escape(name)} \d+ / {totals[name]:.1f}\b", header), name
    published = {"fixed-random": 61, "random": 67, "dense": 62, "random+vanilla": 73}
    for name, total in published.items():
        assert abs(totals[name] - totals["vanilla"] - (total - 67)) < 1, name
