"""JSON Schema of recipe files, for completion and checks in editors.

`recipes/recipe.schema.json` contains the result of `json_schema`; `attnkit recipe schema` prints it.
"""

import ast
import inspect
from itertools import pairwise
from typing import Any

from attnkit.recipe import mechanism_registry
from attnkit.recipe.mechanism_file import MechanismSpec
from attnkit.recipe.published import Published
from attnkit.recipe.schema import AttentionConfig, Layers, Recipe
from attnkit.recipe.settings import SCHEMA
from attnkit.recipe.values import Section

Json = dict[str, Any]


def json_schema() -> Json:
    """Return the schema of a recipe file: sections with their shorthands, variants and extends."""
    root = Recipe.model_json_schema()
    parts: Json = root["$defs"]
    published = Published.model_json_schema()
    _describe(parts | {"Recipe": root, "Published": published})
    _shorthands(parts)
    sections: Json = root["properties"]
    dotted = {
        ".".join((*key, name)): parts[kind.__name__]["properties"][name]
        for key, kind in SCHEMA.items()
        if key and isinstance(kind, type) and kind is not AttentionConfig
        for name in kind.model_fields
    }
    parts["Published"] = published
    parts["Variant"] = {
        "type": "object",
        "description": "Overrides: sections, or dotted keys such as train.lr.",
        "properties": sections | dotted,
        "additionalProperties": False,
    }
    file_keys = {
        "extends": _text(
            "A recipe file, relative to this file, or the name of a shipped recipe; this file changes its keys."
        ),
        "variants": {
            "type": ["object", "null"],
            "description": "Name -> overrides; each variant is trained and compared.",
            "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Variant"}, {"type": "null"}]},
        },
        "baseline": _text("The variant to compare the others with; the first if absent."),
        "published": {"$ref": "#/$defs/Published"},
    }
    _tidy(parts | sections)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnkit recipe",
        "description": "An experiment: data, model, training, and the variants to compare.",
        "type": "object",
        "properties": sections | file_keys,
        "anyOf": [{"required": ["task", "data"]}, {"required": ["extends"]}],
        "additionalProperties": False,
        "$defs": parts,
    }


def _shorthands(parts: Json) -> None:
    """Add the short forms that may be written instead of a full mapping."""
    specs = [mechanism_registry.facts(word) for word in mechanism_registry.names()]
    simple = [spec for spec in specs if not spec.composite]
    plain = [spec.word for spec in simple if not any(o.required for o in spec.options.values())]
    mixable = [spec for spec in simple if spec.mixable]
    parts["Mechanism"] = {
        "description": "A mechanism that is not composed of others; a part of interleaved layers.",
        "anyOf": [{"enum": plain}, *(_mechanism(spec, parts) for spec in simple)],
    }
    parts["Part"] = {
        "description": "A part of a mixture.",
        "anyOf": [
            {"enum": [spec.word for spec in mixable]},
            *(_mechanism(mechanism_registry.part(spec.word, "mixture"), parts) for spec in mixable),
        ],
    }
    composites = [_mechanism(spec, parts) for spec in specs if spec.composite]
    mechanism, layers = parts["AttentionConfig"], parts["Layers"]["properties"]["encoder"]
    mechanism |= {"anyOf": [{"$ref": "#/$defs/Mechanism"}, *composites]}
    for key in mechanism.keys() - {"description", "anyOf"}:
        del mechanism[key]
    model: Json = parts["ModelConfig"]["properties"]
    both = {key: layers[key] for key in layers if key not in ("title", "description", "default")}
    for name, short, whole in (
        ("attention", {"$ref": "#/$defs/AttentionConfig"}, "Roles"),
        ("layers", both, "Layers"),
    ):
        about = model[name]["description"]
        model[name] = {"description": about, "anyOf": [short, {"$ref": f"#/$defs/{whole}"}]}
    model["layers"]["default"] = Layers().encoder


def _mechanism(spec: MechanismSpec, parts: Json) -> Json:
    """Return the schema of a mechanism and its options; types that have a name are added to `parts`."""
    properties: Json = {"name": {"const": spec.word}}
    for name in spec.options:
        schema = mechanism_registry.option_type(spec.word, name).json_schema()
        parts |= schema.pop("$defs", {})
        properties[name] = schema
    if spec.composite:
        item = {"$ref": "#/$defs/Mechanism" if spec.layered else "#/$defs/Part"}
        properties[spec.composite] = {"type": "array", "items": item, "minItems": 2}
    return {
        "type": "object",
        "description": spec.doc.partition("\n")[0],
        "properties": properties,
        "required": ["name", *(name for name, option in spec.options.items() if option.required)],
        "additionalProperties": False,
    }


def _describe(parts: Json) -> None:
    """Set the description of each key to the docstring below it.

    pydantic would read the source whenever a type is created, which takes a tenth of the time of a short command.
    """
    for kind in Section.__subclasses__():
        properties = parts[kind.__name__]["properties"]
        (definition,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(definition, ast.ClassDef)
        for key, text in pairwise(definition.body):
            if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
                name = ast.unparse(key.target)
                properties[name]["description"] = ast.literal_eval(text.value)


def _tidy(part: Json) -> None:
    """Drop what editors cannot use: titles made from names, and defaults of whole sections."""
    if isinstance(part.get("title"), str):
        del part["title"]
    if "$ref" in part:
        part.pop("default", None)
    if isinstance(part.get("description"), str):
        part["description"] = " ".join(part["description"].split())
    for inner in part.values():
        for item in inner if isinstance(inner, list) else [inner]:
            if isinstance(item, dict):
                _tidy(item)


def _text(description: str) -> Json:
    return {"type": "string", "description": description}
