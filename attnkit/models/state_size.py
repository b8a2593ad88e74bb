"""How much the self-attention of a decoder keeps of the text that it has read."""

import torch
from torch import Tensor

from attnkit.attention import Mask, State
from attnkit.layers import MultiHead
from attnkit.models.transformer import Stack
from attnkit.recipe import schema


def state_bytes(recipe: schema.Recipe, length: int) -> int | None:
    """Bytes in float32 of the states of all layers for one row of `length` tokens.

    They are what decoding carries from token to token: caches, which grow with the text, or sums of
    constant size.  Of a sliding window only the keys count that later queries see, although its
    cache keeps all.  None of a model of another shape.
    """
    model = recipe.model
    if model.type != "transformer" or model.shape != "decoder":
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # the global RNG stays as it is
        room = max(length, 2 * (recipe.data.max_length + 1))  # as the model has
        stack = Stack(model, "decoder", room, None, cross=False).eval()
        mask = Mask.packed(length, torch.device("cpu"), causal=True)
        _, states, _ = stack(torch.zeros(1, length, model.width), mask)
    total = 0
    # not the parts of a mixture, which are in its state
    layers = (part.mechanism for part in stack.modules() if isinstance(part, MultiHead))
    for mechanism, state in zip(layers, states, strict=True):
        total += _bytes(state) * mechanism.keys_seen_later(length) // length
    return total


def _bytes(state: State) -> int:
    """Bytes of the numbers of a state, its masks aside."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size() if state.is_floating_point() else 0
    return sum(map(_bytes, state or ()))
