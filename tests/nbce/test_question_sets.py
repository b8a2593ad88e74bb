"""Question sets asked by every method, with the scores that a run keeps."""

import json
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
ALL = get_args(Method)
SPEC = ContextsConfig(counts=(1, 2, 4), methods=("entropy", "mean", "concat", "none"), rows=6)
"""The recipe's."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An untrained language model of the embedded questions."""
    return make_run(tmp_path_factory.mktemp("runs"))


def asked(run: Run, count: int, rows: int = 6) -> list[tuple[Any, tuple[str, ...]]]:
    found = Corpus.open(run.recipe.data, run.recipe.task).questions("test", 4)
    chosen = QuestionSet(found, 1)
    return [(row, chosen.contexts(number, count) or ()) for number, row in enumerate(found[:rows])]


def test_a_decoder_of_pairs_is_asked_as_it_was_trained(run: Run) -> None:
    reader, tokenizer, model = open_run(run), run.tokenizer(), run.model()
    ((row, contexts),) = asked(run, 1, 1)
    whole = tokenizer.source.encode([f"{contexts[0]} {row.source}"])[0]
    made = reader.row(contexts[0], row.source)
    assert [*made.head, *made.tail] == [*whole, 3, 2]  # EOS of the source, then BOS
    logits = model(torch.tensor([[*whole, 3]]), torch.tensor([[2]]))[0, -1]
    kept = reader.begin([made])
    stepped, _ = reader.step(torch.tensor([[2]]), kept)
    torch.testing.assert_close(stepped[0], logits)


def test_every_method_and_number_of_contexts_is_scored_and_kept(run: Run) -> None:
    entries = question_sets.evaluate(run, ["test"], METRICS, device="cpu", force=True)
    kinds = [(entry.contexts, entry.method) for entry in entries]
    assert kinds == [(count, method) for count in SPEC.counts for method in SPEC.methods]
    for entry in entries:
        chooses = entry.method in ("entropy", "mean")
        assert set(entry.scores) == set(METRICS.metrics[: 3 if chooses else 2])
        assert entry.sentences == 6
    assert entries[0].scores["context-found"].value == 100  # the right one alone
    stored = run.scores()["test.mean.4"]
    outputs = run.output_path("test.mean.4").read_text(encoding="utf-8").splitlines()
    rows = asked(run, 4)
    right = [answer_match(text, row.target) for text, (row, _) in zip(outputs, rows, strict=True)]
    assert stored.metrics["answer-match"].score == pytest.approx(100 * sum(right) / 6)
    assert stored.search.contexts == StoredContexts(method="mean", beta=0.25, eta=0.1, top_p=0.95, alpha=0.5, limit=0)


