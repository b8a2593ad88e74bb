"""The parts of our transformer as other libraries of plain transformers want them."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.layers import Block, MultiHead
from attnkit.layers.positions import sinusoids
from attnkit.mechanisms.dot import Dot
from attnkit.models import Transformer
from attnkit.models.embedding import Embedding
from attnkit.models.transformer import Stack

LENGTH = 1024
"""Positions of tables that are computed, at least; learned ones have those that were trained."""
Affine = tuple[Float[Tensor, "O I"], Float[Tensor, " O"]]


def blocks(stack: Stack) -> Iterator[Block]:
    """The blocks of an encoder or decoder in order."""
    for block in stack.blocks:
        assert isinstance(block, Block)
        yield block


def projection(attention: MultiHead, name: str) -> Affine:
    """Weight and bias of q, k, v or o, with zeros where there is no bias.

    Queries are such that scores are divided by sqrt(D), as all libraries do.
    """
    layer, mechanism = getattr(attention, name), attention.mechanism
    assert isinstance(mechanism, Dot)
    factor = mechanism.scale * mechanism.shape.head_width**0.5 if name == "q" else 1.0
    weight: Tensor = layer.weight
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias
    return weight.detach() * factor, bias.detach() * factor


def position_table(embedding: Embedding, length: int) -> Float[Tensor, "N W"]:
    """The vectors that are added at positions from 0; `length` is what a model reads."""
    if embedding.table is not None:
        return embedding.table.weight.detach()
    positions, width = torch.arange(max(LENGTH, length))[None], embedding.tokens.embedding_dim
    table = sinusoids(positions, width)[0]
    return table if embedding.positions == "sinusoidal" else torch.zeros_like(table)


def stacks(model: Transformer) -> dict[str, tuple[Stack, Embedding]]:
    """Encoder and decoder, as far as there are, with the embeddings before them."""
    assert isinstance(model.decoder, Stack)
    found = {"decoder": (model.decoder, model.embed_target)}
    if model.encoder is not None and model.embed_source is not None:
        found["encoder"] = (model.encoder, model.embed_source)
    return found
