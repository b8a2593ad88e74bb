"""Tests of `attnkit eval` with question sets: trained runs, and other models with --model."""

import csv
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import Cli, Result
from helpers.question_runs import make_run

VARIANTS = "variants: {base: {}, other: {model.positions: sinusoidal}}\nbaseline: other\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with toy.yaml and runs of its two variants, one of them with two seeds."""
    folder = tmp_path_factory.mktemp("questions")
    for variant, seed in (("base", 1), ("base", 2), ("other", 1)):
        make_run(folder, variant, seed, VARIANTS)
    return folder


@pytest.fixture
def evaluate(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `attnkit eval` in the folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    return partial(cli, "eval")


def cells(done: Result) -> list[list[str]]:
    """Return the cells of a Markdown table: column names, the separator, then rows."""
    lines = [line for line in done.out.splitlines() if line.startswith("|")]
    return [[cell.strip(" *") for cell in line.strip("|").split(" | ")] for line in lines]


def result_of(done: Result) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(done.out)
    return result


def test_table_has_a_column_for_each_number_of_contexts(evaluate: Cli) -> None:
    head, _, *rows = cells(evaluate("runs/toy/other", "--format", "markdown"))
    assert head == ["metric", "method", "1", "2", "4"]
    methods = ("entropy", "mean", "concat", "none")
    assert [tuple(row[:2]) for row in rows] == [
        *(("answer match", method) for method in methods),
        *(("F1", method) for method in methods),
        ("context found", "entropy"),
        ("context found", "mean"),
    ]
    assert [row[2] for row in rows[-2:]] == ["100.0"] * 2


@pytest.mark.slow
def test_variants_are_compared_with_the_baseline_of_the_recipe(evaluate: Cli) -> None:
    result = result_of(evaluate("toy.yaml", "--format", "json"))
    assert {row["variant"] for row in result["rows"]} == {"base", "other"}
    assert result["baseline"] == "other"
    assert baselines(result) == {("other", "entropy")}
    assert len({(record["variant"], record["method"]) for record in result["comparisons"]}) == 7
    text = evaluate("toy.yaml").out
    assert "difference: to other entropy with the same number of contexts" in text
    assert "seeds: 1, 2 (base); 1 (other) (means over seeds)" in text
    assert "concat truncated contexts that did not fit one row (contexts): 6 of 6 " in text


def baselines(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(record["baseline"], record["baseline_method"]) for record in result["comparisons"]}


@pytest.mark.slow
def test_rows_of_two_variants_are_not_mixed(evaluate: Cli) -> None:
    head, _, *rows = cells(evaluate("toy.yaml", "--format", "markdown"))
    assert head[:3] == ["metric", "variant", "method"]
    result = result_of(evaluate("toy.yaml", "--format", "json"))
    names = {"answer match": "answer-match", "F1": "answer-f1", "context found": "context-found"}
    for metric, variant, method, *_, shown in rows:
        scores = [
            row["metrics"][names[metric]]["score"]
            for row in result["rows"]
            if (row["variant"], row["method"], row["contexts"]) == (variant, method, 4)
        ]
        assert len(scores) == {"base": 2, "other": 1}[variant]
        assert shown.split()[0].rstrip("*") == f"{sum(scores) / len(scores):.1f}"
    assert len({row[-1] for row in rows}) > 2


@pytest.mark.slow
def test_baseline_is_a_variant_or_a_method(evaluate: Cli) -> None:
    for baseline, expected in (("base", ("base", "entropy")), ("concat", ("other", "concat"))):
        result = result_of(evaluate("toy.yaml", "--baseline", baseline, "--format", "json"))
        assert baselines(result) == {expected}


def test_csv_has_a_line_for_each_condition_and_a_column_for_each_metric(evaluate: Cli) -> None:
    done = evaluate("toy.yaml", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert len(rows) == 2 * 3 * 4
    assert [row["contexts"] for row in rows[:5]] == ["1", "1", "1", "1", "2"]
    assert {row["sentences"] for row in rows} == {"6"}
    assert {row["seeds"] for row in rows if row["variant"] == "base"} == {"1, 2"}
    assert all(row["answer-f1"] and row["answer-match"] for row in rows)
    assert {row["method"] for row in rows if row["context-found"]} == {"entropy", "mean"}


def test_several_splits_have_a_column_and_their_own_numbers_of_questions(evaluate: Cli) -> None:
    done = evaluate("runs/toy/other", "--split", "test,coupled", "--format", "markdown")
    head, _, *rows = cells(done)
    assert head[:3] == ["split", "metric", "method"]
    assert [row[0] for row in rows] == ["test"] * 10 + ["coupled"] * 10
    assert "- questions: 6 of test\n- questions: 6 of coupled\n" in done.out


def test_context_found_is_kept_when_only_text_normalization_changes(evaluate: Cli) -> None:
    """The chosen contexts are stored with the answers, so nothing is decoded again."""
    first = cells(evaluate("runs/toy/other", "--format", "markdown"))
    done = evaluate("runs/toy/other", "--lowercase", "--format", "markdown")
    assert "decoded" not in done.err
    assert cells(done) == first


@pytest.mark.slow
def test_run_given_as_model_scores_as_the_run_itself(evaluate: Cli) -> None:
    words = ("toy.yaml", "--model", "runs/toy/base/seed-1")
    done = evaluate(*words, "--format", "json")
    assert done.err.splitlines()[-1].endswith("72 of 72 sentences decoded")
    result = result_of(done)
    assert {(row["variant"], row["seed"]) for row in result["rows"]} == {("runs/toy/base/seed-1", None)}
    stored = "runs/toy/models/runs--toy--base--seed-1"
    assert Path(stored, "scores.json").is_file()
    assert {row["run"] for row in result["rows"]} == {stored}
    of_model, of_run = (
        [(row["method"], row["contexts"], row["metrics"], row["cut"]) for row in table["rows"]]
        for table in (result, result_of(evaluate("runs/toy/base/seed-1", "--format", "json")))
    )
    assert of_model == of_run
    again = evaluate(*words, "--format", "json")
    assert again.out == done.out
    assert "decoded" not in again.err
    assert "decoded" in evaluate(*words, "--fresh").err


def test_several_models_are_compared_by_name(evaluate: Cli) -> None:
    models = ("runs/toy/other/seed-1", "runs/toy/base/seed-2")
    words = ("toy.yaml", "--model", models[0], "--model", models[1])
    head, _, *rows = cells(evaluate(*words, "--format", "markdown"))
    assert head[:3] == ["metric", "model", "method"]
    assert {row[1] for row in rows} == set(models)
    assert result_of(evaluate(*words, "--baseline", models[1], "--format", "json"))["baseline"] == models[1]


def test_question_file_is_decoded_once_for_each_setting(evaluate: Cli, folder: Path) -> None:
    """Methods that do not depend on the swept values are decoded once."""
    lines = [
        {"question": f"Town of {n}?", "answers": [t], "contexts": [f"Town of {n}: {t}."], "gold": 0}
        for n, t in enumerate("abcd")
    ]
    (folder / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["own.jsonl", "--model", "runs/toy/base/seed-1", "contexts.beta=0,1", "contexts.eta=0,0.1"]
    words += ["contexts.methods=[entropy,mean,concat]", "contexts.counts=[2]"]
    done = evaluate(*words, "--format", "json")
    rows = result_of(done)["rows"]
    assert [row["method"] for row in rows] == [
        *(f"entropy,beta={beta},eta={eta}" for beta in (0, 1) for eta in (0, 0.1)),
        "mean,beta=0",
        "mean,beta=1",
        "concat",
    ]
    assert {row["recipe"] for row in rows} == {"own"}
    assert done.err.splitlines()[-1].endswith("28 of 28 sentences decoded")
    assert "decoded" not in evaluate(*words).err
    head, _, *shown = cells(evaluate(*words, "--format", "markdown"))
    assert head == ["metric", "model", "method", "2"]
    assert [row[2] for row in shown[:2]] == ["entropy,beta=0,eta=0", "entropy,beta=0,eta=0.1"]
    done = evaluate(*words[:3], "contexts.methods=[none]", "data.source=question", "--fresh", "--format", "markdown")
    assert cells(done)[0] == ["metric", "model", "method", "1", "2", "4"]
    assert "no question has 8 passages; skipped" in done.err
    assert "no question has 9 passages" in evaluate(*words[:3], "contexts.counts=[9]", code=65).error


@pytest.mark.slow
def test_hugging_face_model_answers_questions(evaluate: Cli, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from helpers.pretrained import save_pretrained

    model = save_pretrained(tmp_path / "gpt2", "gpt2")
    lines = [
        {"source": f"What {verb}?", "target": noun, "contexts": [f"A {noun} {verb}."], "gold": 0}
        for noun, verb in (("river", "runs"), ("mill", "is old"), ("dog", "sits"))
    ]
    rows = tmp_path / "test.jsonl"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    recipe = tmp_path / "sights.yaml"
    recipe.write_text(
        "task: question-answering\n"
        f"data: {{train: {rows}, valid: {rows}, test: {rows}}}\n"
        "model: {shape: decoder}\n"
        "search: {method: greedy, max_length: 4}\n"
        "contexts: {counts: [1, 3], methods: [entropy, concat, window, cad, retrieval]}\n"
        "eval: {metrics: [answer-match, answer-f1, context-found]}\n",
        encoding="utf-8",
    )
    words = (str(recipe), "--model", str(model), "--offline", "--out", str(tmp_path))
    found = result_of(evaluate(*words, "--format", "json"))["rows"]
    assert len(found) == 10
    assert {row["sentences"] for row in found} == {3}
    (stored,) = (tmp_path / "sights" / "models").iterdir()
    assert stored.name.endswith("--gpt2")
    outputs = (stored / "outputs" / "test.entropy.3.hyp.txt").read_text(encoding="utf-8")
    assert outputs.count("\n") == 3
    template = ("--template", "Text: {context}\\nAsked: {prompt}\\n")
    assert "decoded" in evaluate(*words, *template).err
    assert "decoded" not in evaluate(*words, *template).err
