"""Tests of the Synthesizer variants: tables, dense rows, initial values, limits, numbers of parameters."""

from typing import Any

import pytest
import torch
from helpers.tensors import packed, valid_tokens
from torch import Tensor

from attnkit.attention import Mask, Shape
from attnkit.attention.position_tables import aligned
from attnkit.layers import MultiHead
from attnkit.mechanisms.synthesizer_factorized_dense import compose, default_factors
from attnkit.mechanisms.synthesizer_random import SynthesizerRandom

WIDTH, HEADS, LONGEST = 8, 2, 12
RANDOM: list[tuple[str, dict[str, Any]]] = [
    ("synthesizer-random", {}),
    ("synthesizer-random", {"trainable": False}),
    ("synthesizer-factorized-random", {"rank": 2}),
]
DENSE: list[tuple[str, dict[str, Any]]] = [
    ("synthesizer-dense", {"layers": 1}),
    ("synthesizer-dense", {"layers": 2}),
    ("synthesizer-factorized-dense", {}),
    ("synthesizer-factorized-dense", {"layout": "tile"}),
    ("synthesizer-factorized-dense", {"factors": (6, 2), "layout": "tile"}),
    ("synthesizer-factorized-dense", {"factors": (2, 6)}),
]


def build(word: str, **options: Any) -> Any:
    torch.manual_seed(2)
    layer = MultiHead.build(word, WIDTH, HEADS, LONGEST, **options).double()
    with torch.no_grad():
        for parameter in layer.mechanism.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return layer


def scores(layer: Any, x: Tensor) -> Tensor:
    q = None if layer.q is None else layer.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    return layer.mechanism.scores(q, None, packed(x.shape[1], causal=False))


@pytest.mark.parametrize(("word", "options"), RANDOM)
def test_random_maps_do_not_depend_on_content(word: str, options: dict[str, Any]) -> None:
    layer, x, mask = build(word, **options), torch.randn(1, 7, WIDTH).double(), packed(7, causal=False)
    torch.testing.assert_close(layer.weights(x[:, torch.randperm(7)] * -3, mask), layer.weights(x, mask))
    assert layer.q is layer.k is None


@pytest.mark.parametrize(("word", "options"), DENSE)
def test_dense_row_depends_on_its_own_token_only(word: str, options: dict[str, Any]) -> None:
    layer, x = build(word, **options), torch.randn(1, 7, WIDTH).double().requires_grad_()
    rows = scores(layer, x)
    for i in range(7):
        (gradient,) = torch.autograd.grad(rows[:, :, i].square().sum(), x, retain_graph=True)
        assert gradient[:, i].abs().min() > 0
        assert gradient[:, torch.arange(7) != i].abs().max() == 0
    assert layer.q is not None
    assert layer.k is None


def test_aligned_positions_are_recognized() -> None:
    right = torch.arange(5) < torch.tensor([[5], [3]])
    assert aligned(Mask.of(right, 5, causal=True), LONGEST)
    assert aligned(Mask.of(right, 2, causal=True, start=3), LONGEST)
    assert aligned(Mask.right(right), LONGEST)
    assert not aligned(Mask.of(right, 2, causal=False, start=0), LONGEST)
    assert not aligned(Mask.of(right.flip(1), 5, causal=True), LONGEST)
    assert not aligned(Mask.of(right, 5, causal=True), 4)


@pytest.mark.parametrize(("word", "options"), RANDOM + DENSE)
def test_more_tokens_than_positions_raise_but_padding_needs_none(word: str, options: dict[str, Any]) -> None:
    layer = build(word, **options)
    message = f"{word}: a sequence of 13 tokens is longer than its table of 12 positions"
    for mask in (packed(13, causal=False), Mask.of(valid_tokens(13, slice(0)), 13, causal=True)):
        with pytest.raises(ValueError, match=message):
            layer(torch.zeros(1, 13, WIDTH).double(), mask)
    x = torch.randn(1, 13, WIDTH).double()
    for pads in (slice(0, 3), slice(10, 13)):
        valid = valid_tokens(13, pads)
        y = layer(x, Mask.of(valid, 13, causal=True)).y[valid]
        torch.testing.assert_close(y, layer(x[valid][None], packed(10)).y[0])


@pytest.mark.parametrize(
    ("word", "options", "per_head"),
    [
        ("synthesizer-random", {}, LONGEST**2),
        ("synthesizer-random", {"trainable": False}, 0),
        ("synthesizer-factorized-random", {}, 2 * LONGEST * 8),
        ("synthesizer-factorized-random", {"rank": 3}, 2 * LONGEST * 3),
        ("synthesizer-dense", {"layers": 1}, 4 * LONGEST),
        ("synthesizer-dense", {}, 4 * LONGEST + LONGEST),
        ("synthesizer-dense", {"reads": "slice"}, 4 * 4 + 4 + 4 * LONGEST + LONGEST),
        ("synthesizer-factorized-dense", {}, (4 + 1) * (3 + 4)),
    ],
)
def test_number_of_parameters_per_head(word: str, options: dict[str, Any], per_head: int) -> None:
    mechanism = MultiHead.build(word, WIDTH, HEADS, LONGEST, **options).mechanism
    assert sum(p.numel() for p in mechanism.parameters()) == HEADS * per_head


