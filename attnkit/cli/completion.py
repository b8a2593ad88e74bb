"""Words for the shell's TAB key: read from recipes and the schema; it offers files itself."""

from collections.abc import Iterable

import typer

from attnkit.errors import AttnkitError


def recipes() -> list[str]:
    """Names of the shipped recipes."""
    from attnkit.recipe import shipped

    return [*shipped()]


def targets() -> list[str]:
    """Recipes that `attnkit eval` scores, and the keys that it changes."""
    from attnkit.recipe.settings import AFTER_TRAINING

    words = [word for word in keys() if word.startswith(AFTER_TRAINING)]
    return [*recipes(), *words]


def mechanisms() -> list[str]:
    """Words of attention mechanisms."""
    from attnkit.mechanisms import names

    return [*names()]


def variants(ctx: typer.Context) -> list[str]:
    """The variants of the recipe that the command line names; none while it cannot be read."""
    from attnkit.recipe import load

    try:
        return [*load(ctx.params.get("recipe") or ctx.args[0]).variants]
    except (AttnkitError, IndexError):
        return []


def curves(incomplete: str) -> list[str]:
    """The last word of a comma-separated list of what `attnkit plot` draws."""
    from attnkit.recipe.metrics import METRICS
    from attnkit.runs.curves import CURVES, SCORE

    return _last_of(incomplete, (*CURVES, SCORE, "overview", "differences", *METRICS))


def axes() -> list[str]:
    """What `attnkit plot` draws against: progress and costs, or a key of the recipe."""
    from attnkit.runs.curves import AXES

    return [*AXES, *(key.removesuffix("=") for key in keys() if "." in key)]


def metrics(incomplete: str) -> list[str]:
    """The last word of a comma-separated list of metrics."""
    from attnkit.recipe.metrics import METRICS

    return _last_of(incomplete, METRICS)


def _last_of(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, _ = incomplete.rpartition(",")
    return [before + comma + name for name in names]


def keys() -> list[str]:
    """Dotted keys of a recipe, ready for their value (train.steps=)."""
    from attnkit.recipe.schema import AttentionConfig, Layers, Roles
    from attnkit.recipe.settings import SCHEMA

    whole = (AttentionConfig, Layers, Roles)  # sections that a single value sets
    held = (key for key, kind in SCHEMA.items() if not isinstance(kind, type) or kind in whole)
    return [*(f"{'.'.join(key)}=" for key in held), "baseline="]
