"""Embeddings of tokens and positions, and the output layer."""

import math

from jaxtyping import Float, Int
from torch import Tensor, nn

from attnkit.data.tokenizer import PAD
from attnkit.layers import Dropout
from attnkit.layers.positions import sinusoids
from attnkit.ops.onednn import Linear
from attnkit.recipe import schema


class Embedding(nn.Module):
    """Token embeddings times a scale, plus position embeddings, with dropout.

    The default scale is sqrt(width) (Vaswani et al. 2017, section 3.4): embeddings initialized with variance 1 / width
    then have unit variance.
    """

    def __init__(
        self, tokens: nn.Embedding, positions: str, length: int, dropout: float, scale: float | None = None
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.width = tokens, positions, tokens.embedding_dim
        self.scale = math.sqrt(tokens.embedding_dim) if scale is None else scale
        self.table = nn.Embedding(length, tokens.embedding_dim) if positions == "learned" else None
        if self.table is not None:
            # smaller than the scaled tokens, which have unit variance
            nn.init.normal_(self.table.weight, std=0.1)
        self.dropout = Dropout(dropout)

    def forward(self, ids: Int[Tensor, "R T"], positions: Int[Tensor, "b T"] | None = None) -> Float[Tensor, "R T W"]:
        """Return the embeddings of `ids` at 0-based `positions`; None: no position embeddings are added."""
        x = self.tokens(ids) * self.scale
        added = None if positions is None else self.added(positions)
        y: Tensor = self.dropout(x if added is None else x + added.to(x.dtype))
        return y

    def added(self, positions: Int[Tensor, "*n"]) -> Float[Tensor, "*n W"] | None:
        """Return the position embeddings; None: the model adds none."""
        if self.table is not None:
            y: Tensor = self.table(positions)
            return y
        return sinusoids(positions, self.width) if self.positions == "sinusoidal" else None


def token_tables(sizes: tuple[int, int], width: int, shared: bool, std: float) -> tuple[nn.Embedding, nn.Embedding]:
    """Return the embeddings of the source and target vocabularies; one for both if `shared`."""
    source = nn.Embedding(sizes[0], width, padding_idx=PAD)
    target = source if shared else nn.Embedding(sizes[1], width, padding_idx=PAD)
    for table in dict.fromkeys((source, target)):
        nn.init.normal_(table.weight, std=std)
        nn.init.zeros_(table.weight[PAD])
    return source, target


def vocabulary_output(model: schema.ModelConfig, target: nn.Embedding, size: int) -> Linear:
    """Return the projection to the vocabulary, tied to the target embedding unless `model.tie` is none."""
    output = Linear(model.width, size, bias=False)
    if model.tie == "none":
        nn.init.normal_(output.weight, std=model.width**-0.5)
    else:
        output.weight = target.weight
    return output
