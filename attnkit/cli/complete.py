"""Words for the shell's TAB key: read from recipes and the schema, never from models."""

import typer

from attnkit.errors import AttnkitError


def recipes(incomplete: str) -> list[str]:
    """Names of the shipped recipes; the shell itself offers files."""
    from attnkit.recipe import library

    root = library()
    names = (path.relative_to(root).with_suffix("") for path in root.rglob("*.yaml"))
    return sorted(name.as_posix() for name in names if name.as_posix().startswith(incomplete))


def variants(ctx: typer.Context, incomplete: str) -> list[str]:
    """The variants of the recipe that the command line names; none while it cannot be read."""
    from attnkit.recipe import load

    try:
        names = load(ctx.params.get("recipe") or "").variants
    except AttnkitError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def keys(incomplete: str) -> list[str]:
    """Dotted keys of a recipe, ready for their value: train.steps=."""
    from pydantic import BaseModel

    from attnkit.recipe.schema import Recipe

    def walk(section: type[BaseModel], prefix: str) -> list[str]:
        found = []
        for name, field in section.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found += walk(kind, f"{prefix}{name}.")
            else:
                found.append(f"{prefix}{name}=")
        return found

    return [key for key in walk(Recipe, "") if key.startswith(incomplete)]
