"""Corpora made by seeded generators, so that everything runs without a download."""

from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@cache
def word_tables(corpus: str) -> dict[str, Any]:
    """Return the word lists of a generated corpus, from the YAML file beside its module."""
    tables: dict[str, Any] = yaml.safe_load((files(__name__) / f"{corpus}.yaml").read_bytes())
    return tables
