"""Tests of `attnkit recipe`: list, show, explain, copy and schema."""

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
def recipe(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `attnkit recipe` in a folder with r.yaml."""
    monkeypatch.setenv("COLUMNS", "120")
    Path("r.yaml").write_text(TEXT)
    return partial(cli, "recipe")


def lines(text: str) -> list[list[str]]:
    """Return the words of each line that is not empty."""
    return [words for words in map(str.split, text.splitlines()) if words]


def test_list_shows_every_shipped_recipe(recipe: Cli) -> None:
    done = recipe("list")
    assert done.err == ""
    rows = [[words[0], *words[-2:]] for words in lines(done.out)]
    for name in shipped():
        variants = load(name).variants
        assert [name, str(len(variants)), next(iter(variants.values())).data.corpus or "files"] in rows, name


def test_list_shows_the_corpora(recipe: Cli) -> None:
    found = {words[0]: words for words in lines(recipe("list", "--corpora").out)}
    assert found["toy-translation"][-3:] == ["en", "de", "translation"]
    assert "generated" in found["toy-translation"]
    assert "downloads" in found["wmt14-en-de"]


def test_show_prints_the_file_unchanged_except_control_characters(recipe: Cli) -> None:
    assert recipe("show", "r.yaml") == (0, TEXT, "")
    Path("bad.yaml").write_text("task: \u202enope\n")
    assert recipe("show", "bad.yaml") == (0, "task: \\u202enope\n", "")


def test_show_of_a_variant_is_a_complete_recipe(recipe: Cli) -> None:
    out = recipe("show", "r.yaml", "train.steps=7", "--variant", "fast").out
    assert out.startswith("# recipe: r\n# variant: fast\ntask: translation\n")
    Path("again.yaml").write_text(out)
    assert load("again.yaml").variants["base"] == load("r.yaml", ["train.steps=7"]).variants["fast"]


def test_explain_shows_each_value_with_its_origin(recipe: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("explain", "r.yaml", "train.steps=7", "--quick")
    default = ["train.clip", "1.0", "default"]
    assert default in lines(recipe(*words).out)
    monkeypatch.setattr("attnkit.cli.console.is_terminal", lambda _: True)
    out = recipe(*words).out
    found = lines(out)
    assert ["task", "translation", "r.yaml:2:7"] in found
    assert ["train.steps", "7", "command", "line"] in found
    assert ["train.lr", "0.001", "default", "plain"] in found
    fast = TEXT.splitlines()[8]
    for key, value, text in (("train.lr", "0.002", "2e-3"), ("model.attention.cross",) + 2 * ("linear",)):
        assert [key, value, f"r.yaml:9:{fast.index(text) + 1}", "fast"] in found
    assert "train.clip" not in [words[0] for words in found]
    assert "more keys have their default values: --all shows them" in out
    assert default in lines(recipe(*words, "--all").out)


def test_explain_notes_that_the_validation_split_is_scored(recipe: Cli) -> None:
    """A recipe without data.test was scored on the validation split without a note."""
    note = "there is no data.test: the validation split is scored"
    assert note not in recipe("explain", "r.yaml", "--quick").out
    Path("f.yaml").write_text(TEXT.replace(TEXT.splitlines()[2], "data: {train: [a, b], valid: [c, d]}"))
    assert recipe("explain", "f.yaml", "--quick").out.count(note) == 1


def test_explain_as_json_has_values_origins_and_costs(recipe: Cli) -> None:
    found = json.loads(recipe("explain", "r.yaml", "--quick", "--format", "json").out)
    values = {(row["key"], row["variants"]): row for row in found["values"]["rows"]}
    assert values["train.lr", "fast"]["from"].startswith("r.yaml:9:")
    assert all(row["parameters"] > 1000 for row in found["cost"]["rows"])


def test_explain_omits_options_of_other_model_types(recipe: Cli) -> None:
    rows = lines(recipe("explain", "translation/baselines", "--quick", "--all").out)
    for key, name in (
        ("model.ff", "transformer"),
        ("model.kernel", "convs2s"),
        ("model.attention.encoder", "transformer"),
    ):
        assert [words[-1] for words in rows if words[0] == key] == [name]


def test_explain_measures_cost_before_training(recipe: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("explain", "r.yaml", "--variant", "fast")
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    warning = "attnkit: warning: this machine was busy in the last minute (load 99.0 on "
    assert warning in recipe(*words).err
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    _, out, err = recipe(*words)
    heads = next(words for words in lines(out) if "parameters" in words)
    row = next(words for words in lines(out) if words[0] == "fast")
    assert {"parameters", "memory", "precision", "update", "training"} <= set(heads)
    assert row[1].replace(",", "").isdecimal()
    assert row.count("%") == 2
    assert "on this machine" in out
    assert err == "r fast: counting, preparing, measuring\n"
    assert not Path("runs").exists()


def test_explain_without_the_data_measures_less(recipe: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNKIT_DATA", raising=False)
    Path("m.yaml").write_text(
        "task: translation\ndata: {corpus: multi30k, source: en, target: de}\n"
        "model: {width: 16, heads: 2, layers: 1}\n"
    )
    _, out, err = recipe("explain", "m.yaml")
    assert "attnkit: warning: padding and time are not measured: " in err
    assert "data not read: vocabulary sizes are those of the recipe" in out
    assert "%" not in out


@pytest.mark.slow
def test_explain_downloads_nothing_by_default(recipe: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_DATA", str(tmp_path))
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path))
    _, out, err = recipe("explain", "translation/wmt14-en-de", "--variant", "vanilla")
    assert "wmt14-en-de is not available yet; --download fetches it (" in err
    assert "1.7 GB" in err
    assert "data not read: vocabulary sizes" in out


def test_copy_writes_the_file_and_never_overwrites(recipe: Cli) -> None:
    Path("folder").mkdir()
    assert recipe("copy", "r.yaml", "mine.yaml") == (0, "", "wrote mine.yaml; to train it: attnkit train mine.yaml\n")
    assert Path("mine.yaml").read_text() == TEXT
    recipe("copy", "r.yaml", "folder")
    assert Path("folder/r.yaml").read_text() == TEXT
    Path("mine.yaml").write_text("precious")
    done = recipe("copy", "r.yaml", "mine.yaml", code=73)
    assert done.out == ""
    assert done.err.startswith("attnkit: error: mine.yaml: already exists; ")
    assert done.err.count("\n") == 1
    assert Path("mine.yaml").read_text() == "precious"
    os.symlink("nowhere", "link.yaml")
    recipe("copy", "r.yaml", "link.yaml", code=73)


def test_copy_keeps_the_reference_to_the_extended_recipe(recipe: Cli) -> None:
    Path("child.yaml").write_text("train: {steps: 5}\nextends: 'r.yaml'  # mine\n")
    Path("folder").mkdir()
    recipe("copy", "child.yaml", "folder/mine.yaml")
    assert Path("folder/mine.yaml").read_text() == ('train: {steps: 5}\nextends: "../r.yaml"  # mine\n')
    assert load("folder/mine.yaml").variants["fast"].train.steps == 5
    recipe("copy", "translation/norm", "folder")
    assert 'extends: "translation/multi30k"' in Path("folder/norm.yaml").read_text()
    assert load("folder/norm.yaml").variants == load("translation/norm").variants


def test_schema_prints_the_json_schema(recipe: Cli) -> None:
    assert json.loads(recipe("schema").out) == json_schema()


def test_each_problem_of_a_recipe_is_one_line(recipe: Cli) -> None:
    Path("bad.yaml").write_text("task: x\ndata: {corpus: toy-translation}\ntrain: {lr: 0}\n")
    assert [line[:36] for line in recipe("explain", "bad.yaml", code=78).err.splitlines()] == [
        "attnkit: error: bad.yaml:1:7: task: ",
        "attnkit: error: bad.yaml:3:13: train",
    ]
