"""ConvS2S: convolutions with gated linear units, and attention in each decoder layer.

Source: Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Mask, Out, State
from attnkit.layers import Dropout, MultiHead
from attnkit.models.base import EncoderDecoder, position_limit
from attnkit.models.embedding import Embedding, token_tables, vocabulary_output
from attnkit.ops.onednn import Linear
from attnkit.recipe import schema

HALF = math.sqrt(0.5)
"""Factor of the sum of two inputs of equal variance that preserves the variance (section 3.4)."""

Source = tuple[Float[Tensor, "B S W"], Float[Tensor, "B S W"]]
"""Encoder outputs z, for keys, and z + e with the embeddings e, for values."""


class GatedConvolution(nn.Module):
    """A convolution over windows of `kernel` tokens with a gated linear unit.

    It is computed as one matrix product with concatenated windows, which is faster than a convolution on a CPU.
    """

    def __init__(self, width: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.dropout = Dropout(dropout)
        self.product = Linear(kernel * width, 2 * width)
        # section 3.5: the gate and dropout, which keeps 1 - dropout of the inputs, change the variance
        nn.init.normal_(self.product.weight, std=math.sqrt(4 * (1 - dropout) / (kernel * width)))
        nn.init.zeros_(self.product.bias)

    def forward(self, x: Float[Tensor, "R n W"]) -> Float[Tensor, "R T W"]:
        """Return the output of each window: T = n - kernel + 1."""
        x = self.dropout(x)
        length = x.shape[1] - self.kernel + 1
        windows = torch.cat([x[:, start : start + length] for start in range(self.kernel)], -1)
        return F.glu(self.product(windows), -1)  # windows are [R, T, kernel W]


class DecoderLayer(nn.Module):
    """A causal convolution, then attention, each with a residual connection."""

    def __init__(self, convolution: GatedConvolution, attention: MultiHead, width: int) -> None:
        super().__init__()
        self.convolution, self.attention = convolution, attention
        self.query = Linear(width, width)
        nn.init.normal_(self.query.weight, std=width**-0.5)
        nn.init.zeros_(self.query.bias)

    def forward(
        self,
        x: Float[Tensor, "R t W"],
        columns: Float[Tensor, "R n W"],
        embedded: Float[Tensor, "R t W"],
        mask: Mask,
        source: Source | None,
        state: State,
        prior: Tensor | None,
    ) -> tuple[Tensor, Tensor, Out]:
        """Return the new x, the new `columns` and the output of attention.

        `columns` is the kernel - 1 inputs before x; `embedded` is the target embeddings.
        """
        padded = torch.cat((columns, x), 1)
        h = self.convolution(padded)
        memory, values = source or (None, None)
        out = self.attention(self.query(h) + embedded, mask, memory, state=state, prior=prior, values=values)
        # section 3.4: averaging m vectors divides the variance by m: scaled by sqrt(m)
        tokens = mask.valid.sum(1).repeat_interleave(x.shape[0] // mask.valid.shape[0])
        h = (h + out.y * tokens.to(x.dtype).sqrt()[:, None, None]) * HALF
        return (x + h) * HALF, padded[:, x.shape[1] :], out


class ConvolutionalModel(EncoderDecoder):
    """ConvS2S.

    Decoder layers attend with d = W h + b + g, for the output h of the convolution and the target embedding g, to the
    encoder outputs z; values are z + e (equations 1 and 2). There are two differences from the paper. Queries, keys,
    values and contexts are projected, as for all mechanisms; the paper's attention is `dot` with one head and these
    matrices equal to the identity. There is neither weight normalization nor scaling of the encoder's gradients: both
    serve plain gradient descent, whereas the size of AdamW's steps does not depend on the size of the gradients.
    """

    def __init__(self, model: schema.ModelConfig, sizes: tuple[int, int], max_length: int) -> None:
        super().__init__()
        width, layers, kernel = model.width, model.layers, model.kernel
        source, target = token_tables(sizes, width, model.tie == "all", 0.1)
        embed = (model.positions, max_length, model.dropout, 1.0)
        self.embed_source, self.embed_target = Embedding(source, *embed), Embedding(target, *embed)
        self.kernel = kernel
        self.encoder = nn.ModuleList(GatedConvolution(width, kernel, model.dropout) for _ in range(layers.encoder))
        cross = model.attention.cross
        self.decoder = nn.ModuleList(
            DecoderLayer(
                GatedConvolution(width, kernel, model.dropout),
                MultiHead.build(
                    cross.name,
                    width,
                    model.heads,
                    max_length,
                    cross=True,
                    depth=depth,
                    biases=model.bias,
                    **cross.options(),
                ),
                width,
            )
            for depth in range(layers.decoder)
        )
        self.dropout = Dropout(model.dropout)
        self.output = vocabulary_output(model, target, sizes[1])
        self.limit = position_limit(self.decoder, table=self.embed_target.table)

    def encode(self, source: Int[Tensor, "B S"], valid: Bool[Tensor, "B S"]) -> Source:
        real = valid[..., None]
        positions = torch.arange(source.shape[1], device=source.device)[None]
        embedded = self.embed_source(source, positions)
        x = embedded * real
        left = (self.kernel - 1) // 2  # windows centered on each token: as many outputs as inputs
        for layer in self.encoder:
            h = layer(F.pad(x, (0, 0, left, self.kernel - 1 - left)))
            x = (x + h) * HALF * real  # padding stays 0, as beyond the ends of a row
        return x, x + embedded

    def first_state(self, memory: Source) -> State:
        rows, _, width = memory[0].shape
        columns = memory[0].new_zeros(rows, self.kernel - 1, width)  # zero padding before the first token
        position = torch.zeros(rows, dtype=torch.long, device=columns.device)
        return (columns,) * len(self.decoder), position

    def decode(
        self, ids: Int[Tensor, "R t"], state: State, mask: Mask, memory: Source | None, memory_states: State
    ) -> tuple[Float[Tensor, "R t W"], State, State]:
        columns, position = state
        length = ids.shape[1]
        positions = position[:, None] + torch.arange(length, device=ids.device)
        x = embedded = self.embed_target(ids, positions)
        new_columns, new_states, prior = [], [], None
        states = memory_states or (None,) * len(self.decoder)
        for layer, old_columns, layer_state in zip(self.decoder, columns, states, strict=True):
            x, layer_columns, out = layer(x, old_columns, embedded, mask, memory, layer_state, prior)
            prior = out.scores
            new_columns.append(layer_columns)
            new_states.append(out.state)
        return self.dropout(x), (tuple(new_columns), position + length), tuple(new_states)
