"""Tests of ConvS2S against the equations of its paper."""

import math
from typing import Any

import torch
from helpers.tiny_models import tiny_model
from torch.nn import functional as F

SIZE, WIDTH, KERNEL = 19, 8, 3


def build(**options: Any) -> Any:
    defaults = {"type": "convolutional", "width": WIDTH, "heads": 1, "positions": "learned"}
    return tiny_model(SIZE, max_length=12, **defaults | options)


def convolved(layer: torch.nn.Module, x: torch.Tensor, left: int, right: int) -> torch.Tensor:
    """Return a gated convolution of one row x [T, W], by torch's conv1d."""
    weight = layer.product.weight.view(2 * WIDTH, KERNEL, WIDTH).transpose(1, 2)
    padded = F.pad(x.T[None], (left, right))
    a, b = F.conv1d(padded, weight, layer.product.bias)[0].T.chunk(2, -1)
    return a * torch.sigmoid(b)


def test_logits_equal_the_equations() -> None:
    """Queries, keys, values and contexts are not projected, as in the paper."""
    model = build(kernel=KERNEL, attention={"cross": {"name": "dot"}}, bias=False).double().eval()
    for layer in model.decoder:
        for name in "qkvo":
            torch.nn.init.eye_(getattr(layer.attention, name).weight)
    source, target = torch.randint(4, SIZE, (7,)), torch.randint(4, SIZE, (5,))
    table = model.embed_source.tokens.weight
    z = e = table[source] + model.embed_source.table.weight[:7]
    for layer in model.encoder:
        z = (z + convolved(layer, z, 1, 1)) * math.sqrt(0.5)
    x = g = table[target] + model.embed_target.table.weight[:5]
    for layer in model.decoder:
        h = convolved(layer.convolution, x, 2, 0)
        d = h @ layer.query.weight.T + layer.query.bias + g  # equation 1
        a = torch.softmax(d @ z.T, -1)
        c = a @ (z + e) * math.sqrt(7)  # equation 2, scaled by m sqrt(1 / m)
        x = (x + (h + c) * math.sqrt(0.5)) * math.sqrt(0.5)
    torch.testing.assert_close(model(source[None], target[None])[0], x @ table.T)


def test_initial_layers_keep_the_variance() -> None:
    layers = {"encoder": 8, "decoder": 8}
    options = {"type": "convolutional", "width": 64, "heads": 1, "positions": "learned", "layers": layers}
    model = tiny_model(500, seed=0, dropout=0.0, **options).eval()
    z, _ = model.encode(torch.randint(4, 500, (8, 30)), torch.ones(8, 30, dtype=torch.bool))
    embedded = model.embed_source(torch.randint(4, 500, (8, 30)), torch.arange(30)[None])
    assert 0.2 < z.std() / embedded.std() < 2


def test_limit_is_the_size_of_the_table_of_positions() -> None:
    assert build().limit == 12 + 1  # and the begin token
    assert build(positions="none").limit is None