@pytest.mark.sampled(5)
def test_every_row_says_what_metrics_do_not_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the answers, also where nothing is scored again; the lines are one below the table."""
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


def test_outputs_are_those_of_the_methods(run: Run) -> None:
    question_sets.evaluate(run, ["test"], METRICS, device="cpu")
    rows = asked(run, 4)
    for method in ("entropy", "none"):
        replies = ask(
            open_run(run),
            method,
            [contexts for _, contexts in rows],
            [row.source for row, _ in rows],
            run.recipe.search,
        )
        path = run.output_path(f"test.{method}.4")
        assert path.read_text(encoding="utf-8").splitlines() == [reply.text for reply in replies]


def test_what_is_known_is_not_asked_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = question_sets.evaluate(run, ["test"], METRICS, device="cpu")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr(question_sets, "ask", refuse)
    again = question_sets.evaluate(run, ["test"], METRICS, device="cpu")
    assert [entry.scores for entry in again] == [entry.scores for entry in first]
    more = question_sets.evaluate(run, ["test"], EvalConfig(metrics=("rouge1", "context-found")))
    assert {name for entry in more for name in entry.scores} == {"rouge1", "context-found"}
    with pytest.raises(AssertionError, match="asked again"):
        question_sets.evaluate(run, ["test"], METRICS, SPEC.model_copy(update={"beta": 0.5}))


def test_each_method_answers_and_those_that_choose_say_what_they_chose(run: Run) -> None:
    spec = ContextsConfig(counts=(3,), methods=ALL, rows=4)
    entries = question_sets.evaluate(run, ["test", "coupled"], METRICS, spec, device="cpu")
    assert len(entries) == 2 * len(ALL)
    chose = {e.method for e in entries if "context-found" in e.scores}
    assert chose == {*ALL} - {"concat", "window", "cad", "none"}


def test_questions_that_need_more_contexts_are_left_out(run: Run) -> None:
    entries = question_sets.evaluate(run, ["ordered"], METRICS, SPEC, device="cpu")
    assert {entry.contexts for entry in entries} == {1, 4}


def test_the_concatenation_is_cut_to_the_trained_length_and_says_so(run: Run) -> None:
    spec = ContextsConfig(counts=(1, 4), methods=("concat",), rows=4)
    one, four = question_sets.evaluate(run, ["test"], METRICS, spec, device="cpu")
    assert (one.cut, four.cut) == (0, 4)
    found = side_by_side([one, four], {"toy": "base"})
    note = "concat truncated contexts that did not fit one row (contexts): 4 of 4 questions (4)"
    assert note in tables(found)[0].notes


def test_methods_are_compared_on_the_same_questions_and_numbers(run: Run) -> None:
    entries = question_sets.evaluate(run, ["test"], METRICS, device="cpu")
    found = side_by_side(entries, {"toy": "base"}, EvalConfig(bootstrap=20))
    assert found.baseline == "base"
    assert {one["baseline_method"] for one in found.json()["comparisons"]} == {"entropy"}
    kinds = {(one["contexts"], one["method"], one["metric"]) for one in found.json()["comparisons"]}
    others = ("mean", "concat", "none")
    found_by = {(n, "mean", "context-found") for n in (1, 2, 4)}
    assert kinds == found_by | {(n, m, s) for n in (1, 2, 4) for m in others for s in METRICS.metrics[:2]}
    json.dumps(found.json(), allow_nan=False)
    table = tables(found)[0]
    assert [column.title for column in table.columns] == ["metric", "method", "1", "2", "4"]
    assert len(table.rows) == 4 + 4 + 2
    value = entries[5].scores["answer-f1"].value
    (record,) = [one for one in comparison_table(found).records() if (one["method"], one["contexts"]) == ("mean", 2)]
    assert record["answer-f1"] == value
    assert table.rows[5][3].text.startswith(f"{value:.1f}")


def test_a_rule_is_what_the_recipe_asks_for() -> None:
    spec = ContextsConfig(beta=0.5, eta=0.2, top_p=0.8)
    for method, word, numbers in (
        ("entropy", "entropy", (0.5, 0.2, 0.8)),
        ("entropy-free", "entropy", (0.5, 0, 0.8)),
        ("mean-whole", "mean", (0.5, 0.2, 1)),
        ("concat", "concat", (0.5, 0.2, 0.8)),
    ):
        found, rule = question_sets.pooling(method, spec)
        assert (found, rule[1:4]) == (word, numbers)


def test_metrics_of_the_wrong_kind_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="metrics: perplexity does not apply to question-answering; choose from bleu"):
        question_sets.evaluate(run, ["test"], EvalConfig(metrics=("perplexity",)))
    with pytest.raises(UsageError, match="metrics: context-found does not apply to question-answering"):
        evaluate_text(run, ["test"], EvalConfig(metrics=("context-found",)), device="cpu")


def test_passages_come_from_questions_that_are_not_asked_as_well(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [
        {"source": f"Town of {n}?", "target": t, "contexts": [f"Town of {n}: {t}."], "gold": 0}
        for n, t in enumerate("abcdefghi")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    corpus = Corpus.open(DataConfig(test=str(path)), "question-answering")
    spec = ContextsConfig(counts=(8,), methods=("best",), rows=2)
    [entry] = question_sets.evaluate_model(
        question_sets.EvaluatedModel.of_run(run, "cpu"), corpus, ["test"], METRICS, spec, SearchConfig()
    )
    assert entry.sentences == 2
