"""The interface of a model to search, training and capture: start, step, forward."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnkit.attention import Attention, Mask, State, reorder
from attnkit.data.tokenizer import PAD


class CachePositions(NamedTuple):
    """Positions of the columns of a cache, where they no longer follow from padding."""

    valid: Bool[Tensor, "R S"]
    """False on pads, and on what is hidden from further tokens."""
    positions: Int[Tensor, "R S"]
    """0-based; several columns may share one."""

    @classmethod
    def of(cls, valid: Bool[Tensor, "R S"]) -> "CachePositions":
        """The positions of tokens in a row of their own, pads not counted."""
        return cls(valid, (valid.long().cumsum(1) - 1).masked_fill(~valid, 0))

    def add(self, fresh: Bool[Tensor, "R t"]) -> "CachePositions":
        """Append tokens after the last position of each row; `fresh` is False on pads."""
        last = self.positions.masked_fill(~self.valid, -1).amax(1, keepdim=True)  # -1: none
        new = (last + fresh.long().cumsum(1)).masked_fill(~fresh, 0)
        return CachePositions(torch.cat((self.valid, fresh), 1), torch.cat((self.positions, new), 1))


class Decode(NamedTuple):
    """Where decoding stands."""

    moving: State
    """One row a hypothesis, sentence by sentence; reordered with the beams."""
    fixed: State
    """One row a sentence, never copied for each beam; None where no source was read."""

    def select(self, rows: Int[Tensor, " n"], stay: Int[Tensor, " b"] | None) -> "Decode":
        """The hypotheses in `rows`, of the sentences in `stay` (None: all of them).

        Memory has one row a sentence whatever the beam, so it changes only when a sentence leaves.
        """
        fixed = self.fixed if stay is None else reorder(self.fixed, stay)
        return Decode(reorder(self.moving, rows, room=1), fixed)  # room for the next token


class LogProbabilities(nn.Module):
    """The output of a model whose hidden states are log-probabilities already."""

    weight: Tensor
    """Empty; it says where the model is."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out_features = size
        self.register_buffer("weight", torch.empty(0), persistent=False)

    def forward(self, hidden: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
        return hidden


class Model(nn.Module, ABC):
    """A sequence model: it reads no files, prints nothing and keeps no state of a run.

    Source rows end with the end token and are padded with PAD on the right; `ids` begin with the begin token.
    """

    limit: int | None = None
    """Most tokens that can be decoded, where each position has its own weights."""
    output: nn.Linear | LogProbabilities
    """From the last hidden state to the vocabulary."""

    def make_room(self, weights: Mapping[str, Tensor]) -> None:
        """Resize tables whose sizes depend on the training text to those of stored weights."""

    @abstractmethod
    def start(self, source: Int[Tensor, "B S"] | None, rows: int | None = None) -> Decode:
        """Read the source; with source None, begin `rows` empty rows.

        Raises ValueError where the model lacks a source that it needs, or writes no text.
        """

    @abstractmethod
    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Bool[Tensor, "R t"] | None = None
    ) -> tuple[Float[Tensor, "R t W"], Decode]:
        """Read further tokens; the last hidden states.  R is a multiple of the sentences.

        `real` is False on pads, which only a model without a source may be given; None: no pads.
        """

    @abstractmethod
    def hidden(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B T W"]:
        """The last hidden states of whole rows, for training."""

    @final
    def step(
        self, ids: Int[Tensor, "R t"], state: Decode, last: bool = False
    ) -> tuple[Float[Tensor, "R t V"], Decode]:
        """Logits of further tokens; `last` projects the last position only (t = 1)."""
        hidden, state = self.advance(ids, state)
        return self.output(hidden[:, -1:] if last else hidden), state

    def forward(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B T V"]:
        logits: Tensor = self.output(self.hidden(source, ids))
        return logits


class EncoderDecoder(Model):
    """A model that encodes a source once, and whose decoder then goes on from state to state."""

    shape = "encoder-decoder"

    @abstractmethod
    def encode(self, source: Int[Tensor, "B S"], valid: Bool[Tensor, "B S"]) -> State:
        """What the decoder attends to; `valid` is False on pads."""

    @abstractmethod
    def first_state(self, memory: State) -> State:
        """The state of the decoder before its first token."""

    @abstractmethod
    def decode(
        self, ids: Int[Tensor, "R t"], state: State, mask: Mask, memory: State, memory_states: State
    ) -> tuple[Float[Tensor, "R t W"], State, State]:
        """The last hidden states, the new state, and those of cross-attention.

        `memory` is None once `memory_states` have its keys and values.
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
    """The most tokens for which a decoder's attention and a table of positions have weights."""
    limits = [part.limit for part in decoder.modules() if isinstance(part, Attention)]
    limits += [] if table is None else [table.num_embeddings]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)
