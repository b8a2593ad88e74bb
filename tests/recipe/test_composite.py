"""Tests of composite mechanisms in recipes: types and errors of parts, writing, hashing, JSON Schema."""

from typing import Any

import pytest
from helpers.recipe_texts import GOOD, check_error, error_message, parse_messages, read, write

from attnkit.recipe import difference, digest, dump, flat, load_resolved
from attnkit.recipe.json_schema import json_schema

PARTS = "[scaled-dot, {name: synthesizer-factorized-random, rank: 4}]"


def encoder(text: str) -> str:
    return f"{GOOD}model: {{attention: {{encoder: {text}}}}}\n"


def mixture(parts: str, more: str = "") -> str:
    return encoder(f"{{name: mixture, parts: {parts}{more}}}")


def options(text: str, *overrides: str) -> dict[str, Any]:
    return read(text, *overrides).variants["base"].model.attention.encoder.options()


def test_parts_are_names_or_mappings_with_typed_options() -> None:
    found = options(
        mixture(
            "[dot, {name: synthesizer-random, trainable: false}, {name: synthesizer-factorized-"
            "dense, factors: [3, 4]}, {name: additive, hidden: 5}, {name: gaussian}]",
            ", combine: sum, attention_dropout: 0.5",
        )
    )
    assert found == {
        "parts": (
            "dot",
            {"name": "synthesizer-random", "trainable": False},
            {"name": "synthesizer-factorized-dense", "factors": (3, 4)},
            {"name": "additive", "hidden": 5},
            "gaussian",
        ),
        "combine": "sum",
        "attention_dropout": 0.5,
    }


@pytest.mark.parametrize(
    "override",
    [
        "model.attention.encoder={name: mixture, parts: [dot, gaussian]}",
        "model.attention.encoder.parts=dot,gaussian",
        "model.attention.encoder.parts=[dot, gaussian]",
    ],
)
def test_command_line_sets_parts(override: str) -> None:
    assert options(mixture(PARTS), override)["parts"] == ("dot", "gaussian")


WRONG = """
mixture
  r.yaml:3:30: model.attention.encoder: mixture needs parts; write {name: mix
{name: mixture, parts: [dot, synthesizer-radnom]}
  r.yaml:3:53: model.attention.encoder.parts: no attention mechanism is called 'synthesizer-radnom'; did you mean
  synthesizer-random?
{name: mixture, parts: [dot, {name: synthesizer-random, trainable: no}]}
  r.yaml:3:53: model.attention.encoder.parts: synthesizer-random: trainable must be true or false, got 'no'
{name: mixture, parts: [dot, [gaussian]]}
  r.yaml:3:53: model.attention.encoder.parts: a part must be the name of a mechanism, or {name: NAME} with options,
  got [gaussian]
{name: mixture, parts: [dot, null]}
  a part must be the name of a mechanism, or {name: NAME} with
{name: mixture, parts: dot}
  must be a list of at least two mechanisms, such as [s
{name: mixture, parts: [dot, gaussian], combine: sigmiod}
  r.yaml:3:79: model.attention.encoder.combine: must be one of softmax, sigmoid, sum, got 'sigmiod'; did you mean
  sigmoid?
{name: mixture, parts: [dot, gaussian, additive], combine: sigmoid}
  r.yaml:3:53: model.attention.encoder.parts: mixture: combine: sigmoid takes exactly two parts, got 3
{name: interleaved, parts: [{name: dot, residual_scores: true}, linear]}
  interleaved: residual_scores adds the scores of the previous layer: set it on all parts
"""
"""Encoder attention, each followed by its error message; tests/mechanisms/test_invalid_options.py has more."""


@pytest.mark.parametrize(("text", "message"), parse_messages(WRONG))
def test_wrong_part_raises_with_its_position(text: str, message: str) -> None:
    check_error(message, encoder(text.rstrip()))


def test_all_parts_must_suit_the_place() -> None:
    text = f"{GOOD}model: {{attention: {{name: mixture, parts: {PARTS}}}}}\n"
    found = error_message(text)
    assert "model.attention: mixture cannot be cross attention (its part synthesizer-" in found
    assert found.endswith("with `cross: scaled-dot`")
    read(f"{GOOD}model: {{attention: {{name: mixture, parts: [dot, gaussian]}}}}\n")
    rotating = mixture(PARTS).replace("attention:", "positions: rope, attention:")
    assert "mixture does not work with `model.positions: rope`" in error_message(rotating)
    read(mixture("[dot, gaussian]").replace("attention:", "positions: rope, attention:"))


def test_causal_attention_refuses_patterns_that_look_ahead() -> None:
    text = GOOD + "model: {attention: {decoder: {name: fixed-pattern, patterns: [current, next]}}}\n"
    assert "fixed-pattern cannot be decoder attention: it cannot hide the future" in error_message(text)
    assert "patterns: next looks ahead" in error_message(text)
    read(text.replace("next", "left"))
    read(text.replace("decoder:", "encoder:"))
    assert "did you mean [current, previous]?" in error_message(text.replace("next", "previuos"))


def test_mixture_is_written_hashed_and_compared() -> None:
    recipe = read(mixture(PARTS)).variants["base"]
    reloaded = load_resolved(write(dump(recipe), "again.yaml"))
    assert reloaded == recipe
    assert digest(reloaded) == digest(recipe)
    shown = "[scaled-dot, {name: synthesizer-factorized-random, rank: 4}]"
    assert flat(recipe)["model.attention.encoder.parts"] == shown
    other = read(mixture(PARTS), "model.attention.encoder.parts=dot,gaussian").variants["base"]
    assert difference(recipe, other) == [f"model.attention.encoder.parts: {shown} -> [dot, gaussian]"]


def test_json_schema_contains_parts() -> None:
    defs = json_schema()["$defs"]
    single, *composites = defs["AttentionConfig"]["anyOf"]
    assert single == {"$ref": "#/$defs/Mechanism"}
    assert not {"mixture", "interleaved"} & set(defs["Mechanism"]["anyOf"][0]["enum"])
    (schema,) = (s for s in composites if s["properties"]["name"]["const"] == "mixture")
    assert schema["required"] == ["name", "parts"]
    assert schema["properties"]["parts"]["items"] == {"$ref": "#/$defs/Part"}
    names, *parts = defs["Part"]["anyOf"]
    assert {"dot", "synthesizer-dense"} <= set(names["enum"])
    assert not {"linear", "fixed-pattern", "mixture"} & set(names["enum"])
    (table,) = (part for part in parts if part["properties"]["name"]["const"] == "synthesizer-random")
    assert list(table["properties"]) == ["name", "trainable", "scale"]
