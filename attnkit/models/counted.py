"""Base class of count-based language models, and counts of token pairs."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.attention import State
from attnkit.data.batch import Batch
from attnkit.data.tokenizer import PAD
from attnkit.models.base import Decode, LogProbabilities, Model


class CountedModel(Model):
    """A language model whose tables are computed from counts in one pass over the text; they are buffers.

    Its hidden states are log-probabilities, in newly allocated tensors.
    """

    shape = "decoder"
    output: LogProbabilities

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.output = LogProbabilities(size)

    @abstractmethod
    def count(self, batches: Iterable[Batch]) -> None:
        """Set the tables from the training text."""

    @abstractmethod
    def first_state(self, rows: int) -> State:
        """Return the state before the first token."""

    @abstractmethod
    def read(
        self, ids: Int[Tensor, "R t"], real: Bool[Tensor, "R t"], state: State
    ) -> tuple[Float[Tensor, "R t V"], State]:
        """Return log-probabilities of the next token at each position, and the state; `real` is False on padding."""

    @property
    def numbers(self) -> int:
        """Total number of elements of the tables."""
        return sum(table.numel() for table in self.state_dict().values())

    @final
    def start(self, source: Int[Tensor, "B S"] | None, rows: int | None = None) -> Decode:
        state = Decode(self.first_state(rows or 1 if source is None else len(source)), None)
        return state if source is None else self.advance(source, state, source != PAD)[1]

    @final
    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Bool[Tensor, "R t"] | None = None
    ) -> tuple[Float[Tensor, "R t V"], Decode]:
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        hidden, moving = self.read(ids, real, state.moving)
        return hidden, Decode(moving, None)

    @final
    def hidden(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B T V"]:
        if ids is None:
            raise ValueError(f"a model of shape {self.shape} needs target ids")
        return self.advance(ids, self.start(source, len(ids)), ids != PAD)[0]


def no_counts(size: int) -> Float[Tensor, "V V"]:
    """Return counts of token pairs, all 0; float64 is exact up to 2^53."""
    return torch.zeros(size, size, dtype=torch.float64)


def add_neighbors(counts: Float[Tensor, "V V"], batch: Batch) -> None:
    """Count how often each token (column) occurs right after each token (row)."""
    _add(counts, batch.input, batch.output)


def add_pairs(counts: Float[Tensor, "V V"], batch: Batch) -> None:
    """Count how often each token (column) occurs anywhere after each token (row) in a block."""
    for distance in range(batch.input.shape[1]):
        end = batch.input.shape[1] - distance
        _add(counts, batch.input[:, :end], batch.output[:, distance:])


def _add(counts: Float[Tensor, "V V"], first: Int[Tensor, "B t"], second: Int[Tensor, "B t"]) -> None:
    pairs = (first * len(counts) + second)[(first != PAD) & (second != PAD)]  # indices into the flattened [V, V]
    counts.view(-1).index_add_(0, pairs, counts.new_ones(()).expand(len(pairs)))
