"""Tests that shipped recipes, scaled down, train, score and print their tables."""

import re
from functools import cache
from pathlib import Path

import pytest
from helpers.cli import run_cli

from attnkit.data.synthetic import translation
from attnkit.experiment.cost import parameters
from attnkit.recipe import load, shipped

SMALL = (
    "data.valid_rows=8 train.steps=1 train.seeds=[1] train.batch_tokens=400 train.valid_every=1 train.monitor=loss "
    "train.precision=fp32 search.method=greedy search.max_length=3 eval.bootstrap=10 eval.splits=[valid]"
)
QUICK = ("quickstart", "long-context/passages", "translation/baselines")
"""Recipes that are trained without `-m slow` too."""


@cache
def variants_to_train() -> dict[str, list[str]]:
    """Return for each recipe the variants with a task, objective, model type or mechanism that none before has."""
    seen, chosen = set[object](), dict[str, list[str]]()
    for name in shipped():
        variants = load(name).variants
        chosen[name] = [*variants][-1:] if name in QUICK else []
        for variant, recipe in variants.items():
            attention = recipe.model.attention
            layers = [getattr(attention, role) for role in ("encoder", "decoder", "cross")]
            words = {layer.name for layer in layers if layer} or {""}
            kind = (recipe.task, recipe.model.type)
            kinds = {(recipe.train.objective, *kind)} | {(*kind, word) for word in words}
            if kinds - seen and variant not in chosen[name]:
                chosen[name].append(variant)
            seen |= kinds
    return chosen


def write_stand_in(folder: Path) -> None:
    """Write generated pairs in place of a corpus that may not be copied."""
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
    variants = load(name).variants
    chosen = variants_to_train()[name]
    if not chosen:
        pytest.skip("other recipes have its tasks, types and mechanisms")
    first = next(iter(variants.values()))
    types = {recipe.model.type for recipe in variants.values()}
    is_toy, is_questions = str(first.data.corpus).startswith("toy-"), first.task == "question-answering"
    more = ["data.size=300" if is_toy else "data.rows=300", "model.width=32"]
    if not is_toy:
        more.append("model.layers=2")
        if name == "published/iwslt14":
            write_stand_in(tmp_path / "iwslt14")
        else:
            request.getfixturevalue("corpora")
    if first.task != "tagging":  # whose words all need a piece
        more.append("tokenizer.size=500")
    if "recurrent" not in types:  # which may have a width of their own
        more.append("model.heads=4")
    if types == {"transformer"}:
        more.append("model.ff=32")
    words = [*SMALL.split(), *more]
    if is_questions:
        words += ["contexts.counts=[1, 3]", "contexts.rows=4"]
    longest = 16 if first.task == "recall" else 96
    if first.eval.lengths:
        words.append(f"eval.lengths=[{longest // 2}, {longest}]")
    if first.task == "tagging":
        words.append("train.batch_tokens=1100")
    for variant in chosen:
        words += ["--variant", variant]
    if first.train.init:
        done = run_cli(capsys, "train", first.train.init, *words)
        assert done.code == 0, done.err
    if first.task == "classification":
        words.append("train.monitor=label-accuracy")
    done = run_cli(capsys, "train", name, *words)
    assert done.code == 0, done.err
    for variant in chosen:
        assert ("entropy" if is_questions else variant) in done.out
        folder = tmp_path / "runs" / name / variant / "seed-1"
        assert (folder / "scores.json").is_file()
        end = ".mean.3" if is_questions else f".length-{longest}" if first.eval.lengths else ""
        if first.task != "tagging":  # which writes no text
            assert (folder / "outputs" / f"valid{end}.hyp.txt").is_file()


@pytest.mark.parametrize("path", shipped().values(), ids=[*shipped()])
def test_a_shipped_recipe_begins_with_its_command_score_time_and_machine(path: Path) -> None:
    comments = [line for line in path.read_text(encoding="utf-8").split("\n") if line.startswith("#")]
    assert comments[0].startswith("# attnkit train ")
    assert any("min" in line for line in comments)
    assert any("cores" in line for line in comments)


def test_parameter_counts_are_those_of_the_header_and_differ_as_published() -> None:
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
