"""How much a decoder keeps of the text that it has read."""

from typing import Any

import pytest

from attnkit.models.state_size import state_bytes
from attnkit.recipe.schema import Recipe

WIDTH, LAYERS, NUMBER = 16, 2, 4  # bytes of a number
CACHE = 2 * WIDTH * LAYERS * NUMBER
"""Bytes of the keys and values of one token."""


def size(attention: Any, length: int, **model: Any) -> int | None:
    model = {"shape": "decoder", "width": WIDTH, "layers": {"decoder": LAYERS}, **model}
    roles = {"decoder": attention if isinstance(attention, dict) else {"name": attention}}
    return state_bytes(
        Recipe.model_validate(
            {
                "task": "language-modeling",
                "data": {"corpus": "wikitext-2", "max_length": 256},
                "model": {"heads": 2, **model, "attention": roles},
            }
        ),
        length,
    )


@pytest.mark.parametrize("length", [10, 100])
def test_caches_grow_sums_do_not_and_windows_end(length: int) -> None:
    assert size("scaled-dot", length) == CACHE * length
    assert size({"name": "scaled-dot", "key_heads": 1}, length) == CACHE * length // 2
    assert size({"name": "local", "window": 8}, length) == CACHE * 8
    assert size({"name": "sparse", "rate": 8}, length) == CACHE * length
    mixed = {"name": "mixture", "parts": ["scaled-dot", "dot"]}
    assert size(mixed, length) == CACHE * length
    heads = WIDTH // 2
    # S [D, E] and z [D] of each of two heads
    assert size("linear", length) == 2 * (heads * heads + heads) * LAYERS * NUMBER
    assert size("scaled-dot", length, shape="encoder-decoder") is None
