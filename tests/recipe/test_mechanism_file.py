"""Tests of reading the file of a mechanism: annotations of options are parsed as text, never run."""

from types import NoneType
from typing import Any, Literal

import pytest
from helpers.recipe_texts import GOOD, error_message
from hypothesis import given
from hypothesis import strategies as st

from attnkit import mechanisms
from attnkit.recipe.mechanism_file import annotation


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int", int),
        ("float", float),
        ("bool", bool),
        ("str", str),
        ("None", NoneType),
        ("int | None", int | None),
        ("Literal['a', 1, True]", Literal["a", 1, True]),
        ("tuple[int, int]", tuple[int, int]),
        ("tuple[int, ...]", tuple[int, ...]),
        ("list[float]", tuple[float, ...]),
        ("tuple[int, int] | None", tuple[int, int] | None),
        *((text, Any) for text in ("Any", "typing.Any", "Tensor", "Tensor | None", "int[", "")),
        ("__import__('os').system('x')", Any),
        ("Literal[print()]", Any),
    ],
)
def test_annotation_is_a_known_type_or_any(text: str, kind: object) -> None:
    assert annotation(text) == kind


@given(st.text(max_size=40))
def test_no_annotation_raises(text: str) -> None:
    annotation(text)


@pytest.mark.parametrize("word", mechanisms.names())
def test_every_option_has_a_type(word: str) -> None:
    for name, option in mechanisms.facts(word).options.items():
        assert option.type is not Any or name == "parts", f"give the option {name} a type"


def test_number_that_would_exhaust_memory_raises() -> None:
    text = GOOD + "model: {attention: {encoder: {name: performer, features: 2000000000}}}\n"
    assert error_message(text).endswith("features: must be at most 1048576, got 2000000000")
