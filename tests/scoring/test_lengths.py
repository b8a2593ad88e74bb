"""One text in windows of several lengths: scores, names, comparisons, and what cannot be read."""

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


def made(folder: Path, variant: str, objective: str = "causal", positions: str = "rope") -> Run:
    """A finished run of an untrained language model."""
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


def plain(run: Run, rows: list[Row], length: int, hidden: Encoded | None) -> tuple[float, float]:
    """Perplexity and accuracy, window by window and token by token."""
    model, words = run.model("cpu"), run.tokenizer().target
    ids = [i for row in rows for i in (*words.encode([row.target])[0], EOS)]
    nll, correct = [], []
    for start in range(0, len(ids), length):
        window = ids[start : start + length]
        if hidden is None:
            read, wanted = [BOS, *window[:-1]], window
        else:
            assert hidden.source is not None
            read = hidden.source.ids[start : start + length].tolist()
            wanted = hidden.target.ids[start : start + length].tolist()
        with torch.inference_mode():
            given = torch.tensor([read])
            logits = model(None, given) if hidden is None else model(given, None)
            logs = logits[0].log_softmax(-1)
        for place, token in enumerate(wanted):
            if token != PAD:
                nll.append(-float(logs[place, token]))
                correct.append(float(logs[place].argmax() == token))
    return math.exp(sum(nll) / len(nll)), 100 * sum(correct) / len(correct)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_scores_are_those_of_the_windows_one_by_one(objective: str, tmp_path: Path) -> None:
    run = made(tmp_path, "plain", objective)
    entries = evaluate(run, ["test"], METRICS, device="cpu")
    rows = [Row("", line) for line in (tmp_path / "test.txt").read_text().split("\n\n")]
    rows = [Row("", row.target.strip()) for row in rows]
    hidden = None
    if objective == "masked":
        hidden = mask_tokens(encode_rows(rows, MASKING, 10**6, stream=True), MASKING.target, 10**6)
    assert [entry.length for entry in entries] == [*LENGTHS]
    for entry, length in zip(entries, LENGTHS, strict=True):
        assert entry.split == "test"
        scores = [entry.scores[name].value for name in METRICS.metrics]
        assert scores == pytest.approx(plain(run, rows, length, hidden), rel=1e-4)
        assert f"|blocks:{length}|" in entry.scores["perplexity"].signature
    assert [*run.scores()] == STORED
    assert [e.length for e in saved_rows(run)] == [*LENGTHS]


def test_each_length_is_compared_by_itself(tmp_path: Path) -> None:
    runs = [made(tmp_path, name) for name in ("plain", "other")]
    entries = [e for run in runs for e in evaluate(run, ["test"], METRICS, device="cpu")]
    found = side_by_side(entries, {"toy": "plain"}, EvalConfig(bootstrap=20))
    tests = [one for one in found.json()["comparisons"] if one["metric"] == "perplexity"]
    assert [(one["variant"], one["length"]) for one in tests] == [("other", n) for n in LENGTHS]
    assert not any(one["not_comparable"] for one in tests)
    rows = [row for run in runs for row in saved_rows(run)]
    assert side_by_side(rows, {"toy": "plain"}, EvalConfig(bootstrap=20)).json() == found.json()


def test_what_was_scored_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path, "plain")
    first = evaluate(run, ["test"], METRICS, device="cpu")
    monkeypatch.setattr(Run, "model", lambda *_: pytest.fail("scored again"))
    again = evaluate(run, ["test"], METRICS, device="cpu")
    assert [e.json()["metrics"] for e in again] == [e.json()["metrics"] for e in first]


def test_a_window_that_is_longer_than_the_text_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path, "plain")
    longer = METRICS.model_copy(update={"lengths": (3, 10**6)})
    with pytest.raises(DataError, match=r"test has \d+ tokens, fewer than .* \(1,000,000\)"):
        evaluate(run, ["test"], longer, device="cpu")
    assert [*run.scores()] == [str(ScoredSplit("test", 3))]


def test_learned_positions_do_not_reach_longer_texts(tmp_path: Path) -> None:
    run = made(tmp_path, "plain", positions="learned")
    with pytest.raises(RecipeError, match=r"learned positions end at data.max_length \(24\)"):
        evaluate(run, ["test"], METRICS, device="cpu")
    shorter = METRICS.model_copy(update={"lengths": (3, LENGTH)})
    assert len(evaluate(run, ["test"], shorter, device="cpu")) == 2
