"""Figures that others published, as a recipe file states them to be shown beside its own."""

from collections.abc import Iterator
from collections.abc import Mapping as Table
from typing import Annotated

from pydantic import Field, TypeAdapter

from attnkit.recipe.issues import Issues, ValidationIssue, ValidationIssues
from attnkit.recipe.metrics import ScoreName
from attnkit.recipe.reading import read, unknown_key
from attnkit.recipe.schema import Recipe
from attnkit.recipe.values import Section
from attnkit.recipe.yaml_nodes import Mapping, Node, is_null
from attnkit.text import hint, quoted

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
    scores: dict[str, Annotated[dict[ScoreName, float], Field(min_length=1)]] = Field(min_length=1)
    """Variant -> metric -> figure, such as {vanilla: {bleu: 27.3}}."""


def read_published(
    node: Node | None, recipes: Table[str, Recipe], issues: Issues
) -> Published | None:
    """The published figures of a file with these variants; None where there are none.

    What is wrong is added to `issues`.
    """
    if node is None or is_null(node):
        return None
    refused: list[ValidationIssue] = []
    try:
        found: Published = read(node, TypeAdapter(Published))
        refused = [*_issues_of(found, node, recipes)]
    except ValidationIssues as issues_of_types:
        refused = [*issues_of_types.found]
    for one in refused:
        issues.add(one.place or node.place, (KEY, *one.key), one.text)
    if refused:
        return None
    splits = _splits(recipes)
    if found.comparable and len(splits) == 1:
        found = found.model_copy(update={"split": splits[0]})
    return found


def _splits(recipes: Table[str, Recipe]) -> list[str]:
    return list(dict.fromkeys(s for recipe in recipes.values() for s in recipe.eval.splits))


def _issues_of(
    found: Published, node: Node, recipes: Table[str, Recipe]
) -> Iterator[ValidationIssue]:
    """What a reader of the table must be told, and which split the figures stand beside."""
    assert isinstance(node, Mapping)
    splits, fields = _splits(recipes), node.fields
    scores = fields["scores"][1]
    assert isinstance(scores, Mapping)
    for variant in (name for name in found.scores if name not in recipes):
        text, place = unknown_key(variant, recipes), scores.fields[variant][0]
        yield ValidationIssue(text, ("scores", variant), place=place)
    if not found.source.strip():
        yield ValidationIssue("must not be empty", "source", place=fields["source"][1].place)
    if not found.comparable and not (found.why or "").strip():
        text = "is missing; say why the figures are not comparable"
        yield ValidationIssue(text, "why", place=fields["comparable"][1].place)
    if found.split is not None and found.split not in splits:
        text = f"no split of eval.splits is called {quoted(found.split)}; "
        text += hint(found.split, splits)
        yield ValidationIssue(text, "split", place=fields["split"][1].place)
    if found.comparable and found.split is None and len(splits) > 1:
        text = f"is missing; say which split the figures compare with: {', '.join(splits)}"
        yield ValidationIssue(text, "split", place=fields["comparable"][1].place)
