"""Token vectors with positions, and the tables of a model's two vocabularies."""

import math

from jaxtyping import Float, Int
from torch import Tensor, nn

from attnkit.data.tokenizer import PAD
from attnkit.layers import Dropout
from attnkit.layers.positions import sinusoids
from attnkit.ops.onednn import Linear
from attnkit.recipe import schema


class Embedding(nn.Module):
    """Token vectors times a scale, plus positions, with dropout.

    The scale is the square root of the width unless one is given (Vaswani et al. 2017, section
    3.4): tables of variance 1 / width give vectors of unit variance.
    """

    def __init__(
        self, tokens: nn.Embedding, positions: str, length: int, dropout: float, scale: float | None = None
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.width = tokens, positions, tokens.embedding_dim
        self.scale = math.sqrt(tokens.embedding_dim) if scale is None else scale
        self.table = nn.Embedding(length, tokens.embedding_dim) if positions == "learned" else None
        if self.table is not None:
            # tokens have unit variance after scaling; positions start smaller, as a hint
            nn.init.normal_(self.table.weight, std=0.1)
        self.dropout = Dropout(dropout)

    def forward(self, ids: Int[Tensor, "R T"], positions: Int[Tensor, "b T"] | None = None) -> Float[Tensor, "R T W"]:
        """Vectors of `ids` at 0-based `positions`, which may be left out where none are added."""
        x = self.tokens(ids) * self.scale
        added = None if positions is None else self.added(positions)
        y: Tensor = self.dropout(x if added is None else x + added.to(x.dtype))
        return y

    def added(self, positions: Int[Tensor, "*n"]) -> Float[Tensor, "*n W"] | None:
        """What is added to the tokens at these positions."""
        if self.table is not None:
            y: Tensor = self.table(positions)
            return y
        return sinusoids(positions, self.width) if self.positions == "sinusoidal" else None


def token_tables(sizes: tuple[int, int], width: int, shared: bool, std: float) -> tuple[nn.Embedding, nn.Embedding]:
    """Tables of the source and target vocabularies; `shared`: one table for both."""
    source = nn.Embedding(sizes[0], width, padding_idx=PAD)
    target = source if shared else nn.Embedding(sizes[1], width, padding_idx=PAD)
    for table in dict.fromkeys((source, target)):
        nn.init.normal_(table.weight, std=std)
        nn.init.zeros_(table.weight[PAD])
    return source, target


def vocabulary_output(model: schema.ModelConfig, target: nn.Embedding, size: int) -> Linear:
    """The matrix from hidden states to the vocabulary; `model.tie` may make it the target table."""
    output = Linear(model.width, size, bias=False)
    if model.tie == "none":
        nn.init.normal_(output.weight, std=model.width**-0.5)
    else:
        output.weight = target.weight
    return output
