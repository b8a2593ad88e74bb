"""Figures that others published, as a recipe file states them to be shown beside its own."""

from collections.abc import Mapping as Table
from typing import Any

from pydantic import TypeAdapter

from attnkit.recipe.metrics import METRICS
from attnkit.recipe.problems import Key, Problems
from attnkit.recipe.schema import Recipe
from attnkit.recipe.section import Section
from attnkit.recipe.values import Refused, read, written
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar
from attnkit.text import nearest, quoted

KEY = "published"


class Published(Section):
    """Figures that others published, shown beside the scores of this recipe.  They do not affect
    training."""

    source: str
    """Where the figures are from: paper, table, and who transcribed it."""
    comparable: bool
    """Whether they were measured like the scores here, on the same data."""
    why: str | None = None
    """Why they are not comparable, in one line; required when comparable is false."""
    split: str | None = None
    """The split they belong to; null is every split."""
    scores: dict[str, dict[str, float]]
    """Variant -> metric -> figure, such as {vanilla: {bleu: 27.3}}."""


def read_published(
    node: Node | None, recipes: Table[str, Recipe], problems: Problems
) -> Published | None:
    """The published figures of a file with these variants; None where there are none.

    What is wrong is noted in `problems`.
    """
    if node is None or (isinstance(node, Scalar) and node.null):
        return None
    if not isinstance(node, Mapping):
        text = f"must hold source, comparable and scores, got {written(node)}"
        problems.add(node.place, (KEY,), text)
        return None
    values: dict[str, Any] = {}
    for name, (place, value) in node.fields.items():
        key = (KEY, name)
        if name not in Published.model_fields:
            problems.add(place, key, f"unknown key; {_known(name, Published.model_fields)}")
        elif name == "scores":
            values[name] = _scores(value, recipes, problems)
        else:
            field = Published.model_fields[name]
            values[name] = _value(value, field.annotation, key, problems)
    for name, field in Published.model_fields.items():
        if field.is_required() and name not in values:
            problems.add(node.place, (KEY, name), "is missing")
    if problems:
        return None
    found = Published(**values)
    splits = list(dict.fromkeys(s for recipe in recipes.values() for s in recipe.eval.splits))
    _check(found, node, splits, problems)
    if found.comparable and len(splits) == 1:
        found = found.model_copy(update={"split": splits[0]})
    return found


def _value(node: Node, kind: Any, key: Key, problems: Problems) -> Any:
    try:
        return read(node, TypeAdapter(kind))
    except Refused as refused:
        problems.add(refused.place, (*key, *refused.inside), refused.text)
        return None


def _scores(
    node: Node, recipes: Table[str, Recipe], problems: Problems
) -> dict[str, dict[str, float]]:
    """Variant -> metric -> figure."""
    out: dict[str, dict[str, float]] = {}
    for variant, figures in _named(node, (KEY, "scores"), "variant", recipes, problems).items():
        key = (KEY, "scores", variant)
        named = _named(figures, key, "metric", dict.fromkeys(METRICS), problems)
        out[variant] = {
            metric: _value(value, float, (*key, metric), problems)
            for metric, value in named.items()
        }
    return out


def _named(
    node: Node, key: Key, what: str, known: Table[str, Any], problems: Problems
) -> dict[str, Node]:
    """The values of a mapping by their names, which must be among the known ones."""
    if not isinstance(node, Mapping):
        example = "{vanilla: {bleu: 27.3}}" if what == "variant" else "{bleu: 27.3}"
        text = f"must hold a value for each {what}, such as {example}, got {written(node)}"
        problems.add(node.place, key, text)
        return {}
    if not node.fields:
        problems.add(node.place, key, f"is empty; give a value for each {what}, or leave it out")
    out = {}
    for name, (place, value) in node.fields.items():
        if name in known:
            out[name] = value
        else:
            problems.add(place, key, f"no {what} is called {quoted(name)}; {_known(name, known)}")
    return out


def _known(name: str, known: Table[str, Any]) -> str:
    close = nearest(name, known)
    return f"did you mean {close}?" if close else f"there are {', '.join(known)}"


def _check(found: Published, node: Mapping, splits: list[str], problems: Problems) -> None:
    """What a reader of the table must be told, and which split the figures stand beside."""
    if not found.source.strip():
        problems.add(node.fields["source"][1].place, (KEY, "source"), "must not be empty")
    if not found.comparable and not (found.why or "").strip():
        place = node.fields["comparable"][1].place
        problems.add(place, (KEY, "why"), "is missing; say why the figures are not comparable")
    if found.split is not None and found.split not in splits:
        text = f"no split of eval.splits is called {quoted(found.split)}"
        near = _known(found.split, dict.fromkeys(splits))
        problems.add(node.fields["split"][1].place, (KEY, "split"), f"{text}; {near}")
    if found.comparable and found.split is None and len(splits) > 1:
        text = f"is missing; say which split the figures compare with: {', '.join(splits)}"
        problems.add(node.fields["comparable"][1].place, (KEY, "split"), text)
