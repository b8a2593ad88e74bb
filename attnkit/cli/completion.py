"""Words for the shell's TAB key: read from recipes, folders and the schema, never from models."""

import os
from collections.abc import Iterable, Iterator

import typer

from attnkit.errors import AttnkitError

MOST_FOLDERS, DEEPEST = 2000, 6
"""Folders that are looked into for runs, and levels of them."""


def recipes() -> list[str]:
    """Names of the shipped recipes; the shell itself offers files."""
    from attnkit.recipe import shipped

    return [*shipped()]


def runs(incomplete: str) -> list[str]:
    """Folders of single runs, below the folder that was typed or that of all runs; `demo`."""
    return [*_below(incomplete), *["demo"] * (0 < len(incomplete) <= 4)]


def folders(incomplete: str) -> list[str]:
    """Runs, and the folders that hold them."""
    least = incomplete.count("/") + 1
    found = [path.split("/") for path in _below(incomplete)]
    return sorted({"/".join(p[:size]) for p in found for size in range(least, len(p) + 1)})


def targets(incomplete: str) -> list[str]:
    """What `attnkit eval` scores, and the keys that it changes."""
    from attnkit.recipe.settings import AFTER_TRAINING

    words = [word for word in keys() if word.startswith(AFTER_TRAINING)]
    return [*recipes(), *folders(incomplete), *words]


def _below(incomplete: str) -> Iterator[str]:
    """The paths of runs as they would be typed."""
    from attnkit.runs.layout import MANIFEST, RECIPE

    before, slash, _ = incomplete.rpartition("/")
    top = f"{before if slash else 'runs'}/"
    for looked, (here, inside, files) in enumerate(os.walk(os.path.expanduser(top))):
        path = top + os.path.relpath(here, os.path.expanduser(top))
        if MANIFEST in files and RECIPE in files:
            yield path.removesuffix("/.")
        if looked > MOST_FOLDERS:
            return
        ends = MANIFEST in files or path.count("/") - top.count("/") >= DEEPEST
        inside[:] = [] if ends else sorted(name for name in inside if not name.startswith("."))


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
