"""`attnkit recipe`: what it prints where, and how it refuses."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
from helpers.cli import Cli

from attnkit.recipe import load, shipped
from attnkit.recipe.json_schema import json_schema

TEXT = (
    "# attnkit train r.yaml\ntask: translation\n"
    "data: {corpus: toy-translation, size: 200, max_length: 64}\n"
    "tokenizer: {size: 200}\nmodel: {width: 16, ff: 32, layers: 1, heads: 2}\n"
    "train: {steps: 10, batch_tokens: 512}\n"
    "variants:\n  plain: {}\n  fast: {model.attention: linear, train.lr: 2e-3}\n"
)


@pytest.fixture
def run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`attnkit recipe` in a folder with r.yaml."""
    monkeypatch.setenv("COLUMNS", "120")
    Path("r.yaml").write_text(TEXT)
    return partial(cli, "recipe")


def lines(text: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in text.splitlines()]


def test_list_shows_every_shipped_recipe(run: Cli) -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    for name in shipped():
        variants = load(name).variants
        first = next(iter(variants.values()))
        row = [name, str(len(variants)), first.data.corpus or "files"]
        assert any([words[0], *words[-2:]] == row for words in lines(out) if words), name


def test_list_shows_the_corpora(run: Cli) -> None:
    code, out, _ = run("list", "--corpora")
    assert code == 0
    found = {words[0]: words for words in lines(out) if words}
    assert found["toy-translation"][-3:] == ["en", "de", "translation"]
    assert "generated" in found["toy-translation"]
    assert "downloads" in found["wmt14-en-de"]


def test_show_prints_the_file_as_it_is(run: Cli) -> None:
    assert run("show", "r.yaml") == (0, TEXT, "")


def test_show_prints_a_broken_file_and_makes_it_harmless(run: Cli) -> None:
    Path("bad.yaml").write_text("task: \u202enope\n")
    assert run("show", "bad.yaml") == (0, "task: \\u202enope\n", "")


def test_show_of_a_variant_is_complete_and_can_be_loaded(run: Cli) -> None:
    code, out, _ = run("show", "r.yaml", "train.steps=7", "--variant", "fast")
    assert code == 0
    assert out.startswith("# recipe: r\n# variant: fast\ntask: translation\n")
    Path("again.yaml").write_text(out)
    recipe = load("again.yaml").variants["base"]
    assert recipe == load("r.yaml", ["train.steps=7"]).variants["fast"]


