"""Tests of evaluation: decoding, scoring, saving, reuse of saved scores, errors."""

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.trained import LENGTH, ROWS, make_run
from helpers.wordnet import only_wordnet
from torch import Tensor
from torch.nn.functional import cross_entropy

from attnkit import models
from attnkit.data.rows import Row
from attnkit.data.tokenizer import BOS, EOS, Tokenizer
from attnkit.errors import DataError, UnavailableError, UsageError
from attnkit.recipe.schema import EvalConfig, SearchConfig
from attnkit.runs import Run
from attnkit.scoring import ScoreRow, saved_scores, score, side_by_side
from attnkit.scoring import evaluation as module
from attnkit.scoring.comparison import first_baselines
from attnkit.scoring.evaluation import evaluate
from attnkit.scoring.saved_scores import saved_rows, saved_split
from attnkit.scoring.teacher_forced import CONFIDENCE_BINS, encode_rows, teacher_forced, teacher_forced_scores
from attnkit.show.comparison_tables import comparison_table

Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return `make_run` without its first argument."""
    return partial(make_run, tmp_path)


@pytest.fixture
def run(make: Make) -> Run:
    return make()


def evaluate_test(run: Run, eval: EvalConfig = EvalConfig(), **options: Any) -> ScoreRow:  # noqa: B008
    """Evaluate the split test and return its row."""
    (row,) = evaluate(run, ["test"], eval, device="cpu", **options)
    return row


def write_scores(run: Run, content: bytes) -> None:
    """Write scores.json with its hash in the manifest, as an earlier version of attnkit did."""
    (run.path / "scores.json").write_bytes(content)
    run.record("scores.json", run.sha256("scores.json"))


METRICS = EvalConfig(metrics=("bleu", "rouge", "exact-match", "accuracy", "perplexity"))


def test_split_is_decoded_scored_and_saved(run: Run) -> None:
    entry = evaluate_test(run, METRICS)
    hypotheses = (run.path / "outputs" / "test.hyp.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(hypotheses) == len(ROWS)
    references = [row.references or (row.target,) for row in ROWS]
    for name, value in score(METRICS.metrics, hypotheses, references, METRICS).items():
        assert entry.json()["metrics"][name] == value.stored.model_dump()
    rouge = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    assert list(entry.json()["metrics"]) == ["bleu", *rouge, "exact-match", "accuracy", "perplexity"]
    facts = json.loads((run.path / "scores.json").read_bytes())["test"]
    inputs = ["metrics", "split", "weights", "search", "scoring"]
    results = ["sentences", "empty_references", "unknown", "warnings", "decode", "digests"]
    assert [*facts] == inputs + results  # as earlier versions wrote it
    assert [*facts["search"]] == [*SearchConfig.model_fields]
    assert facts["metrics"] == entry.json()["metrics"]
    assert facts["sentences"] == 5
    assert facts["weights"] == run.manifest.files["model.safetensors"]
    assert facts["search"]["beam"] == 2
    assert facts["decode"]["sentences_per_second"] > 0
    assert facts["decode"]["device"] == "cpu"


def test_run_that_is_not_writable_is_scored(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    entry = evaluate_test(run, METRICS)
    assert entry.json()["warnings"][-1] == "scores are not saved, because the run is not writable"
    assert not (run.path / "scores.json").exists()


def test_saved_scores_are_not_computed_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = evaluate_test(run, METRICS)
    before = (run.path / "scores.json").read_bytes()
    monkeypatch.setattr(Run, "model", None)
    monkeypatch.setattr(module, "score", None)
    again = evaluate_test(run, METRICS)
    assert again.json() == first.json()
    for name, value in again.scores.items():
        np.testing.assert_array_equal(value.statistics, first.scores[name].statistics)
    assert (run.path / "scores.json").read_bytes() == before


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("metric", ["chrf", "perplexity", "rouge1", "accuracy", "exact-match"])
def test_scores_of_other_metrics_are_kept(run: Run, metric: str, force: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a plug-in that is not loaded; the outputs, too, where no metric reads them."""
    evaluate_test(run, EvalConfig(metrics=("bleu", "chrf", "perplexity")))
    before, texts = run.scores()["test"].metrics, run.read("outputs/test.hyp.txt")
    monkeypatch.setattr(saved_scores, "is_known", lambda name: name != "bleu")
    if not force and metric != "accuracy":  # nothing is decoded again
        monkeypatch.setattr(Run, "model", None)
    entry = evaluate_test(run, EvalConfig(metrics=(metric,)), force=force)
    assert list(entry.scores) == [metric]
    after = run.scores()["test"].metrics
    assert {name: after[name].score for name in before} == pytest.approx({name: before[name].score for name in before})
    assert metric in after
    assert run.read("outputs/test.hyp.txt") == texts
    monkeypatch.undo()
    assert saved_split(run, "test").scores.keys() == after.keys()


