"""Intervals and parts of scores, against the libraries that define them."""

import csv
import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from attnkit.cli import main
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import score
from attnkit.scoring.details import interval, parts
from attnkit.scoring.metrics import Score

WORDS = ("a", "red", "dog", "and", "two", "black", "cats", "see", "the", "old", "house", "hill")


def texts(seed: int, count: int = 60) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(count)]


REFERENCES = texts(1)
OUTPUTS = [line if i % 3 else other for i, (line, other) in enumerate(zip(REFERENCES, texts(2)))]  # noqa: B905
OUTPUTS[5] = OUTPUTS[5] + " cats cats"


def scored(*metrics: str) -> dict[str, Score]:
    lines = [[reference] for reference in REFERENCES]
    return score(metrics, OUTPUTS, lines, EvalConfig())


def test_bleu_is_made_of_what_sacrebleu_says() -> None:
    theirs = sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES])
    assert parts(scored("bleu")["bleu"]) == {
        **{f"precision_{n}": value for n, value in enumerate(theirs.precisions, 1)},
        "brevity_penalty": theirs.bp,
        "output_length": theirs.sys_len,
        "reference_length": theirs.ref_len,
    }


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_the_interval_is_sacrebleus(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the half-width alone, and bounds that are values rather than percentiles."""
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    kinds = {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF, "ter": sacrebleu.TER}
    theirs = kinds[name]().corpus_score(OUTPUTS, [REFERENCES], n_bootstrap=1000)
    bounds = interval(scored(name)[name], 1000)
    assert bounds is not None
    assert (bounds[1] - bounds[0]) / 2 == pytest.approx(theirs._ci, rel=0.02)
    assert bounds[0] < theirs.score < bounds[1]
    assert interval(scored(name)[name], 0) is None


def test_ter_and_rouge_have_their_parts() -> None:
    theirs = sacrebleu.corpus_ter(OUTPUTS, [REFERENCES])
    found = parts(scored("ter")["ter"])
    assert found == {"edits": theirs.num_edits, "reference_length": theirs.ref_length}
    scorer = RougeScorer(["rouge2"], use_stemmer=True)
    rows = [scorer.score(r, o)["rouge2"] for r, o in zip(REFERENCES, OUTPUTS, strict=True)]
    made = scored("rouge2")["rouge2"]
    assert made.value == pytest.approx(100 * np.mean([row.fmeasure for row in rows]))
    assert parts(made) == pytest.approx({
        "precision": 100 * np.mean([row.precision for row in rows]),
        "recall": 100 * np.mean([row.recall for row in rows]),
    })  # fmt: skip
    earlier = Score.of("rouge2", made.statistics[:, :2], made.signature)
    assert (parts(earlier), earlier.value) == ({}, made.value)
    assert parts(scored("chrf")["chrf"]) == {}


def test_every_format_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # which breaks lines in pipes too
    monkeypatch.chdir(tmp_path)
    Path("out.txt").write_text("".join(f"{line}\n" for line in OUTPUTS))
    Path("ref.txt").write_text("".join(f"{line}\n" for line in REFERENCES))
    words = ["eval", "--hyp", "out.txt", "--ref", "ref.txt", "--metrics", "bleu,rouge1"]
    theirs = sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES])

    def shown(format: str) -> str:
        assert main([*words, "--details", "--format", format]) == 0
        return capsys.readouterr().out

    precisions = "/".join(f"{value:.1f}" for value in theirs.precisions)
    for format in ("table", "markdown", "latex"):
        assert f"precisions {precisions}, brevity penalty {theirs.bp:.3f}" in shown(format)
    found = json.loads(shown("json"))["rows"][0]["metrics"]["bleu"]
    assert found["parts"]["brevity_penalty"] == theirs.bp
    assert found["interval"][0] < found["score"] < found["interval"][1]
    bleu, rouge = csv.DictReader(io.StringIO(shown("csv")))
    assert float(bleu["low"]) == found["interval"][0]
    assert (bleu["precision"], rouge["precision_1"], rouge["metric"]) == ("", "", "rouge1")