def test_explain_gives_each_value_with_its_origin(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    _, piped, _ = run("explain", "r.yaml", "train.steps=7", "--quick")
    assert ["train.clip", "1.0", "default"] in lines(piped)
    monkeypatch.setattr("attnkit.cli.console.is_terminal", lambda _: True)
    code, out, _ = run("explain", "r.yaml", "train.steps=7", "--quick")
    assert code == 0
    found = lines(out)
    assert ["task", "translation", "r.yaml:2:7"] in found
    assert ["train.steps", "7", "command", "line"] in found
    assert ["train.lr", "0.001", "default", "plain"] in found
    fast = TEXT.splitlines()[8]
    for key, value, text in (("train.lr", "0.002", "2e-3"), ("model.attention.cross",) + 2 * ("linear",)):
        assert [key, value, f"r.yaml:9:{fast.index(text) + 1}", "fast"] in found
    assert not any(words[:1] == ["train.clip"] for words in found)
    assert "more keys have their default values: --all shows them" in out
    _, out, _ = run("explain", "r.yaml", "train.steps=7", "--quick", "--all")
    assert ["train.clip", "1.0", "default"] in lines(out)


def test_explain_says_that_the_validation_split_is_scored(run: Cli) -> None:
    """A recipe without data.test took the validation split for it without a word."""
    note = "there is no data.test: the validation split is scored"
    _, out, _ = run("explain", "r.yaml", "--quick")
    assert note not in out
    files = "{train: [a, b], valid: [c, d]}"
    Path("f.yaml").write_text(TEXT.replace(TEXT.splitlines()[2], f"data: {files}"))
    _, out, _ = run("explain", "f.yaml", "--quick")
    assert out.count(note) == 1


def test_explain_gives_programs_values_origins_and_numbers(run: Cli) -> None:
    code, out, _ = run("explain", "r.yaml", "--quick", "--format", "json")
    assert code == 0
    found = json.loads(out)
    values = {(row["key"], row["variants"]): row for row in found["values"]["rows"]}
    assert values["train.lr", "fast"]["from"].startswith("r.yaml:9:")
    assert all(row["parameters"] > 1000 for row in found["cost"]["rows"])


def test_explain_leaves_out_what_a_model_does_not_have(run: Cli) -> None:
    code, out, _ = run("explain", "translation/baselines", "--quick", "--all")
    assert code == 0
    rows = [words for words in lines(out) if words]
    for key, name in (
        ("model.ff", "transformer"),
        ("model.kernel", "convs2s"),
        ("model.attention.encoder", "transformer"),
    ):
        assert [words[-1] for words in rows if words[0] == key] == [name]


def test_explain_gives_cost_before_training(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    _, _, err = run("explain", "r.yaml", "--variant", "fast")
    assert "attnkit: warning: this machine was busy in the last minute (load 99.0 on " in err
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    code, out, err = run("explain", "r.yaml", "--variant", "fast")
    assert code == 0
    heads = next(words for words in lines(out) if "parameters" in words)
    row = next(words for words in lines(out) if words[:1] == ["fast"])
    assert {"parameters", "memory", "precision", "update", "training"} <= set(heads)
    assert row[1].replace(",", "").isdecimal()
    assert row.count("%") == 2
    assert "on this machine" in out
    assert err == "r fast: counting, preparing, measuring\n"
    assert not Path("runs").exists()


def test_explain_says_what_it_cannot_know_without_the_data(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNKIT_DATA", raising=False)
    Path("m.yaml").write_text(
        "task: translation\ndata: {corpus: multi30k, source: en, target: de}\n"
        "model: {width: 16, heads: 2, layers: 1}\n"
    )
    code, out, err = run("explain", "m.yaml")
    assert code == 0
    assert "attnkit: warning: padding and time are not measured: " in err
    assert "data not read: vocabulary sizes are those of the recipe" in out
    assert "%" not in out


@pytest.mark.slow
def test_explain_downloads_nothing_unless_it_is_asked_to(
    run: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNKIT_DATA", str(tmp_path))
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path))
    code, out, err = run("explain", "translation/wmt14-en-de", "--variant", "vanilla")
    assert code == 0
    assert "wmt14-en-de is not available yet; --download fetches it (" in err
    assert "1.7 GB" in err
    assert "data not read: vocabulary sizes" in out


def test_copy_writes_the_file_and_never_overwrites(run: Cli) -> None:
    Path("folder").mkdir()
    assert run("copy", "r.yaml", "mine.yaml") == (0, "", "wrote mine.yaml; to train it: attnkit train mine.yaml\n")
    assert Path("mine.yaml").read_text() == TEXT
    assert run("copy", "r.yaml", "folder")[0] == 0
    assert Path("folder/r.yaml").read_text() == TEXT
    Path("mine.yaml").write_text("precious")
    code, out, err = run("copy", "r.yaml", "mine.yaml")
    assert (code, out) == (73, "")
    assert err.startswith("attnkit: error: mine.yaml: already exists; ")
    assert err.count("\n") == 1
    assert Path("mine.yaml").read_text() == "precious"
    os.symlink("nowhere", "link.yaml")
    assert run("copy", "r.yaml", "link.yaml")[0] == 73
    assert run("copy", "r.yaml", "gone/x.yaml")[0] == 73


def test_a_copy_finds_what_it_extends(run: Cli) -> None:
    Path("child.yaml").write_text("train: {steps: 5}\nextends: 'r.yaml'  # mine\n")
    Path("folder").mkdir()
    assert run("copy", "child.yaml", "folder/mine.yaml")[0] == 0
    assert Path("folder/mine.yaml").read_text() == ('train: {steps: 5}\nextends: "../r.yaml"  # mine\n')
    assert load("folder/mine.yaml").variants["fast"].train.steps == 5
    assert run("copy", "translation/norm", "folder")[0] == 0
    assert 'extends: "translation/multi30k"' in Path("folder/norm.yaml").read_text()
    copied, shipped_one = load("folder/norm.yaml"), load("translation/norm")
    assert copied.variants == shipped_one.variants


def test_schema_prints_the_json_schema(run: Cli) -> None:
    code, out, _ = run("schema")
    assert (code, json.loads(out)) == (0, json_schema())


def test_all_problems_of_a_recipe_are_told_one_a_line(run: Cli) -> None:
    Path("bad.yaml").write_text("task: x\ndata: {corpus: toy-translation}\ntrain: {lr: 0}\n")
    code, _, err = run("explain", "bad.yaml")
    assert code == 78
    assert [line[:36] for line in err.splitlines()] == [
        "attnkit: error: bad.yaml:1:7: task: ",
        "attnkit: error: bad.yaml:3:13: train",
    ]
