"""Words for the shell's TAB key: read from recipes, folders and the schema, never from models."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO

import typer

from attnkit.errors import AttnkitError

MOST_FOLDERS, DEEPEST = 2000, 6
"""Folders that are looked into for runs, and levels of them."""


@contextmanager
def words_of_bash() -> Iterator[None]:
    """Give the parser KEY=VALUE as one word, which bash splits, wanting what is behind the sign.

    What is printed inside is printed without what the shell has already.
    """
    words, place = os.environ.get("COMP_WORDS", "").split("\n"), os.environ.get("COMP_CWORD", "")
    if len(words) < 2 or not place.isdecimal():
        yield
        return
    joined, cursor, has, glued = list[str](), len(words), "", False
    for number, word in enumerate(words):
        before = joined.pop() if joined and (glued or word == "=") else ""
        joined.append(before + word)
        glued = word == "="
        if number == int(place):
            cursor, has = len(joined) - 1, before + "=" * glued
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(min(cursor, len(joined)))}
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        lines = printed.getvalue().splitlines(keepends=True)
        sys.stdout.writelines(line.removeprefix(has) for line in lines)


def recipes() -> list[str]:
    """Names of the shipped recipes; the shell itself offers files."""
    from attnkit.recipe import shipped

    return [*shipped()]


def runs(incomplete: str) -> list[str]:
    """Folders of single runs, below the folder that was typed or that of all runs; `demo`."""
    return [
        *_below(incomplete),
        *(["demo"] if incomplete and "demo".startswith(incomplete) else []),
    ]


def folders(incomplete: str) -> list[str]:
    """Runs, and the folders that hold them."""
    least = incomplete.count("/") + 1
    found = [path.split("/") for path in _below(incomplete)]
    return sorted({"/".join(p[:size]) for p in found for size in range(least, len(p) + 1)})


def targets(ctx: typer.Context, incomplete: str) -> list[str]:
    """What `attnkit eval` scores, and the keys that it changes."""
    from attnkit.recipe.settings import AFTER_TRAINING

    words = [word for word in keys(ctx, incomplete) if word.startswith(AFTER_TRAINING)]
    return [*recipes(), *folders(incomplete), *words]


def _below(incomplete: str) -> Iterator[str]:
    """The paths of runs as they would be typed."""
    from attnkit.cli import user_defaults
    from attnkit.runs.layout import MANIFEST, RECIPE

    before, slash, _ = incomplete.rpartition("/")
    if not slash:
        try:
            before = user_defaults.read().get("out", "runs")
        except AttnkitError:
            before = "runs"
    top = f"{before.rstrip('/')}/"
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

    # Behind an option whose value is still missing the parser has not come to the recipe yet.
    words = [ctx.params.get("recipe"), *(ctx.params.get("overrides") or ()), *ctx.args]
    recipe, *others = [word for word in words if word and not word.startswith("-")] or [""]
    try:
        return [*load(recipe, [word for word in others if "=" in word]).variants]
    except AttnkitError:
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


def keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Dotted keys of a recipe, ready for their value (train.steps=), and the values of one."""
    from attnkit.recipe.schema import AttentionConfig, Layers, Roles
    from attnkit.recipe.settings import SCHEMA

    key, equals, value = incomplete.partition("=")
    if equals:
        before, comma, _ = value.rpartition(",")
        words = variants(ctx) if key == "baseline" else _values(key)
        return [f"{key}={before}{comma}{word}" for word in words]
    whole = (AttentionConfig, Layers, Roles)  # sections that a single value sets
    held = (key for key, kind in SCHEMA.items() if not isinstance(kind, type) or kind in whole)
    return [*(f"{'.'.join(key)}=" for key in held), "baseline="]


def _values(key: str) -> Sequence[str]:
    """The values that a key can have, where they are words."""
    from attnkit.mechanisms import names
    from attnkit.recipe import corpus_cards
    from attnkit.recipe.reading import choices, schema_at
    from attnkit.recipe.schema import AttentionConfig, Roles
    from attnkit.recipe.settings import SCHEMA

    path = tuple(key.split("."))
    kind = SCHEMA.get(path)
    if kind in (AttentionConfig, Roles) or (path[-1] == "name" and path[:-1] in SCHEMA):
        return names()
    if path == ("data", "corpus"):
        return corpus_cards.names()
    return [] if kind is None or isinstance(kind, type) else choices(schema_at(path))
