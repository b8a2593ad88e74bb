"""The Transformer (Vaswani et al. 2017), encoder-decoder or decoder-only."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnkit.attention import Mask, State
from attnkit.data.tokenizer import PAD
from attnkit.layers import Block, Carried, FeedForward, Memory, MultiHead, make_norm
from attnkit.layers.positions import Alibi, Relative, Rotary
from attnkit.models.base import CachePositions, Decode, Model, position_limit
from attnkit.models.embedding import Embedding, token_tables, vocabulary_output
from attnkit.recipe import schema


class Stack(nn.Module):
    """The blocks of an encoder or decoder, and a final norm if blocks are pre-norm."""

    def __init__(self, model: schema.ModelConfig, role: str, length: int, rotary: Rotary | None, cross: bool) -> None:
        super().__init__()
        causal = role == "decoder"

        def attention(role: str, depth: int) -> MultiHead:
            config = getattr(model.attention, role)
            is_cross = role == "cross"
            return MultiHead.build(
                config.name,
                model.width,
                model.heads,
                length,
                cross=is_cross,
                depth=depth,
                causal=causal and not is_cross,
                rotary=None if is_cross else rotary,
                biases=model.bias,
                **config.options(),
            )

        inner_dropout = model.activation_dropout
        inner_dropout = model.dropout if inner_dropout is None else inner_dropout
        self.blocks = nn.ModuleList(
            Block(
                model.width,
                attention(role, depth),
                attention("cross", depth) if cross else None,
                FeedForward(model.width, model.ff, model.activation, inner_dropout) if model.ff else None,
                model.norm,
                model.dropout,
            )
            for depth in range(getattr(model.layers, role))
        )
        self.norm = nn.Identity() if model.norm == "post" else make_norm(model.norm, model.width)
        self.bias: Alibi | Relative | None = None
        if model.positions == "alibi":
            self.bias = Alibi(model.heads)
        elif model.positions == "relative":
            self.bias = Relative(model.heads, causal)

    def forward(
        self,
        x: Float[Tensor, "R T W"],
        mask: Mask,
        states: State = None,
        memory: Float[Tensor, "B S W"] | None = None,
        memory_mask: Mask | None = None,
        memory_states: State = None,
    ) -> tuple[Float[Tensor, "R T W"], State, State]:
        """Return the output and the states of self-attention and cross-attention, tuples with one entry per block."""
        no_states = (None,) * len(self.blocks)
        states, memory_states = states or no_states, memory_states or no_states
        bias = None if self.bias is None else self.bias(mask, x.dtype)
        carried = Carried()
        new_states, new_memory_states = [], []
        for block, state, memory_state in zip(self.blocks, states, memory_states, strict=True):
            layer_memory = None if memory_mask is None else Memory(memory_mask, memory, memory_state)
            x, state, memory_state, carried = block(x, mask, state, layer_memory, carried, bias)
            new_states.append(state)
            new_memory_states.append(memory_state)
        return self.norm(x), tuple(new_states), tuple(new_memory_states)


class Transformer(Model):
    """An encoder-decoder or decoder-only Transformer, by `shape`."""

    def __init__(self, model: schema.ModelConfig, sizes: tuple[int, int], max_length: int) -> None:
        super().__init__()
        self.shape = model.shape
        self.length = max_length
        shared = model.tie == "all" or model.shape != "encoder-decoder"
        source, target = token_tables(sizes, model.width, shared, model.width**-0.5)
        rotary = Rotary(model.width // model.heads) if model.positions == "rope" else None
        embed = (model.positions, max_length, model.dropout)
        has_encoder = model.shape == "encoder-decoder"
        self.embed_source = Embedding(source, *embed) if has_encoder else None
        self.embed_target = Embedding(target, *embed)
        self.encoder = Stack(model, "encoder", max_length, rotary, cross=False) if has_encoder else None
        self.decoder: nn.Module = Stack(model, "decoder", max_length, rotary, cross=has_encoder)
        self.output = vocabulary_output(model, target, sizes[1])
        self.limit = position_limit(self.decoder, table=self.embed_target.table)

    def start(self, source: Int[Tensor, "B S"] | None, rows: int | None = None) -> Decode:
        if self.encoder is not None:
            if source is None:
                raise ValueError(f"a model of shape {self.shape} needs a source")
            memory, valid = self.encode(source)
            return Decode(((), valid.new_ones((source.shape[0], 0))), (valid, memory, ()))
        if source is None:
            empty = self.output.weight.new_ones((rows or 1, 0), dtype=torch.bool)  # [R, 0]
            return Decode(((), empty), None)  # without a source there is no padding between tokens
        _, state = self._advance_decoder(source, source != PAD, Decode(((), None), ()))
        return state

    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Bool[Tensor, "R t"] | None = None
    ) -> tuple[Float[Tensor, "R t W"], Decode]:
        if self.encoder is None:
            unpadded = torch.ones_like(ids, dtype=torch.bool) if real is None else real
            may_have_padding = real is not None or state.fixed is not None  # there may be padding between tokens
            return self._advance_decoder(ids, unpadded, Decode(state.moving, () if may_have_padding else None))
        if real is not None:
            raise ValueError("targets of a model with a source are not padded")
        states, seen = state.moving
        valid, memory, memory_states = state.fixed
        total = seen.shape[1] + ids.shape[1]
        mask = Mask.packed(total, ids.device, causal=True, start=seen.shape[1])
        x, states, memory_states = self.decoder(
            self.embed_target(ids, mask.q_pos), mask, states, memory, Mask.cross(valid, ids.shape[1]), memory_states
        )
        seen = torch.cat((seen, seen.new_ones(ids.shape)), 1)  # its width is the number of tokens
        return x, Decode((states, seen), (valid, None, memory_states))

    def hidden(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B T W"]:
        if ids is None:
            raise ValueError(f"a model of shape {self.shape} needs target ids")
        if self.encoder is None and source is not None:
            both = torch.cat((source, ids), 1)
            valid = torch.cat((source != PAD, torch.ones_like(ids, dtype=torch.bool)), 1)
            x, _ = self._advance_decoder(both, valid, Decode(((), None), ()))
            return x[:, -ids.shape[1] :]  # without the source
        x, _ = self.advance(ids, self.start(source, ids.shape[0]))
        return x

    def encode(self, source: Int[Tensor, "B S"]) -> tuple[Float[Tensor, "B S W"], Tensor]:
        """Return the encoder states, and a mask [B, S] that is False on padding."""
        if self.encoder is None or self.embed_source is None:
            raise ValueError(f"a model of shape {self.shape} has no encoder")
        valid = source != PAD
        mask = Mask.right(valid)
        memory, _, _ = self.encoder(self.embed_source(source, mask.q_pos), mask)
        return memory, valid

    def _advance_decoder(self, ids: Int[Tensor, "R t"], unpadded: Tensor, state: Decode) -> tuple[Tensor, Decode]:
        """Read tokens by a decoder-only model; `unpadded` is False on padding.

        If `state.fixed` is None, padding is at the end of rows only, where no other token attends to it, so mechanisms
        need not mask it.
        """
        states, seen = state.moving
        if isinstance(seen, CachePositions):
            seen = seen.add(unpadded)
            positions = seen.positions[:, -ids.shape[1] :]
            mask = Mask(positions, seen.positions, seen.valid, True)
            x, states, _ = self.decoder(self.embed_target(ids, positions), mask, states)
            return x, Decode((states, seen), ())
        start = 0 if seen is None else seen.shape[1]
        valid = unpadded if seen is None else torch.cat((seen, unpadded), 1)
        if state.fixed is None:
            mask = Mask.packed(valid.shape[1], ids.device, causal=True, start=start)
        else:
            mask = Mask.of(valid, ids.shape[1], True, start)
        x, states, _ = self.decoder(self.embed_target(ids, mask.q_pos), mask, states)
        return x, Decode((states, valid), state.fixed)
