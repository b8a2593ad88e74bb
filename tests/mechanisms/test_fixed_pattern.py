"""Tests of fixed patterns: their weights, at the edges, under a causal mask, with padding."""

import pytest
import torch
from helpers.tensors import packed, valid_tokens
from torch import Tensor

from attnkit.attention.mask import Mask
from attnkit.errors import UsageError
from attnkit.layers import MultiHead


def maps(*patterns: str, length: int = 5, causal: bool = False, pads: int = 0) -> Tensor:
    """Return the weights [H, T, S] of a row whose first tokens are padding."""
    heads = len(patterns)
    layer = MultiHead.build("fixed-pattern", heads, heads, 8, patterns=patterns).double()
    mask = Mask.of(valid_tokens(length, slice(pads)), length, causal=causal)
    return layer.weights(torch.zeros(1, length, heads).double(), mask)[0]


def one_hot(*targets: int) -> Tensor:
    return torch.eye(5, dtype=torch.float64)[list(targets)]


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("previous", (0, 0, 1, 2, 3)),
        ("current", (0, 1, 2, 3, 4)),
        ("next", (1, 2, 3, 4, 4)),
        ("first", (0, 0, 0, 0, 0)),
        ("last", (4, 4, 4, 4, 4)),
    ],
)
def test_pattern_of_one_token_takes_the_nearest_at_the_edge(name: str, targets: tuple[int, ...]) -> None:
    assert torch.equal(maps(name)[0], one_hot(*targets))


def test_wide_patterns_are_cubes_of_the_distance_from_their_far_end() -> None:
    left, right, start, end = maps("left", "right", "start", "end")
    cubes = torch.tensor([1.0, 8, 27, 64, 125]).double()
    torch.testing.assert_close(end, (cubes / 225).expand(5, 5))
    torch.testing.assert_close(start, end.flip(1))
    torch.testing.assert_close(right, left.flip(0, 1))
    torch.testing.assert_close(left[:3], one_hot(0, 0, 0))
    torch.testing.assert_close(left[3, :2], cubes[:2] / 9)
    torch.testing.assert_close(left[4, :3], cubes[:3] / 36)
    assert left.triu(-1)[2:].abs().max() == 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["previous", "current", "left", "start", "end", "first"])
def test_left_padding_shifts_a_pattern(name: str, causal: bool) -> None:
    longer = maps(name, length=7, causal=causal, pads=2)[0]
    torch.testing.assert_close(longer[2:, 2:], maps(name, causal=causal)[0])
    assert longer[:, :2].abs().max() == 0


def test_causal_sequence_ends_at_the_query() -> None:
    end, first = maps("end", "first", causal=True)
    for row in range(5):
        cubes = (torch.arange(row + 1) + 1.0).double() ** 3
        torch.testing.assert_close(end[row, : row + 1], cubes / cubes.sum())
    assert torch.equal(first, one_hot(0, 0, 0, 0, 0))


def test_default_patterns_of_causal_layers_look_back() -> None:
    def patterns(causal: bool | None) -> tuple[str, ...]:
        return MultiHead.build("fixed-pattern", 8, 8, 9, causal=causal).mechanism.patterns

    both = ("previous", "current", "next", "left", "right", "start", "end", "previous")
    assert patterns(None) == patterns(False) == both
    assert patterns(True) == ("previous", "current", "left", "start") * 2


def test_default_patterns_under_a_causal_mask_take_the_current_token() -> None:
    """In a layer that was built without `causal`."""
    layer = MultiHead.build("fixed-pattern", 7, 7, 9).double()
    weights = layer.weights(torch.zeros(1, 5, 7).double(), packed(5))[0]
    for head in (2, 4):
        assert torch.equal(weights[head], one_hot(0, 1, 2, 3, 4))


@pytest.mark.parametrize("name", ["next", "right", "last"])
def test_causal_layer_with_a_pattern_that_looks_ahead_raises(name: str) -> None:
    with pytest.raises(UsageError, match=f"patterns: {name} looks ahead"):
        MultiHead.build("fixed-pattern", 8, 2, 9, causal=True, patterns=("previous", name))
    layer = MultiHead.build("fixed-pattern", 8, 2, 9, patterns=(name,))
    with pytest.raises(UsageError, match=f"patterns: {name} looks ahead"):
        layer(torch.zeros(1, 5, 8), packed(5))