def test_other_settings_score_the_same_outputs_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate_test(run, EvalConfig(metrics=("bleu", "chrf")))
    monkeypatch.setattr(Run, "model", None)
    entry = evaluate_test(run, EvalConfig(metrics=("bleu",), lowercase=True))
    assert "case:lc" in entry.json()["metrics"]["bleu"]["signature"]
    assert list(run.scores()["test"].metrics) == ["bleu"]


def test_older_runs_did_not_store_the_setting_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    eval = EvalConfig(metrics=("rouge1", "ter"))
    classic = evaluate_test(run, eval)
    monkeypatch.setattr(Run, "model", None)
    unicode = evaluate_test(run, eval.model_copy(update={"words": "unicode"}))
    assert "|words:unicode|" in unicode.scores["rouge1"].signature
    assert "|asian:yes|" in unicode.scores["ter"].signature
    assert evaluate_test(run, eval).scores == classic.scores
    assert run.scores()["test"].scoring.words == "classic"
    write_scores(run, (run.path / "scores.json").read_bytes().replace(b'"words": "classic",', b""))
    monkeypatch.setattr(module, "score", None)
    assert evaluate_test(run, eval).scores == classic.scores


def test_each_tokenizer_has_scores_of_its_own(make: Make) -> None:
    eval = EvalConfig(metrics=("bleu", "chrf"), tokenize=("13a", "char"))
    runs = [make("vanilla"), make("linear")]
    for run in runs:
        entry = evaluate_test(run, eval)
        assert list(entry.json()["metrics"]) == ["bleu", "bleu-char", "chrf"]
        assert saved_split(run, "test").scores == entry.scores
    rows = [row.only(["chrf", "bleu"]) for run in runs for row in saved_rows(run)]
    result = side_by_side(rows, first_baselines(rows), EvalConfig(bootstrap=10))
    assert [difference.metric for difference in result.differences] == ["chrf", "bleu", "bleu-char"]


def test_scores_of_other_word_vectors_are_not_reused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "v.vec"
    path.write_text("ein 1 0\nhund 0 1\n")
    eval = EvalConfig(metrics=("embedding-average",), vectors=str(path))
    first = evaluate_test(run, eval)
    monkeypatch.setattr(Run, "model", None)
    assert evaluate_test(run, eval).scores == first.scores
    path.write_text("ein 1 0 1\nhund 0 1 1\n")
    changed = evaluate_test(run, eval)
    assert "|dim:2|" in first.scores["embedding-average"].signature
    assert "|dim:3|" in changed.scores["embedding-average"].signature
    path.unlink()
    assert evaluate_test(run, eval).scores == changed.scores
    evaluate_test(run, eval.model_copy(update={"metrics": ("bleu",)}))
    assert list(run.scores()["test"].metrics) == ["embedding-average", "bleu"]


def test_missing_wordnet_raises_before_decoding(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "model", None)
    with only_wordnet(tmp_path), pytest.raises(UnavailableError, match="meteor needs WordNet"):
        evaluate_test(run, EvalConfig(metrics=("bleu", "meteor")))


