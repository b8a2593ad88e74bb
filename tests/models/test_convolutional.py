"""ConvS2S against the equations of its paper."""

import math

import torch
from torch.nn import functional as F

from attnkit.models import ConvolutionalModel, build
from attnkit.recipe.schema import AttentionConfig, Layers, ModelConfig, Roles

SIZE, WIDTH, KERNEL = 19, 8, 3


def made() -> ConvolutionalModel:
    """A model whose queries, keys, values and contexts are not projected, as in the paper."""
    torch.manual_seed(1)
    options = ModelConfig(
        type="convolutional",
        width=WIDTH,
        kernel=KERNEL,
        heads=1,
        positions="learned",
        layers=Layers(encoder=2, decoder=2),
        attention=Roles(cross=AttentionConfig(name="dot")),
        bias=False,
    )
    model = build(options, (SIZE, SIZE), 12).double().eval()
    assert isinstance(model, ConvolutionalModel)
    with torch.no_grad():
        for layer in model.decoder:
            for name in "qkvo":
                getattr(layer.attention, name).weight.copy_(torch.eye(WIDTH))
    return model


def convolved(layer: torch.nn.Module, x: torch.Tensor, left: int, right: int) -> torch.Tensor:
    """A gated convolution as torch's conv1d of one row x [T, W]."""
    weight = layer.product.weight.view(2 * WIDTH, KERNEL, WIDTH).transpose(1, 2)
    padded = F.pad(x.T[None], (left, right))
    a, b = F.conv1d(padded, weight, layer.product.bias)[0].T.chunk(2, -1)
    return a * torch.sigmoid(b)


def test_logits_follow_the_equations() -> None:
    model = made()
    source, target = torch.randint(4, SIZE, (7,)), torch.randint(4, SIZE, (5,))
    found = model(source[None], target[None])[0]
    table = model.embed_source.tokens.weight
    e = table[source] + model.embed_source.table.weight[:7]
    z = e
    for layer in model.encoder:
        z = (z + convolved(layer, z, 1, 1)) * math.sqrt(0.5)
    g = table[target] + model.embed_target.table.weight[:5]
    x = g
    for layer in model.decoder:
        h = convolved(layer.convolution, x, 2, 0)
        d = h @ layer.query.weight.T + layer.query.bias + g  # equation 1
        a = torch.softmax(d @ z.T, -1)
        c = a @ (z + e) * math.sqrt(7)  # equation 2, scaled by m sqrt(1 / m)
        x = (x + (h + c) * math.sqrt(0.5)) * math.sqrt(0.5)
    torch.testing.assert_close(found, x @ table.T)


def test_variance_stays_through_the_layers_at_the_start() -> None:
    torch.manual_seed(0)
    options = ModelConfig(
        type="convolutional", width=64, heads=1, positions="learned", dropout=0.0, layers=Layers(encoder=8, decoder=8)
    )
    model = build(options, (500, 500), 40).eval()
    z, _ = model.encode(torch.randint(4, 500, (8, 30)), torch.ones(8, 30, dtype=torch.bool))
    embedded = model.embed_source(torch.randint(4, 500, (8, 30)), torch.arange(30)[None])
    assert 0.2 < z.std() / embedded.std() < 2


def test_tokens_have_as_many_positions_as_the_table() -> None:
    assert made().limit == 12 + 1  # and the begin token
    options = ModelConfig(type="convolutional", width=8, heads=1, positions="none")
    assert build(options, (SIZE, SIZE), 12).limit is None
