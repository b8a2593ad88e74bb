"""Tests of the evaluation of question sets: methods, saved scores, comparisons."""

import json
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from helpers.question_runs import make_run

from attnkit.data.corpus import Corpus
from attnkit.data.questions import QuestionSet
from attnkit.errors import UsageError
from attnkit.nbce import question_sets
from attnkit.nbce.answer import ask
from attnkit.nbce.opening import open_run
from attnkit.recipe.after_training import Method
from attnkit.recipe.schema import ContextsConfig, DataConfig, EvalConfig, SearchConfig
from attnkit.runs import Run
from attnkit.runs.json_files import StoredContexts
from attnkit.scoring import side_by_side
from attnkit.scoring.evaluation import evaluate as evaluate_text
from attnkit.scoring.metrics.answers import answer_match
from attnkit.show.comparison_tables import comparison_table, tables, warning_lines

METRICS = EvalConfig(metrics=("answer-match", "answer-f1", "context-found"), bootstrap=20)
SPEC = ContextsConfig(counts=(1, 2, 4), methods=("entropy", "mean", "concat", "none"), rows=6)
"""Equal to the section of the recipe."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return an untrained model of the embedded questions."""
    return make_run(tmp_path_factory.mktemp("runs"))


def questions(run: Run, count: int, rows: int = 6) -> list[tuple[Any, tuple[str, ...]]]:
    """Return rows of the split test, each with `count` contexts."""
    found = Corpus.open(run.recipe.data, run.recipe.task).questions("test", 4)
    contexts = QuestionSet(found, 1).contexts
    return [(row, contexts(number, count) or ()) for number, row in enumerate(found[:rows])]


def test_decoder_of_pairs_reads_questions_as_in_training(run: Run) -> None:
    reader = open_run(run)
    ((row, contexts),) = questions(run, 1, 1)
    source = run.tokenizer().source.encode([f"{contexts[0]} {row.source}"])[0]
    prompt = reader.row(contexts[0], row.source)
    assert [*prompt.head, *prompt.tail] == [*source, 3, 2]  # EOS of the source, then BOS
    expected = run.model()(torch.tensor([[*source, 3]]), torch.tensor([[2]]))[0, -1]
    logits, _ = reader.step(torch.tensor([[2]]), reader.begin([prompt]))
    torch.testing.assert_close(logits[0], expected)


def test_all_methods_and_numbers_of_contexts_are_scored_and_saved(run: Run) -> None:
    entries = question_sets.evaluate(run, ["test"], METRICS, device="cpu", force=True)
    kinds = [(entry.contexts, entry.method) for entry in entries]
    assert kinds == [(count, method) for count in SPEC.counts for method in SPEC.methods]
    for entry in entries:
        names = METRICS.metrics[: 3 if entry.method in ("entropy", "mean") else 2]
        assert set(entry.scores) == set(names)
        assert entry.sentences == 6
    assert entries[0].scores["context-found"].value == 100  # the right context only
    stored = run.scores()["test.mean.4"]
    outputs = run.output_path("test.mean.4").read_text(encoding="utf-8").splitlines()
    matches = [answer_match(text, row.target) for text, (row, _) in zip(outputs, questions(run, 4), strict=True)]
    assert stored.metrics["answer-match"].score == pytest.approx(100 * sum(matches) / 6)
    assert stored.search.contexts == StoredContexts(method="mean", beta=0.25, eta=0.1, top_p=0.95, alpha=0.5, limit=0)


