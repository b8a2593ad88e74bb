"""`attnkit eval` of question sets: runs, and models that no recipe here trained."""

import csv
import io
import json
from functools import partial
from pathlib import Path

import pytest
from helpers.cli import Cli, Result
from helpers.question_runs import make_run

VARIANTS = "variants: {base: {}, other: {model.positions: sinusoidal}}\nbaseline: other\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """toy.yaml, its runs of two variants, one of them with two seeds."""
    made = tmp_path_factory.mktemp("asked")
    for variant, seed in (("base", 1), ("base", 2), ("other", 1)):
        make_run(made, variant, seed, VARIANTS)
    return made


@pytest.fixture
def attnkit(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`attnkit eval` in the folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    return partial(cli, "eval")


def table(done: Result) -> list[list[str]]:
    """Title words of the columns, then rows, of a table as Markdown."""
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if line.startswith("|")]
    return [[cell.strip(" *") for cell in line.strip("|").split(" | ")] for line in lines]


def test_scores_stand_against_the_number_of_contexts(attnkit: Cli) -> None:
    head, _, *rows = table(attnkit("runs/toy/other", "--format", "markdown"))
    assert head == ["metric", "method", "1", "2", "4"]
    names = [tuple(row[:2]) for row in rows]
    methods = ("entropy", "mean", "concat", "none")
    assert names == [
        *(("answer match", method) for method in methods),
        *(("F1", method) for method in methods),
        ("context found", "entropy"),
        ("context found", "mean"),
    ]
    assert [row[2] for row in rows[-2:]] == ["100.0"] * 2


@pytest.mark.slow
def test_variants_stand_under_their_own_names_and_the_recipes_baseline(attnkit: Cli) -> None:
    done = attnkit("toy.yaml", "--format", "json")
    result = json.loads(done.out)
    assert {row["variant"] for row in result["rows"]} == {"base", "other"}
    assert result["baseline"] == "other"
    bases = {(one["baseline"], one["baseline_method"]) for one in result["comparisons"]}
    assert bases == {("other", "entropy")}
    kinds = {(one["variant"], one["method"]) for one in result["comparisons"]}
    assert len(kinds) == 7
    text = attnkit("toy.yaml").out
    assert "difference: to other entropy with the same number of contexts" in text
    assert "seeds: 1, 2 (base); 1 (other) (means over seeds)" in text
    assert "concat truncated contexts that did not fit one row (contexts): 6 of 6 " in text


@pytest.mark.slow
def test_rows_of_two_variants_are_not_mixed(attnkit: Cli) -> None:
    head, _, *rows = table(attnkit("toy.yaml", "--format", "markdown"))
    assert head[:3] == ["metric", "variant", "method"]
    result = json.loads(attnkit("toy.yaml", "--format", "json").out)
    names = {"answer match": "answer-match", "F1": "answer-f1", "context found": "context-found"}
    seen = set()
    for metric, variant, method, *_, shown in rows:
        scores = [
            one["metrics"][names[metric]]["score"]
            for one in result["rows"]
            if (one["variant"], one["method"], one["contexts"]) == (variant, method, 4)
        ]
        assert len(scores) == {"base": 2, "other": 1}[variant]
        assert shown.split()[0].rstrip("*") == f"{sum(scores) / len(scores):.1f}"
        seen.add(shown)
    assert len(seen) > 2


@pytest.mark.slow
def test_a_baseline_is_a_variant_or_a_method(attnkit: Cli) -> None:
    one = json.loads(attnkit("toy.yaml", "--baseline", "base", "--format", "json").out)
    assert {(c["baseline"], c["baseline_method"]) for c in one["comparisons"]} == {("base", "entropy")}
    two = json.loads(attnkit("toy.yaml", "--baseline", "concat", "--format", "json").out)
    assert {(c["baseline"], c["baseline_method"]) for c in two["comparisons"]} == {("other", "concat")}


def test_csv_has_a_line_a_way_of_asking_and_a_column_a_metric(attnkit: Cli) -> None:
    done = attnkit("toy.yaml", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert len(rows) == 2 * 3 * 4
    assert [row["contexts"] for row in rows[:5]] == ["1", "1", "1", "1", "2"]
    assert {row["sentences"] for row in rows} == {"6"}
    assert {row["seeds"] for row in rows if row["variant"] == "base"} == {"1, 2"}
    assert all(row["answer-f1"] and row["answer-match"] for row in rows)
    assert {row["method"] for row in rows if row["context-found"]} == {"entropy", "mean"}


def test_several_splits_have_a_column_and_their_own_numbers_of_questions(attnkit: Cli) -> None:
    done = attnkit("runs/toy/other", "--split", "test,coupled", "--format", "markdown")
    head, _, *rows = table(done)
    assert head[:3] == ["split", "metric", "method"]
    assert [row[0] for row in rows] == ["test"] * 10 + ["coupled"] * 10
    assert "- questions: 6 of test\n- questions: 6 of coupled\n" in done.out


def test_context_found_outlives_a_change_of_how_text_is_scored(attnkit: Cli) -> None:
    """The chosen contexts are kept with the answers, which are not asked for again."""
    first = table(attnkit("runs/toy/other", "--format", "markdown"))
    done = attnkit("runs/toy/other", "--lowercase", "--format", "markdown")
    assert "decoded" not in done.err
    assert table(done) == first


@pytest.mark.slow
def test_a_run_of_another_recipe_is_asked_as_a_model(attnkit: Cli, folder: Path) -> None:
    done = attnkit("toy.yaml", "--model", "runs/toy/base/seed-1", "--format", "json")
    assert done.code == 0, done.err
    assert done.err.splitlines()[-1].endswith("72 of 72 sentences decoded")
    result = json.loads(done.out)
    assert {(row["variant"], row["seed"]) for row in result["rows"]} == {("runs/toy/base/seed-1", None)}
    kept = folder / "runs" / "toy" / "models" / "runs--toy--base--seed-1"
    assert (kept / "scores.json").is_file()
    assert {row["run"] for row in result["rows"]} == {"runs/toy/models/runs--toy--base--seed-1"}
    own = json.loads(attnkit("runs/toy/base/seed-1", "--format", "json").out)
    scores = [
        [(row["method"], row["contexts"], row["metrics"], row["cut"]) for row in one["rows"]] for one in (result, own)
    ]
    assert scores[0] == scores[1]
    again = attnkit("toy.yaml", "--model", "runs/toy/base/seed-1", "--format", "json")
    assert again.out == done.out
    assert "decoded" not in again.err
    assert "decoded" in attnkit("toy.yaml", "--model", "runs/toy/base/seed-1", "--fresh").err


def test_models_stand_side_by_side_under_their_names(attnkit: Cli) -> None:
    models = ("runs/toy/other/seed-1", "runs/toy/base/seed-2")
    words = ("toy.yaml", "--model", models[0], "--model", models[1])
    head, _, *rows = table(attnkit(*words, "--format", "markdown"))
    assert head[:3] == ["metric", "model", "method"]
    assert {row[1] for row in rows} == set(models)
    result = json.loads(attnkit(*words, "--baseline", models[1], "--format", "json").out)
    assert result["baseline"] == models[1]


def test_a_file_of_questions_is_asked_with_each_setting_once(attnkit: Cli, folder: Path) -> None:
    """Lists of answers; what does not depend on the swept values is decoded once."""
    lines = [
        {"question": f"Town of {n}?", "answers": [t], "contexts": [f"Town of {n}: {t}."], "gold": 0}
        for n, t in enumerate("abcd")
    ]
    (folder / "own.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    words = ["own.jsonl", "--model", "runs/toy/base/seed-1", "contexts.beta=0,1", "contexts.eta=0,0.1"]
    words += ["contexts.methods=[entropy,mean,concat]", "contexts.counts=[2]"]
    done = attnkit(*words, "--format", "json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert [row["method"] for row in rows] == [
        *(f"entropy,beta={beta},eta={eta}" for beta in (0, 1) for eta in (0, 0.1)),
        "mean,beta=0",
        "mean,beta=1",
        "concat",
    ]
    assert {row["recipe"] for row in rows} == {"own"}
    assert done.err.splitlines()[-1].endswith("28 of 28 sentences decoded")
    assert "decoded" not in attnkit(*words).err
    head, _, *shown = table(attnkit(*words, "--format", "markdown"))
    assert head == ["metric", "model", "method", "2"]
    assert [row[2] for row in shown[:2]] == ["entropy,beta=0,eta=0", "entropy,beta=0,eta=0.1"]
    done = attnkit(*words[:3], "contexts.methods=[none]", "data.source=question", "--fresh", "--format", "markdown")
    assert table(done)[0] == ["metric", "model", "method", "1", "2", "4"]
    assert "no question has 8 passages; skipped" in done.err
    assert "no question has 9 passages" in attnkit(*words[:3], "contexts.counts=[9]").error


@pytest.mark.slow
def test_a_hugging_face_model_is_asked(attnkit: Cli, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from helpers.pretrained import save_pretrained

    model = save_pretrained(tmp_path / "gpt2", "gpt2")
    people = (
        ("A river runs.", "What runs?", "river"),
        ("A mill is old.", "What is old?", "mill"),
        ("A dog sits.", "What sits?", "dog"),
    )
    lines = [{"source": asked, "target": answer, "contexts": [text], "gold": 0} for text, asked, answer in people]
    rows = tmp_path / "test.jsonl"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    recipe = tmp_path / "people.yaml"
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
    done = attnkit(*words, "--format", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["rows"]
    assert len(found) == 10
    assert {row["sentences"] for row in found} == {3}
    (kept,) = (tmp_path / "people" / "models").iterdir()
    assert kept.name.endswith("--gpt2")
    outputs = (kept / "outputs" / "test.entropy.3.hyp.txt").read_text(encoding="utf-8")
    assert outputs.count("\n") == 3
    template = ("--template", "Text: {context}\\nAsked: {prompt}\\n")
    assert "decoded" in attnkit(*words, *template).err
    assert "decoded" not in attnkit(*words, *template).err
