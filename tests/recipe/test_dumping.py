"""Tests of resolved recipes: writing, reading, hashing and comparing."""

import hashlib
import json
from typing import Any

import pytest
import yaml
from helpers.recipe_texts import GOOD, read, write
from hypothesis import given, settings
from hypothesis import strategies as st

from attnkit.errors import RecipeError
from attnkit.recipe import Recipe, difference, digest, dump, flat, load, load_resolved, places, schema

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Cf", "Zl", "Zp"]), max_size=12)
AWKWARD = st.sampled_from(
    ["no", "null", "~", "", "1e-3", "1:30", "true", "2024-01-01", "- a", "a: b", "#x", "'", " x "]
)
NAMES = TEXTS | AWKWARD
WORDS = NAMES.filter(lambda text: text == "".join(text.split()).replace("\u2581", "") != "")
LINEAR = schema.AttentionConfig(name="linear")
RANDOM = schema.AttentionConfig(name="synthesizer-random", trainable=False, attention_dropout=0.5)
RECIPES = st.builds(
    Recipe,
    task=st.sampled_from(["translation", "dialogue"]),
    data=st.builds(
        schema.DataConfig,
        corpus=st.none() | NAMES,
        source=st.none() | NAMES,
        train=st.none() | WORDS | st.tuples(WORDS, WORDS),
        rows=st.integers(0, 2**31 - 1),
    ),
    tokenizer=st.builds(schema.TokenizerConfig, special=st.lists(WORDS, max_size=3, unique=True).map(tuple)),
    train=st.builds(
        schema.TrainConfig,
        lr=st.floats(0, exclude_min=True, allow_infinity=False, allow_nan=False),
        eps=st.floats(1e-30, 1),
        seeds=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3, unique=True).map(tuple),
    ),
    model=st.builds(schema.ModelConfig, attention=st.builds(schema.Roles, encoder=st.sampled_from([LINEAR, RANDOM]))),
)


def base(text: str = GOOD, *overrides: str) -> Recipe:
    return read(text, *overrides).variants["base"]


def reload(text: str, name: str = "resolved.yaml") -> Recipe:
    return load_resolved(write(text, name))


@settings(derandomize=True)
@given(RECIPES)
def test_written_recipe_is_read_back(recipe: Recipe) -> None:
    assert reload(dump(recipe)) == recipe


@pytest.mark.parametrize("text", [GOOD, "task: language-modeling\ndata: {corpus: wikitext-2}\n"])
def test_resolved_recipe_is_a_valid_recipe_file(text: str) -> None:
    recipe = base(text)
    assert load(write(dump(recipe), "again.yaml")).variants["base"] == recipe


def test_header_cannot_escape_from_its_comments() -> None:
    text = dump(base(), {"recipe": "a\ntask: b", "variant": "\x1b[31m"})
    assert text.startswith("# recipe: a task: b\n# variant: \\x1b[31m\ntask: translation\n")
    assert reload(text) == base()


def test_text_is_plain_yaml_for_other_programs() -> None:
    assert yaml.safe_load(dump(base()))["train"]["betas"] == [0.9, 0.98]


def test_damaged_resolved_recipe_raises_with_its_position() -> None:
    text = dump(base()).replace("steps: 1000", "steps: x")
    with pytest.raises(RecipeError, match=r"^resolved\.yaml:\d+:10: train\.steps: must be a whole"):
        reload(text)


def test_recipe_of_a_run_of_an_earlier_version_is_read() -> None:
    """Versions without classification and train.init wrote none of their keys."""
    old = dump(base()).replace("  init: null\n", "").replace("  labels: []\n", "")
    assert not {"init", "labels"} & {line.strip().partition(":")[0] for line in old.splitlines()}
    assert reload(old) == base()


def test_digest_is_the_sha256_of_canonical_json() -> None:
    text = json.dumps(base().model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    assert digest(base()) == hashlib.sha256(text.encode()).hexdigest()
    assert digest(base(GOOD + "train: {lr: 0.001, seeds: [1]}\n")) == digest(base())
    assert digest(base(GOOD, "train.lr=2")) != digest(base())


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
def test_difference_lists_each_changed_key(overrides: list[str], lines: list[str]) -> None:
    old, new = base(), base(GOOD, *overrides)
    assert difference(old, new) == lines
    back = [" -> ".join(reversed(line.split(": ", 1)[1].split(" -> "))) for line in lines]
    assert [line.split(": ", 1)[1] for line in difference(new, old)] == back


def test_flat_lists_every_value_once_in_the_order_of_the_schema() -> None:
    values = flat(base())
    assert list(values)[:3] == ["task", "data.corpus", "data.source"]
    assert (values["data.source"], values["train.lr"]) == ("null", "0.001")

    def leaves(value: Any) -> int:
        return sum(map(leaves, value.values())) if isinstance(value, dict) else 1

    # a dump omits data.split if nothing is split, model.input_feeding and model.init_std
    assert len(values) == leaves(base().model_dump()) + len(schema.SplitSizes.model_fields) + 2


def test_places_depend_on_the_shape() -> None:
    text = "task: language-modeling\ndata: {corpus: wikitext-2}\n"
    assert places(base(text, "model.attention=linear")) == {"decoder": "linear"}
    assert list(places(base())) == ["encoder", "decoder", "cross"]


def test_folder_of_a_resolved_recipe_need_not_be_a_recipe_name() -> None:
    assert reload(dump(base()), "runs/a b/recipe.yaml").task == "translation"
