"""Recurrent layers: the LSTM and GRU of torch, and SRU."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnkit.ops.linear_attention import widest
from attnkit.ops.onednn import Linear
from attnkit.ops.simple_recurrence import simple_recurrence

CellState = tuple[Float[Tensor, "R W"], ...]
"""(h, c) of an LSTM, (h,) of a GRU, (c,) of an SRU."""


class SRU(nn.Module):
    """Simple recurrent unit; every product with a matrix is computed for all tokens at once.

    f = sigmoid(W_f x + v_f c' + b_f), c = f c' + (1 - f) W x for the previous state c', r = sigmoid(W_r x + v_r c' +
    b_r), h = r c + (1 - r) alpha x, with alpha = sqrt(3). If the input is wider than the output, the last sum reads as
    many of its values as the output has, from `skip_from` on. v_f and v_r are initialized to zero. Source: Lei et al.
    2018, "Simple Recurrent Units for Highly Parallelizable Recurrence", sections 3 and 3.2.
    """

    alpha = math.sqrt(3)
    """Keeps the variance of the highway path at initialization, where r is about 1/2."""

    def __init__(self, inputs: int, width: int, skip_from: int = 0) -> None:
        super().__init__()
        self.width, self.skip = width, slice(skip_from, skip_from + width)
        self.projection = Linear(inputs, 3 * width, bias=False)
        bound = math.sqrt(3 / inputs)  # for a variance of 1 / inputs
        nn.init.uniform_(self.projection.weight, -bound, bound)
        self.state_weight = nn.Parameter(torch.zeros(2 * width))  # v_f, v_r
        self.bias = nn.Parameter(torch.zeros(2 * width))  # b_f, b_r

    def forward(self, x: Float[Tensor, "R T I"], state: CellState) -> tuple[Tensor, CellState]:
        """Return the outputs [R, T, W] and the state after the last token."""
        candidate, forget, reset = self.projection(x).split(self.width, -1)
        (v_f, v_r), (b_f, b_r) = self.state_weight.chunk(2), self.bias.chunk(2)
        (start,), wide = state, widest(x.dtype)  # sums over time need more than 16 bits
        c = simple_recurrence(candidate.to(wide), (forget + b_f).to(wide), v_f.to(wide), start.to(wide)).to(x.dtype)
        before = torch.cat((start[:, None], c[:, :-1]), 1)  # [R, T, W], c'
        r = torch.sigmoid(reset + v_r * before + b_r)
        return torch.lerp(x[..., self.skip] * self.alpha, c, r), (c[:, -1],)  # r c + (1-r) alpha x


class RecurrentLayer(nn.Module):
    """One recurrent layer that reads in one direction; its state is batch-first.

    LSTM: Hochreiter and Schmidhuber 1997, with forget gates. GRU: Cho et al. 2014, in torch's form (the reset gate is
    applied after the product).
    """

    parts = {"lstm": 2, "gru": 1, "sru": 1}
    """Number of tensors in a state, by cell."""

    def __init__(self, cell: str, inputs: int, width: int, skip_from: int = 0) -> None:
        super().__init__()
        self.width = width
        self.cell: nn.Module
        if cell == "sru":
            self.cell = SRU(inputs, width, skip_from)
        else:
            layer_class = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
            self.cell = layer_class(inputs, width, batch_first=True)

    def forward(self, x: Float[Tensor, "R T I"], state: CellState) -> tuple[Float[Tensor, "R T W"], CellState]:
        """Return the outputs of all tokens and the state after the last token."""
        if isinstance(self.cell, SRU):
            return self.cell(x, state)  # type: ignore[no-any-return]
        initial = tuple(part[None].contiguous() for part in state)  # torch puts the layer dimension first
        y, final = self.cell(x, initial if isinstance(self.cell, nn.LSTM) else initial[0])
        final = final if isinstance(final, tuple) else (final,)
        return y, tuple(part[0] for part in final)


class BidirectionalLayer(nn.Module):
    """Two layers of half the width, one of which reads each row from its last token to its first.

    Rows are right-padded. The second layer gets them reversed with padding still last, so that no token's vector
    depends on padding.
    """

    def __init__(self, cell: str, width: int) -> None:
        super().__init__()
        self.forwards = RecurrentLayer(cell, width, width // 2)
        self.backwards = RecurrentLayer(cell, width, width // 2, skip_from=width // 2)
        self.parts = RecurrentLayer.parts[cell]

    def forward(self, x: Float[Tensor, "B S W"], order: Int[Tensor, " n"]) -> Float[Tensor, "B S W"]:
        """Return the outputs of both layers, concatenated; for `order` see `reversed_order`."""
        rows, _, width = x.shape
        state = (x.new_zeros(rows, width // 2),) * self.parts
        forwards, _ = self.forwards(x, state)
        backwards, _ = self.backwards(_select_tokens(x, order), state)
        return torch.cat((forwards, _select_tokens(backwards, order)), -1)


def reversed_order(valid: Bool[Tensor, "B S"]) -> Int[Tensor, " n"]:
    """Return the index in flattened rows [B S] from which each token is taken to reverse the rows.

    Padding, on the right, stays in place; reversing twice restores the rows.
    """
    rows, length = valid.shape
    columns = torch.arange(length, device=valid.device)
    mirrored = valid.sum(1, keepdim=True) - 1 - columns
    starts = torch.arange(rows, device=valid.device)[:, None] * length
    return (starts + torch.where(valid, mirrored, columns)).flatten()


def _select_tokens(x: Float[Tensor, "B S W"], tokens: Int[Tensor, " n"]) -> Float[Tensor, "B S W"]:
    return x.flatten(0, 1).index_select(0, tokens).view_as(x)
