"""The JSON Schema of recipe files, by which editors complete and check them.

`recipes/recipe.schema.json` is what `json_schema` returns; `attnkit recipe schema` prints it.
"""

import ast
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from attnkit.recipe import mechanism_registry, schema
from attnkit.recipe.mechanism_file import Facts
from attnkit.recipe.mechanism_options import annotation
from attnkit.recipe.schema import Layers, Recipe
from attnkit.recipe.settings import ROLES, all_keys

Json = dict[str, Any]


def json_schema() -> Json:
    """The schema of a recipe file: the sections with their shorthands, variants and extends."""
    root = Recipe.model_json_schema()
    parts: Json = root["$defs"]
    docs = descriptions()
    for name, part in parts.items():
        part["description"] = docs[name].pop("")
        for key, text in docs[name].items():
            part["properties"][key]["description"] = text
        part.pop("title", None)
    _shorthands(parts)
    for part in [root, *parts.values()]:
        for field in part.get("properties", {}).values():
            _tidy(field)
    sections: Json = root["properties"]
    parts["Variant"] = {
        "type": "object",
        "description": "Overrides: sections, or dotted keys such as train.lr.",
        "properties": sections | {".".join(key): _at(parts, key) for key in _dotted_keys()},
        "additionalProperties": False,
    }
    about = {
        "extends": _text("A recipe file, relative to this one, whose keys this one changes."),
        "variants": {
            "type": ["object", "null"],
            "description": "Name -> overrides; each variant is trained and compared.",
            "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Variant"}, {"type": "null"}]},
        },
        "baseline": _text("The variant that the others are compared with; the first if absent."),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnkit recipe",
        "description": "What to train on what data, and which variants to compare.",
        "type": "object",
        "properties": sections | about,
        "anyOf": [{"required": ["task", "data"]}, {"required": ["extends"]}],
        "additionalProperties": False,
        "$defs": parts,
    }


def descriptions() -> dict[str, dict[str, str]]:
    """Class -> key -> docstring, read from the schema's source; the class's own has the key ""."""
    tree = ast.parse(Path(schema.__file__).read_text(encoding="utf-8"))
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            texts = {"": ast.get_docstring(node) or ""}
            for item, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(item, ast.AnnAssign) and isinstance(after, ast.Expr):
                    assert isinstance(item.target, ast.Name)
                    assert isinstance(after.value, ast.Constant)
                    texts[item.target.id] = str(after.value.value)
            found[node.name] = texts
    return found


def _shorthands(parts: Json) -> None:
    """What may be written instead of a full mapping."""
    known = [mechanism_registry.facts(word) for word in mechanism_registry.names()]
    single = [facts for facts in known if not facts.composite]
    alone = [f.word for f in single if not any(o.required for o in f.options.values())]
    parts["Mechanism"] = {
        "description": "A mechanism that is not made of others; a part of interleaved layers.",
        "anyOf": [{"enum": alone}, *map(_mechanism, single)],
    }
    composites = [_mechanism(facts) for facts in known if facts.composite]
    parts["AttentionConfig"] = {
        "description": parts["AttentionConfig"]["description"],
        "anyOf": [{"$ref": "#/$defs/Mechanism"}, *composites],
    }
    parts["Part"] = _part()
    one = {"$ref": "#/$defs/AttentionConfig"}
    model: Json = parts["ModelConfig"]["properties"]
    roles = {
        "type": "object",
        "properties": dict.fromkeys(ROLES, one),
        "additionalProperties": False,
    }
    model["attention"] = {"description": model["attention"]["description"], "anyOf": [one, roles]}
    del parts["Roles"]
    number = parts["Layers"]["properties"][next(iter(Layers.model_fields))]
    both = {key: value for key, value in number.items() if key not in ("title", "default")}
    model["layers"] = {
        "description": model["layers"]["description"],
        "anyOf": [both, {"$ref": "#/$defs/Layers"}],
        "default": Layers().encoder,
    }


def _mechanism(facts: Facts) -> Json:
    """A mechanism with its options."""
    required = [name for name, option in facts.options.items() if option.required]
    return {
        "type": "object",
        "description": facts.doc.partition("\n")[0],
        "properties": {
            "name": {"const": facts.word},
            **{name: _option(facts, name) for name in facts.options},
        },
        "required": ["name", *required],
        "additionalProperties": False,
    }


def _option(facts: Facts, name: str) -> Json:
    option = facts.options[name]
    if name == facts.composite:
        item = {"$ref": "#/$defs/Mechanism" if facts.layered else "#/$defs/Part"}
        return {"type": "array", "items": item, "minItems": 2}
    kind = TypeAdapter(annotation(option.annotation)).json_schema()
    return kind if option.required else {**kind, "default": option.default}


def _part() -> Json:
    """A part of a mixture."""
    able = [word for word in mechanism_registry.names() if mechanism_registry.facts(word).mixable]
    each = [_mechanism(mechanism_registry.part(word, "mixture")) for word in able]
    return {"description": "A part of a mixture.", "anyOf": [{"enum": able}, *each]}


def _dotted_keys() -> list[tuple[str, ...]]:
    groups = [("model", "layers"), ("model", "attention")]
    return groups + [key for key in all_keys() if len(key) > 1]


def _at(parts: Json, key: tuple[str, ...]) -> Json:
    """The schema of a dotted key."""
    names = {name: field.annotation.__name__ for name, field in Recipe.model_fields.items()
             if isinstance(field.annotation, type)}  # fmt: skip
    part: Json = parts[names[key[0]]]["properties"][key[1]]
    if len(key) == 2:
        return part
    if key[1] == "layers":
        number: Json = parts["Layers"]["properties"][key[2]]
        return number
    return {"$ref": "#/$defs/AttentionConfig"}


def _tidy(field: Json) -> None:
    """Drop what an editor cannot use: titles made from names, defaults of whole sections."""
    field.pop("title", None)
    if "$ref" in field:
        field.pop("default", None)


def _text(description: str) -> Json:
    return {"type": "string", "description": description}