@pytest.mark.parametrize("change", ["search", "force", "outputs", "statistics"])
def test_change_decodes_again(run: Run, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    evaluate_test(run)
    if change == "outputs":
        (run.path / "outputs" / "test.hyp.txt").write_text("x\n" * 5, encoding="utf-8")
    if change == "statistics":
        (run.path / "outputs" / "test.stats.npz").unlink()
    calls = []
    answer_lines = module.answer_lines
    monkeypatch.setattr(module, "answer_lines", lambda *a, **k: calls.append(1) or answer_lines(*a, **k))
    search = SearchConfig(beam=3, max_length=8) if change == "search" else None
    evaluate_test(run, search=search, force=change == "force")
    assert calls == [1]
    assert saved_split(run, "test").stored.search.beam == 2


def test_outputs_of_several_searches_are_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They overwrote each other, so the files and the comparison depended on the order."""
    greedy = SearchConfig(method="greedy", max_length=8)
    own = [evaluate_test(run).json()]
    other = [evaluate_test(run, search=greedy).json()]
    monkeypatch.setattr(Run, "model", None)  # decoding again would fail
    own += [evaluate_test(run).json(), saved_rows(run)[0].json()]
    same = greedy.model_copy(update={"beam": 9, "batch_tokens": 99})  # greedy knows no beam
    other += [evaluate_test(run, search=same).json()]
    assert {row["search"]["method"] for row in own} == {"beam"}
    assert {row["search"]["method"] for row in other} == {"greedy"}
    assert {row["split"] for row in own + other} == {"test"}
    names = sorted(path.name for path in (run.path / "outputs").glob("*.hyp.txt"))
    assert names[1] == "test.hyp.txt"
    assert names[0].startswith("test.greedy-")
    assert len(saved_rows(run)) == 1


def test_old_file_of_another_search_is_read_until_replaced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = SearchConfig(method="greedy", max_length=8)
    evaluate_test(run, search=greedy)
    ((name, scored),) = run.scores().items()
    entry = scored.model_dump(exclude={"split"})  # earlier versions named the last entry by its split
    write_scores(run, json.dumps({"test": entry}).encode())
    for old in (run.path / "outputs").iterdir():
        old.rename(old.with_name(old.name.replace(name, "test")))
    with monkeypatch.context() as patch:
        patch.setattr(Run, "model", None)
        evaluate_test(run, search=greedy)
    assert saved_split(run, "test").stored.search.method == "greedy"
    evaluate_test(run)
    assert saved_split(run, "test").stored.search.method == "beam"


def test_reading_damaged_statistics_raises(run: Run) -> None:
    evaluate_test(run)
    (run.path / "outputs" / "test.stats.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"evaluation of test is damaged .*: score again with"):
        saved_split(run, "test")


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (5, "test must be a valid dictionary, got 5"),
        ({"metrics": []}, r"test.metrics must be a valid dictionary, got \[\]"),
        ({"weights": 1}, "test.weights must be a valid string, got 1"),
        ({}, None),
        ({"digests": {}}, None),
        ({"facts": None}, None),
        ({"sentences": None}, None),
    ],
)
def test_malformed_scores_raise_and_are_replaced(run: Run, entry: Any, fault: str | None) -> None:
    """Entries that are missing are computed again, without an error."""
    evaluate_test(run)
    path = run.path / "scores.json"
    good = json.loads(path.read_bytes())
    if isinstance(entry, dict):
        keep = {key: value for key, value in good["test"].items() if key not in entry}
        entry = keep | {key: value for key, value in entry.items() if value is not None}
    path.write_text(json.dumps({"test": entry}), encoding="utf-8")
    with pytest.raises(DataError, match=r"scores.json: was changed"):
        evaluate_test(run)
    run.record("scores.json", run.sha256("scores.json"))
    if fault:
        with pytest.raises(DataError, match=rf"scores.json: {fault}; replace it by"):
            evaluate_test(run)
    evaluate_test(run, force=bool(fault))
    assert json.loads(path.read_bytes())["test"]["metrics"] == good["test"]["metrics"]


@pytest.mark.parametrize("damage", [b"{", b"[]", b"\xff"])
def test_unreadable_scores_raise_and_force_replaces_them(
    run: Run, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_test(run)
    path = run.path / "scores.json"
    good = json.loads(path.read_bytes())
    write_scores(run, damage)
    with monkeypatch.context() as patch:  # the error comes before decoding
        patch.setattr(Run, "model", None)
        with pytest.raises(DataError, match="scores.json: .*; replace it by `attnkit eval"):
            evaluate_test(run)
    evaluate_test(run, force=True)
    assert json.loads(path.read_bytes())["test"]["metrics"] == good["test"]["metrics"]


def test_truncated_inputs_and_unfinished_outputs_warn(run: Run) -> None:
    path = Path(run.recipe.data.test or "")
    long = Row(" ".join(["dogs"] * 30), "x")
    path.write_text(json.dumps(long._asdict()) + "\n" + path.read_text(), encoding="utf-8")
    entry = evaluate_test(run, search=SearchConfig(method="greedy", max_length=1, min_length=1))
    truncated = r"inputs truncated to data\.max_length=\d+ tokens: 1 of 6"
    assert any(re.fullmatch(truncated, text) for text in entry.json()["warnings"])
    assert "6 of 6 outputs did not end within search.max_length=1 tokens" in entry.warnings


def test_empty_references_are_noted_once_per_split(make: Make) -> None:
    """Rows without a target were scored without a note, while training reports the rows it drops."""
    entries = []
    for seed in (1, 2):
        run = make(seed=seed)
        path = Path(run.recipe.data.test or "")
        path.write_text(path.read_text() + '{"source": "dogs", "target": " "}\n', encoding="utf-8")
        entries.append(evaluate_test(run))
    (note,) = [n for n in comparison_table(side_by_side(entries, {})).notes if n.startswith("sentences")]
    assert note == "sentences: 6 of test (1 with an empty reference)"


def test_language_model_has_perplexity_per_token_and_per_word(make: Make) -> None:
    run = make(task="language-modeling")
    entry = evaluate_test(run, EvalConfig(metrics=("perplexity", "accuracy")))
    metrics = entry.json()["metrics"]
    assert list(metrics) == ["perplexity", "accuracy", "word-perplexity"]
    statistics = entry.scores["perplexity"].statistics
    nll, tokens = statistics.sum(0)
    words = 2 + 1 + 5 + 1  # words and the end of each line that is not empty
    assert metrics["word-perplexity"]["score"] == pytest.approx(math.exp(nll / words))
    target = run.tokenizer().target
    assert tokens == sum(len(target.encode([line])[0]) + 1 for line in ("ein hund", "zwei katzen und ein hund"))
    assert entry.json()["decode_sentences_per_second"] is None


@pytest.mark.parametrize("task", ["translation", "language-modeling"])
def test_balanced_accuracy_without_marked_positions_raises(make: Make, task: str) -> None:
    """It was saved as 0.00."""
    run = make(task=task)
    with pytest.raises(UsageError, match=f"metrics: balanced-accuracy does not apply to {task}; choose from "):
        evaluate_test(run, EvalConfig(metrics=("balanced-accuracy",)))


def logits_by_row(run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits [T, V] and target tokens [T] of each of `ROWS`, read alone."""
    model, tokenizer = run.model("cpu"), run.tokenizer()
    for row in ROWS:
        source = torch.tensor([[*tokenizer.source.encode([row.source])[0], EOS]])
        target = tokenizer.target.encode([row.target])[0]
        with torch.no_grad():
            yield model(source, torch.tensor([[BOS, *target]]))[0], torch.tensor([*target, EOS])


@pytest.mark.parametrize("batch_tokens", [1, 8192])
def test_teacher_forced_sums_equal_those_of_single_rows(
    run: Run, batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnkit.scoring.teacher_forced.BATCH_TOKENS", batch_tokens)
    sums = teacher_forced(run.model("cpu"), encode_rows(ROWS, run.tokenizer(), LENGTH, stream=False))
    for (logits, targets), (nll, correct, tokens, *marked_and_gaps) in zip(logits_by_row(run), sums, strict=True):
        hits = logits.argmax(-1) == targets
        # float32 sums of batches of different shapes
        assert nll == pytest.approx(float(cross_entropy(logits, targets, reduction="sum")), rel=1e-5)
        assert correct == hits.sum()
        assert tokens == len(targets)
        confidence = logits.softmax(-1).amax(-1)
        intervals = (confidence * CONFIDENCE_BINS).long()
        gaps = torch.zeros(CONFIDENCE_BINS).index_add(0, intervals, confidence - hits.float())
        assert marked_and_gaps == pytest.approx([0, 0, *gaps.tolist()], rel=1e-5, abs=1e-5)


def test_words_beyond_the_cut_are_not_counted(run: Run) -> None:
    """All words of a row were counted, so word perplexity was too low."""
    names = ["perplexity", "word-perplexity"]
    model, tokenizer = run.model("cpu"), run.tokenizer()
    scores = teacher_forced_scores(names, model, tokenizer, ROWS, max_length=4, stream=False)
    assert "|cut:4|max-length:4|" in scores["perplexity"].signature
    assert (scores["perplexity"].statistics[:, 1] <= 4).all()
    nll = scores["perplexity"].statistics[:, 0].sum()
    cut = tokenizer.target.decode([tokenizer.target.encode([row.target])[0][:3] for row in ROWS])
    words = sum(len(text.split()) + 1 for text in cut)
    assert words < sum(len(row.target.split()) + 1 for row in ROWS)
    assert scores["word-perplexity"].value == pytest.approx(math.exp(nll / words))
    teacher_forced_scores(names, model, tokenizer, ROWS, max_length=1, stream=False)


def test_model_that_outputs_nan_raises(run: Run) -> None:
    model = run.model("cpu")
    with torch.no_grad():
        model.output.weight[5] = math.nan
    with pytest.raises(DataError, match="the model outputs NaN or infinity"):
        teacher_forced(model, encode_rows(ROWS, run.tokenizer(), LENGTH, stream=False))


def test_perplexities_of_different_vocabularies_are_not_compared(run: Run) -> None:
    other = Tokenizer.train(run.recipe.tokenizer.model_copy(update={"type": "char"}), ROWS)
    sizes = (len(other.source), len(other.target))
    model = models.build(run.recipe.model, sizes, LENGTH)
    names = ["perplexity", "word-perplexity"]
    first = teacher_forced_scores(names, run.model("cpu"), run.tokenizer(), ROWS, max_length=LENGTH, stream=False)
    second = teacher_forced_scores(names, model, other, ROWS, max_length=99, stream=False)
    assert first["perplexity"].signature != second["perplexity"].signature
    assert first["word-perplexity"].signature == second["word-perplexity"].signature


def test_calibration_error_is_the_gap_of_confidence_and_accuracy(run: Run) -> None:
    model, tokenizer = run.model("cpu"), run.tokenizer()
    names = ["calibration-error"]
    (score,) = teacher_forced_scores(names, model, tokenizer, ROWS, max_length=LENGTH, stream=False).values()
    confidence, correct = [], []
    for logits, targets in logits_by_row(run):
        confidence += logits.softmax(-1).amax(-1).tolist()
        correct += (logits.argmax(-1) == targets).tolist()
    gaps = [0.0] * CONFIDENCE_BINS
    for sure, right in zip(confidence, correct, strict=True):
        gaps[int(sure * CONFIDENCE_BINS)] += sure - right
    assert score.value == pytest.approx(100 * sum(map(abs, gaps)) / len(correct), rel=1e-4)
    assert 0 < score.value < 100
