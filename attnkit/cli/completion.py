"""Words for the shell's TAB key: read from recipes and the schema, never from models."""

import typer

from attnkit.errors import AttnkitError


def recipes(incomplete: str) -> list[str]:
    """Names of the shipped recipes; the shell itself offers files."""
    from attnkit.recipe import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


def mechanisms(incomplete: str) -> list[str]:
    """Words of attention mechanisms."""
    from attnkit.mechanisms import names

    return [name for name in names() if name.startswith(incomplete)]


def variants(ctx: typer.Context, incomplete: str) -> list[str]:
    """The variants of the recipe that the command line names; none while it cannot be read."""
    from attnkit.recipe import load

    # Behind an option whose value is still missing the parser has not come to the recipe yet.
    words = [ctx.params.get("recipe"), *(ctx.params.get("overrides") or ()), *ctx.args]
    recipe, *others = [word for word in words if word and not word.startswith("-")] or [""]
    try:
        file = load(recipe, [word for word in others if "=" in word])
    except AttnkitError:
        return []
    return [name for name in file.variants if name.startswith(incomplete)]


def curves(incomplete: str) -> list[str]:
    """The last word of a comma-separated list of what `attnkit plot` draws."""
    from attnkit.recipe.metrics import METRICS
    from attnkit.runs.curves import CURVES, SCORE

    before, comma, word = incomplete.rpartition(",")
    names = (*CURVES, SCORE, *METRICS)
    return [before + comma + name for name in names if name.startswith(word)]


def keys(incomplete: str) -> list[str]:
    """Dotted keys of a recipe, ready for their value: train.steps=."""
    from pydantic import BaseModel

    from attnkit.recipe.schema import Recipe

    def walk(section: type[BaseModel], prefix: str) -> list[str]:
        dotted = []
        for name, field in section.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                dotted += walk(kind, f"{prefix}{name}.")
            else:
                dotted.append(f"{prefix}{name}=")
        return dotted

    return [key for key in walk(Recipe, "") if key.startswith(incomplete)]
