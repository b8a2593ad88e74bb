"""Interface of a model for search, training and the capture of attention maps: start, step, forward."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnkit.attention import Attention, Mask, State, reorder
from attnkit.data.tokenizer import PAD


class CachePositions(NamedTuple):
    """Positions of the columns of a cache, if padding alone does not determine them."""

    valid: Bool[Tensor, "R S"]
    """False on padding and on tokens hidden from further tokens."""
    positions: Int[Tensor, "R S"]
    """0-based positions; several columns may share a position."""

    @classmethod
    def of(cls, valid: Bool[Tensor, "R S"]) -> "CachePositions":
        """Return consecutive positions of the tokens of each row, without padding."""
        return cls(valid, (valid.long().cumsum(1) - 1).masked_fill(~valid, 0))

    def add(self, fresh: Bool[Tensor, "R t"]) -> "CachePositions":
        """Append tokens after the last position of each row; `fresh` is False on padding."""
        last_position = self.positions.masked_fill(~self.valid, -1).amax(1, keepdim=True)  # -1: none
        positions = (last_position + fresh.long().cumsum(1)).masked_fill(~fresh, 0)
        return CachePositions(torch.cat((self.valid, fresh), 1), torch.cat((self.positions, positions), 1))


class Decode(NamedTuple):
    """State of decoding."""

    moving: State
    """Tensors with a row for each hypothesis, grouped by sentence; reordered with the beams."""
    fixed: State
    """Tensors with a row for each sentence, not copied for each beam; None: no source was read."""

    def select(self, rows: Int[Tensor, " n"], stay: Int[Tensor, " b"] | None) -> "Decode":
        """Return the state of the hypotheses `rows`, which belong to the sentences `stay`; None: all sentences."""
        fixed = self.fixed if stay is None else reorder(self.fixed, stay)
        return Decode(reorder(self.moving, rows, room=1), fixed)  # room for the next token


class LogProbabilities(nn.Module):
    """Output layer of a model whose hidden states are log-probabilities."""

    weight: Tensor
    """Empty; indicates the device of the model."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out_features = size
        self.register_buffer("weight", torch.empty(0), persistent=False)

    def forward(self, hidden: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
        return hidden


class Model(nn.Module, ABC):
    """A sequence model; it reads no files, prints nothing and keeps no state of a run.

    Source rows end with the end token and are padded with PAD on the right; `ids` start with the begin token.
    """

    limit: int | None = None
    """Maximum number of tokens that can be decoded, if positions have weights; None: unlimited."""
    output: nn.Linear | LogProbabilities
    """Projection of the last hidden state to the vocabulary."""

    def make_room(self, weights: Mapping[str, Tensor]) -> None:
        """Resize tables whose sizes depend on the training text to the sizes of stored weights."""

    @abstractmethod
    def start(self, source: Int[Tensor, "B S"] | None, rows: int | None = None) -> Decode:
        """Read the source and return the state; without a source, the state of `rows` empty rows.

        Raises ValueError if the model needs a source and gets none, or generates no text.
        """

    @abstractmethod
    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Bool[Tensor, "R t"] | None = None
    ) -> tuple[Float[Tensor, "R t W"], Decode]:
        """Read further tokens; return the last hidden states and the state.

        R is a multiple of the number of sentences. `real` is False on padding, which only models without a source
        accept; None: no padding.
        """

    @abstractmethod
    def hidden(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B T W"]:
        """Return the last hidden states of whole rows, for training."""

    @final
    def step(
        self, ids: Int[Tensor, "R t"], state: Decode, last: bool = False
    ) -> tuple[Float[Tensor, "R t V"], Decode]:
        """Read further tokens; return their logits (if `last` only of the last one: t = 1) and the state."""
        hidden, state = self.advance(ids, state)
        return self.output(hidden[:, -1:] if last else hidden), state

    def forward(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B T V"]:
        logits: Tensor = self.output(self.hidden(source, ids))
        return logits


class EncoderDecoder(Model):
    """A model that encodes a source once; its decoder has a state."""

    shape = "encoder-decoder"

    @abstractmethod
    def encode(self, source: Int[Tensor, "B S"], valid: Bool[Tensor, "B S"]) -> State:
        """Return the memory for cross-attention; `valid` is False on padding."""

    @abstractmethod
    def first_state(self, memory: State) -> State:
        """Return the state of the decoder before its first token."""

    @abstractmethod
    def decode(
        self, ids: Int[Tensor, "R t"], state: State, mask: Mask, memory: State, memory_states: State
    ) -> tuple[Float[Tensor, "R t W"], State, State]:
        """Return the last hidden states, the new state, and the states of cross-attention.

        `memory` is None once `memory_states` holds its keys and values.
        """

    def start(self, source: Int[Tensor, "B S"] | None, rows: int | None = None) -> Decode:
        if source is None:
            raise ValueError(f"a model of shape {self.shape} needs a source")
        valid = source != PAD
        memory = self.encode(source, valid)
        return Decode(self.first_state(memory), (valid, memory, None))

    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Bool[Tensor, "R t"] | None = None
    ) -> tuple[Float[Tensor, "R t W"], Decode]:
        if real is not None:
            raise ValueError("targets of a model with a source are not padded")
        valid, memory, memory_states = state.fixed
        mask = Mask.cross(valid, ids.shape[1])
        x, moving, memory_states = self.decode(ids, state.moving, mask, memory, memory_states)
        return x, Decode(moving, (valid, None, memory_states))

    def hidden(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B T W"]:
        if ids is None:
            raise ValueError(f"a model of shape {self.shape} needs target ids")
        return self.advance(ids, self.start(source))[0]


def position_limit(decoder: nn.Module, table: nn.Embedding | None = None) -> int | None:
    """Return the maximum number of tokens for which a decoder's attention and position table have weights."""
    limits = [part.limit for part in decoder.modules() if isinstance(part, Attention)]
    limits += [] if table is None else [table.num_embeddings]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)
