"""Evaluation of runs: what is decoded, scored, stored, reused and compared."""

import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.trained import LENGTH, ROWS, make_run
from helpers.wordnet import only_wordnet

from attnkit import models
from attnkit.data.rows import Row
from attnkit.data.tokenizer import BOS, EOS, Tokenizer
from attnkit.errors import DataError, UnavailableError, UsageError
from attnkit.recipe.schema import EvalConfig, SearchConfig
from attnkit.runs import Run
from attnkit.scoring import evaluation as module
from attnkit.scoring import saved_scores, score, side_by_side
from attnkit.scoring.comparison import first_baselines
from attnkit.scoring.evaluation import evaluate
from attnkit.scoring.saved_scores import saved_rows, saved_split
from attnkit.scoring.teacher_forced import CONFIDENCE_BINS, encode_rows, teacher_forced, teacher_forced_scores
from attnkit.show.comparison_tables import comparison_table


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Run]:
    """A function that makes a finished run of an untrained model; see `make_run`."""
    return partial(make_run, tmp_path)


METRICS = EvalConfig(metrics=("bleu", "rouge", "exact-match", "accuracy", "perplexity"))


def test_a_split_is_decoded_scored_and_stored(make: Callable[..., Run]) -> None:
    run = make()
    (entry,) = evaluate(run, ["test"], METRICS, device="cpu")
    text = (run.path / "outputs" / "test.hyp.txt").read_text(encoding="utf-8")
    hypotheses = text.split("\n")[:-1]
    assert len(hypotheses) == len(ROWS)
    references = [row.references or (row.target,) for row in ROWS]
    expected = score(METRICS.metrics, hypotheses, references, METRICS)
    for name, value in expected.items():
        assert entry.json()["metrics"][name] == value.stored.model_dump()
    assert list(entry.json()["metrics"]) == [
        "bleu",
        "rouge1",
        "rouge2",
        "rougeL",
        "rougeLsum",
        "exact-match",
        "accuracy",
        "perplexity",
    ]
    facts = json.loads((run.path / "scores.json").read_bytes())["test"]
    made_from = ["metrics", "split", "weights", "search", "scoring"]
    found = ["sentences", "empty_references", "unknown", "warnings", "decode", "digests"]
    assert [*facts] == made_from + found  # as earlier versions wrote it
    assert [*facts["search"]] == [*SearchConfig.model_fields]
    assert facts["metrics"] == entry.json()["metrics"]
    assert facts["sentences"] == 5
    assert facts["weights"] == run.manifest.files["model.safetensors"]
    assert facts["search"]["beam"] == 2
    assert facts["decode"]["sentences_per_second"] > 0
    assert facts["decode"]["device"] == "cpu"


