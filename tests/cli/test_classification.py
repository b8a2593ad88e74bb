"""Tests of the command line with pre-training and classification."""

import json
import random
from pathlib import Path

import pytest
from helpers.cli import Cli

from attnkit.cli import main
from attnkit.runs import Run

GOOD, BAD = ["fine", "lovely", "great"], ["dull", "bad", "poor"]
PRETRAIN = """
task: language-modeling
data: {train: text.txt, valid: text.txt, test: text.txt, max_length: 20}
tokenizer: {type: word, size: 60}
model: {width: 16, heads: 2, ff: 32, layers: 1}
train: {objective: span-corruption, steps: 6, batch_tokens: 200, valid_every: 2, precision: fp32,
        lr: 5e-3, warmup: 2, log_every: 1, label_smoothing: 0}
eval: {metrics: [perplexity, accuracy], bootstrap: 20}
variants:
  plain: {}
  random: {model.attention: {encoder: synthesizer-random, decoder: synthesizer-random}}
"""
TASK = """
extends: pretrain.yaml
task: classification
data: {train: %s, valid: %s, test: %s, labels: [negative, positive]}
train: {init: pretrain.yaml, objective: seq2seq, steps: 10, monitor: label-accuracy}
eval: {metrics: [%s], bootstrap: 20}
"""
ENCODER = """
task: classification
data: {train: a.jsonl, valid: a.jsonl, test: a.jsonl, labels: [negative, positive], max_length: 20}
tokenizer: {type: word, size: 60}
model: {shape: encoder, width: 16, heads: 2, ff: 32, layers: 1, dropout: 0}
train: {steps: 60, batch_tokens: 400, valid_every: 20, precision: fp32, lr: 1e-2, warmup: 5,
        monitor: label-accuracy, choose: best}
eval: {metrics: [label-accuracy, matthews, f1], bootstrap: 20}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, two tasks, and recipes for them."""
    root = tmp_path_factory.mktemp("transfer")
    draw = random.Random(1)
    words = ["it", "is", "a", "film", "positive", "negative", *GOOD, *BAD]
    lines = [" ".join(draw.choices(words, k=8)) for _ in range(60)]
    (root / "text.txt").write_text("\n".join(lines) + "\n")
    for name, seed in (("a", 1), ("b", 2)):
        draw, rows = random.Random(seed), []
        for number in range(40):
            label = number % 2
            source = f"it is a {draw.choice((BAD, GOOD)[label])} film"
            target = label if name == "b" else ("negative", "positive")[label]
            rows.append(json.dumps({"source": source, "target": target}))
        (root / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
        files = (f"{name}.jsonl",) * 3
        metrics = "label-accuracy" if name == "a" else "matthews, f1"
        (root / f"{name}.yaml").write_text(TASK % (*files, metrics))
    (root / "pretrain.yaml").write_text(PRETRAIN)
    (root / "encoder.yaml").write_text(ENCODER)
    return root


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The folder after all recipes are trained."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("pretrain", "a", "b", "encoder"):
            assert main(("train", f"{name}.yaml", "--quiet")) == 0
    return folder


@pytest.fixture
def cli(cli: Cli, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `attnkit WORDS` in the folder with all runs."""
    monkeypatch.chdir(trained)
    return cli


@pytest.mark.slow
def test_resumed_pre_training_equals_uninterrupted_pre_training(folder: Path, cli: Cli) -> None:
    """Span corruption draws new noise in every epoch, which a resumed training must repeat."""
    words = ["train", "pretrain.yaml", "--variant", "plain", "--out", "again", "--quiet"]
    cli(*words, "train.steps=4")
    cli(*words, "--allow-change")
    runs = [Run.open(folder / root / "pretrain/plain/seed-1") for root in ("runs", "again")]
    first, second = (run.manifest.files["model.safetensors"] for run in runs)
    assert first == second
    assert len({record.get("epoch") for record in runs[0].log.records()} - {None}) > 1


@pytest.mark.slow
def test_pre_trained_model_fills_in_spans(cli: Cli) -> None:
    done = cli("generate", "runs/pretrain/plain/seed-1", stdin="it is <extra_id_0> film\n")
    assert done.out.count("\n") == 1


def test_encoder_classifier_learns_and_prints_labels(cli: Cli) -> None:
    run = "runs/encoder/base/seed-1"
    done = cli("eval", run, "--format", "json")
    metrics = json.loads(done.out)["rows"][0]["metrics"]
    assert metrics["label-accuracy"]["score"] > 90, done.err
    assert "positive:positive" in metrics["f1"]["signature"]
    assert "search" not in cli("eval", run).out
    lines = "it is a dull film\n\nit is a lovely film\n"
    assert cli("generate", run, stdin=lines).out == "negative\n\npositive\n"
    ranked = cli("generate", run, "--n-best", "2", "--json", stdin=lines).out
    answers = [json.loads(line) for line in ranked.splitlines()]
    assert [(answer["line"], answer["rank"]) for answer in answers] == [(n, k) for n in (1, 2, 3) for k in (1, 2)]


def test_inapplicable_metric_gives_the_same_usage_error_in_all_commands(cli: Cli) -> None:
    """The exit code was 78 in `eval` and 2 in `probe`."""
    run = "runs/a/plain/seed-1"
    commands = (("eval", run), ("probe", "heads", run), ("probe", "noise", run))
    results = [cli(*words, "--metrics", "accuracy,bleu", code=2) for words in commands]
    (error,) = {line for done in results for line in done.err.splitlines() if "error:" in line}
    assert "metrics: bleu does not apply to classification; choose from label-accuracy" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "runs/a/plain/seed-1", "--beam", "3"], "--beam has no effect:"),
        (["generate", "runs/a/plain/seed-1", "--n-best", "3"], "from 1 to 2, the number of labels"),
        (["eval", "runs/a", "--metrics", "bleu"], "bleu does not apply to classification"),
        (["eval", "runs/pretrain", "--metrics", "f1"], "f1 does not apply to language-modeling"),
        (["eval", "--hyp", "a.jsonl", "--ref", "a.jsonl", "--metrics", "f1"], "needs a trained"),
        (
            ["nbce", "runs/encoder/base/seed-1", "--context", "text.txt", "--prompt", "it"],
            "a model of shape encoder cannot generate text",
        ),
        (
            ["visualize-attn", "runs/encoder/base/seed-1", "it is", "--target", "x"],
            "a model of shape encoder has no output; remove the target",
        ),
        (["probe", "heads", "runs/a/plain/seed-1", "--metrics", "bleu"], "does not apply to"),
        (
            ["train", "a.yaml", "data.labels=[negative, fine]", "--fresh"],
            "a.jsonl:2: the label 'positive' is not one of data.labels: negative, fine",
        ),
        (
            ["train", "b.yaml", "data.labels=[negative, positive, c]", "data.train=c.jsonl", "--fresh"],
            "c.jsonl:1: field 'target' must be from 0 to 2, got 7",
        ),
        (
            ["train", "pretrain.yaml", "data.valid=c.txt", "--out", "x"],
            "tokens, but span corruption needs at least data.max_length (20)",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistake_gives_one_error_line(folder: Path, cli: Cli, words: list[str], message: str) -> None:
    (folder / "c.jsonl").write_text('{"source": "a", "target": 7}\n')
    (folder / "c.txt").write_text("it is\n")
    done = cli(*words, stdin="it\n", code=None)
    assert done.code not in (0, 1)
    (line,) = [line for line in done.err.splitlines() if "error:" in line]
    assert message in line
