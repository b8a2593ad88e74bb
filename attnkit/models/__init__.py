"""Models: one family a file; `build` makes the one that a recipe describes."""

from collections.abc import Mapping
from typing import Any

import torch

from attnkit import mechanisms
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.models.base import Decode, Model
from attnkit.models.transformer import Transformer
from attnkit.recipe import schema

__all__ = ["Decode", "Model", "Transformer", "attempt", "build"]


def build(model: schema.ModelConfig, sizes: tuple[int, int], max_length: int) -> Model:
    """A freshly initialised model.

    `sizes` are the source and target vocabularies; `max_length` is the longest sequence that the
    data section allows.  One more position is for the begin token; a decoder that reads a source
    before its target has room for both.
    """
    return Transformer(model, sizes, _places(model, max_length))


def attempt(recipe: schema.Recipe, role: str, options: Mapping[str, Any]) -> None:
    """Build the attention of a place (encoder, decoder, cross) with these options, without memory.

    Raises UsageError where the mechanism refuses them.  Any other failure is left to `build`: a
    mechanism from outside may not know tensors without storage.
    """
    model = recipe.model
    word = getattr(model.attention, role).name
    length = _places(model, recipe.data.max_length)
    cross, causal = role == "cross", role == "decoder"
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        try:
            for depth in range(len(mechanisms.in_turn(word, options))):
                MultiHead.build(
                    word, model.width, model.heads, length, cross, depth, causal, **options
                )
        except UsageError:
            raise
        except Exception:
            return


def _places(model: schema.ModelConfig, max_length: int) -> int:
    """Positions that the model must have."""
    return 2 * (max_length + 1) if model.shape == "decoder" else max_length + 1
