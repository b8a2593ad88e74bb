"""Naive Bayes with trained vectors and attention weights: a model of attention layers alone.

With p(x | a) ~ exp(v(a) w(x)) and weights that do not depend on x_t, sum_j a_tj log p(x_t | x_j) = (sum_j a_tj v(x_j))
w(x_t) + constant. With the weights a = softmax_j q(x_t-1) k(x_j) this is one layer of attention, without positions,
residual connection, feed-forward sublayer or norm. Here q, k and v are projections of one embedding.

Source: Su 2023, "Naive Bayes is all you need?" (kexue.fm).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnkit.attention import Mask, State
from attnkit.layers import MultiHead
from attnkit.models.base import position_limit
from attnkit.models.embedding import Embedding
from attnkit.models.transformer import Transformer
from attnkit.ops.onednn import Linear
from attnkit.recipe import schema


class LatentLayers(nn.Module):
    """Attention layers, each over the latent tokens that the previous layer predicts.

    The residual `shared` adds v(x_t-1) to the output of a layer: log p(x_t | x_t-1) with the same vectors. The
    residual `own` is the second half of x [R, T, 2W], which bypasses the layers.
    """

    def __init__(self, model: schema.ModelConfig, length: int) -> None:
        super().__init__()
        self.width, self.shared = model.width, model.naive_bayes.residual == "shared"
        attention = model.attention.decoder
        self.layers = nn.ModuleList(
            MultiHead.build(
                attention.name,
                model.width,
                model.heads,
                length,
                depth=depth,
                causal=True,
                biases=False,
                **attention.options(),
            )
            for depth in range(model.layers.decoder)
        )

    def forward(self, x: Float[Tensor, "R T I"], mask: Mask, states: State = None) -> tuple[Tensor, State, State]:
        """Return the hidden states, the states of the layers and None, as `Stack` does."""
        z, own_residual = x[..., : self.width], x[..., self.width :]
        old_states: tuple[State, ...] = tuple(states) if states else (None,) * len(self.layers)
        new_states, prior, first = [], None, None
        for layer, state in zip(self.layers, old_states, strict=True):
            assert isinstance(layer, MultiHead)
            out = layer(z, mask, state=state, prior=prior, first=first)
            if self.shared:
                assert layer.v is not None
                values = torch.unflatten(layer.v(z), 2, (layer.key_heads, -1))  # [R, T, G, D]
                values = values.repeat_interleave(layer.heads // layer.key_heads, 2)  # [R, T, H, D]
                z = out.y + layer.o(values.flatten(2))
            else:
                z = out.y
            prior, first = out.scores, out.values if first is None else first
            new_states.append(out.state)
        return torch.cat((z, own_residual), -1), tuple(new_states), None


class NaiveBayesAttention(Transformer):
    """A decoder-only Transformer whose layers are attention alone."""

    def __init__(self, model: schema.ModelConfig, sizes: tuple[int, int], max_length: int) -> None:
        nn.Module.__init__(self)  # not that of Transformer, which builds blocks
        self.shape, self.length = "decoder", max_length
        width = model.width * (2 if model.naive_bayes.residual == "own" else 1)
        table = nn.Embedding(sizes[1], width)
        nn.init.normal_(table.weight, std=width**-0.5)
        self.embed_source, self.encoder = None, None
        self.embed_target = Embedding(table, "none", max_length, model.dropout)
        self.decoder = LatentLayers(model, max_length)
        self.output = Linear(width, sizes[1], bias=False)
        nn.init.normal_(self.output.weight, std=width**-0.5)
        self.limit = position_limit(self.decoder)
