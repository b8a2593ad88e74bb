"""Write the generated parts of the documentation: tables of mechanisms and recipe keys.

python docs/reference.py
"""

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import publish
import recall

from attnkit import cli
from attnkit.mechanisms import facts, names
from attnkit.recipe.json_schema import json_schema
from attnkit.recipe.values import phrase

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"
RECALL = (
    ("associative-recall", 8, "8 pairs"),
    ("associative-recall", 64, "64 pairs"),
    ("induction", 16, "after 16 words"),
    ("induction", 128, "after 128 words"),
    ("copy", 16, "copy 16"),
    ("copy", 128, "copy 128"),
)
"""Columns of docs/choosing.md: task, length, title."""


def _printed(form: str) -> str:
    """What `attnkit mechanisms` prints."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = cli.main(["mechanisms", "--format", form])
    assert code == 0
    return text.getvalue()


def mechanisms(page: str) -> str:
    """docs/mechanisms.md with the table that `attnkit mechanisms --format markdown` prints.

    Also with the list of those whose heads may share keys.
    """
    table = _printed("markdown").partition("\n\n")[0]
    page = re.sub(r"\| mechanism \|.*?\n(?=\n)", lambda _: table + "\n", page, flags=re.DOTALL)
    words = [f"`{word}`" for word in names() if "key_heads" in facts(word).options]
    listed = f"(grouped-query attention); {', '.join(words[:-1])} and {words[-1]} only |"
    return re.sub(r"\(grouped-query attention\); .*? only \|", lambda _: listed, page)


def choosing(page: str) -> str:
    """docs/choosing.md with the table of facts and measurements, in the order of recall."""
    times = json.loads((RESULTS / "every-mechanism.json").read_text(encoding="utf-8"))
    tasks = recall.recalled(publish.recipes())
    asked = [(task, length, title) for task, length, title in RECALL if task in tasks]
    heads = ["mechanism", "places", "decoding", "speed 128", "speed 2,048"]
    lines = [
        f"| {' | '.join([*heads, *(title for _, _, title in asked)])} |\n",
        f"|{' --- |' * 3}{' ---: |' * (2 + len(asked))}\n",
    ]
    for row in json.loads(_printed("json"))["rows"]:
        word = row["mechanism"]
        causal = word in times["causal"]
        points = times["causal" if causal else "full"].get(word, {})
        places = [name for name in ("encoder", "decoder", "cross") if row[name] == "yes"]
        cells = [f"`{word}`", ", ".join(places), row["decoding"]]
        cells += [_number(points.get(length, {}).get("ratio")) for length in ("128", "2048")]
        seeds = [tasks[task].get(word, {}).get(length) for task, length, _ in asked]
        cells += [recall.cell(one) if one else "" for one in seeds]
        lines.append(f"| {' | '.join(cells)} |\n")
    head = re.search(r"\| mechanism \| places .*?\n(?=\n)", page, flags=re.DOTALL)
    assert head is not None
    return page[: head.start()] + "".join(lines) + page[head.end() :]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def recipe_keys() -> str:
    """A table for each section of a recipe: key, values, default and meaning."""
    schema = json_schema()
    parts = ["# Recipe keys\n\nGenerated from the schema by `python docs/reference.py`.\n"]
    for section, reference in schema["properties"].items():
        definition = _resolved(schema, reference)
        if section == "variants" or "properties" not in definition:
            continue
        parts.append(f"\n## {section}\n\n{definition['description']}\n\n")
        parts.append("| key | values | default | meaning |\n|---|---|---|---|\n")
        for key, value in definition["properties"].items():
            cells = (f"`{key}`", _values(schema, value), _default(value), _description(value))
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


def _resolved(schema: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    name = value.get("$ref", "").rpartition("/")[2]
    return schema["$defs"][name] if name else value


def _values(schema: dict[str, Any], value: dict[str, Any]) -> str:
    """The values that a key takes, in words."""
    if "anyOf" in value:
        return ", or ".join(dict.fromkeys(_values(schema, one) for one in value["anyOf"]))
    if "$ref" in value:
        inner = _resolved(schema, value).get("properties")
        return "{" + ", ".join(inner) + "}" if inner else "a mechanism"
    return phrase(value)


def _default(value: dict[str, Any]) -> str:
    return f"`{json.dumps(value['default'])}`" if "default" in value else ""


def _description(value: dict[str, Any]) -> str:
    return " ".join(value.get("description", "").split())


def main() -> None:
    """Write the files."""
    pages = {HERE / f"{write.__name__}.md": write for write in (mechanisms, choosing)}
    texts = {page: write(page.read_text(encoding="utf-8")) for page, write in pages.items()}
    for page, text in {**texts, HERE / "recipe-keys.md": recipe_keys()}.items():
        if page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            print(f"wrote {page}")


if __name__ == "__main__":
    main()
