"""Size of the self-attention state of a decoder."""

import torch
from torch import Tensor

from attnkit.attention import Mask, State
from attnkit.layers import MultiHead
from attnkit.models.transformer import Stack
from attnkit.recipe import schema


def state_bytes(recipe: schema.Recipe, length: int) -> int | None:
    """Return the size of the states of all layers for a row of `length` tokens, in bytes of float32.

    States are what decoding carries from token to token: caches, which grow with the text, or sums of constant size.
    Of a sliding window only the keys visible to later queries count, although its cache keeps all of them. Return None
    for other models than decoder-only Transformers.
    """
    model = recipe.model
    if model.type != "transformer" or model.shape != "decoder":
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # keeps the global RNG
        positions = max(length, 2 * (recipe.data.max_length + 1))  # as in the model
        stack = Stack(model, "decoder", positions, None, cross=False).eval()
        mask = Mask.packed(length, torch.device("cpu"), causal=True)
        _, states, _ = stack(torch.zeros(1, length, model.width), mask)
    total = 0
    # without the components of a mixture, whose states are in its own
    layers = (part.mechanism for part in stack.modules() if isinstance(part, MultiHead))
    for mechanism, state in zip(layers, states, strict=True):
        total += _bytes(state) * mechanism.keys_seen_later(length) // length
    return total


def _bytes(state: State) -> int:
    """Return the size of a state in bytes, without masks."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size() if state.is_floating_point() else 0
    return sum(map(_bytes, state or ()))
