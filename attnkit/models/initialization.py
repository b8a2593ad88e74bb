"""GPT-2's initialization of a Transformer, an alternative to Glorot's."""

import math

from torch import nn

from attnkit.data.tokenizer import PAD
from attnkit.layers import FeedForward, MultiHead
from attnkit.models.base import Model
from attnkit.models.embedding import Embedding
from attnkit.models.transformer import Stack


def initialize_normal(model: Model, std: float) -> None:
    """Initialize the matrices and embeddings of a Transformer from a normal distribution.

    The standard deviation is `std`, and std / sqrt(2 layers) for the last matrix of each sublayer, so that the sum
    over sublayers does not grow with depth (Radford et al. 2019, section 2.3). Token embeddings are not multiplied by
    sqrt(width). Biases stay 0. Parameters of mechanisms, short convolutions and relative positions do not change.
    """
    if isinstance(model.output, nn.Linear):  # first: it may be tied to an embedding, whose PAD row is 0
        nn.init.normal_(model.output.weight, std=std)
    for module in model.modules():
        if isinstance(module, Embedding):
            module.scale = 1.0
            nn.init.normal_(module.tokens.weight, std=std)
            nn.init.zeros_(module.tokens.weight[PAD])
            if module.table is not None:
                nn.init.normal_(module.table.weight, std=std)
        elif isinstance(module, Stack):
            _initialize_stack(module, std)


def _initialize_stack(stack: Stack, std: float) -> None:
    output_std = std / math.sqrt(2 * len(stack.blocks))
    for module in stack.modules():
        if isinstance(module, MultiHead):
            input_layers, output_layer = [module.q, module.k, module.v, module.g, module.gate], module.o
        elif isinstance(module, FeedForward):
            input_layers, output_layer = [module.up, module.gate], module.down
        else:
            continue
        for layer in filter(None, input_layers):
            nn.init.normal_(layer.weight, std=std)
        nn.init.normal_(output_layer.weight, std=output_std)
