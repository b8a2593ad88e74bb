"""Tests of evaluation by length (eval.lengths): language models on longer texts, recall of more pairs."""

import csv
import json
import random
from pathlib import Path

import pytest
from helpers.cli import Cli

RECIPE = """
task: language-modeling
data: {train: text.txt, valid: text.txt, test: text.txt, max_length: 8}
tokenizer: {type: word, size: 60}
model: {width: 16, heads: 2, ff: 32, layers: 1}
train: {objective: OBJECTIVE, steps: 4, batch_tokens: 200, valid_every: 0, precision: fp32,
        warmup: 2}
eval: {metrics: [perplexity, accuracy], bootstrap: 20, lengths: [8, 32]}
variants:
  plain: {}
  scaled: {model.attention: {name: scaled-dot, entropy_scale: {base: 8}}}
"""
RECALL = """
task: recall
data: {corpus: toy-associative-recall, size: 200, max_length: 64}
tokenizer: {type: word, size: 200}
model: {shape: decoder, width: 16, heads: 2, ff: 32, layers: 1, positions: none}
train: {steps: 4, batch_tokens: 200, valid_every: 0, precision: fp32, warmup: 2}
eval: {bootstrap: 20, lengths: [4, 16]}
variants:
  plain: {}
  linear: {model.attention: linear}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """A folder with texts and recipes: of both language-modeling objectives, and of recall."""
    draw, words = random.Random(1), ["the", "a", "cat", "dog", "sees", "hears", "old", "new"]
    lines = [" ".join(draw.choices(words, k=8)) for _ in range(30)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines) + "\n")
    (tmp_path / "recall.yaml").write_text(RECALL)
    (tmp_path / "short.txt").write_text("the old cat sees a dog\n")
    for objective in ("causal", "masked"):
        (tmp_path / f"{objective}.yaml").write_text(RECIPE.replace("OBJECTIVE", objective))
    return tmp_path


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_table_has_a_column_for_each_length(objective: str, cli: Cli) -> None:
    done = cli("train", f"{objective}.yaml")
    title, head, _, *rows = done.out.splitlines()
    assert title == f"{objective}: test, by length of the text in tokens"
    assert head.split() == ["metric", "variant", "8", "32"]
    assert [row.split()[-3] for row in rows[:2]] == ["plain", "scaled"]
    assert ("word perplexity" in done.out) == (objective == "causal")
    use = "visualize-attn" if objective == "masked" else "generate"
    assert f"use one model:  attnkit {use} runs/{objective}/plain/seed-1" in done.err
    table = cli("eval", "runs", "--format", "csv").out
    found = [(row["variant"], row["length"]) for row in csv.DictReader(table.splitlines())]
    assert found == [("plain", "8"), ("plain", "32"), ("scaled", "8"), ("scaled", "32")]
    scores = verified_scores(cli)
    assert {row["state"] for row in scores} == {"same"}
    assert {row["split"] for row in scores} == {"test.length-8", "test.length-32"}
    assert "length of the text (tokens)" in cli("plot", "runs", "--x", "length").out
    if objective == "masked":
        done = cli("generate", "runs/masked/plain/seed-1", stdin="the cat\n", code=2)
        assert done.out == ""
        assert "the model predicts masked tokens and writes no text" in done.err
        for study in ("rank", "entropy"):
            cli("probe", study, "runs/masked/plain/seed-1")


def verified_scores(cli: Cli) -> list[dict[str, str]]:
    """Return the scores that `attnkit verify runs` has checked."""
    rows = json.loads(cli("verify", "runs", "--format", "json").out)["rows"]
    return [row for row in rows if row["kind"] == "score"]


def test_text_shorter_than_a_window_is_an_error_before_training(folder: Path, cli: Cli) -> None:
    done = cli("train", "causal.yaml", "data.test=short.txt", code=65)
    assert "test has 7 tokens, fewer than the maximum of eval.lengths (32)" in done.err
    assert not [*folder.glob("runs/*/*/*/metrics.jsonl")]


def test_generated_rows_have_the_lengths_of_the_recipe(folder: Path, cli: Cli) -> None:
    done = cli("train", "recall.yaml")
    title, head, _, *rows = done.out.splitlines()
    assert title == "recall: test, by length in pairs"
    assert head.split() == ["metric", "variant", "4", "16"]
    assert [row.split()[-3] for row in rows[:2]] == ["plain", "linear"]
    assert "each length: rows with this number of pairs; trained on 2 to 8" in done.out
    assert "difference: to plain at the same length" in done.out
    assert "paired bootstrap over rows" in done.out
    scores = json.loads((folder / "runs/recall/plain/seed-1/scores.json").read_text())
    assert [*scores] == ["test.length-4", "test.length-16"]
    assert all(split["sentences"] == 200 for split in scores.values())
    assert [row["state"] for row in verified_scores(cli)] == ["same"] * 4
    assert "length of the text (pairs)" in cli("plot", "runs", "--x", "length").out
    plot = cli("plot", "runs", "--x", "state").out
    assert "state of the decoder (bytes)" in plot
    assert "front" in plot


def test_rows_longer_than_the_maximum_are_an_error_before_training(folder: Path, cli: Cli) -> None:
    words = ("train", "recall.yaml", "eval.lengths=[4, 64]")
    error = cli(*words, code=65).error
    assert "eval.lengths: a row of length 64 has 195 tokens, end token included; raise data.max_length (64)" in error
    assert not (folder / "runs/recall").exists()
    assert cli(*words, "--dry-run", code=65).error == error
