"""Published figures, which a recipe file states to be shown beside its own scores."""

from collections.abc import Mapping as Table
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from attnkit.errors import UsageError
from attnkit.recipe.issues import refuse
from attnkit.recipe.metrics import METRICS, ScoreName, is_known
from attnkit.recipe.reading import FINITE, typed, written
from attnkit.recipe.schema import Recipe
from attnkit.recipe.values import Section
from attnkit.recipe.yaml_nodes import Mapping, Node, is_null
from attnkit.text import hint, quoted

KEY = "published"
_SCORES = Annotated[dict[str, Annotated[dict[str, float], Field(min_length=1)]], Field(min_length=1)]
"""Type of the figures before the names of variants and metrics are checked."""


class Published(Section):
    """Figures that others published, shown beside the scores of this recipe.  They do not affect training."""

    source: str
    """Origin of the figures: paper, table, and who transcribed them."""
    comparable: bool
    """Whether they were measured like the scores here, on the same data."""
    why: str | None = None
    """Why they are not comparable, in one line; required if comparable is false."""
    split: str | None = None
    """Split of the figures; null is every split."""
    scores: dict[str, Annotated[dict[ScoreName, float], Field(min_length=1)]] = Field(min_length=1)
    """Variant -> metric -> figure, such as {vanilla: {bleu: 27.3}}."""


def read_published(node: Node | None, recipes: Table[str, Recipe]) -> Published | None:
    """Return the published figures of a file with these variants, or None if it has none.  Raises RecipeError."""
    if node is None or is_null(node):
        return None
    if not isinstance(node, Mapping):
        refuse(node.place, f"must be a mapping of keys, such as `source: ...`, got {written(node)}", (KEY,))
    splits = list(dict.fromkeys(s for recipe in recipes.values() for s in recipe.eval.splits))
    given: dict[str, Any] = {"split": None, "why": None}

    def require(condition: object, name: str, text: str) -> None:
        if not condition:
            place = node.fields[name][1].place if name in node.fields else node.place
            refuse(place, text, (KEY, name))

    for name, (place, value) in node.fields.items():
        if name not in Published.model_fields:
            refuse(place, f"unknown key; {hint(name, Published.model_fields)}", (KEY, name))
        field = Published.model_fields[name]
        kind: Any = _SCORES if name == "scores" else Annotated[field.annotation, field]
        try:
            given[name] = typed(value, TypeAdapter(kind, config=FINITE))
        except UsageError as error:
            require(False, name, str(error))
    for name in ("source", "comparable", "scores"):
        require(name in given, name, "is missing")
    for variant, figures in given["scores"].items():
        text = f"no variant {quoted(variant)}; {hint(variant, recipes)}"
        require(variant in recipes, "scores", text)
        for metric in figures:
            require(is_known(metric), "scores", f"no metric {quoted(metric)}; {hint(metric, METRICS)}")
    require(given["source"].strip(), "source", "must not be empty")
    split = given["split"]
    if split not in (None, *splits):
        text = f"eval.splits has no split {quoted(split)}; {hint(split, splits)}"
        require(False, "split", text)
    if given["comparable"]:
        text = f"is missing; choose the split of the figures: {', '.join(splits)}"
        require(split or len(splits) == 1, "split", text)
        given["split"] = split or splits[0]
    else:
        why = (given["why"] or "").strip()
        require(why, "why", "is missing; say why the figures are not comparable")
    return Published.model_validate(given)
