"""A layer of a recurrent cell over time: LSTM and GRU as torch has them, and SRU."""

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
    """Simple recurrent unit; every product with a matrix is made for all tokens at once.

    f = sigmoid(W_f x + v_f c' + b_f), c = f c' + (1 - f) W x for the state c' before,
    r = sigmoid(W_r x + v_r c' + b_r), h = r c + (1 - r) alpha x, with alpha = sqrt(3).  Where input
    is wider than output, the last sum reads as many of its values, from `skip_from` on.  Source:
    Lei et al. 2018, "Simple Recurrent Units for Highly Parallelizable Recurrence", sections 3 and
    3.2; v_f and v_r start at zero.
    """

    alpha = math.sqrt(3)
    """Keeps the variance of the highway path at the start, where r is about a half."""

    def __init__(self, inputs: int, width: int, skip_from: int = 0) -> None:
        super().__init__()
        self.width, self.skip = width, slice(skip_from, skip_from + width)
        self.projection = Linear(inputs, 3 * width, bias=False)
        bound = math.sqrt(3 / inputs)  # for a variance of 1 / inputs
        nn.init.uniform_(self.projection.weight, -bound, bound)
        self.state_weight = nn.Parameter(torch.zeros(2 * width))  # v_f, v_r
        self.bias = nn.Parameter(torch.zeros(2 * width))  # b_f, b_r

    def forward(self, x: Float[Tensor, "R T I"], state: CellState) -> tuple[Tensor, CellState]:
        """Outputs [R, T, W], and the state after the last token."""
        candidate, forget, reset = self.projection(x).split(self.width, -1)
        (v_f, v_r), (b_f, b_r) = self.state_weight.chunk(2), self.bias.chunk(2)
        (start,), wide = state, widest(x.dtype)  # sums over time want more than 16 bits
        c = simple_recurrence(candidate.to(wide), (forget + b_f).to(wide), v_f.to(wide), start.to(wide)).to(x.dtype)
        before = torch.cat((start[:, None], c[:, :-1]), 1)  # [R, T, W], c'
        r = torch.sigmoid(reset + v_r * before + b_r)
        return torch.lerp(x[..., self.skip] * self.alpha, c, r), (c[:, -1],)  # r c + (1-r) alpha x


class RecurrentLayer(nn.Module):
    """One layer that reads in one direction; its state is batch-first.

    LSTM: Hochreiter and Schmidhuber 1997, with forget gates.  GRU: Cho et al. 2014, in torch's form
    (the reset gate behind the product).
    """

    parts = {"lstm": 2, "gru": 1, "sru": 1}
    """Tensors of a state, by cell."""

    def __init__(self, cell: str, inputs: int, width: int, skip_from: int = 0) -> None:
        super().__init__()
        self.width = width
        self.cell: nn.Module
        if cell == "sru":
            self.cell = SRU(inputs, width, skip_from)
        else:
            kind = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
            self.cell = kind(inputs, width, batch_first=True)

    def forward(self, x: Float[Tensor, "R T I"], state: CellState) -> tuple[Float[Tensor, "R T W"], CellState]:
        """Outputs for all tokens, and the state after the last one."""
        if isinstance(self.cell, SRU):
            return self.cell(x, state)  # type: ignore[no-any-return]
        given = tuple(part[None].contiguous() for part in state)  # torch's layers come first
        y, after = self.cell(x, given if isinstance(self.cell, nn.LSTM) else given[0])
        after = after if isinstance(after, tuple) else (after,)
        return y, tuple(part[0] for part in after)


class BidirectionalLayer(nn.Module):
    """Two layers of half the width, one of which reads each row from its last token to its first.

    Rows are padded on the right.  The second one gets them turned round, pads still behind, so that
    no token's vector depends on pads.
    """

    def __init__(self, cell: str, width: int) -> None:
        super().__init__()
        self.forwards = RecurrentLayer(cell, width, width // 2)
        self.backwards = RecurrentLayer(cell, width, width // 2, skip_from=width // 2)
        self.parts = RecurrentLayer.parts[cell]

    def forward(self, x: Float[Tensor, "B S W"], turned: Int[Tensor, " n"]) -> Float[Tensor, "B S W"]:
        """Both answers side by side; for `turned` see `turned_columns`."""
        rows, _, width = x.shape
        state = (x.new_zeros(rows, width // 2),) * self.parts
        forwards, _ = self.forwards(x, state)
        backwards, _ = self.backwards(_take(x, turned), state)
        return torch.cat((forwards, _take(backwards, turned)), -1)


def turned_columns(valid: Bool[Tensor, "B S"]) -> Int[Tensor, " n"]:
    """Where each token of flattened rows [B S] comes from, once rows are turned round.

    Pads, on the right, stay where they are; turned round twice, rows are as they were.
    """
    rows, length = valid.shape
    columns = torch.arange(length, device=valid.device)
    mirrored = valid.sum(1, keepdim=True) - 1 - columns
    starts = torch.arange(rows, device=valid.device)[:, None] * length
    return (starts + torch.where(valid, mirrored, columns)).flatten()


def _take(x: Float[Tensor, "B S W"], tokens: Int[Tensor, " n"]) -> Float[Tensor, "B S W"]:
    return x.flatten(0, 1).index_select(0, tokens).view_as(x)
