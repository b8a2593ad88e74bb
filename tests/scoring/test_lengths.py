"""Tests of scores of one text in windows of several lengths."""

import math
from pathlib import Path

import pytest
import torch
from helpers.trained import LENGTH, PARAGRAPHS, recipe, tokenizer

from attnkit import models
from attnkit.data.encoded import Encoded
from attnkit.data.objectives import mask_tokens
from attnkit.data.rows import Row
from attnkit.data.tokenizer import BOS, EOS, PAD, Tokenizer
from attnkit.errors import DataError, RecipeError
from attnkit.recipe.schema import DataConfig, EvalConfig, TokenizerConfig
from attnkit.runs import Run, run_path
from attnkit.runs.layout import ScoredSplit
from attnkit.scoring import side_by_side
from attnkit.scoring.evaluation import evaluate
from attnkit.scoring.saved_scores import saved_rows
from attnkit.scoring.teacher_forced import encode_rows

LENGTHS = (3, LENGTH, 50)
METRICS = EvalConfig(metrics=("perplexity", "accuracy"), lengths=LENGTHS, bootstrap=20)
STORED = [str(ScoredSplit("test", length)) for length in LENGTHS]
MASKING = Tokenizer.train(TokenizerConfig(size=60, special=("<mask>",)), [Row("", PARAGRAPHS)] * 3)


def make_run(folder: Path, variant: str, objective: str = "causal", positions: str = "rope") -> Run:
    """Return a finished run of an untrained language model."""
    text = "\n\n".join([PARAGRAPHS.replace("\n\n", " ").strip()] * 9)
    (folder / "test.txt").write_text(text + "\n")
    shape = "encoder" if objective == "masked" else "decoder"
    chosen = recipe(DataConfig(test=str(folder / "test.txt")), "language-modeling")
    chosen = chosen.model_copy(
        update={
            "model": chosen.model.model_copy(update={"shape": shape, "positions": positions}),
            "train": chosen.train.model_copy(update={"objective": objective}),
        }
    )
    words = MASKING if objective == "masked" else tokenizer()
    torch.manual_seed(sum(map(ord, variant)))
    model = models.build_for(chosen, (len(words.source),) * 2)
    run = Run.create(run_path(folder / "runs", "toy", variant, 1), chosen, name="toy", variant=variant, seed=1)
    run.write_tokenizer(words)
    run.finish(model.state_dict(), step=1, seconds=1.0, reason="steps", tokens_per_second=1.0)
    return run


def reference_scores(run: Run, rows: list[Row], length: int, masked: Encoded | None) -> tuple[float, float]:
    """Return perplexity and accuracy, computed by window and by token."""
    model, words = run.model("cpu"), run.tokenizer().target
    ids = [i for row in rows for i in (*words.encode([row.target])[0], EOS)]
    nll, correct = [], []
    for start in range(0, len(ids), length):
        window = ids[start : start + length]
        with torch.inference_mode():
            if masked is None:
                targets = window
                logits = model(None, torch.tensor([[BOS, *window[:-1]]]))
            else:
                assert masked.source is not None
                targets = masked.target.ids[start : start + length].tolist()
                logits = model(torch.tensor([masked.source.ids[start : start + length].tolist()]), None)
        logs = logits[0].log_softmax(-1)
        for place, token in enumerate(targets):
            if token != PAD:
                nll.append(-float(logs[place, token]))
                correct.append(float(logs[place].argmax() == token))
    return math.exp(sum(nll) / len(nll)), 100 * sum(correct) / len(correct)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_scores_equal_those_of_single_windows(objective: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, "plain", objective)
    entries = evaluate(run, ["test"], METRICS, device="cpu")
    rows = [Row("", line.strip()) for line in (tmp_path / "test.txt").read_text().split("\n\n")]
    masked = None
    if objective == "masked":
        masked = mask_tokens(encode_rows(rows, MASKING, 10**6, stream=True), MASKING.target, 10**6)
    assert [entry.length for entry in entries] == [*LENGTHS]
    for entry, length in zip(entries, LENGTHS, strict=True):
        assert entry.split == "test"
        scores = [entry.scores[name].value for name in METRICS.metrics]
        assert scores == pytest.approx(reference_scores(run, rows, length, masked), rel=1e-4)
        assert f"|blocks:{length}|" in entry.scores["perplexity"].signature
    assert [*run.scores()] == STORED
    assert [e.length for e in saved_rows(run)] == [*LENGTHS]


def test_each_length_is_compared_by_itself(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name) for name in ("plain", "other")]
    entries = [e for run in runs for e in evaluate(run, ["test"], METRICS, device="cpu")]
    found = side_by_side(entries, {"toy": "plain"}, EvalConfig(bootstrap=20))
    differences = [c for c in found.json()["comparisons"] if c["metric"] == "perplexity"]
    assert [(c["variant"], c["length"]) for c in differences] == [("other", n) for n in LENGTHS]
    assert not any(c["not_comparable"] for c in differences)
    rows = [row for run in runs for row in saved_rows(run)]
    assert side_by_side(rows, {"toy": "plain"}, EvalConfig(bootstrap=20)).json() == found.json()


def test_saved_windows_are_not_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "plain")
    first = evaluate(run, ["test"], METRICS, device="cpu")
    monkeypatch.setattr(Run, "model", None)
    again = evaluate(run, ["test"], METRICS, device="cpu")
    assert [e.json()["metrics"] for e in again] == [e.json()["metrics"] for e in first]


def test_window_longer_than_the_text_raises(tmp_path: Path) -> None:
    run = make_run(tmp_path, "plain")
    longer = METRICS.model_copy(update={"lengths": (3, 10**6)})
    with pytest.raises(DataError, match=r"test has \d+ tokens, fewer than .* \(1,000,000\)"):
        evaluate(run, ["test"], longer, device="cpu")
    assert [*run.scores()] == [str(ScoredSplit("test", 3))]


def test_learned_positions_raise_for_longer_windows(tmp_path: Path) -> None:
    run = make_run(tmp_path, "plain", positions="learned")
    with pytest.raises(RecipeError, match=r"learned positions end at data.max_length \(24\)"):
        evaluate(run, ["test"], METRICS, device="cpu")
    shorter = METRICS.model_copy(update={"lengths": (3, LENGTH)})
    assert len(evaluate(run, ["test"], shorter, device="cpu")) == 2
