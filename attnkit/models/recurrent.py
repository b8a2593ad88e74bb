"""Recurrent encoder-decoder with attention, as before the Transformer."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnkit.attention import Mask, State
from attnkit.layers import Dropout, MultiHead
from attnkit.layers.recurrence import BidirectionalLayer, CellState, RecurrentLayer, reversed_order
from attnkit.models.base import EncoderDecoder, position_limit
from attnkit.models.embedding import Embedding, token_tables, vocabulary_output
from attnkit.ops.onednn import Linear
from attnkit.recipe import schema


class RecurrentModel(EncoderDecoder):
    """A bidirectional encoder, and a decoder with attention after its last layer.

    Encoder: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate", section
    3.2; each direction has half the width. Each layer of the decoder starts from tanh(W_s h), where h is the output of
    the last encoder layer's backward direction at the first token (appendix A.2.2). The state s_t of the decoder
    attends to the encoder, and tanh(W_c [c_t; s_t]) with the context c_t is projected to the vocabulary (Luong et al.
    2015, "Effective Approaches to Attention-based Neural Machine Translation", equation 5). Without input feeding, no
    state depends on a context, so the decoder reads whole targets in one call. With input feeding (section 3.3), the
    first layer of the decoder also reads this tanh of the previous token (zeros at the start), so targets are read
    token by token.

    `dot` and `additive` attention read projected states, as all mechanisms do: q = W_q s_t and k = W_k h_j. So `dot`
    is Luong's form `general`. It suits the bounded states of LSTM and GRU; with the states of an SRU, unscaled
    products are too large to train well.
    """

    def __init__(self, model: schema.ModelConfig, sizes: tuple[int, int], max_length: int) -> None:
        super().__init__()
        width, layers = model.width, model.layers
        self.parts, self.feeding = RecurrentLayer.parts[model.cell], model.input_feeding
        source, target = token_tables(sizes, width, model.tie == "all", width**-0.5)
        self.embed_source = Embedding(source, "none", max_length, model.dropout)
        self.embed_target = Embedding(target, "none", max_length, model.dropout)
        self.encoder = nn.ModuleList(BidirectionalLayer(model.cell, width) for _ in range(layers.encoder))
        self.bridge = Linear(width // 2, layers.decoder * self.parts * width)
        self.decoder = nn.ModuleList(
            RecurrentLayer(model.cell, width if depth or not self.feeding else 2 * width, width)
            for depth in range(layers.decoder)
        )
        cross = model.attention.cross
        self.attention = MultiHead.build(
            cross.name, width, model.heads, max_length, cross=True, biases=model.bias, **cross.options()
        )
        self.combine = Linear(2 * width, width)
        self.dropout = Dropout(model.dropout)
        self.output = vocabulary_output(model, target, sizes[1])
        self.limit = position_limit(self.attention)

    def encode(self, source: Int[Tensor, "B S"], valid: Bool[Tensor, "B S"]) -> Float[Tensor, "B S W"]:
        order = reversed_order(valid)
        x: Tensor = self.embed_source(source)
        for depth, layer in enumerate(self.encoder):
            x = layer(self.dropout(x) if depth else x, order)
        return x

    def first_state(self, memory: Float[Tensor, "B S W"]) -> tuple[CellState, ...]:
        backward_output = memory[:, 0, memory.shape[-1] // 2 :]  # the backward direction reads token 0 last
        initial = torch.tanh(self.bridge(backward_output)).chunk(len(self.decoder) * self.parts, -1)
        cells = tuple(initial[start : start + self.parts] for start in range(0, len(initial), self.parts))
        return (*cells, (torch.zeros_like(initial[0]),)) if self.feeding else cells

    def decode(
        self,
        ids: Int[Tensor, "R t"],
        state: tuple[CellState, ...],
        mask: Mask,
        memory: Float[Tensor, "B S W"] | None,
        memory_states: State,
    ) -> tuple[Float[Tensor, "R t W"], State, State]:
        x = self.embed_target(ids)
        if not self.feeding:
            x, cells = self._recur(x, state)
            out = self.attention(x, mask, memory=memory, state=memory_states)
            return self._output(out.y, x), cells, out.state
        # input feeding: each token reads the output of the previous token
        cells, (fed_output,) = state[:-1], state[-1]
        single_query_mask, step_memory = Mask.cross(mask.valid, 1), memory
        queries, outputs = list[Tensor](), list[Tensor]()
        mechanism = self.attention.mechanism
        recorded, mechanism.recorded = mechanism.recorded, False  # maps are recorded for whole rows, below
        for token in torch.split(x, 1, 1):
            query, cells = self._recur(torch.cat((token, fed_output[:, None]), -1), cells)
            out = self.attention(query, single_query_mask, memory=step_memory, state=memory_states)
            step_memory, memory_states = None, out.state  # the state holds keys and values from now on
            outputs.append(self._output(out.y, query))
            queries.append(query)
            fed_output = outputs[-1][:, 0]
        if recorded:
            mechanism.recorded = True
            self.attention(torch.cat(queries, 1), mask, memory=memory)
        return torch.cat(outputs, 1), (*cells, (fed_output,)), memory_states

    def _recur(
        self, x: Float[Tensor, "R t I"], state: Iterable[CellState]
    ) -> tuple[Float[Tensor, "R t W"], tuple[CellState, ...]]:
        """Return the states of the last layer for all tokens, and the last state of each layer."""
        new_states = []
        for depth, (layer, old) in enumerate(zip(self.decoder, state, strict=True)):
            x, new = layer(self.dropout(x) if depth else x, old)
            new_states.append(new)
        return x, tuple(new_states)

    def _output(self, context: Float[Tensor, "R t W"], x: Float[Tensor, "R t W"]) -> Float[Tensor, "R t W"]:
        hidden: Tensor = self.dropout(torch.tanh(self.combine(torch.cat((context, x), -1))))
        return hidden
