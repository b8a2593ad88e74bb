"""Tests of `attnkit eval` with files of outputs, recipes and trained runs, in every format."""

import gzip
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import Cli, Result
from helpers.shell import environment
from helpers.trained import make_run

from attnkit.recipe import metrics

HYPOTHESES = "the red dog runs .\nthere is a cat on the mat\n\nall the same\u2028line\n"
REFERENCES = "the red dog ran .\nthe cat is on the mat\nnothing\nall the same line\n"
OTHERS = "a red dog runs .\nthere is a cat on a mat\nnone\nall same lines\n"
FILES = ("--hyp", "hyp.txt", "--ref", "ref.txt")
METRICS = ("--metrics", "bleu,chrf,ter", "--format", "json")
JSON = ("--format", "json", "--device", "cpu")


@pytest.fixture
def evaluate(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `attnkit eval` as in a pipe, in a folder with hyp.txt, ref.txt and other.txt."""
    monkeypatch.delenv("COLUMNS")
    for name, text in (("hyp", HYPOTHESES), ("ref", REFERENCES), ("other", OTHERS)):
        Path(f"{name}.txt").write_bytes(text.encode())
    return partial(cli, "eval")


def sacrebleu(hyp: str, *refs: str, options: str = "") -> dict[str, float]:
    """Return the scores that the `sacrebleu` command prints, with six digits."""
    words = [*refs, "-i", hyp, "-m", "bleu", "chrf", "ter", "-w", "6", *options.split()]
    done = subprocess.run([sys.executable, "-m", "sacrebleu", *words], capture_output=True, text=True, check=True)
    found = {row["name"]: row["score"] for row in json.loads(done.stdout)}
    return {"bleu": found["BLEU"], "chrf": found["chrF2"], "ter": found["TER"]}


def scores(done: Result) -> dict[str, float]:
    """Return the scores of the only row, rounded as by the `sacrebleu` command."""
    (row,) = json.loads(done.out)["rows"]
    return {name: float(f"{value['score']:.6f}") for name, value in row["metrics"].items()}


def test_files_score_as_by_the_sacrebleu_command(evaluate: Cli) -> None:
    done = evaluate(*FILES, "--ref", "other.txt", *METRICS)
    assert scores(done) == sacrebleu("hyp.txt", "ref.txt", "other.txt")


def test_real_text_scores_as_by_the_sacrebleu_command(evaluate: Cli, corpora: Path) -> None:
    reference = (corpora / "multi30k" / "test.de").read_text(encoding="utf-8").split("\n")[:300]
    lines = [" ".join(w for i, w in enumerate(line.split()) if i % 7 != 3) for line in reference]
    Path("h").write_text("\n".join(lines), encoding="utf-8")
    Path("r").write_text("\r\n".join(reference) + "\r\n", encoding="utf-8", newline="")
    done = evaluate("--hyp", "h", "--ref", "r", "--lowercase", "--tokenize", "intl", *METRICS)
    assert scores(done) == sacrebleu("h", "r", options="-lc -tok intl --chrf-lowercase")


def test_one_file_gives_one_row_named_hyp(evaluate: Cli) -> None:
    result = json.loads(evaluate(*FILES, "--format", "json").out)
    (row,) = result["rows"]
    assert (row["variant"], row["recipe"], row["seed"], row["split"], row["run"]) == ("hyp", None, None, None, None)
    assert row["metrics"]["bleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert row["sentences"] == 4
    assert (result["baseline"], result["comparisons"]) == (None, [])


def test_word_metrics_and_several_tokenizers(evaluate: Cli) -> None:
    Path("v.vec").write_text("the 1 0\ndog 0 1\ncat 1 1\n", encoding="utf-8")
    names = ["bleu", "cider", "distinct-1", "distinct-2", "seq-rep-4", "length-ratio"]
    names += [f"embedding-{name}" for name in ("average", "greedy", "extrema")]
    words = [*FILES, "--hyp", "ref.txt", "--tokenize", "13a,char", "--vectors", "v.vec", "--metrics", ",".join(names)]
    result = json.loads(evaluate(*words, "--format", "json").out)
    assert list(result["rows"][0]["metrics"]) == ["bleu", "bleu-char", *names[1:]]
    best = {name: value["score"] for name, value in result["rows"][1]["metrics"].items()}
    assert [best[n] for n in ("bleu", "bleu-char", "length-ratio")] == pytest.approx([100] * 3)
    table = evaluate(*words, "--format", "markdown").out
    assert "| BLEU (char) |" in table
    assert "length ratio (neither higher nor lower is better): nrefs:1" in table
    assert "distinct-1 (tested over seeds alone): unit:corpus" in table


def test_help_lists_every_metric(evaluate: Cli) -> None:
    text = re.sub(r"\s+", " ", re.sub(r"-\s*\n\s+", "-", evaluate("--help").out))
    listed = re.search(r"--metrics M,... (.*?) \[default", text)
    assert listed
    assert {*metrics.METRICS, "rouge"} <= set(re.findall(r"[\w-]+", listed[1]))


def test_files_are_named_by_stem_and_compared_with_the_first(evaluate: Cli) -> None:
    words = ("--hyp", "ref.txt", "--hyp", "hyp.txt", "--ref", "other.txt", "--metrics", "chrf")
    result = json.loads(evaluate(*words, "--format", "json").out)
    assert [row["variant"] for row in result["rows"]] == ["ref", "hyp"]
    (record,) = result["comparisons"]
    assert (record["variant"], record["metric"], result["baseline"]) == ("hyp", "chrf", "ref")
    first, second = (row["metrics"]["chrf"]["score"] for row in result["rows"])
    assert record["difference"] == pytest.approx(second - first)
    assert 0 < record["p"] <= 1


def test_standard_input_and_gzip_files_are_read(evaluate: Cli) -> None:
    marked = b"\xef\xbb\xbf" + HYPOTHESES.replace("\n", "\r\n").encode()
    Path("ref.gz").write_bytes(gzip.compress(REFERENCES.encode()))
    done = evaluate("--hyp", "-", "--ref", "ref.gz", "--metrics", "chrf", stdin=marked)
    assert done.out == evaluate(*FILES, "--metrics", "chrf").out


@pytest.mark.slow
def test_pipe_of_the_shell_is_read(evaluate: Cli) -> None:
    words = f"{sys.executable} -m attnkit eval --hyp <(cat hyp.txt) --ref ref.txt --metrics chrf"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, env=environment())
    assert done.stdout == evaluate(*FILES, "--metrics", "chrf").out


def test_table_is_on_standard_output_and_warnings_on_standard_error(evaluate: Cli) -> None:
    done = evaluate(*FILES, "--metrics", "rouge,exact-match")
    assert "ROUGE-Lsum" in done.out
    assert done.err == "attnkit: warning: hyp.txt: empty outputs: 1 of 4\n"


def test_classic_rouge_warns_once_of_ignored_letters(evaluate: Cli) -> None:
    """The reference has 8 Cyrillic letters and 4 digits. Of its 3 words, only the year matches.

    The classic tokenizer keeps nothing but the year.
    """
    Path("ref.ru").write_text("\u043a\u043e\u0442 \u0441\u043f\u0430\u043b\u0430 2024\n", encoding="utf-8")
    names = ["a.ru", "b.ru", "c.ru"]
    for name in names:
        Path(name).write_text("\u043e\u043d \u0431\u0435\u0436\u0438\u0442 2024\n", encoding="utf-8")
    words = ["--ref", "ref.ru", *(word for name in names for word in ("--hyp", name))]
    done = evaluate(*words, "--metrics", "rouge1,rougeL", "--format", "json")
    assert done.err == (
        "attnkit: warning: a.ru and 2 more: ROUGE-1, ROUGE-L: the classic tokenizer keeps only a-z "
        "and 0-9 and splits words at other letters: 33.3 % of the letters and digits of the "
        "references remain; use --words unicode (eval.words)\n"
    )
    assert json.loads(done.out)["rows"][0]["metrics"]["rouge1"]["score"] == 100
    done = evaluate(*words[:4], "--metrics", "rouge1", "--words", "unicode", "--format", "json")
    assert done.err == ""
    assert scores(done)["rouge1"] == pytest.approx(100 / 3, abs=1e-4)
    words += ["--metrics", "rouge1,rougeL", "--words", "unicode", "--format", "csv"]
    out = evaluate(*words, "--columns", "rouge1").out
    assert out.count("rouge1_sd") == 1
    assert "rougeL" not in out
    out = evaluate(*words, "--columns", "rouge,rouge1").out
    assert [out.count(f"{name}_sd") for name in ("rouge1", "rougeL")] == [1, 1]


def write_recipe(folder: Path) -> Path:
    """Write a recipe for the runs of `make_run`."""
    rows = folder / "test.jsonl"
    path = folder / "toy.yaml"
    path.write_text(
        "task: translation\n"
        f"data: {{train: {rows}, valid: {rows}, test: {rows}, max_length: 24}}\n"
        "model: {width: 16, heads: 2, ff: 32, layers: 1}\n"
        "train: {seeds: [1, 2]}\n"
        "search: {beam: 2, max_length: 8}\n"
        "eval: {metrics: [bleu, chrf], bootstrap: 50}\n"
        "variants: {linear: {}, vanilla: {}}\n"
        "baseline: vanilla\n",
        encoding="utf-8",
    )
    return path


def test_recipe_scores_its_runs_in_order_against_its_baseline(evaluate: Cli, tmp_path: Path) -> None:
    for variant in ("vanilla", "linear"):
        for seed in (1, 2):
            make_run(tmp_path, variant, seed)
    write_recipe(tmp_path)
    done = evaluate("toy.yaml", *JSON)
    assert "vanilla seed 2, test: 5 of 5 sentences decoded" in done.err
    result = json.loads(done.out)
    rows = [(name, seed) for name in ("linear", "vanilla") for seed in (1, 2)]
    assert [(row["variant"], row["seed"]) for row in result["rows"]] == rows
    assert result["baseline"] == "vanilla"
    assert [(c["variant"], c["metric"]) for c in result["comparisons"]] == [("linear", "bleu"), ("linear", "chrf")]
    assert result["resamples"] == 50
    row = result["rows"][0]
    assert row["run"] == "runs/toy/linear/seed-1"
    assert row["metrics"].keys() == {"bleu", "chrf"}
    table = evaluate("toy.yaml", "--metrics", "chrf", "--device", "cpu").out
    assert "mean \u00b1 standard deviation over seeds" in " ".join(table.split())


def test_folder_of_runs_has_the_order_of_the_recipe(evaluate: Cli, tmp_path: Path) -> None:
    """The baseline was put first, so the same runs had two orders."""
    listed: dict[str, Any] = {"variants": ["zeta", "vanilla", "linear"], "baseline": "vanilla"}
    for variant in ("linear", "vanilla", "zeta"):
        make_run(tmp_path, variant, **listed)
    result = json.loads(evaluate("runs", *JSON).out)
    assert [row["variant"] for row in result["rows"]] == listed["variants"]
    assert result["baseline"] == "vanilla"


def test_columns_are_chosen_except_in_json(evaluate: Cli, tmp_path: Path) -> None:
    make_run(tmp_path)
    command = ("runs", "--device", "cpu", "--columns")
    assert "--columns 'kilobytes': choose from variant, BLEU, " in evaluate(*command, "kilobytes", code=2).err
    for metric in ("chrf", "rougeL"):
        advice = f"--columns {metric}: not in this table; add --metrics {metric}"
        assert advice in evaluate(*command, metric, code=2).err
    assert "seeds: 1\n" in evaluate(*command, "bleu").out  # the note stays without its column
    assert "parameters" not in evaluate(*command, "bleu", "--format", "csv").out.splitlines()[0]
    done = evaluate(*command, "bleu", "--format", "json", code=2)
    assert done.out == ""
    assert "--format json has all columns" in done.err


PUBLISHED = "published: {source: Some 2021, comparable: false, why: other data, scores: {vanilla: {bleu: 27.5}}}\n"


def test_published_scores_come_from_the_recipe_or_its_runs(evaluate: Cli, tmp_path: Path) -> None:
    kept = {"source": "Kept 2020", "comparable": True, "why": None, "split": "test"}
    for variant in ("vanilla", "linear"):
        make_run(tmp_path, variant, published=kept | {"scores": {"linear": {"bleu": 9.0}}})
    with write_recipe(tmp_path).open("a", encoding="utf-8") as file:
        file.write(PUBLISHED)
    result = json.loads(evaluate("toy.yaml", *JSON).out)
    (published,) = result["published"]
    assert (published["recipe"], published["source"]) == ("toy", "Some 2021")
    assert published["scores"] == {"vanilla": {"bleu": 27.5}}
    assert {best["metric"] for best in result["best"]} == {"bleu", "chrf"}
    table = evaluate("runs", "--format", "markdown", "--device", "cpu").out
    for text in (
        "| 9.00 |",
        "- published: Kept 2020; comparable",
        "- provisional, as each system has one seed: intervals and p cover other test",
        "runs/toy/{linear,vanilla}/seed-1",
    ):
        assert text in table


@pytest.mark.parametrize("begun", [False, True])
def test_variant_without_a_finished_run_is_skipped_with_a_warning(evaluate: Cli, tmp_path: Path, begun: bool) -> None:
    make_run(tmp_path, "linear")
    if begun:
        make_run(tmp_path, "vanilla").update(finished=None)
    write_recipe(tmp_path)
    done = evaluate("toy.yaml", "--device", "cpu", "--format", "csv")
    assert "runs/toy/vanilla: variant vanilla skipped" in done.err


def test_folders_of_runs_have_the_baseline_of_their_manifest(evaluate: Cli, tmp_path: Path) -> None:
    for variant in ("vanilla", "linear"):
        make_run(tmp_path, variant, baseline="vanilla")
    result = json.loads(evaluate("runs", *JSON).out)
    assert [row["variant"] for row in result["rows"]] == ["vanilla", "linear"]
    assert result["baseline"] == "vanilla"
    words = ("runs/toy/linear", "runs/toy/vanilla/seed-1")
    assert json.loads(evaluate(*words, *JSON).out)["baseline"] == "vanilla"
    result = json.loads(evaluate(*words, "runs", "--baseline", "linear", *JSON).out)
    assert [row["variant"] for row in result["rows"]] == ["linear", "vanilla"]
    assert result["baseline"] == "linear"
    assert "--baseline 'vanila': did you mean vanilla?" in evaluate("runs", "--baseline", "vanila", code=2).err


def test_outputs_of_different_search_settings_are_kept_apart(evaluate: Cli, tmp_path: Path) -> None:
    """`eval RECIPE` and `eval RUN` of one run printed two BLEUs and overwrote each other."""
    run = make_run(tmp_path)
    recipe = write_recipe(tmp_path)
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(
        text.replace("beam: 2", "method: greedy").replace("linear: {}, ", "base: {}, "), encoding="utf-8"
    )
    cases = (
        (["runs"], "run", "beam 2"),
        (["toy.yaml"], "recipe", "greedy"),
        (["toy.yaml", "search.beam=3", "search.method=beam"], "command line", "beam 3"),
    )
    for _ in range(2):  # the second time, all outputs exist
        for words, source, search in cases:
            done = evaluate(*words, *JSON)
            (row,) = json.loads(done.out)["rows"]
            assert row["search_from"] == source
            assert f"- search: {search}, " in evaluate(*words, "--format", "markdown", "--device", "cpu").out
    assert "decoded" not in done.err
    assert len([*(run.path / "outputs").glob("*.hyp.txt")]) == 3


def test_one_variant_in_two_folders_gives_two_rows(evaluate: Cli, tmp_path: Path) -> None:
    make_run(tmp_path, model_options={"dropout": 0.2})
    Path("runs").rename("b")
    make_run(tmp_path)
    words = ("runs/toy/base/seed-1", "b/toy/base/seed-1", *JSON)
    result = json.loads(evaluate(*words).out)
    assert [row["system"] for row in result["rows"]] == ["base (dropout=0.1)", "base (dropout=0.2)"]
    assert result["comparisons"][0]["baseline_system"] == "base (dropout=0.1)"
    result = json.loads(evaluate(*words, "--baseline", "b/toy/base/seed-1").out)
    assert result["comparisons"][0]["baseline_system"] == "base (dropout=0.2)"
