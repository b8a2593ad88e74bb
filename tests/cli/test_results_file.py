"""`attnkit runs pack --results`, and the commands that open what it writes."""

import csv
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import question_runs, trained
from helpers.cli import Cli, Result, run_cli
from helpers.scored_runs import scored_run

from attnkit.nbce import question_sets
from attnkit.recipe.schema import EvalConfig
from attnkit.runs import Run
from attnkit.scoring.evaluation import evaluate

GOOD = ["ein roter hund", "zwei katzen", "ein hund und eine katze", "katzen", "eine katze"]
BAD = ["ein hund", "zwei hunde", "", "hunde", "eine sehr rote katze und zwei hunde"]
METRICS = ("bleu", "chrf", "rouge", "perplexity")
WEIGHTS = "results have no weights; name their run, or train it again: attnkit train"


@pytest.fixture
def cli(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command in a folder with two scored runs below runs/, and their results below results/.

    The test rows are in a file, which is kept in the runs.
    """
    for variant, outputs in (("good", GOOD), ("bad", BAD)):
        run = scored_run(tmp_path, variant, outputs, METRICS[:3])
        for step in range(1, 200):
            run.log.append({"step": step, "loss": 9.0 / step, "tokens": step, "seconds": 1.0})
        run.record("metrics.jsonl", run.log.sha256())
        evaluate(run, ["test"], EvalConfig(metrics=METRICS), device="cpu")
    monkeypatch.setenv("COLUMNS", "200")
    done = cli("runs", "pack", "runs", "--results")
    assert done.code == 0, done.err
    assert done.err.startswith("wrote 2 runs below results, 0.0")
    return cli


GOOD_RESULTS = "results/toy/good/seed-1.results.tar.xz"


def without_rows() -> None:
    """Take the corpus away, and the runs, so that the results have to do."""
    for name in ("test.jsonl", "test.txt"):
        Path(name).unlink()
    Path("runs").rename("moved")


def as_of_runs(text: str) -> str:
    return text.replace(".results.tar.xz", "").replace("results/toy", "runs/toy")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("format", ["json", "csv", "markdown", "latex", "table"])
def test_the_table_is_that_of_the_runs_to_the_last_digit(cli: Cli, format: str) -> None:
    words = ("--format", format, "--metrics", ",".join(METRICS), "--device", "cpu")
    runs = cli("eval", "runs", *words)
    without_rows()
    results = cli("eval", "results", *words)
    assert results.code == 0, results.err
    assert as_of_runs(results.out) == runs.out
    if format == "json":
        table = json.loads(results.out)
        assert {one["metric"] for one in table["comparisons"]} >= {"bleu", "chrf", "rouge1"}
        assert all(one["p"] is not None for one in table["comparisons"] if one["metric"] != "perplexity")


def test_metrics_are_added_from_the_outputs_where_the_corpus_is_at_hand(cli: Cli) -> None:
    words = ("eval", GOOD_RESULTS, "--metrics", "ter,perplexity", "--format", "json")
    found = cli(*words)
    assert found.code == 0, found.err
    assert "scores are not saved, because the run is not writable" in found.err
    metrics = json.loads(found.out)["rows"][0]["metrics"]
    run = cli("eval", "runs/toy/good", *words[2:], "--device", "cpu")
    assert metrics == json.loads(run.out)["rows"][0]["metrics"]
    without_rows()
    done = cli(*words)
    assert done.code == 66
    assert "test: results files have no sources and references: " in done.error


def test_compare_shows_sources_and_references_where_they_are_at_hand(cli: Cli) -> None:
    runs = cli("compare", "runs/toy/good", "runs/toy/bad", "--format", "jsonl")
    words = ("compare", GOOD_RESULTS, "results/toy/bad", "--format", "jsonl")
    results = cli(*words)
    assert results.code == 0, results.err
    assert as_of_runs(results.out) == runs.out
    assert json.loads(runs.out.splitlines()[0])["references"]
    without_rows()
    done = cli(*words)
    assert done.code == 66
    assert "test: results files have no sources and references: " in done.error


def test_compare_refuses_another_corpus(cli: Cli) -> None:
    path = Path("test.jsonl")
    path.write_text(path.read_text(encoding="utf-8").replace("dog", "cat"), encoding="utf-8")
    done = cli("compare", "results")
    assert done.code == 66
    assert "the corpus has changed since test was scored" in done.error
    verified = cli("verify", "results")
    assert verified.code == 0
    assert "not checked" in verified.out


@pytest.mark.slow
def test_report_has_all_but_examples(cli: Cli) -> None:
    cli("report", "results", "-o", "with.md")
    text = Path("with.md").read_text(encoding="utf-8")
    assert "eine sehr rote katze und zwei hunde" in text
    assert "two cats" in text
    without_rows()
    done = cli("report", "results", "-o", "report.md")
    assert done.code == 0, done.err
    text = Path("report.md").read_text(encoding="utf-8")
    assert "No examples: " in text
    assert "results files have no sources and references" in text
    table = cli("eval", "results", "--metrics", ",".join(METRICS), "--format", "markdown").out
    assert table.splitlines()[2].partition(" | ")[0] in text
    assert len(list(Path("report-figures").iterdir())) >= 2


def checks(done: Result) -> dict[str, tuple[str, str]]:
    rows = json.loads(done.out)["rows"]
    return {f"{row['run']} {row['cell']}": (row["state"], row["text"]) for row in rows}


def test_verify_says_what_it_checked_and_what_it_could_not(cli: Cli) -> None:
    table = cli("eval", "results", "--metrics", ",".join(METRICS), "--format", "json").out
    Path("table.json").write_text(table, encoding="utf-8")
    words = ("verify", GOOD_RESULTS, "--format", "json")
    done = cli(*words)
    assert done.code == 0, done.err
    found = checks(done)
    for name in (
        "manifest.json",
        "recipe.yaml",
        "scores.json",
        "data/test.json",
        "test bleu",
        "test rougeLsum",
        "test perplexity",
    ):
        assert found[f"{GOOD_RESULTS} {name}"] == ("same", "")
    assert found[f"{GOOD_RESULTS} metrics.jsonl"] == ("same", "thinned from 199 records")
    for name in ("model.safetensors", "tokenizer.model"):
        assert found[f"{GOOD_RESULTS} {name}"] == ("not checked", "not in packed results")
    assert cli("verify", "results", "--table", "table.json").code == 0
    without_rows()
    done = cli(*words)
    assert done.code == 0
    assert checks(done)[f"{GOOD_RESULTS} test bleu"] == ("same", "")
    state, why = checks(done)[f"{GOOD_RESULTS} test"]
    assert state == "not checked"
    assert why.startswith("only the statistics of each line are checked: ")


def test_verify_finds_outputs_that_do_not_give_the_scores(cli: Cli) -> None:
    """All hashes are right, as if someone had packed a run that was changed."""
    run = Run.open("runs/toy/good/seed-1")
    scores = run.scores()
    scores["test"].metrics["bleu"].score += 1  # type: ignore[operator]
    run.write_scores("test", GOOD, scores["test"])
    cli("runs", "pack", "runs/toy/good", "--results")
    for _ in range(2):
        done = cli("verify", GOOD_RESULTS)
        assert done.code == 65
        assert "test bleu: scores.json has" in done.error
        Path("test.jsonl").unlink(missing_ok=True)


def test_damage_is_refused_in_one_line(cli: Cli) -> None:
    path = Path(GOOD_RESULTS)
    data = bytearray(path.read_bytes())
    for place in random.Random(1).sample(range(40, len(data) - 40), 5):
        data[place] ^= 255
    path.write_bytes(data)
    for command in ("eval", "compare", "plot", "report"):
        done = cli(command, "results")
        assert done.code == (2 if command == "compare" else 0), command  # of one run alone
        assert "seed-1.results.tar.xz: is damaged or not a results file" in done.err
        assert "; skipped" in done.err
        done = cli(command, str(path))
        assert done.code == 65, command
        assert "seed-1.results.tar.xz: is damaged or not a results file" in done.error
        assert done.err.count("\n") == 1
    done = cli("verify", "results")
    assert done.code == 65
    assert "1 of" in done.error
    assert "damaged" in cli("runs", "results").out


def test_the_list_of_runs(cli: Cli) -> None:
    shown = cli("runs", "results")
    assert shown.code == 0, shown.err
    assert len(re.findall(r"seed-1\.results\.tar\.xz +results ", shown.out)) == 2
    assert cli("runs", "clean", "results").err.endswith("nothing to remove\n")
    row = next(csv.DictReader(io.StringIO(cli("runs", GOOD_RESULTS, "--format", "csv").out)))
    assert row["bytes"] == str(Path(GOOD_RESULTS).stat().st_size)


@pytest.mark.slow
def test_answers_to_questions_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run = question_runs.make_run(tmp_path)
    question_sets.evaluate(run, ["test"], run.recipe.eval)
    monkeypatch.chdir(tmp_path)
    assert run_cli(capsys, "runs", "pack", "runs", "--results").code == 0
    words = ("--format", "json", "--device", "cpu")
    before = run_cli(capsys, "eval", "runs", *words)
    monkeypatch.setattr("attnkit.data.corpus.Corpus.open", None)  # it must not be read
    after = run_cli(capsys, "eval", "results", *words)
    assert after.code == 0, after.err
    assert as_of_runs(after.out) == before.out
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    path = "results/toy/base/seed-1.results.tar.xz"
    assert run_cli(capsys, "verify", path).code == 0
    assert run_cli(capsys, "compare", path).code == 0
    refused = run_cli(capsys, "eval", path, "contexts.beta=0.5")
    assert refused.code == 66
    assert WEIGHTS in refused.error


def test_windows_of_language_models_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run = trained.make_run(tmp_path, task="language-modeling")
    monkeypatch.chdir(tmp_path)
    words = ("eval.lengths=[4,8]", "--metrics", "perplexity,accuracy", "--format", "json", "--device", "cpu")
    before = run_cli(capsys, "eval", str(run.path.relative_to(tmp_path)), *words)
    assert before.code == 0, before.err
    run_cli(capsys, "runs", "pack", "runs", "--results")
    without_rows()
    after = run_cli(capsys, "eval", "results/toy/base", *words)
    assert after.code == 0, after.err
    assert as_of_runs(after.out) == before.out
