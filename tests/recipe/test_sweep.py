"""Tests of sweeps: several values of a key on the command line become named variants."""

import re

import pytest
from helpers.recipe_texts import GOOD, check_error, error_message, read, write
from hypothesis import given
from hypothesis import strategies as st

from attnkit.errors import RecipeError
from attnkit.recipe import load, load_resolved
from attnkit.recipe.sweep import MAX_NAME_LENGTH, is_sweep, overrides, unique

VARIANTS = GOOD + "variants:\n  a: {}\n  b: {model.attention: additive}\nbaseline: b\n"


def names(text: str, *words: str) -> list[str]:
    return list(read(text, *words).variants)


def test_sweep_makes_a_variant_for_each_combination_of_values() -> None:
    file = read(GOOD, "train.lr=1e-3,2e-3", "train.steps=7", "model.attention=linear,dot")
    assert {name: (r.train.lr, r.model.attention.encoder.name) for name, r in file.variants.items()} == {
        "lr=0.001,attention=linear": (0.001, "linear"),
        "lr=0.001,attention=dot": (0.001, "dot"),
        "lr=0.002,attention=linear": (0.002, "linear"),
        "lr=0.002,attention=dot": (0.002, "dot"),
    }
    assert {recipe.train.steps for recipe in file.variants.values()} == {7}
    assert file.baseline == "lr=0.001,attention=linear"
    assert file.origins["lr=0.001,attention=dot"]["train.lr"] == "command line"


def test_sweep_multiplies_variants_and_keeps_the_baseline() -> None:
    file = read(VARIANTS, "train.lr=1,2")
    assert list(file.variants) == ["a,lr=1", "a,lr=2", "b,lr=1", "b,lr=2"]
    assert file.baseline == "b,lr=1"
    assert file.swept == {"a": ["a,lr=1", "a,lr=2"], "b": ["b,lr=1", "b,lr=2"]}
    assert read(VARIANTS, "train.lr=1,2", "baseline=a,lr=2").baseline == "a,lr=2"
    assert read(VARIANTS, "train.lr=1,2", "baseline=a").baseline == "a,lr=1"
    wrong = error_message(VARIANTS, "train.lr=1,2", "baseline=a,lr=3", kind=RecipeError)
    assert "must be the name of a variant, got 'a,lr=3'; did you mean a,lr=" in wrong


def test_equal_variants_of_a_sweep_are_merged() -> None:
    assert names(VARIANTS, "model.attention=dot,linear") == ["attention=dot", "attention=linear"]
    text = VARIANTS.replace("a: {}", "a: {}\n  c: {train.lr: 3}")
    file = read(text, "model.attention=dot,linear")
    assert list(file.variants) == ["a,attention=dot", "a,attention=linear", "c,attention=dot", "c,attention=linear"]
    assert file.swept["b"] == file.swept["a"]


def test_another_value_does_not_change_the_other_names() -> None:
    few, more = (names(GOOD, f"train.lr={lr}", "data.seed=1,2") for lr in ("1,3", "1,2,3"))
    assert set(few) < set(more)


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("train.seeds=1,2", 1),
        ("train.seeds=[1,2]", 1),
        ("train.seeds=[1, 2],[3]", 2),
        ("train.betas=0.9,0.98", 1),
        ("eval.metrics=bleu,chrf", 1),
        ("eval.tokenize=13a,intl", 1),
        ("data.train=a.en,b.en", 1),
        ("model.attention.encoder.parts=dot,gaussian", 1),
        ("model.attention.encoder={name: mixture, parts: [dot, gaussian]}", 1),
        ("model.attention.encoder.features=64,128", 2),
        ("model.attention={name: performer, features: 64},linear", 2),
        ("model.layers=1,2,3", 3),
        ("tokenizer.model='a,b.model'", 1),
        ('tokenizer.model="a,b.model", c.model', 2),
        ("data.source=don't,can't", 2),
        ("train.steps=5", 1),
    ],
)
def test_lists_mappings_and_quotes_are_single_values(word: str, values: int) -> None:
    key, _, text = word.partition("=")
    assert len(overrides(tuple(key.split(".")), text)) == values
    assert is_sweep(word) == (values > 1)


def test_options_of_mechanisms_are_swept() -> None:
    chosen = "{name: performer, features: 64},{name: performer, features: 128}"
    file = read(GOOD, f"model.attention.encoder={chosen}")
    assert list(file.variants) == ["encoder=name-performer,features-64", "encoder=name-performer,features-128"]


def test_keys_with_the_same_last_word_get_different_names() -> None:
    words = "model.layers.encoder=1,2", "model.attention.encoder=dot,linear"
    assert names(GOOD, *words)[0] == "layers.encoder=1,attention.encoder=dot"


@given(st.lists(st.text(), min_size=1, max_size=5, unique=True))
def test_names_are_unique_names_of_folders(texts: list[str]) -> None:
    names = unique([f"source={text}" for text in texts])
    assert len(set(names)) == len(texts)
    assert all(len(name) <= MAX_NAME_LENGTH for name in names)
    assert all(re.fullmatch(r"source=[A-Za-z0-9_.+,=-]*", name) for name in names)
    assert unique([f"source={texts[0]}"])[0] in (names[0], names[0][:-9])


TEN = ",".join(map(str, range(1, 11)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.lrr=1,2"], "command line: train.lrr: unknown key; did you mean train.lr?"),
        (["train.lr=1,x"], "command line: train.lr: must be a number > 0, got 'x'; the default"),
        (["train.lr=1,"], "command line: train.lr: has an empty value; write A,B"),
        (["train.lr=1e-3,0.001"], "command line: train.lr: names a value twice; name each once"),
        (["search.beam=1,2"], "command line: search.beam: is read after training, so a sweep"),
        (
            [f"train.lr={TEN}", f"train.steps={TEN}", "model.width=4,8,12,16,20,24,28,32,36,40,44"],
            "1,100 variants are too many; the maximum is 1,000",
        ),
        (["train.lr=1,2", "train.lr=3"], "train.lr: has several values and is set again later"),
        (["train.lr=1,2", "train.lr=3,4"], "train.lr: has several values and is set again"),
        (["model.attention=linear,dot", "model={width: 8}"], "model.attention: has several values"),
        (["train.lr=1,2", "variants.lr=3.train.steps=5"], "no such variant; did you mean lr="),
    ],
)
def test_wrong_sweep_raises(words: list[str], message: str) -> None:
    check_error(message, GOOD, *words)


def test_one_variant_of_a_sweep_is_changed_by_its_name() -> None:
    for text, name in ((GOOD, "lr=0.5"), (VARIANTS, "a,lr=0.5")):
        variants = read(text, "train.lr=0.5,2", f"variants.{name}.model.width=64").variants
        assert [key for key, recipe in variants.items() if recipe.model.width == 64] == [name]


def test_resolved_recipe_refuses_several_values() -> None:
    with pytest.raises(RecipeError, match="search.beam: must be a single value here"):
        load_resolved(write(GOOD), ["search.beam=1,2"])


def test_sweep_has_no_published_figures() -> None:
    figures = "published: {source: s, comparable: false, why: x, scores: {base: {bleu: 1}}}\n"
    path = write(GOOD + figures)
    assert load(path).published is not None
    assert load(path, ["train.lr=1,2"]).published is None
