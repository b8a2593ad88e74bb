"""Padded tensors of a batch, gathered from mapped ids without a loop over tokens or rows."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from attnkit.data.encoded import Blocks, Encoded, Ragged
from attnkit.data.tokenizer import BOS, PAD

Rows = NDArray[np.int64]


class BatchTensors(NamedTuple):
    """What a model reads of a batch, on its device, and the tokens that it is to predict."""

    source: Int64[Tensor, "B S"] | None
    input: Int64[Tensor, "B T"]
    targets: Int64[Tensor, " N"]
    """The tokens of `Batch.output` that are not PAD."""
    places: Int64[Tensor, " N"] | None
    """Their positions in the flattened B x T tokens; None: no token is PAD."""

    def predicting(self, hidden: Float[Tensor, "B T W"]) -> Float[Tensor, "N W"]:
        """The hidden states that the targets are predicted from."""
        flat = hidden.flatten(0, 1)
        return flat if self.places is None else flat.index_select(0, self.places)


class Batch(NamedTuple):
    """Rows padded on the right with PAD to the longest of each side."""

    source: Int64[Tensor, "B S"] | None
    """Rows that end with EOS; None where there is no source."""
    input: Int64[Tensor, "B T"]
    """BOS and the target."""
    output: Int64[Tensor, "B T"]
    """The target and EOS; in a block of a stream, the token after each token of `input`.  PAD is
    nothing to predict."""
    rows: Rows
    """[B] row numbers in the encoded split."""
    tokens: int
    """Tokens of `output` that are not PAD, at least 1: what a summed loss is divided by."""
    place: tuple[int, ...] = ()
    """Seed, epoch and position of a batch of a training."""

    def to(self, device: torch.device) -> BatchTensors:
        """Its tensors on a device.  The pads are left out here, so that a GPU is not waited for."""
        real = self.output != PAD
        targets, places = self.output[real], None
        if targets.numel() < real.numel():
            places = _moved(real.flatten().nonzero().squeeze(1), device)
        source = None if self.source is None else _moved(self.source, device)
        return BatchTensors(source, _moved(self.input, device), _moved(targets, device), places)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device; a GPU copies it from pinned memory while it computes."""
    on_gpu = device.type == "cuda"
    return (tensor.pin_memory() if on_gpu else tensor).to(device, non_blocking=on_gpu)


def collate(encoded: Encoded, rows: Rows) -> Batch:
    """The batch of these rows of a split, in this order, on the CPU."""
    target = _gather(encoded.target, rows)
    size, longest = target.shape
    inputs = np.full((size, longest + 1), PAD, dtype=np.int64)
    inputs[:, 0] = BOS
    inputs[:, 1:] = target
    outputs = np.full((size, longest + 1), PAD, dtype=np.int64)
    outputs[:, :-1] = target
    lengths = encoded.target.lengths[rows]
    outputs[np.arange(size), lengths] = encoded.target.last(rows)
    source = None if encoded.source is None else torch.from_numpy(_gather(encoded.source, rows))
    return Batch(
        source, torch.from_numpy(inputs), torch.from_numpy(outputs), rows, max(1, int((outputs != PAD).sum()))
    )


def _gather(side: Ragged | Blocks, rows: Rows) -> NDArray[np.int64]:
    """Ids of the rows [B, longest], PAD behind each."""
    lengths = side.lengths[rows]
    columns = np.arange(int(lengths.max(initial=0)))
    mask = columns < lengths[:, None]
    padded = np.full(mask.shape, PAD, dtype=np.int64)
    padded[mask] = side.ids[(side.starts[rows][:, None] + columns)[mask]]
    return padded
