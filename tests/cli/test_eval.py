"""`attnkit eval`: outputs of any system, and trained runs, in every format."""

import gzip
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from helpers.cli import Cli, Result
from helpers.shell import environment
from helpers.trained import make_run

from attnkit.recipe import metrics

HYPOTHESES = "the red dog runs .\nthere is a cat on the mat\n\nall the same\u2028line\n"
REFERENCES = "the red dog ran .\nthe cat is on the mat\nnothing\nall the same line\n"
OTHERS = "a red dog runs .\nthere is a cat on a mat\nnone\nall same lines\n"


@pytest.fixture
def attnkit(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`attnkit eval` as in a pipe, in a folder with hyp.txt, ref.txt and other.txt."""
    monkeypatch.delenv("COLUMNS")
    for name, text in (("hyp", HYPOTHESES), ("ref", REFERENCES), ("other", OTHERS)):
        Path(f"{name}.txt").write_bytes(text.encode())
    return partial(cli, "eval")


def sacrebleu(hyp: str, *refs: str, options: str = "") -> dict[str, float]:
    """Scores that the `sacrebleu` command prints, with six digits."""
    words = [*refs, "-i", hyp, "-m", "bleu", "chrf", "ter", "-w", "6", *options.split()]
    done = subprocess.run([sys.executable, "-m", "sacrebleu", *words], capture_output=True, text=True, check=True)
    return {row["name"]: row["score"] for row in json.loads(done.stdout)}


def scores(done: Result) -> dict[str, float]:
    """The scores of the only row, rounded as the `sacrebleu` command does."""
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["rows"]
    return {name: float(f"{value['score']:.6f}") for name, value in row["metrics"].items()}


METRICS = ("--metrics", "bleu,chrf,ter", "--format", "json")


def test_files_score_as_by_the_sacrebleu_command(attnkit: Cli) -> None:
    ours = scores(attnkit("--hyp", "hyp.txt", "--ref", "ref.txt", "--ref", "other.txt", *METRICS))
    theirs = sacrebleu("hyp.txt", "ref.txt", "other.txt")
    assert ours == {"bleu": theirs["BLEU"], "chrf": theirs["chrF2"], "ter": theirs["TER"]}


def test_real_text_scores_as_by_the_sacrebleu_command(attnkit: Cli, corpora: Path) -> None:
    reference = (corpora / "multi30k" / "test.de").read_text(encoding="utf-8").split("\n")[:300]
    lines = [" ".join(w for i, w in enumerate(line.split()) if i % 7 != 3) for line in reference]
    Path("h").write_text("\n".join(lines), encoding="utf-8")
    Path("r").write_text("\r\n".join(reference) + "\r\n", encoding="utf-8", newline="")
    ours = scores(attnkit("--hyp", "h", "--ref", "r", "--lowercase", "--tokenize", "intl", *METRICS))
    theirs = sacrebleu("h", "r", options="-lc -tok intl --chrf-lowercase")
    assert ours == {"bleu": theirs["BLEU"], "chrf": theirs["chrF2"], "ter": theirs["TER"]}


def test_one_file_gives_one_row_called_hyp(attnkit: Cli) -> None:
    done = attnkit("--hyp", "hyp.txt", "--ref", "ref.txt", "--format", "json")
    result = json.loads(done.out)
    (row,) = result["rows"]
    assert (row["variant"], row["recipe"], row["seed"], row["split"], row["run"]) == ("hyp", None, None, None, None)
    assert row["metrics"]["bleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert row["sentences"] == 4
    assert (result["baseline"], result["comparisons"]) == (None, [])


def test_metrics_of_words_and_several_tokenizers(attnkit: Cli) -> None:
    Path("v.vec").write_text("the 1 0\ndog 0 1\ncat 1 1\n", encoding="utf-8")
    names = ["bleu", "cider", "distinct-1", "distinct-2", "seq-rep-4", "length-ratio"]
    names += [f"embedding-{name}" for name in ("average", "greedy", "extrema")]
    words = [
        "--hyp",
        "hyp.txt",
        "--hyp",
        "ref.txt",
        "--ref",
        "ref.txt",
        "--tokenize",
        "13a,char",
        "--vectors",
        "v.vec",
        "--metrics",
    ]
    words.append(",".join(names))
    result = json.loads(attnkit(*words, "--format", "json").out)
    assert list(result["rows"][0]["metrics"]) == ["bleu", "bleu-char", *names[1:]]
    best = {name: value["score"] for name, value in result["rows"][1]["metrics"].items()}
    assert [best[n] for n in ("bleu", "bleu-char", "length-ratio")] == pytest.approx([100] * 3)
    table = attnkit(*words, "--format", "markdown").out
    assert "| BLEU (char) |" in table
    assert "length ratio (neither higher nor lower is better): nrefs:1" in table
    assert "distinct-1 (tested over seeds alone): unit:corpus" in table


def test_the_help_names_every_metric(attnkit: Cli) -> None:
    text = re.sub(r"\s+", " ", re.sub(r"-\s*\n\s+", "-", attnkit("--help").out))
    listed = re.search(r"--metrics M,... (.*?) \[default", text)
    assert listed
    found = re.findall(r"[\w-]+", listed[1])
    assert {*metrics.METRICS, "rouge"} <= set(found)


def test_several_files_are_named_by_stem_and_compared_with_the_first(attnkit: Cli) -> None:
    words = ("--hyp", "ref.txt", "--hyp", "hyp.txt", "--ref", "other.txt", "--metrics", "chrf")
    result = json.loads(attnkit(*words, "--format", "json").out)
    assert [row["variant"] for row in result["rows"]] == ["ref", "hyp"]
    (record,) = result["comparisons"]
    assert (record["variant"], record["metric"], result["baseline"]) == ("hyp", "chrf", "ref")
    values = [row["metrics"]["chrf"]["score"] for row in result["rows"]]
    assert record["difference"] == pytest.approx(values[1] - values[0])
    assert 0 < record["p"] <= 1


def test_standard_input_gzip_and_pipes_are_files_too(attnkit: Cli) -> None:
    expected = attnkit("--hyp", "hyp.txt", "--ref", "ref.txt", "--metrics", "chrf").out
    marked = b"\xef\xbb\xbf" + HYPOTHESES.replace("\n", "\r\n").encode()
    Path("ref.gz").write_bytes(gzip.compress(REFERENCES.encode()))
    words = ("--hyp", "-", "--ref", "ref.gz", "--metrics", "chrf")
    assert attnkit(*words, stdin=marked).out == expected


@pytest.mark.slow
def test_a_pipe_of_the_shell_is_read(attnkit: Cli) -> None:
    words = f"{sys.executable} -m attnkit eval --hyp <(cat hyp.txt) --ref ref.txt --metrics chrf"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, env=environment())
    assert done.stdout == attnkit("--hyp", "hyp.txt", "--ref", "ref.txt", "--metrics", "chrf").out


def test_the_table_goes_to_standard_output_and_warnings_to_standard_error(attnkit: Cli) -> None:
    done = attnkit("--hyp", "hyp.txt", "--ref", "ref.txt", "--metrics", "rouge,exact-match")
    assert "ROUGE-Lsum" in done.out
    assert done.err == "attnkit: warning: hyp.txt: empty outputs: 1 of 4\n"


def test_what_metrics_do_not_read_is_said_once_for_all_files(attnkit: Cli) -> None:
    """9 letters of Cyrillic, 4 digits; one of 3 words agrees, classic ROUGE sees the year alone."""
    Path("ref.ru").write_text("\u043a\u043e\u0442 \u0441\u043f\u0430\u043b\u0430 2024\n", encoding="utf-8")
    names = ["a.ru", "b.ru", "c.ru"]
    for name in names:
        Path(name).write_text("\u043e\u043d \u0431\u0435\u0436\u0438\u0442 2024\n", encoding="utf-8")
    words = [*(word for name in names for word in ("--hyp", name)), "--ref", "ref.ru"]
    done = attnkit(*words, "--metrics", "rouge1,rougeL", "--format", "json")
    assert done.err == (
        "attnkit: warning: a.ru and 2 more: ROUGE-1, ROUGE-L: the classic tokenizer keeps only a-z "
        "and 0-9 and splits words at other letters: 33.3 % of the letters and digits of the "
        "references remain; use --words unicode (eval.words)\n"
    )
    assert json.loads(done.out)["rows"][0]["metrics"]["rouge1"]["score"] == 100
    done = attnkit(*words[:2], *words[-2:], "--metrics", "rouge1", "--words", "unicode", "--format", "json")
    assert done.err == ""
    assert scores(done)["rouge1"] == pytest.approx(100 / 3, abs=1e-4)
    words += ["--metrics", "rouge1,rougeL", "--words", "unicode"]
    done = attnkit(*words, "--columns", "rouge1", "--format", "csv")
    assert done.out.count("rouge1_sd") == 1, done.err
    assert "rougeL" not in done.out
    done = attnkit(*words, "--columns", "rouge,rouge1", "--format", "csv")
    assert [done.out.count(f"{name}_sd") for name in ("rouge1", "rougeL")] == [1, 1], done.err


def write_recipe(folder: Path) -> None:
    """A recipe whose runs are those of `make_run`."""
    rows = folder / "test.jsonl"
    (folder / "toy.yaml").write_text(
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


def test_a_recipe_scores_its_runs_in_its_order_against_its_baseline(attnkit: Cli, tmp_path: Path) -> None:
    for variant in ("vanilla", "linear"):
        for seed in (1, 2):
            make_run(tmp_path, variant, seed)
    write_recipe(tmp_path)
    done = attnkit("toy.yaml", "--format", "json", "--device", "cpu")
    assert done.code == 0, done.err
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
    table = attnkit("toy.yaml", "--metrics", "chrf", "--device", "cpu").out
    assert "mean \u00b1 standard deviation over seeds" in " ".join(table.split())


def test_a_folder_has_the_order_of_its_recipe_as_well(attnkit: Cli, tmp_path: Path) -> None:
    """The baseline was put first there, so that the same runs had two orders."""
    listed = {"variants": ["zeta", "vanilla", "linear"], "baseline": "vanilla"}
    for variant in ("linear", "vanilla", "zeta"):
        make_run(tmp_path, variant, **listed)
    result = json.loads(attnkit("runs", "--format", "json", "--device", "cpu").out)
    assert [row["variant"] for row in result["rows"]] == listed["variants"]
    assert result["baseline"] == "vanilla"
    done = attnkit("runs", "--columns", "chrf", "--device", "cpu")
    assert done.code == 2
    assert "--columns 'chrf': choose from variant, BLEU, " in done.err
    table = attnkit("runs", "--columns", "bleu", "--format", "csv", "--device", "cpu").out
    assert "parameters" not in table.splitlines()[0]
    done = attnkit("runs", "--columns", "bleu", "--format", "json", "--device", "cpu")
    assert (done.code, done.out) == (2, "")
    assert "--format json has all columns" in done.err


FIGURES = "published: {source: Some 2021, comparable: false, why: other data, scores: {vanilla: {bleu: 27.5}}}\n"


def test_published_figures_come_from_the_recipe_or_from_its_runs(attnkit: Cli, tmp_path: Path) -> None:
    kept = {"source": "Kept 2020", "comparable": True, "why": None, "split": "test"}
    for variant in ("vanilla", "linear"):
        make_run(tmp_path, variant, published=kept | {"scores": {"linear": {"bleu": 9.0}}})
    write_recipe(tmp_path)
    with (tmp_path / "toy.yaml").open("a", encoding="utf-8") as file:
        file.write(FIGURES)
    of_file = json.loads(attnkit("toy.yaml", "--format", "json", "--device", "cpu").out)
    (figures,) = of_file["published"]
    assert (figures["recipe"], figures["source"]) == ("toy", "Some 2021")
    assert figures["scores"] == {"vanilla": {"bleu": 27.5}}
    assert {best["metric"] for best in of_file["best"]} == {"bleu", "chrf"}
    of_runs = attnkit("runs", "--format", "markdown", "--device", "cpu").out
    assert "| 9.00 |" in of_runs
    assert "- published: Kept 2020; comparable" in of_runs
    assert "- provisional, as each system has one seed: intervals and p cover other test" in of_runs
    assert "runs/toy/{linear,vanilla}/seed-1" in of_runs


@pytest.mark.parametrize("begun", [False, True])
def test_a_recipe_without_some_runs_says_which_and_scores_the_others(
    attnkit: Cli, tmp_path: Path, begun: bool
) -> None:
    make_run(tmp_path, "linear")
    if begun:
        make_run(tmp_path, "vanilla").update(finished=None)
    write_recipe(tmp_path)
    done = attnkit("toy.yaml", "--device", "cpu", "--format", "csv")
    assert done.code == 0
    assert "runs/toy/vanilla: variant vanilla skipped" in done.err


def test_folders_of_runs_take_the_baseline_of_their_manifest(attnkit: Cli, tmp_path: Path) -> None:
    for variant in ("vanilla", "linear"):
        make_run(tmp_path, variant, baseline="vanilla")
    result = json.loads(attnkit("runs", "--format", "json", "--device", "cpu").out)
    assert [row["variant"] for row in result["rows"]] == ["vanilla", "linear"]
    assert result["baseline"] == "vanilla"
    words = ("runs/toy/linear", "runs/toy/vanilla/seed-1")
    result = json.loads(attnkit(*words, "--format", "json", "--device", "cpu").out)
    assert result["baseline"] == "vanilla"
    words = ("runs/toy/linear", "runs/toy/vanilla/seed-1", "runs", "--baseline", "linear")
    result = json.loads(attnkit(*words, "--format", "json", "--device", "cpu").out)
    assert [row["variant"] for row in result["rows"]] == ["linear", "vanilla"]
    assert result["baseline"] == "linear"
    done = attnkit("runs", "--baseline", "vanila")
    assert done.code == 2
    assert "--baseline 'vanila': did you mean vanilla?" in done.err


def test_the_table_says_whose_search_it_is_and_keeps_the_others(attnkit: Cli, tmp_path: Path) -> None:
    """`eval RECIPE` and `eval RUN` of one run printed two BLEUs and overwrote each other."""
    run = make_run(tmp_path)
    write_recipe(tmp_path)
    text = (tmp_path / "toy.yaml").read_text(encoding="utf-8")
    text = text.replace("beam: 2", "method: greedy").replace("linear: {}, ", "base: {}, ")
    (tmp_path / "toy.yaml").write_text(text, encoding="utf-8")
    words = {
        "run": ["runs"],
        "recipe": ["toy.yaml"],
        "command line": ["toy.yaml", "search.beam=3", "search.method=beam"],
    }
    found = {"run": "beam 2", "recipe": "greedy", "command line": "beam 3"}
    for _ in range(2):  # the second time everything is there
        for source, search in found.items():
            done = attnkit(*words[source], "--format", "json", "--device", "cpu")
            (row,) = json.loads(done.out)["rows"]
            assert row["search_from"] == source
            table = attnkit(*words[source], "--format", "markdown", "--device", "cpu").out
            assert f"- search: {search}, " in table
    assert "decoded" not in done.err
    assert len([*(run.path / "outputs").glob("*.hyp.txt")]) == 3


def test_one_variant_in_two_folders_is_two_rows(attnkit: Cli, tmp_path: Path) -> None:
    make_run(tmp_path, model_options={"dropout": 0.2})
    Path("runs").rename("b")
    make_run(tmp_path)
    words = ("runs/toy/base/seed-1", "b/toy/base/seed-1", "--device", "cpu", "--format", "json")
    done = attnkit(*words)
    result = json.loads(done.out)
    assert [row["system"] for row in result["rows"]] == ["base (dropout=0.1)", "base (dropout=0.2)"]
    assert result["comparisons"][0]["baseline_system"] == "base (dropout=0.1)"
    result = json.loads(attnkit(*words, "--baseline", "b/toy/base/seed-1").out)
    assert result["comparisons"][0]["baseline_system"] == "base (dropout=0.2)"
