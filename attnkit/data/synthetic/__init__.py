"""Embedded corpora: made by seeded generators, so that everything runs without a download."""

from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

import yaml

from attnkit.recipe.corpus_cards import Card


def generator(card: Card) -> Any:
    """What makes the rows of a generated corpus, a module or an object.

    It has VERSION, raised when the same seed would give other rows, SIZES by split, and
    `rows(split, size, seed)`, which also takes the length of a row, or the passages of a question,
    where these can be chosen.
    """
    from attnkit.data.synthetic.known_source import SOURCES
    from attnkit.data.synthetic.recall import RecallRows

    if card.length:
        return RecallRows(card.name, card.length)
    name = card.name.removeprefix("toy-")
    return SOURCES.get(card.name) or import_module(f"attnkit.data.synthetic.{name}")


@cache
def word_tables(corpus: str) -> dict[str, Any]:
    """The words of a generated corpus, from the YAML file beside its module."""
    tables: dict[str, Any] = yaml.safe_load((files(__name__) / f"{corpus}.yaml").read_bytes())
    return tables
