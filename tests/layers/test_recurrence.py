"""Tests of recurrent layers against their formulas and against torch's packed sequences."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attnkit.layers.recurrence import SRU, BidirectionalLayer, RecurrentLayer, reversed_order

LENGTHS = torch.tensor([7, 1, 4])
VALID = torch.arange(7) < LENGTHS[:, None]


@pytest.mark.parametrize(("inputs", "skip_from"), [(6, 0), (10, 0), (10, 4)])
def test_sru_equals_its_equations(inputs: int, skip_from: int) -> None:
    torch.manual_seed(0)
    width = 6
    layer = SRU(inputs, width, skip_from).double()
    for vector in (layer.state_weight, layer.bias):
        nn.init.normal_(vector)
    w = layer.projection.weight.split(width)
    v_f, v_r, b_f, b_r = *layer.state_weight.chunk(2), *layer.bias.chunk(2)
    x, c = torch.randn(3, 5, inputs).double(), torch.randn(3, width).double()
    outputs, (last,) = layer(x, (c,))
    for t in range(5):
        token = x[:, t]
        f = torch.sigmoid(token @ w[1].T + v_f * c + b_f)
        r = torch.sigmoid(token @ w[2].T + v_r * c + b_r)
        c = f * c + (1 - f) * (token @ w[0].T)
        h = r * c + (1 - r) * token[:, skip_from : skip_from + width] * math.sqrt(3)
        torch.testing.assert_close(outputs[:, t], h)
    torch.testing.assert_close(last, c)


def test_bidirectional_srus_with_closed_gates_return_their_input() -> None:
    layer = BidirectionalLayer("sru", 8)
    for direction in (layer.forwards, layer.backwards):
        nn.init.constant_(direction.cell.bias, -1e3)  # r = 0
    x = torch.randn(3, 7, 8)
    torch.testing.assert_close(layer(x, reversed_order(VALID))[VALID], x[VALID] * math.sqrt(3))


def test_sru_in_bfloat16_sums_over_time_in_float32() -> None:
    torch.manual_seed(0)
    layer = SRU(8, 8)
    x, start = torch.randn(2, 300, 8), torch.zeros(2, 8)
    exact, _ = layer(x, (start,))
    rounded, _ = layer.bfloat16()(x.bfloat16(), (start.bfloat16(),))
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("cell", RecurrentLayer.parts)
def test_steps_equal_one_call(cell: str) -> None:
    torch.manual_seed(0)
    layer = RecurrentLayer(cell, 7, 6).double()
    x = torch.randn(3, 7, 7).double()
    start = tuple(torch.randn(3, 6).double() for _ in range(layer.parts[cell]))
    outputs, state = [], start
    for part in x.split((1, 3, 3), 1):
        y, state = layer(part, state)
        outputs.append(y)
    torch.testing.assert_close((torch.cat(outputs, 1), state), layer(x, start))


@pytest.mark.parametrize(("cell", "peer_type"), [("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_both_directions_equal_torch_on_packed_rows(cell: str, peer_type: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    layer = BidirectionalLayer(cell, 8).double()
    peer = peer_type(8, 4, batch_first=True, bidirectional=True).double()
    weights = {f"{name}_reverse": p for name, p in layer.backwards.cell.named_parameters()}
    peer.load_state_dict({**layer.forwards.cell.state_dict(), **weights})
    x = torch.randn(3, 7, 8).double()
    rows = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(peer(rows)[0], batch_first=True)
    torch.testing.assert_close(layer(x, reversed_order(VALID))[VALID], expected[VALID])


def test_reversed_order_keeps_padding_in_place() -> None:
    valid = torch.arange(4) < torch.tensor([[3], [4], [1]])
    assert reversed_order(valid).view(3, 4).tolist() == [[2, 1, 0, 3], [7, 6, 5, 4], [8, 9, 10, 11]]
