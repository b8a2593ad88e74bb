"""The parts of our transformer as libraries of plain transformers want them."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.layers import MultiHead
from attnkit.layers.positions import sinusoids
from attnkit.models.embedding import Embedding

LENGTH = 1024
"""Positions of tables that are computed, at least; learned ones have those that were trained."""


def stacks(model: Any) -> Iterator[tuple[str, Any, Embedding]]:
    """Name, stack and embeddings of the encoder, where there is one, and of the decoder."""
    if model.encoder is not None:
        yield "encoder", model.encoder, model.embed_source
    yield "decoder", model.decoder, model.embed_target


def projection(attention: MultiHead, name: str) -> tuple[Float[Tensor, "O I"], Float[Tensor, " O"]]:
    """Weight and bias of q, k, v or o, with zeros where there is no bias.

    Queries are such that scores are divided by sqrt(D), as all libraries do.
    """
    layer, mechanism = getattr(attention, name), attention.mechanism
    factor = getattr(mechanism, "scale", 1.0) * mechanism.shape.head_width**0.5 if name == "q" else 1
    weight: Tensor = layer.weight.detach() * factor
    return weight, weight[:, 0] * 0 if layer.bias is None else layer.bias.detach() * factor


def position_table(embedding: Embedding, length: int) -> Float[Tensor, "N W"]:
    """The vectors that are added at positions from 0; `length` is what a model reads."""
    if embedding.table is not None:
        return embedding.table.weight.detach()
    width, used = embedding.tokens.embedding_dim, embedding.positions == "sinusoidal"
    return sinusoids(torch.arange(max(LENGTH, length))[None], width)[0] * float(used)
