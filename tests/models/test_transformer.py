"""The Transformer: sizes, caches, padding, beams."""

import pytest
import torch
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask, reorder
from attnkit.layers import Dropout
from attnkit.layers.block import Block
from attnkit.models import Decode, Model, build
from attnkit.recipe import schema

SIZE = 23


def make(shape: str = "encoder-decoder", **options: object) -> Model:
    torch.manual_seed(5)
    sizes = {"width": 16, "ff": 24, "heads": 4, "layers": {"encoder": 2, "decoder": 2}}
    model = schema.ModelConfig.model_validate(sizes | {"shape": shape} | options)
    return build(model, (SIZE, SIZE), 40).double().eval()


def ids(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, SIZE, (rows, length), generator=generator)


@pytest.mark.parametrize(
    ("size", "expected"),
    # 6 + 6 layers: encoder layer 4(d^2 + d) + 2 d ff + ff + d + 4 d, decoder layer 4(d^2 + d) + 2 d
    # more; embeddings once.  The paper rounds the base model with 37,000 pieces to 65 million.
    [(37000, 37000 * 512 + 6 * 3_152_384 + 6 * 4_204_032), (32000, 60_522_496)],
)
def test_the_base_model_has_the_known_number_of_parameters(size: int, expected: int) -> None:
    model = schema.ModelConfig(
        width=512, heads=8, ff=2048, layers=schema.Layers(encoder=6, decoder=6), norm="post", tie="all"
    )
    with torch.device("meta"):
        made = build(model, (size, size), 256)
    assert sum(p.numel() for p in made.parameters()) == expected


def test_ties_share_one_table_two_or_three() -> None:
    for tie, tables in (("all", 1), ("decoder", 2), ("none", 3)):
        model = make(tie=tie)
        weights = (model.embed_source.tokens.weight, model.embed_target.tokens.weight, model.output.weight)
        assert len({w.data_ptr() for w in weights}) == tables


CAUSAL = [
    word
    for word in mechanisms.names()
    if mechanisms.facts(word).causal and not any(o.required for o in mechanisms.facts(word).options.values())
]


@pytest.mark.parametrize("word", CAUSAL)
def test_a_language_model_promises_that_nothing_is_padded_and_answers_the_same(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows end with pads at most, which no real token sees, so block paths may be taken."""
    model = make("decoder", attention={"decoder": {"name": word}}, positions="learned")
    target = ids(3, 40)
    target[1, 25:] = 0
    general = Mask.of(torch.ones_like(target, dtype=torch.bool), 40, True)
    layouts, packed = [], Mask.packed

    def noted(*given: object, **named: object) -> Mask:
        layouts.append("packed")
        return packed(*given, **named)

    monkeypatch.setattr(Mask, "packed", noted)
    with torch.no_grad():
        expected = model.decoder(model.embed_target(target, general.q_pos), general)[0]
        whole = model.hidden(None, target)
        alone = model.hidden(None, target[1:2, :25])
        state, steps = model.start(None, rows=3), []
        for start, end in ((0, 30), (30, 31), (31, 40)):
            part, state = model.advance(target[:, start:end], state)
            state = reorder(state.moving, torch.arange(3)), reorder(state.fixed, torch.arange(3))
            state = Decode(*state)
            steps.append(part)
    assert layouts == ["packed"] * 5
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
def test_the_scale_of_dropout_is_right_in_bfloat16(relu: bool) -> None:
    x = (1 + torch.rand(1000, 1000)).bfloat16().requires_grad_()
    y = Dropout(0.1).train()(x, relu)
    (gradient,) = torch.autograd.grad(y, x, x.detach())
    for found in (y, gradient):
        stays = found > 0
        ratio = found[stays].double().sum() / x[stays].double().sum()
        assert ratio.item() == pytest.approx(256 / 230, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_dropout_of_relu_is_relu_and_then_dropout(dtype: torch.dtype, training: bool) -> None:
    dropout = Dropout(0.3).train(training)
    answers = []
    for fused in (True, False):
        torch.manual_seed(1)
        x = torch.randn(50, 40, dtype=dtype).requires_grad_()
        torch.manual_seed(2)
        y = dropout(x, relu=True) if fused else dropout(x.relu())
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        answers.append((y, gradient))
    for one, two in zip(*answers, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("relu", [False, True])
def test_dropout_can_be_differentiated_twice(relu: bool) -> None:
    dropout = Dropout(0.3).train()

    def same_draws(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        y: Tensor = dropout(x, relu)
        return y

    x = torch.linspace(-1, 1, 8, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(same_draws, x)
    assert torch.autograd.gradgradcheck(same_draws, x)


@pytest.mark.parametrize(("own", "inside"), [(None, 0.3), (0.0, 0.0), (0.1, 0.1)])
def test_activation_dropout_is_that_inside_the_feed_forward_sublayer(own: float | None, inside: float) -> None:
    model = make(dropout=0.3, activation_dropout=own)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    assert len(blocks) == 4
    for block in blocks:
        assert (block.feed_forward.dropout.rate, block.dropout.rate) == (inside, 0.3)
