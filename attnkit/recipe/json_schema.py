"""The JSON Schema of recipe files, by which editors complete and check them.

`recipes/recipe.schema.json` is what `json_schema` returns; `attnkit recipe schema` prints it.
"""

from typing import Any

from attnkit.recipe import mechanism_registry
from attnkit.recipe.mechanism_file import MechanismSpec
from attnkit.recipe.published import Published
from attnkit.recipe.schema import Layers, Recipe

Json = dict[str, Any]


def json_schema() -> Json:
    """The schema of a recipe file: the sections with their shorthands, variants and extends."""
    root = Recipe.model_json_schema()
    parts: Json = root["$defs"]
    _shorthands(parts)
    _tidy(root)
    sections: Json = root["properties"]
    groups = {name: field["$ref"].rpartition("/")[2] for name, field in sections.items()
              if "$ref" in field}  # fmt: skip
    groups |= {"model.layers": "Layers", "model.attention": "Roles"}
    groups |= {"model.naive_bayes": "NaiveBayesConfig"}
    dotted = {
        f"{group}.{key}": schema
        for group, part in groups.items()
        for key, schema in parts[part]["properties"].items()
    }
    parts["Published"] = Published.model_json_schema()
    _tidy(parts["Published"])
    parts["Variant"] = {
        "type": "object",
        "description": "Overrides: sections, or dotted keys such as train.lr.",
        "properties": sections | dotted,
        "additionalProperties": False,
    }
    about = {
        "extends": _text(
            "A recipe file, relative to this one, or the name of a shipped recipe, whose keys this "
            "one changes."
        ),
        "variants": {
            "type": ["object", "null"],
            "description": "Name -> overrides; each variant is trained and compared.",
            "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Variant"}, {"type": "null"}]},
        },
        "baseline": _text("The variant that the others are compared with; the first if absent."),
        "published": {"$ref": "#/$defs/Published"},
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


def _shorthands(parts: Json) -> None:
    """What may be written instead of a full mapping."""
    known = [mechanism_registry.facts(word) for word in mechanism_registry.names()]
    single = [facts for facts in known if not facts.composite]
    alone = [f.word for f in single if not any(o.required for o in f.options.values())]
    parts["Mechanism"] = {
        "description": "A mechanism that is not made of others; a part of interleaved layers.",
        "anyOf": [{"enum": alone}, *(_mechanism(facts, parts) for facts in single)],
    }
    mixable = [mechanism_registry.part(f.word, "mixture") for f in single if f.mixable]
    parts["Part"] = {
        "description": "A part of a mixture.",
        "anyOf": [
            {"enum": [facts.word for facts in mixable]},
            *(_mechanism(facts, parts) for facts in mixable),
        ],
    }
    composites = [_mechanism(facts, parts) for facts in known if facts.composite]
    parts["AttentionConfig"] = {
        "description": parts["AttentionConfig"]["description"],
        "anyOf": [{"$ref": "#/$defs/Mechanism"}, *composites],
    }
    one = {"$ref": "#/$defs/AttentionConfig"}
    model: Json = parts["ModelConfig"]["properties"]
    model["attention"] = {
        "description": model["attention"]["description"],
        "anyOf": [one, {"$ref": "#/$defs/Roles"}],
    }
    layers = parts["Layers"]["properties"]["encoder"]
    both = {key: layers[key] for key in layers if key not in ("title", "description", "default")}
    model["layers"] = {
        "description": model["layers"]["description"],
        "anyOf": [both, {"$ref": "#/$defs/Layers"}],
        "default": Layers().encoder,
    }


def _mechanism(facts: MechanismSpec, parts: Json) -> Json:
    """A mechanism with its options; types that have a name are added to `parts`."""
    properties: Json = {"name": {"const": facts.word}}
    for name, option in facts.options.items():
        if name == facts.composite:
            item = {"$ref": "#/$defs/Mechanism" if facts.layered else "#/$defs/Part"}
            properties[name] = {"type": "array", "items": item, "minItems": 2}
            continue
        kind = option.type.json_schema()
        parts |= kind.pop("$defs", {})
        properties[name] = kind if option.required else {**kind, "default": option.default}
    required = [name for name, option in facts.options.items() if option.required]
    return {
        "type": "object",
        "description": facts.doc.partition("\n")[0],
        "properties": properties,
        "required": ["name", *required],
        "additionalProperties": False,
    }


def _tidy(part: Json) -> None:
    """Drop what an editor cannot use: titles made from names, defaults of whole sections."""
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
