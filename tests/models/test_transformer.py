"""Tests of the Transformer: sizes, tied tables, caches, padding, dropout."""

from unittest.mock import Mock

import pytest
import torch
from helpers.tiny_models import tiny_model
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask, reorder
from attnkit.layers import Dropout
from attnkit.layers.block import Block
from attnkit.models import Decode, build
from attnkit.recipe import schema

SIZE = 23


@pytest.mark.parametrize(
    ("size", "expected"),
    # 6 + 6 layers: encoder layer 4(d^2 + d) + 2 d ff + ff + d + 4 d, decoder layer 4(d^2 + d) + 2 d
    # more; embeddings once.  The paper rounds the base model with 37,000 pieces to 65 million.
    [(37000, 37000 * 512 + 6 * 3_152_384 + 6 * 4_204_032), (32000, 60_522_496)],
)
def test_base_model_has_the_published_number_of_parameters(size: int, expected: int) -> None:
    layers = schema.Layers(encoder=6, decoder=6)
    config = schema.ModelConfig(width=512, heads=8, ff=2048, layers=layers, norm="post", tie="all")
    with torch.device("meta"):
        model = build(config, (size, size), 256)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize(("tie", "tables"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_tie_determines_the_number_of_embedding_tables(tie: str, tables: int) -> None:
    model = tiny_model(SIZE, tie=tie)
    weights = (model.embed_source.tokens.weight, model.embed_target.tokens.weight, model.output.weight)
    assert len({w.data_ptr() for w in weights}) == tables


CAUSAL = [
    word
    for word in mechanisms.names()
    if mechanisms.facts(word).causal and not any(o.required for o in mechanisms.facts(word).options.values())
]


@pytest.mark.parametrize("word", CAUSAL)
@torch.no_grad()
def test_language_model_uses_packed_masks_and_ignores_padding(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the end of rows is padding, which no real token sees, so block paths can be used."""
    options = {"attention": {"decoder": {"name": word}}, "positions": "learned"}
    model = tiny_model(SIZE, shape="decoder", **options).double().eval()
    target = torch.randint(4, SIZE, (3, 40), generator=torch.Generator().manual_seed(0))
    target[1, 25:] = 0
    general = Mask.of(torch.ones_like(target, dtype=torch.bool), 40, True)
    monkeypatch.setattr(Mask, "packed", packed := Mock(wraps=Mask.packed))
    expected = model.decoder(model.embed_target(target, general.q_pos), general)[0]
    whole = model.hidden(None, target)
    alone = model.hidden(None, target[1:2, :25])
    state, steps = model.start(None, rows=3), []
    for start, end in ((0, 30), (30, 31), (31, 40)):
        part, state = model.advance(target[:, start:end], state)
        state = Decode(*(reorder(tensors, torch.arange(3)) for tensors in (state.moving, state.fixed)))
        steps.append(part)
    assert packed.call_count == 5
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(torch.cat(steps, 1), expected)
    torch.testing.assert_close(whole[1:2, :25], alone)


def test_dropout_keeps_the_expected_share_and_mean() -> None:
    dropout = Dropout(0.3).train()
    torch.manual_seed(1)
    y = dropout(torch.ones(1000, 1000))
    share = 1 - 77 / 256  # the rate as a multiple of 1/256
    # five standard deviations of a mean over a million draws
    assert abs((y > 0).double().mean().item() - share) < 5 * (share * (1 - share) / 1e6) ** 0.5
    assert y.max().item() == pytest.approx(1 / share)
    assert dropout.eval()(y) is y


@pytest.mark.parametrize("relu", [False, True])
def test_dropout_scale_is_exact_in_bfloat16(relu: bool) -> None:
    x = (1 + torch.rand(1000, 1000)).bfloat16().requires_grad_()
    y = Dropout(0.1).train()(x, relu)
    for result in (y, *torch.autograd.grad(y, x, x.detach())):
        kept = result > 0
        ratio = result[kept].double().sum() / x[kept].double().sum()
        assert ratio.item() == pytest.approx(256 / 230, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_dropout_with_relu_equals_dropout_after_relu(dtype: torch.dtype, training: bool) -> None:
    dropout, results = Dropout(0.3).train(training), []
    x = torch.randn(50, 40, dtype=dtype).requires_grad_()
    for fused in (True, False):
        torch.manual_seed(2)
        y = dropout(x, relu=True) if fused else dropout(x.relu())
        results.append((y, *torch.autograd.grad(y.square().sum(), x)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("relu", [False, True])
def test_dropout_can_be_differentiated_twice(relu: bool) -> None:
    dropout = Dropout(0.3).train()

    def seeded_dropout(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return dropout(x, relu)  # type: ignore[no-any-return]

    x = torch.linspace(-1, 1, 8, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(seeded_dropout, x)
    assert torch.autograd.gradgradcheck(seeded_dropout, x)


@pytest.mark.parametrize(("activation", "rate"), [(None, 0.3), (0.0, 0.0), (0.1, 0.1)])
def test_activation_dropout_is_that_inside_feed_forward(activation: float | None, rate: float) -> None:
    model = tiny_model(SIZE, dropout=0.3, activation_dropout=activation)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    assert [(b.feed_forward.dropout.rate, b.dropout.rate) for b in blocks] == [(rate, 0.3)] * 4
