"""Training short and testing long as a user does it: causal and masked language models."""

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
    """Text, and a recipe for each objective."""
    draw, words = random.Random(1), ["the", "a", "cat", "dog", "sees", "hears", "old", "new"]
    lines = [" ".join(draw.choices(words, k=8)) for _ in range(30)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines) + "\n")
    (tmp_path / "recall.yaml").write_text(RECALL)
    (tmp_path / "short.txt").write_text("the old cat sees a dog\n")
    for objective in ("causal", "masked"):
        (tmp_path / f"{objective}.yaml").write_text(RECIPE.replace("OBJECTIVE", objective))
    return tmp_path


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_the_table_has_a_column_for_each_length(objective: str, folder: Path, cli: Cli) -> None:
    done = cli("train", f"{objective}.yaml")
    assert done.code == 0, done.err
    title, head, _, *rows = done.out.splitlines()
    assert title == f"{objective}: test, by length of the text in tokens"
    assert head.split() == ["metric", "variant", "8", "32"]
    assert [row.split()[-3] for row in rows[:2]] == ["plain", "scaled"]
    assert ("word perplexity" in done.out) == (objective == "causal")
    use = "visualize-attn" if objective == "masked" else "generate"
    assert f"use one model:  attnkit {use} runs/{objective}/plain/seed-1" in done.err
    again = cli("eval", "runs", "--format", "csv")
    found = [(row["variant"], row["length"]) for row in csv.DictReader(again.out.splitlines())]
    assert found == [("plain", "8"), ("plain", "32"), ("scaled", "8"), ("scaled", "32")]
    checked = cli("verify", "runs", "--format", "json")
    assert checked.code == 0, checked.err
    scores = [row for row in json.loads(checked.out)["rows"] if row["kind"] == "score"]
    assert {row["state"] for row in scores} == {"same"}
    assert {row["split"] for row in scores} == {"test.length-8", "test.length-32"}
    drawn = cli("plot", "runs", "--x", "length")
    assert drawn.code == 0
    assert "length of the text (tokens)" in drawn.out
    if objective == "masked":
        refused = cli("generate", f"runs/{objective}/plain/seed-1", stdin="the cat\n")
        assert (refused.code, refused.out) == (2, "")
        assert "the model predicts masked tokens and writes no text" in refused.err
        for study in ("rank", "entropy"):
            assert cli("probe", study, f"runs/{objective}/plain/seed-1").code == 0


def test_a_text_that_is_shorter_than_a_window_stops_before_training(folder: Path, cli: Cli) -> None:
    done = cli("train", "causal.yaml", "data.test=short.txt")
    assert done.code == 65
    assert "test has 7 tokens, fewer than the maximum of eval.lengths (32)" in done.err
    assert not (folder / "runs").exists() or not [*folder.glob("runs/*/*/*/metrics.jsonl")]


def test_generated_rows_have_the_lengths_that_are_asked_for(folder: Path, cli: Cli) -> None:
    done = cli("train", "recall.yaml")
    assert done.code == 0, done.err
    title, head, _, *rows = done.out.splitlines()
    assert title == "recall: test, by length in pairs"
    assert head.split() == ["metric", "variant", "4", "16"]
    assert [row.split()[-3] for row in rows[:2]] == ["plain", "linear"]
    assert "each length: rows with this number of pairs; trained on 2 to 8" in done.out
    assert "difference: to plain at the same length" in done.out
    assert "paired bootstrap over rows" in done.out
    scores = json.loads((folder / "runs/recall/plain/seed-1/scores.json").read_text())
    assert [*scores] == ["test.length-4", "test.length-16"]
    assert all(one["sentences"] == 200 for one in scores.values())
    checked = cli("verify", "runs", "--format", "json")
    assert checked.code == 0, checked.err
    found = [row["state"] for row in json.loads(checked.out)["rows"] if row["kind"] == "score"]
    assert found == ["same"] * 4
    drawn = cli("plot", "runs", "--x", "length")
    assert "length of the text (pairs)" in drawn.out
    drawn = cli("plot", "runs", "--x", "state")
    assert "state of the decoder (bytes)" in drawn.out
    assert "front" in drawn.out


def test_rows_that_do_not_fit_stop_before_training(folder: Path, cli: Cli) -> None:
    done = cli("train", "recall.yaml", "eval.lengths=[4, 64]")
    assert done.code == 65
    assert (
        "eval.lengths: a row of length 64 has 195 tokens, end token included; raise data.max_length (64)"
    ) in done.err
    assert not (folder / "runs/recall").exists()
    planned = cli("train", "recall.yaml", "eval.lengths=[4, 64]", "--dry-run")
    assert (planned.code, planned.err.splitlines()[-1]) == (65, done.err.splitlines()[-1])
