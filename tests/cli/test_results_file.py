"""Tests of `attnkit runs pack --results`, and of the commands that read results files."""

import csv
import io
import json
import random
import re
from pathlib import Path

import pytest
from helpers import question_runs, trained
from helpers.cli import Cli
from helpers.scored_runs import scored_run

from attnkit.nbce import question_sets
from attnkit.recipe.schema import EvalConfig
from attnkit.runs import Run
from attnkit.scoring.evaluation import evaluate

GOOD = ["ein roter hund", "zwei katzen", "ein hund und eine katze", "katzen", "eine katze"]
BAD = ["ein hund", "zwei hunde", "", "hunde", "eine sehr rote katze und zwei hunde"]
METRICS = ("bleu", "chrf", "rouge", "perplexity")
ALL_METRICS = ",".join(METRICS)
WEIGHTS = "results have no weights; name their run, or train it again: attnkit train"


@pytest.fixture
def cli(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `attnkit WORDS` on a wide screen."""
    monkeypatch.setenv("COLUMNS", "200")
    return cli


@pytest.fixture
def results(cli: Cli, tmp_path: Path) -> str:
    """The results file of one of two scored runs; their test rows are in a file outside the runs."""
    for variant, outputs in (("good", GOOD), ("bad", BAD)):
        run = scored_run(tmp_path, variant, outputs, METRICS[:3])
        for step in range(1, 200):
            run.log.append({"step": step, "loss": 9.0 / step, "tokens": step, "seconds": 1.0})
        run.record("metrics.jsonl", run.log.sha256())
        evaluate(run, ["test"], EvalConfig(metrics=METRICS), device="cpu")
    assert cli("runs", "pack", "runs", "--results").err.startswith("wrote 2 runs below results, 0.0")
    return "results/toy/good/seed-1.results.tar.xz"


def remove_runs_and_corpus() -> None:
    """Leave only the results files."""
    for name in ("test.jsonl", "test.txt"):
        Path(name).unlink()
    Path("runs").rename("moved")


def with_paths_of_runs(text: str) -> str:
    return text.replace(".results.tar.xz", "").replace("results/toy", "runs/toy")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("format", ["json", "csv", "markdown", "latex", "table"])
@pytest.mark.usefixtures("results")
def test_eval_gives_exactly_the_table_of_the_runs(cli: Cli, format: str) -> None:
    words = ("--format", format, "--metrics", ALL_METRICS, "--device", "cpu")
    of_runs = cli("eval", "runs", *words).out
    remove_runs_and_corpus()
    of_results = cli("eval", "results", *words).out
    assert with_paths_of_runs(of_results) == of_runs
    if format == "json":
        p_values = {record["metric"]: record["p"] for record in json.loads(of_results)["comparisons"]}
        assert p_values.keys() >= {"bleu", "chrf", "rouge1"}
        assert {metric for metric, p in p_values.items() if p is None} <= {"perplexity"}


def test_eval_adds_metrics_if_the_corpus_is_available(cli: Cli, results: str) -> None:
    options = ("--metrics", "ter,perplexity", "--format", "json")
    done = cli("eval", results, *options)
    assert "scores are not saved, because the run is not writable" in done.err
    of_run = cli("eval", "runs/toy/good", *options, "--device", "cpu")
    assert json.loads(done.out)["rows"][0]["metrics"] == json.loads(of_run.out)["rows"][0]["metrics"]
    remove_runs_and_corpus()
    error = cli("eval", results, *options, code=66).error
    assert "test: results files have no sources and references: " in error


def test_compare_shows_examples_if_the_corpus_is_available(cli: Cli, results: str) -> None:
    of_runs = cli("compare", "runs/toy/good", "runs/toy/bad", "--format", "jsonl").out
    words = ("compare", results, "results/toy/bad", "--format", "jsonl")
    assert with_paths_of_runs(cli(*words).out) == of_runs
    assert json.loads(of_runs.splitlines()[0])["references"]
    remove_runs_and_corpus()
    assert "test: results files have no sources and references: " in cli(*words, code=66).error


@pytest.mark.usefixtures("results")
def test_changed_corpus_is_an_error_in_compare_and_not_in_verify(cli: Cli) -> None:
    path = Path("test.jsonl")
    path.write_text(path.read_text(encoding="utf-8").replace("dog", "cat"), encoding="utf-8")
    assert "the corpus has changed since test was scored" in cli("compare", "results", code=66).error
    assert "not checked" in cli("verify", "results").out


@pytest.mark.slow
@pytest.mark.usefixtures("results")
def test_report_without_the_corpus_lacks_only_examples(cli: Cli) -> None:
    cli("report", "results", "-o", "with.md")
    text = Path("with.md").read_text(encoding="utf-8")
    assert "eine sehr rote katze und zwei hunde" in text
    assert "two cats" in text
    remove_runs_and_corpus()
    cli("report", "results", "-o", "report.md")
    text = Path("report.md").read_text(encoding="utf-8")
    assert "No examples: " in text
    assert "results files have no sources and references" in text
    table = cli("eval", "results", "--metrics", ALL_METRICS, "--format", "markdown").out
    assert table.splitlines()[2].partition(" | ")[0] in text
    assert len(list(Path("report-figures").iterdir())) >= 2


def test_verify_reports_what_it_could_not_check(cli: Cli, results: str) -> None:
    table = cli("eval", "results", "--metrics", ALL_METRICS, "--format", "json").out
    Path("table.json").write_text(table, encoding="utf-8")

    def checks() -> dict[str, tuple[str, str]]:
        rows = json.loads(cli("verify", results, "--format", "json").out)["rows"]
        assert {row["run"] for row in rows} == {results}
        return {row["cell"]: (row["state"], row["text"]) for row in rows}

    found = checks()
    files = ("manifest.json", "recipe.yaml", "scores.json", "data/test.json")
    for name in (*files, "test bleu", "test rougeLsum", "test perplexity"):
        assert found[name] == ("same", "")
    assert found["metrics.jsonl"] == ("same", "thinned from 199 records")
    for name in ("model.safetensors", "tokenizer.model"):
        assert found[name] == ("not checked", "not in packed results")
    cli("verify", "results", "--table", "table.json")
    remove_runs_and_corpus()
    found = checks()
    assert found["test bleu"] == ("same", "")
    state, reason = found["test"]
    assert state == "not checked"
    assert reason.startswith("only the statistics of each line are checked: ")


def test_verify_finds_scores_that_do_not_match_the_outputs(cli: Cli, results: str) -> None:
    """All hashes match, as if a changed run had been packed."""
    run = Run.open("runs/toy/good/seed-1")
    scores = run.scores()
    scores["test"].metrics["bleu"].score += 1  # type: ignore[operator]
    run.write_scores("test", GOOD, scores["test"])
    cli("runs", "pack", "runs/toy/good", "--results")
    for _ in range(2):  # with the corpus, and without it
        assert "test bleu: scores.json has" in cli("verify", results, code=65).error
        Path("test.jsonl").unlink(missing_ok=True)


def test_damaged_file_is_skipped_or_a_one_line_error(cli: Cli, results: str) -> None:
    path = Path(results)
    data = bytearray(path.read_bytes())
    for place in random.Random(1).sample(range(40, len(data) - 40), 5):
        data[place] ^= 255
    path.write_bytes(data)
    message = "seed-1.results.tar.xz: is damaged or not a results file"
    for command in ("eval", "compare", "plot", "report"):
        err = cli(command, "results", code=2 if command == "compare" else 0).err  # compare needs two runs
        assert message in err
        assert "; skipped" in err
        done = cli(command, results, code=65)
        assert message in done.error
        assert done.err.count("\n") == 1
    assert "1 of" in cli("verify", "results", code=65).error
    assert "damaged" in cli("runs", "results").out


def test_runs_lists_results_files(cli: Cli, results: str) -> None:
    assert len(re.findall(r"seed-1\.results\.tar\.xz +results ", cli("runs", "results").out)) == 2
    assert cli("runs", "clean", "results").err.endswith("nothing to remove\n")
    row = next(csv.DictReader(io.StringIO(cli("runs", results, "--format", "csv").out)))
    assert row["bytes"] == str(Path(results).stat().st_size)


@pytest.mark.slow
def test_answers_to_questions_are_kept(cli: Cli, tmp_path: Path) -> None:
    run = question_runs.make_run(tmp_path)
    question_sets.evaluate(run, ["test"], run.recipe.eval)
    cli("runs", "pack", "runs", "--results")
    words = ("--format", "json", "--device", "cpu")
    of_run = cli("eval", "runs", *words).out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnkit.data.corpus.Corpus.open", None)  # the corpus must not be read
        assert with_paths_of_runs(cli("eval", "results", *words).out) == of_run
    path = "results/toy/base/seed-1.results.tar.xz"
    cli("verify", path)
    cli("compare", path)
    assert WEIGHTS in cli("eval", path, "contexts.beta=0.5", code=66).error


def test_windows_of_language_models_are_kept(cli: Cli, tmp_path: Path) -> None:
    trained.make_run(tmp_path, task="language-modeling")
    words = ("eval.lengths=[4,8]", "--metrics", "perplexity,accuracy", "--format", "json", "--device", "cpu")
    of_run = cli("eval", "runs/toy/base", *words).out
    cli("runs", "pack", "runs", "--results")
    remove_runs_and_corpus()
    assert with_paths_of_runs(cli("eval", "results/toy/base", *words).out) == of_run