def test_dense_row_is_two_layers_with_the_query_projection_as_the_first() -> None:
    layer, x = build("synthesizer-dense"), torch.randn(1, 5, WIDTH).double()
    inner = layer.q(x).relu().unflatten(-1, (HEADS, -1))
    for head in range(HEADS):
        row = inner[:, :, head] @ layer.mechanism.weight[head] + layer.mechanism.bias[head]
        torch.testing.assert_close(scores(layer, x)[:, head], row[..., :5])
    assert build("synthesizer-dense", layers=1).mechanism.bias is None


@pytest.mark.parametrize("layers", [1, 2])
def test_dense_form_can_read_the_slice_of_each_head(layers: int) -> None:
    layer, x = build("synthesizer-dense", reads="slice", layers=layers), torch.randn(1, 5, WIDTH).double()
    assert layer.q is layer.k is None
    mechanism, maps = layer.mechanism, layer.weights(x, packed(5, causal=False))
    for head in range(HEADS):
        inner = x[:, :, 4 * head : 4 * head + 4] @ mechanism.first.weight[head] + mechanism.first.bias[head]
        rows = (inner.relu() if layers == 2 else inner) @ mechanism.weight[head]
        rows = rows if mechanism.bias is None else rows + mechanism.bias[head]
        torch.testing.assert_close(maps[:, head], rows[..., :5].softmax(-1))


@pytest.mark.parametrize("rank", [1, 2, 8])
def test_factorized_table_has_its_rank(rank: int) -> None:
    table = scores(build("synthesizer-factorized-random", rank=rank), torch.zeros(1, 12, WIDTH))
    assert torch.linalg.matrix_rank(table).tolist() == [[rank] * HEADS]


@pytest.mark.parametrize(
    ("left", "right", "layout", "products"),
    [
        ((1, 2), (3, 5), "outer", (3, 5, 6, 10)),
        ((1, 2), (3, 5), "tile", (3, 10, 3, 10)),
        ((1, 2), (3, 5, 7), "outer", (3, 5, 7, 6, 10, 14)),
        ((1, 2), (3, 5, 7), "tile", (3, 10, 7, 6, 5, 14)),
    ],
)
def test_two_short_rows_are_composed_to_a_long_one(
    left: tuple[int, ...], right: tuple[int, ...], layout: str, products: tuple[int, ...]
) -> None:
    for length in range(1, len(products) + 1):
        row = compose(torch.tensor(left), torch.tensor(right), layout, length)
        assert row.tolist() == list(products[:length])


@pytest.mark.parametrize(
    ("length", "factors"), [(512, (16, 32)), (256, (16, 16)), (12, (3, 4)), (13, (1, 13)), (1, (1, 1))]
)
def test_default_factors_are_nearest_to_the_square_root(length: int, factors: tuple[int, int]) -> None:
    assert default_factors(length) == factors


@pytest.mark.parametrize(("options", "scale"), [({}, 0.02), ({"scale": 1.0}, 1.0)])
def test_fixed_and_trained_tables_start_alike_with_the_given_scale(options: dict[str, float], scale: float) -> None:
    tables = []
    for trainable in (False, True):
        torch.manual_seed(3)
        tables.append(SynthesizerRandom(Shape(1, 4, 200), trainable=trainable, **options).table)
    torch.testing.assert_close(tables[0], tables[1].detach(), rtol=0, atol=0)
    assert tables[0].std().item() == pytest.approx(scale, rel=0.05)
    factorized = MultiHead.build("synthesizer-factorized-random", 8, 2, 200, **options)
    assert scores(factorized, torch.zeros(1, 200, 8)).std().item() == pytest.approx(scale, rel=0.15)


def test_published_model_sizes() -> None:
    """Tay et al. 2021, WMT'14: beside 67M, dense 62M, fixed 61M, random 67M, random+vanilla 73M."""
    width, heads, length, layers = 512, 8, 256, 12

    def total(word: str, **options: Any) -> int:
        with torch.device("meta"):
            layer = MultiHead.build(word, width, heads, length, **options)
        own = sum(p.numel() for p in layer.parameters() if p.requires_grad)
        return round(67 + layers * (own - 4 * width * (width + 1)) / 1e6)

    assert total("synthesizer-random", trainable=False) == 61
    assert total("synthesizer-random") == 67
    assert total("synthesizer-factorized-random") == 61
    assert total("mixture", parts=("synthesizer-random", "scaled-dot")) == 73
    assert total("synthesizer-dense") == 65
    # 66.6M, which rounds to 67M, gives the 62M of the source; 67.0M gives 62.7M
    assert total("synthesizer-dense", reads="slice") in (62, 63)
    assert total("synthesizer-factorized-dense", reads="slice") == 61


@pytest.mark.parametrize("causal", [False, True])
def test_random_table_adopts_maps_from_position_to_position(causal: bool) -> None:
    mechanism, mask = SynthesizerRandom(Shape(HEADS, 4, LONGEST)).double(), packed(5, causal)
    visible = mask.dense()[0, 0]
    maps = torch.rand(HEADS, 5, 5).double().masked_fill(~visible, 0) + 0.1 * visible
    table = torch.zeros(HEADS, LONGEST, LONGEST).double()
    table[:, :5, :5] = maps
    mechanism.adopt_maps(table)
    v = torch.zeros(1, HEADS, 5, 4).double()
    torch.testing.assert_close(mechanism.weights(None, None, v, mask)[0], maps / maps.sum(-1, keepdim=True))
    longer = mechanism.weights(None, None, torch.zeros(1, HEADS, 9, 4).double(), packed(9, causal))
    assert longer.isfinite().all()
    assert longer[0, :, 4, 5:].max() < 0.01  # pairs that no map has
