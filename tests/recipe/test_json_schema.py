"""Tests of the JSON Schema for editors: it is current and accepts what the loader accepts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.recipe_texts import GOOD

from attnkit.recipe import library, shipped
from attnkit.recipe.json_schema import json_schema
from attnkit.recipe.schema import Recipe

KINDS: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
KINDS |= {"null": type(None), "array": list, "object": dict}


def valid(value: Any, schema: Any, root: dict[str, Any]) -> bool:
    """Validate a value by a plain implementation of the keywords that the schema uses."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return valid(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", KINDS)
    fits = any(isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (
        fits
        and ("enum" not in schema or value in schema["enum"])
        and ("const" not in schema or value == schema["const"])
        and (not number or _in_bounds(value, schema))
        and ("anyOf" not in schema or any(valid(value, s, root) for s in schema["anyOf"]))
        and (not isinstance(value, list) or _items_valid(value, schema, root))
        and (not isinstance(value, dict) or _fields_valid(value, schema, root))
    )


def _in_bounds(value: float, schema: dict[str, Any]) -> bool:
    low, high = schema.get("minimum", value), schema.get("maximum", value)
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return low <= value <= high and (over is None or value > over) and (under is None or value < under)


def _items_valid(value: list[Any], schema: dict[str, Any], root: dict[str, Any]) -> bool:
    size = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
    heads = schema.get("prefixItems", [])
    return size and all(
        valid(item, heads[i] if i < len(heads) else schema.get("items", {}), root) for i, item in enumerate(value)
    )


def _fields_valid(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any]) -> bool:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    complete = set(schema.get("required", [])) <= set(value)
    return complete and all(valid(item, known.get(key, others), root) for key, item in value.items())


class Editor(yaml.SafeLoader):
    """YAML as editors read it: 1e-3 is a number, as in YAML 1.2."""


Editor.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[0-9.]+e-?[0-9]+$"), list(".0123456789"))


def parse(text: str) -> Any:
    return yaml.load(text, Editor)


@pytest.fixture
def schema() -> dict[str, Any]:
    return json_schema()


def test_shipped_schema_is_current(schema: dict[str, Any]) -> None:
    shipped_text = (library() / "recipe.schema.json").read_text()
    message = "run: attnkit recipe schema > recipes/recipe.schema.json"
    assert shipped_text == json.dumps(schema, indent=1) + "\n", message


@pytest.mark.sampled(7)
@pytest.mark.parametrize("path", [*shipped().values()], ids=str)
def test_every_shipped_recipe_is_valid(path: Path, schema: dict[str, Any]) -> None:
    assert valid(parse(path.read_text()), schema, schema)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("", True),
        ("model: {layers: 2, attention: linear}", True),
        ("model: {layers: {encoder: 1}, attention: {encoder: linear, cross: {name: dot}}}", True),
        ("variants: {a: , b: {train.lr: 1e-3, model: {width: 8}, model.attention: dot}}", True),
        ("train: {lr: 1e-3, seeds: [1, 2], betas: [0.9, 0.9]}", True),
        ("train: {lr: 0}", False),
        ("train: {setps: 1}", False),
        ("train: {seeds: 3}", False),
        ("train: {seeds: []}", False),
        ("model: {attention: linaer}", False),
        ("model: {attention: {name: linear, rank: 3}}", False),
        ("model: {attention: {name: interleaved, parts: [local, {name: dot}]}}", True),
        ("model: {attention: {name: interleaved, parts: [local, interleaved]}}", False),
        *(
            (f"model: {{attention: {{name: interleaved, parts: [local, {part}]}}}}", False)
            for part in (
                "{name: interleaved, parts: [local, dot]}",
                "mixture",
                "{name: mixture, parts: [dot, scaled-dot]}",
            )
        ),
        ("model: {attention: {name: mixture, parts: [dot, scaled-dot]}}", True),
        ("model: {attention: {name: dot, entropy_scale: {base: 64}}}", True),
        ("model: {attention: {name: dot, entropy_scale: {bas: 64}}}", False),
        ("model: {norm: pree}", False),
        ("model: {shape: encodr}", False),
        ("variants: {a: {train.setps: 3}}", False),
        ("stray: 3", False),
    ],
)
def test_schema_accepts_what_the_loader_accepts(text: str, accepted: bool, schema: dict[str, Any]) -> None:
    assert valid(parse(GOOD + text), schema, schema) == accepted


def test_recipe_needs_task_and_data_or_a_parent(schema: dict[str, Any]) -> None:
    assert not valid({"task": "dialogue"}, schema, schema)
    assert valid({"extends": "a.yaml"}, schema, schema)


def test_every_key_is_described(schema: dict[str, Any]) -> None:
    for name, part in schema["$defs"].items():
        assert part["description"], name
    for name, field in Recipe.model_fields.items():
        if name != "task":
            properties = schema["$defs"][field.annotation.__name__]["properties"]
            for key in field.annotation.model_fields:
                assert properties[key]["description"], key
                assert "\n" not in properties[key]["description"], key


def test_every_reference_has_a_definition(schema: dict[str, Any]) -> None:
    text = json.dumps(schema)
    assert {*re.findall(r'"#/\$defs/(\w+)"', text)} <= schema["$defs"].keys()
    assert text.count('"$defs"') == 1
