"""Weights of attnkit's transformer in the form that other libraries expect."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.layers import MultiHead
from attnkit.layers.positions import sinusoids
from attnkit.models.embedding import Embedding

MIN_POSITIONS = 1024
"""Minimum length of sinusoidal position tables; learned tables keep their trained length."""


def stacks(model: Any) -> Iterator[tuple[str, Any, Embedding]]:
    """Yield name, stack and embeddings of the encoder, if there is one, and of the decoder."""
    if model.encoder is not None:
        yield "encoder", model.encoder, model.embed_source
    yield "decoder", model.decoder, model.embed_target


def projection(attention: MultiHead, name: str) -> tuple[Float[Tensor, "O I"], Float[Tensor, " O"]]:
    """Return weight and bias (zeros if none) of q, k, v or o; q is rescaled to scores divided by sqrt(D)."""
    linear, mechanism = getattr(attention, name), attention.mechanism
    factor = getattr(mechanism, "scale", 1.0) * mechanism.shape.head_width**0.5 if name == "q" else 1
    weight: Tensor = linear.weight.detach() * factor
    return weight, weight[:, 0] * 0 if linear.bias is None else linear.bias.detach() * factor


def position_table(embedding: Embedding, length: int) -> Float[Tensor, "N W"]:
    """Return the vectors added at positions 0, 1, ...; zeros without positions. `length` is the model's maximum."""
    if embedding.table is not None:
        return embedding.table.weight.detach()
    width, sinusoidal = embedding.tokens.embedding_dim, embedding.positions == "sinusoidal"
    return sinusoids(torch.arange(max(MIN_POSITIONS, length))[None], width)[0] * float(sinusoidal)
