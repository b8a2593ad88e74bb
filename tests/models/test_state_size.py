"""Test of the size of the state of a decoder."""

from typing import Any

import pytest

from attnkit.models.state_size import state_bytes
from attnkit.recipe.schema import Recipe

WIDTH, LAYERS, NUMBER = 16, 2, 4  # bytes of a number
CACHE = 2 * WIDTH * LAYERS * NUMBER
"""Bytes of the keys and values of one token."""


def size(length: int, name: str, shape: str = "decoder", **options: Any) -> int | None:
    model = {"shape": shape, "width": WIDTH, "heads": 2, "layers": {"decoder": LAYERS}}
    model["attention"] = {"decoder": {"name": name, **options}}
    data = {"corpus": "wikitext-2", "max_length": 256}
    return state_bytes(Recipe.model_validate({"task": "language-modeling", "data": data, "model": model}), length)


@pytest.mark.parametrize("length", [10, 100])
def test_caches_grow_with_the_text_and_sums_do_not(length: int) -> None:
    assert size(length, "scaled-dot") == CACHE * length
    assert size(length, "scaled-dot", key_heads=1) == CACHE * length // 2
    assert size(length, "local", window=8) == CACHE * 8
    assert size(length, "sparse", rate=8) == CACHE * length
    assert size(length, "mixture", parts=["scaled-dot", "dot"]) == CACHE * length
    head = WIDTH // 2
    # S [D, E] and z [D] of each of two heads
    assert size(length, "linear") == 2 * (head * head + head) * LAYERS * NUMBER
    assert size(length, "scaled-dot", shape="encoder-decoder") is None