@pytest.mark.sampled(5)
def test_warning_of_metrics_that_do_not_fit_the_script(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of saved scores; the table has one warning for all rows."""
    monkeypatch.setattr(question_sets, "accepted", lambda row: ("\u5317\u4eac\u5927\u5b66",))
    for force in (True, False):
        entries = question_sets.evaluate(run, ["test"], METRICS, device="cpu", force=force)
        assert len({text for entry in entries for text in entry.warnings}) == 1
        (line,) = warning_lines(side_by_side(entries, {"toy": "base"}, EvalConfig(bootstrap=0)))
        assert line.startswith(f"{run.path.as_posix()}: F1, context found: the classic tokenizer ")
    unicode = METRICS.model_copy(update={"words": "unicode"})
    entries = question_sets.evaluate(run, ["test"], unicode, device="cpu")
    assert not any(entry.warnings for entry in entries)
    assert "|words:unicode|" in entries[0].scores["context-found"].signature


@pytest.mark.parametrize("method", ["entropy", "none"])
def test_saved_outputs_equal_the_answers(run: Run, method: str) -> None:
    question_sets.evaluate(run, ["test"], METRICS, device="cpu")
    rows, contexts = zip(*questions(run, 4), strict=True)
    replies = ask(open_run(run), method, contexts, [row.source for row in rows], run.recipe.search)
    outputs = run.output_path(f"test.{method}.4").read_text(encoding="utf-8").splitlines()
    assert outputs == [reply.text for reply in replies]


def test_saved_scores_are_not_computed_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = question_sets.evaluate(run, ["test"], METRICS, device="cpu")
    monkeypatch.setattr(question_sets, "ask", lambda *_, **__: pytest.fail("asked again"))
    again = question_sets.evaluate(run, ["test"], METRICS, device="cpu")
    assert [entry.scores for entry in again] == [entry.scores for entry in first]
    more = question_sets.evaluate(run, ["test"], EvalConfig(metrics=("rouge1", "context-found")))
    assert {name for entry in more for name in entry.scores} == {"rouge1", "context-found"}
    with pytest.raises(pytest.fail.Exception, match="asked again"):
        question_sets.evaluate(run, ["test"], METRICS, SPEC.model_copy(update={"beta": 0.5}))


def test_methods_that_select_a_context_have_context_found(run: Run) -> None:
    methods = get_args(Method)
    spec = ContextsConfig(counts=(3,), methods=methods, rows=4)
    entries = question_sets.evaluate(run, ["test", "coupled"], METRICS, spec, device="cpu")
    assert len(entries) == 2 * len(methods)
    selecting = {entry.method for entry in entries if "context-found" in entry.scores}
    assert selecting == {*methods} - {"concat", "window", "cad", "none"}


def test_questions_that_need_more_contexts_are_skipped(run: Run) -> None:
    entries = question_sets.evaluate(run, ["ordered"], METRICS, SPEC, device="cpu")
    assert {entry.contexts for entry in entries} == {1, 4}


def test_concatenation_is_truncated_to_the_length_of_training(run: Run) -> None:
    spec = ContextsConfig(counts=(1, 4), methods=("concat",), rows=4)
    single, four = question_sets.evaluate(run, ["test"], METRICS, spec, device="cpu")
    assert (single.cut, four.cut) == (0, 4)
    note = "concat truncated contexts that did not fit one row (contexts): 4 of 4 questions (4)"
    assert note in tables(side_by_side([single, four], {"toy": "base"}))[0].notes


def test_methods_are_compared_for_the_same_number_of_contexts(run: Run) -> None:
    entries = question_sets.evaluate(run, ["test"], METRICS, device="cpu")
    found = side_by_side(entries, {"toy": "base"}, EvalConfig(bootstrap=20))
    assert found.baseline == "base"
    comparisons = found.json()["comparisons"]
    assert {c["baseline_method"] for c in comparisons} == {"entropy"}
    pairs = [("mean", "context-found"), *product(("mean", "concat", "none"), METRICS.metrics[:2])]
    kinds = {(c["contexts"], c["method"], c["metric"]) for c in comparisons}
    assert kinds == {(count, *pair) for count in (1, 2, 4) for pair in pairs}
    json.dumps(found.json(), allow_nan=False)
    table = tables(found)[0]
    assert [column.title for column in table.columns] == ["metric", "method", "1", "2", "4"]
    assert len(table.rows) == 4 + 4 + 2
    value = entries[5].scores["answer-f1"].value
    (record,) = [r for r in comparison_table(found).records() if (r["method"], r["contexts"]) == ("mean", 2)]
    assert record["answer-f1"] == value
    assert table.rows[5][3].text.startswith(f"{value:.1f}")


@pytest.mark.parametrize(
    ("method", "pool", "options"),
    [
        ("entropy", "entropy", (0.5, 0.2, 0.8)),
        ("entropy-free", "entropy", (0.5, 0, 0.8)),
        ("mean-whole", "mean", (0.5, 0.2, 1)),
        ("concat", "concat", (0.5, 0.2, 0.8)),
    ],
)
def test_rule_of_a_method(method: Method, pool: str, options: tuple[float, float, float]) -> None:
    found, rule = question_sets.pooling(method, ContextsConfig(beta=0.5, eta=0.2, top_p=0.8))
    assert (found, rule[1:4]) == (pool, options)


def test_metrics_of_other_tasks_raise(run: Run) -> None:
    with pytest.raises(UsageError, match="metrics: perplexity does not apply to question-answering; choose from bleu"):
        question_sets.evaluate(run, ["test"], EvalConfig(metrics=("perplexity",)))
    with pytest.raises(UsageError, match="metrics: context-found does not apply to question-answering"):
        evaluate_text(run, ["test"], EvalConfig(metrics=("context-found",)), device="cpu")


def test_contexts_come_from_all_questions_of_the_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [
        {"source": f"Town of {n}?", "target": t, "contexts": [f"Town of {n}: {t}."], "gold": 0}
        for n, t in enumerate("abcdefghi")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    corpus = Corpus.open(DataConfig(test=str(path)), "question-answering")
    spec = ContextsConfig(counts=(8,), methods=("best",), rows=2)
    model = question_sets.EvaluatedModel.of_run(run, "cpu")
    (entry,) = question_sets.evaluate_model(model, corpus, ["test"], METRICS, spec, SearchConfig())
    assert entry.sentences == 2
