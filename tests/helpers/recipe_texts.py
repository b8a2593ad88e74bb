"""Recipes written into the current folder, and their error messages."""

import re
from pathlib import Path

import pytest

from attnkit.errors import AttnkitError, RecipeError
from attnkit.recipe import RecipeFile, load

GOOD = "task: translation\ndata: {corpus: toy-translation}\n"
"""A minimal recipe of two lines."""


def write(text: str | bytes, name: str = "r.yaml") -> Path:
    """Write a recipe file into the current folder."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(text: str | bytes, *overrides: str) -> RecipeFile:
    """Load a recipe from its text."""
    return load(write(text), overrides)


def error_message(text: str | bytes, *overrides: str, kind: type[AttnkitError] | None = None) -> str:
    """Return the error message for an invalid recipe."""
    with pytest.raises(AttnkitError) as caught:
        read(text, *overrides)
    assert kind is None or caught.type is kind
    return str(caught.value)


def check_error(message: str, text: str | bytes, *overrides: str) -> None:
    """Check that an invalid recipe raises RecipeError with a single line that contains the message."""
    found = error_message(text, *overrides, kind=RecipeError)
    assert message in found, found
    assert "\n" not in found, found


def parse_messages(table: str) -> list[tuple[str, str]]:
    """Return texts and the messages indented below them; both may have several lines."""
    found = re.findall(r"((?:^\S.*\n)+)((?:^  .*\n)+)", table, re.MULTILINE)
    return [(text, " ".join(message.split())) for text, message in found]
