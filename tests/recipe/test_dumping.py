"""A resolved recipe is written, read back, hashed and compared."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.recipe_texts import GOOD, read, write
from hypothesis import given, settings
from hypothesis import strategies as st

from attnkit.errors import RecipeError
from attnkit.recipe import Recipe, difference, digest, dump, flat, load, load_resolved, places
from attnkit.recipe.schema import (
    AttentionConfig,
    DataConfig,
    ModelConfig,
    Roles,
    SplitSizes,
    TokenizerConfig,
    TrainConfig,
)

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Cf", "Zl", "Zp"]), max_size=12)
AWKWARD = st.sampled_from(
    ["no", "null", "~", "", "1e-3", "1:30", "true", "2024-01-01", "- a", "a: b", "#x", "'", " x "]
)
NAMES = TEXTS | AWKWARD
WORDS = NAMES.filter(lambda text: text == "".join(text.split()).replace("\u2581", "") != "")
RECIPES = st.builds(
    Recipe,
    task=st.sampled_from(["translation", "dialogue"]),
    data=st.builds(
        DataConfig,
        corpus=st.none() | NAMES,
        source=st.none() | NAMES,
        train=st.none() | WORDS | st.tuples(WORDS, WORDS),
        rows=st.integers(0, 2**31 - 1),
    ),
    tokenizer=st.builds(TokenizerConfig, special=st.lists(WORDS, max_size=3, unique=True).map(tuple)),
    train=st.builds(
        TrainConfig,
        lr=st.floats(0, exclude_min=True, allow_infinity=False, allow_nan=False),
        eps=st.floats(1e-30, 1),
        seeds=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3, unique=True).map(tuple),
    ),
    model=st.builds(
        ModelConfig,
        attention=st.builds(
            Roles,
            encoder=st.sampled_from(
                [
                    AttentionConfig(name="linear"),
                    AttentionConfig.model_validate(
                        {"name": "synthesizer-random", "trainable": False, "attention_dropout": 0.5}
                    ),
                ]
            ),
        ),
    ),
)


def resolved(text: str) -> Recipe:
    return load_resolved(write(text, "resolved.yaml"))


@settings(derandomize=True)
@given(RECIPES)
def test_what_is_written_is_read_back_the_same(recipe: Recipe) -> None:
    assert resolved(dump(recipe)) == recipe


def test_a_resolved_recipe_can_be_loaded_like_any_other() -> None:
    for text in (GOOD, "task: language-modeling\ndata: {corpus: wikitext-2}\n"):
        recipe = read(text).variants["base"]
        assert load(write(dump(recipe), "again.yaml")).variants["base"] == recipe


def test_the_header_is_comments_that_cannot_break_out() -> None:
    recipe = read(GOOD).variants["base"]
    text = dump(recipe, {"recipe": "a\ntask: b", "variant": "\x1b[31m"})
    assert text.startswith("# recipe: a task: b\n# variant: \\x1b[31m\ntask: translation\n")
    assert resolved(text) == recipe


def test_the_text_is_plain_yaml_for_other_programs() -> None:
    recipe = read(GOOD).variants["base"]
    assert yaml.safe_load(dump(recipe))["train"]["betas"] == [0.9, 0.98]


def test_a_damaged_resolved_recipe_is_refused_with_its_place() -> None:
    text = dump(read(GOOD).variants["base"]).replace("steps: 1000", "steps: x")
    with pytest.raises(RecipeError, match=r"^resolved\.yaml:\d+:10: train\.steps: must be a whole"):
        resolved(text)


def test_the_recipe_of_a_run_of_an_earlier_version_is_read() -> None:
    """Those before classification and train.init have none of their keys."""
    recipe = read(GOOD).variants["base"]
    old = dump(recipe).replace("  init: null\n", "").replace("  labels: []\n", "")
    assert not {"init", "labels"} & {line.strip().partition(":")[0] for line in old.splitlines()}
    assert resolved(old) == recipe


def test_the_digest_is_sha256_of_canonical_json() -> None:
    recipe = read(GOOD).variants["base"]
    text = json.dumps(recipe.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    assert digest(recipe) == hashlib.sha256(text.encode()).hexdigest()
    assert digest(read(GOOD + "train: {lr: 0.001, seeds: [1]}\n").variants["base"]) == digest(recipe)
    assert digest(read(GOOD, "train.lr=2").variants["base"]) != digest(recipe)


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        ([], []),
        (["train.lr=2e-3"], ["train.lr: 0.001 -> 0.002"]),
        (["train.seeds=1,2"], ["train.seeds: [1] -> [1, 2]"]),
        (["tokenizer.model=a"], ["tokenizer.model: null -> a"]),
        (["train.compile=true"], ["train.compile: false -> true"]),
        (
            ["model.attention.encoder={name: synthesizer-random, trainable: false}"],
            [
                "model.attention.encoder: scaled-dot -> synthesizer-random",
                "model.attention.encoder.trainable: (not set) -> false",
            ],
        ),
    ],
)
def test_the_difference_names_each_key_that_changed(overrides: list[str], lines: list[str]) -> None:
    old, new = read(GOOD).variants["base"], read(GOOD, *overrides).variants["base"]
    assert difference(old, new) == lines
    back = [" -> ".join(reversed(line.split(": ", 1)[1].split(" -> "))) for line in lines]
    assert [line.split(": ", 1)[1] for line in difference(new, old)] == back


def test_flat_lists_every_value_once_in_the_order_of_the_schema() -> None:
    values = flat(read(GOOD).variants["base"])
    assert list(values)[:3] == ["task", "data.corpus", "data.source"]
    assert (values["data.source"], values["train.lr"]) == ("null", "0.001")

    def leaves(value: Any) -> int:
        return sum(map(leaves, value.values())) if isinstance(value, dict) else 1

    # a dump leaves out data.split where nothing is split, model.input_feeding and model.init_std
    dumped = leaves(read(GOOD).variants["base"].model_dump())
    assert len(values) == dumped + len(SplitSizes.model_fields) + 2


def test_places_are_those_of_the_shape() -> None:
    text = "task: language-modeling\ndata: {corpus: wikitext-2}\n"
    assert places(read(text, "model.attention=linear").variants["base"]) == {"decoder": "linear"}
    assert list(places(read(GOOD).variants["base"])) == ["encoder", "decoder", "cross"]


def test_a_run_keeps_a_recipe_that_is_not_in_a_recipes_folder(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a b" / "recipe.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(dump(read(GOOD).variants["base"]))
    assert load_resolved(path).task == "translation"