def test_a_run_that_cannot_be_written_is_scored_all_the_same(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    (entry,) = evaluate(run, ["test"], METRICS, device="cpu")
    assert entry.json()["warnings"][-1] == "scores are not saved, because the run is not writable"
    assert not (run.path / "scores.json").exists()


def test_what_is_known_is_not_computed_again(make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run = make()
    (first,) = evaluate(run, ["test"], METRICS, device="cpu")
    before = (run.path / "scores.json").read_bytes()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(Run, "model", refuse)
    monkeypatch.setattr(module, "score", refuse)
    (again,) = evaluate(run, ["test"], METRICS, device="cpu")
    assert again.json() == first.json()
    for name, value in again.scores.items():
        np.testing.assert_array_equal(value.statistics, first.scores[name].statistics)
    assert (run.path / "scores.json").read_bytes() == before


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("asked", ["chrf", "perplexity", "rouge1", "accuracy", "exact-match"])
def test_metrics_that_are_not_asked_for_stay(
    make: Callable[..., Run], asked: str, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of a plug-in that is not given now, and the outputs where none reads them."""
    run = make()
    evaluate(run, ["test"], EvalConfig(metrics=("bleu", "chrf", "perplexity")), device="cpu")
    before, texts = run.scores()["test"].metrics, run.read("outputs/test.hyp.txt")
    monkeypatch.setattr(saved_scores, "is_known", lambda name: name != "bleu")
    if not force and asked != "accuracy":  # outputs are not made again
        monkeypatch.setattr(Run, "model", None)
    (entry,) = evaluate(run, ["test"], EvalConfig(metrics=(asked,)), device="cpu", force=force)
    assert list(entry.scores) == [asked]
    after = run.scores()["test"].metrics
    assert {name: after[name].score for name in before} == pytest.approx({name: before[name].score for name in before})
    assert asked in after
    assert run.read("outputs/test.hyp.txt") == texts
    monkeypatch.undo()
    assert saved_split(run, "test").scores.keys() == after.keys()


def test_other_settings_score_the_same_outputs_afresh(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make()
    evaluate(run, ["test"], EvalConfig(metrics=("bleu", "chrf")), device="cpu")
    monkeypatch.setattr(Run, "model", None)
    (entry,) = evaluate(run, ["test"], EvalConfig(metrics=("bleu",), lowercase=True), device="cpu")
    assert "case:lc" in entry.json()["metrics"]["bleu"]["signature"]
    assert list(run.scores()["test"].metrics) == ["bleu"]


def test_words_are_a_setting_that_older_runs_did_not_store(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, eval = make(), EvalConfig(metrics=("rouge1", "ter"))
    (classic,) = evaluate(run, ["test"], eval, device="cpu")
    monkeypatch.setattr(Run, "model", None)
    (unicode,) = evaluate(run, ["test"], eval.model_copy(update={"words": "unicode"}), device="cpu")
    assert "|words:unicode|" in unicode.scores["rouge1"].signature
    assert "|asian:yes|" in unicode.scores["ter"].signature
    (again,) = evaluate(run, ["test"], eval, device="cpu")
    assert again.scores == classic.scores
    stored = run.scores()["test"]
    assert stored.scoring.words == "classic"
    path = run.path / "scores.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"words": "classic",', ""), encoding="utf-8")
    run.record("scores.json", run.sha256("scores.json"))
    monkeypatch.setattr(module, "score", None)
    (old,) = evaluate(run, ["test"], eval, device="cpu")
    assert old.scores == classic.scores


def test_several_tokenizers_are_stored_and_compared_as_scores_of_their_own(make: Callable[..., Run]) -> None:
    eval = EvalConfig(metrics=("bleu", "chrf"), tokenize=("13a", "char"))
    runs = [make("vanilla"), make("linear")]
    for run in runs:
        (entry,) = evaluate(run, ["test"], eval, device="cpu")
        assert list(entry.json()["metrics"]) == ["bleu", "bleu-char", "chrf"]
        assert saved_split(run, "test").scores == entry.scores
    rows = [row.only(["chrf", "bleu"]) for run in runs for row in saved_rows(run)]
    result = side_by_side(rows, first_baselines(rows), EvalConfig(bootstrap=10))
    assert [found.metric for found in result.differences] == ["chrf", "bleu", "bleu-char"]


def test_scores_of_other_word_vectors_are_not_reused(
    make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, path = make(), tmp_path / "v.vec"
    path.write_text("ein 1 0\nhund 0 1\n")
    eval = EvalConfig(metrics=("embedding-average",), vectors=str(path))
    (first,) = evaluate(run, ["test"], eval, device="cpu")
    monkeypatch.setattr(Run, "model", None)
    (again,) = evaluate(run, ["test"], eval, device="cpu")
    path.write_text("ein 1 0 1\nhund 0 1 1\n")
    (changed,) = evaluate(run, ["test"], eval, device="cpu")
    assert first.scores == again.scores
    assert "|dim:2|" in first.scores["embedding-average"].signature
    assert "|dim:3|" in changed.scores["embedding-average"].signature
    path.unlink()
    (kept,) = evaluate(run, ["test"], eval, device="cpu")
    assert kept.scores == changed.scores
    evaluate(run, ["test"], eval.model_copy(update={"metrics": ("bleu",)}), device="cpu")
    assert list(run.scores()["test"].metrics) == ["embedding-average", "bleu"]


def test_what_a_metric_needs_is_missed_before_anything_is_decoded(
    make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make()
    monkeypatch.setattr(Run, "model", None)
    with only_wordnet(tmp_path), pytest.raises(UnavailableError, match="meteor needs WordNet"):
        evaluate(run, ["test"], EvalConfig(metrics=("bleu", "meteor")), device="cpu")


@pytest.mark.parametrize("change", ["search", "force", "outputs", "statistics"])
def test_other_search_settings_force_and_damage_decode_again(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    run = make()
    evaluate(run, ["test"], EvalConfig(), device="cpu")
    if change == "outputs":
        (run.path / "outputs" / "test.hyp.txt").write_text("x\n" * 5, encoding="utf-8")
    if change == "statistics":
        (run.path / "outputs" / "test.stats.npz").unlink()
    calls = []
    answer_lines = module.answer_lines
    monkeypatch.setattr(module, "answer_lines", lambda *a, **k: calls.append(1) or answer_lines(*a, **k))
    search = SearchConfig(beam=3, max_length=8) if change == "search" else None
    evaluate(run, ["test"], EvalConfig(), device="cpu", search=search, force=change == "force")
    assert calls == [1]
    assert saved_split(run, "test").stored.search.beam == 2


def test_outputs_of_other_searches_stand_beside_those_of_the_recipe(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They overwrote each other, so what `comparison` and the files said depended on the order."""
    run = make()
    greedy = SearchConfig(method="greedy", max_length=8)
    own = [evaluate(run, ["test"], EvalConfig(), device="cpu")[0].json()]
    other = [evaluate(run, ["test"], EvalConfig(), device="cpu", search=greedy)[0].json()]
    monkeypatch.setattr(Run, "model", None)  # nothing is decoded again
    own += [evaluate(run, ["test"], EvalConfig(), device="cpu")[0].json(), saved_rows(run)[0].json()]
    same = greedy.model_copy(update={"beam": 9, "batch_tokens": 99})  # greedy knows no beam
    other += [evaluate(run, ["test"], EvalConfig(), device="cpu", search=same)[0].json()]
    assert {row["search"]["method"] for row in own} == {"beam"}
    assert {row["search"]["method"] for row in other} == {"greedy"}
    assert {row["split"] for row in own + other} == {"test"}
    names = sorted(path.name for path in (run.path / "outputs").glob("*.hyp.txt"))
    assert names[1] == "test.hyp.txt"
    assert names[0].startswith("test.greedy-")
    assert len(saved_rows(run)) == 1


def test_an_old_file_of_another_search_is_found_until_the_recipes_own_replaces_it(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make()
    greedy = SearchConfig(method="greedy", max_length=8)
    evaluate(run, ["test"], EvalConfig(), device="cpu", search=greedy)
    scores = run.scores()  # as an earlier version wrote it: what came last had the split's name
    (name,) = scores
    entry = scores[name].model_dump(exclude={"split"})
    (run.path / "scores.json").write_text(json.dumps({"test": entry}), encoding="utf-8")
    run.record("scores.json", run.sha256("scores.json"))
    for old in (run.path / "outputs").iterdir():
        old.rename(old.with_name(old.name.replace(name, "test")))
    with monkeypatch.context() as patch:
        patch.setattr(Run, "model", None)
        evaluate(run, ["test"], EvalConfig(), device="cpu", search=greedy)
        assert saved_split(run, "test").stored.search.method == "greedy"
    evaluate(run, ["test"], EvalConfig(), device="cpu")
    assert saved_split(run, "test").stored.search.method == "beam"


def test_damaged_results_are_named_when_only_read(make: Callable[..., Run]) -> None:
    run = make()
    evaluate(run, ["test"], EvalConfig(), device="cpu")
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
def test_malformed_results_are_an_error_to_read_and_are_replaced(
    make: Callable[..., Run], entry: Any, fault: str | None
) -> None:
    """Where no hash says that another wrote them; entries that are missing are made anew."""
    run = make()
    evaluate(run, ["test"], EvalConfig(), device="cpu")
    path = run.path / "scores.json"
    good = json.loads(path.read_bytes())
    if isinstance(entry, dict):
        keep = {key: value for key, value in good["test"].items() if key not in entry}
        entry = keep | {key: value for key, value in entry.items() if value is not None}
    path.write_text(json.dumps({"test": entry}), encoding="utf-8")
    with pytest.raises(DataError, match=r"scores.json: was changed"):
        evaluate(run, ["test"], EvalConfig(), device="cpu")
    run.record("scores.json", run.sha256("scores.json"))
    if fault:
        with pytest.raises(DataError, match=rf"scores.json: {fault}; replace it by"):
            evaluate(run, ["test"], EvalConfig(), device="cpu")
    evaluate(run, ["test"], EvalConfig(), device="cpu", force=bool(fault))
    assert json.loads(path.read_bytes())["test"]["metrics"] == good["test"]["metrics"]


@pytest.mark.parametrize("damage", [b"{", b"[]", b"\xff"])
def test_scores_that_cannot_be_read_are_named_and_replaced_by_force(
    make: Callable[..., Run], damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make()
    evaluate(run, ["test"], EvalConfig(), device="cpu")
    path = run.path / "scores.json"
    good = json.loads(path.read_bytes())
    path.write_bytes(damage)
    run.record("scores.json", run.sha256("scores.json"))
    with monkeypatch.context() as patch:  # before anything is decoded
        patch.setattr(Run, "model", None)
        with pytest.raises(DataError, match="scores.json: .*; replace it by `attnkit eval"):
            evaluate(run, ["test"], EvalConfig(), device="cpu")
    evaluate(run, ["test"], EvalConfig(), device="cpu", force=True)
    assert json.loads(path.read_bytes())["test"]["metrics"] == good["test"]["metrics"]


def test_long_inputs_and_endless_outputs_are_warned_of(make: Callable[..., Run]) -> None:
    run = make()
    path = Path(run.recipe.data.test or "")
    long = Row(" ".join(["dogs"] * 30), "x")
    path.write_text(json.dumps(long._asdict()) + "\n" + path.read_text(), encoding="utf-8")
    search = SearchConfig(method="greedy", max_length=1, min_length=1)
    (entry,) = evaluate(run, ["test"], EvalConfig(), device="cpu", search=search)
    assert any(
        re.fullmatch(r"inputs truncated to data\.max_length=\d+ tokens: 1 of 6", text)
        for text in entry.json()["warnings"]
    )
    assert "6 of 6 outputs did not end within search.max_length=1 tokens" in entry.warnings


def test_empty_references_are_noted_once_a_split(make: Callable[..., Run]) -> None:
    """Rows without a target were scored without a word, while training reports those it drops."""
    entries = []
    for seed in (1, 2):
        run = make(seed=seed)
        path = Path(run.recipe.data.test or "")
        path.write_text(path.read_text() + '{"source": "dogs", "target": " "}\n', encoding="utf-8")
        entries += evaluate(run, ["test"], EvalConfig(), device="cpu")
    notes = comparison_table(side_by_side(entries, {})).notes
    assert [note for note in notes if note.startswith("sentences")] == [
        "sentences: 6 of test (1 with an empty reference)"
    ]


def test_a_language_model_gets_perplexity_per_token_and_per_word(make: Callable[..., Run]) -> None:
    run = make(task="language-modeling")
    (entry,) = evaluate(run, ["test"], EvalConfig(metrics=("perplexity", "accuracy")), device="cpu")
    metrics = entry.json()["metrics"]
    assert list(metrics) == ["perplexity", "accuracy", "word-perplexity"]
    statistics = entry.scores["perplexity"].statistics
    nll, tokens = statistics.sum(0)
    words = 2 + 1 + 5 + 1  # and an end for each line that is not empty
    assert metrics["word-perplexity"]["score"] == pytest.approx(math.exp(nll / words))
    target = run.tokenizer().target
    assert tokens == sum(len(target.encode([line])[0]) + 1 for line in ("ein hund", "zwei katzen und ein hund"))
    assert entry.json()["decode_sentences_per_second"] is None


@pytest.mark.parametrize("task", ["translation", "language-modeling"])
def test_balanced_accuracy_without_marked_positions_is_refused(make: Callable[..., Run], task: str) -> None:
    """It was 0.00, and stored."""
    run = make(task=task)
    with pytest.raises(UsageError, match=f"metrics: balanced-accuracy does not apply to {task}; choose from "):
        evaluate(run, ["test"], EvalConfig(metrics=("balanced-accuracy",)), device="cpu")


def test_teacher_forced_sums_are_those_of_every_sentence_alone(make: Callable[..., Run]) -> None:
    run = make()
    model, tokenizer = run.model("cpu"), run.tokenizer()
    encoded = encode_rows(ROWS, tokenizer, LENGTH, stream=False)
    sums = teacher_forced(model, encoded)
    for row, (nll, correct, tokens, *_) in zip(ROWS, sums, strict=True):
        source = torch.tensor([[*tokenizer.source.encode([row.source])[0], EOS]])
        target = tokenizer.target.encode([row.target])[0]
        with torch.no_grad():
            logs = model(source, torch.tensor([[BOS, *target]])).log_softmax(-1)[0]
        wanted = torch.tensor([*target, EOS])
        # float32 sums of batches of different shapes
        assert nll == pytest.approx(-logs.gather(1, wanted[:, None]).sum().item(), rel=1e-5)
        assert correct == (logs.argmax(-1) == wanted).sum().item()
        assert tokens == len(wanted)


def test_teacher_forced_sums_do_not_depend_on_the_batch(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make()
    encoded = encode_rows(ROWS, run.tokenizer(), LENGTH, stream=False)
    model = run.model("cpu")
    together = teacher_forced(model, encoded)
    monkeypatch.setattr("attnkit.scoring.teacher_forced.BATCH_TOKENS", 1)
    np.testing.assert_allclose(together, teacher_forced(model, encoded), rtol=1e-5)


def test_longer_rows_are_cut_and_counted_and_so_are_the_words_that_are_left(make: Callable[..., Run]) -> None:
    """All words of a row were counted, those behind the cut too, so it came out too low."""
    run, names = make(), ["perplexity", "word-perplexity"]
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


def test_a_model_that_answers_nan_is_refused(make: Callable[..., Run]) -> None:
    run = make()
    model = run.model("cpu")
    with torch.no_grad():
        model.output.weight[5] = math.nan
    with pytest.raises(DataError, match="the model outputs NaN or infinity"):
        teacher_forced(model, encode_rows(ROWS, run.tokenizer(), LENGTH, stream=False))


def test_perplexities_of_different_vocabularies_are_not_compared(make: Callable[..., Run]) -> None:
    run = make()
    other = Tokenizer.train(run.recipe.tokenizer.model_copy(update={"type": "char"}), ROWS)
    sizes = (len(other.source), len(other.target))
    model = models.build(run.recipe.model, sizes, LENGTH)
    names = ["perplexity", "word-perplexity"]
    first = teacher_forced_scores(names, run.model("cpu"), run.tokenizer(), ROWS, max_length=LENGTH, stream=False)
    second = teacher_forced_scores(names, model, other, ROWS, max_length=99, stream=False)
    assert first["perplexity"].signature != second["perplexity"].signature
    assert first["word-perplexity"].signature == second["word-perplexity"].signature


def test_calibration_error_is_the_gap_of_confidence_and_accuracy_in_each_interval(make: Callable[..., Run]) -> None:
    run = make()
    model, tokenizer = run.model("cpu"), run.tokenizer()
    score = teacher_forced_scores(["calibration-error"], model, tokenizer, ROWS, max_length=LENGTH, stream=False)[
        "calibration-error"
    ]
    confidence, correct = [], []
    with torch.inference_mode():
        for row in ROWS:
            source = torch.tensor([[*tokenizer.source.encode([row.source])[0], EOS]])
            target = tokenizer.target.encode([row.target])[0]
            logits = model.output(model.hidden(source, torch.tensor([[BOS, *target]])))[0]
            confidence += logits.softmax(-1).amax(-1).tolist()
            correct += (logits.argmax(-1) == torch.tensor([*target, EOS])).tolist()
    gaps = [0.0] * CONFIDENCE_BINS
    for sure, right in zip(confidence, correct, strict=True):
        gaps[int(sure * CONFIDENCE_BINS)] += sure - right
    assert score.value == pytest.approx(100 * sum(map(abs, gaps)) / len(correct), rel=1e-4)
    assert 0 < score.value < 100
