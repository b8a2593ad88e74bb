"""Figures that others published, as a recipe file states them to be shown beside its own."""

from collections.abc import Iterator
from collections.abc import Mapping as Table
from typing import Any

from pydantic import TypeAdapter

from attnkit.recipe.issues import Issues, Key, Position, ValidationIssue
from attnkit.recipe.metrics import METRICS
from attnkit.recipe.schema import Recipe, Section
from attnkit.recipe.values import read, written
from attnkit.recipe.yaml_nodes import Mapping, Node, Scalar
from attnkit.text import nearest, quoted

KEY = "published"
EXAMPLES = {
    "key": "{source: ..., comparable: false, why: ..., scores: ...}",
    "variant": "{vanilla: {bleu: 27.3}}",
    "metric": "{bleu: 27.3}",
}


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
    node: Node | None, recipes: Table[str, Recipe], issues: Issues
) -> Published | None:
    """The published figures of a file with these variants; None where there are none.

    What is wrong is added to `issues`.
    """
    if node is None or (isinstance(node, Scalar) and node.null):
        return None
    values: dict[str, Any] = {}
    for name, inner in _named(node, (KEY,), "key", Published.model_fields, issues):
        if name == "scores":
            values[name] = _scores(inner, recipes, issues)
        else:
            kind = Published.model_fields[name].annotation
            values[name] = _value(inner, (KEY, name), kind, issues)
    for name, field in Published.model_fields.items():
        if field.is_required() and name not in values:
            issues.add(node.place, (KEY, name), "is missing")
    if issues:
        return None
    found = Published(**values)
    splits = list(dict.fromkeys(s for recipe in recipes.values() for s in recipe.eval.splits))
    fields = node.fields if isinstance(node, Mapping) else {}
    places = {name: inner.place for name, (_, inner) in fields.items()}
    for wrong in _issues_of(found, splits, places):
        issues.add(wrong.place or node.place, wrong.key, wrong.text)
    if found.comparable and len(splits) == 1:
        found = found.model_copy(update={"split": splits[0]})
    return found


def _value(node: Node, key: Key, kind: Any, issues: Issues) -> Any:
    try:
        return read(node, TypeAdapter(kind))
    except ValidationIssue as issue:
        issues.add(issue.place or node.place, (*key, *issue.key), issue.text)
        return None


def _scores(node: Node, recipes: Table[str, Recipe], issues: Issues) -> dict[str, dict[str, Any]]:
    """Variant -> metric -> figure."""
    out: dict[str, dict[str, Any]] = {}
    for variant, figures in _named(node, (KEY, "scores"), "variant", recipes, issues):
        key = (KEY, "scores", variant)
        out[variant] = {
            metric: _value(figure, (*key, metric), float, issues)
            for metric, figure in _named(figures, key, "metric", METRICS, issues)
        }
    return out


def _named(
    node: Node, key: Key, what: str, known: Table[str, Any], issues: Issues
) -> Iterator[tuple[str, Node]]:
    """The values of a mapping by their names, which must be among the known ones."""
    if not isinstance(node, Mapping):
        text = f"must hold a value for each {what}, such as {EXAMPLES[what]}"
        issues.add(node.place, key, f"{text}, got {written(node)}")
        return
    if not node.fields:
        issues.add(node.place, key, f"is empty; give a value for each {what}, or leave it out")
    for name, (place, inner) in node.fields.items():
        if name in known:
            yield name, inner
        else:
            text = f"no {what} is called {quoted(name)}; {_known(name, known)}"
            issues.add(place, key, text)


def _known(name: str, known: Table[str, Any]) -> str:
    close = nearest(name, known)
    return f"did you mean {close}?" if close else f"there are {', '.join(known)}"


def _issues_of(
    found: Published, splits: list[str], places: Table[str, Position]
) -> Iterator[ValidationIssue]:
    """What a reader of the table must be told, and which split the figures stand beside."""
    if not found.source.strip():
        yield ValidationIssue("must not be empty", "published.source", place=places["source"])
    at = places["comparable"]
    if not found.comparable and not (found.why or "").strip():
        text = "is missing; say why the figures are not comparable"
        yield ValidationIssue(text, "published.why", place=at)
    if found.split is not None and found.split not in splits:
        text = f"no split of eval.splits is called {quoted(found.split)}"
        text += f"; {_known(found.split, dict.fromkeys(splits))}"
        yield ValidationIssue(text, "published.split", place=places["split"])
    if found.comparable and found.split is None and len(splits) > 1:
        text = f"is missing; say which split the figures compare with: {', '.join(splits)}"
        yield ValidationIssue(text, "published.split", place=at)
