"""Additive scores: the formula, its blocks, and what they cost."""

import pytest
import torch
from torch import Tensor

from attnkit.attention.mask import Mask
from attnkit.layers import MultiHead
from attnkit.mechanisms import additive


def plain(left: Tensor, right: Tensor, weight: Tensor) -> Tensor:
    """The formula with all hidden units at once, [H, B, T, S]."""
    units = (left[:, :, :, None] + right[:, :, None]).tanh()
    return (units * weight[:, None, None, None]).sum(-1)


def parts(heads: int = 2, rows: int = 3, queries: int = 5, keys: int = 4) -> list[Tensor]:
    made = torch.Generator().manual_seed(1)
    shapes = [(heads, rows, queries, 3), (heads, rows, keys, 3), (heads, 3)]
    return [torch.randn(shape, generator=made, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("block", [1, 12, 40, 60, 130, 2**18])
def test_blocks_of_any_size_equal_the_formula_forward_and_backward(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(additive, "BLOCK", block)
    inputs = parts()
    expected = plain(*inputs)
    scores = additive.TanhScores.apply(*inputs)
    torch.testing.assert_close(scores, expected)
    slope = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(y, inputs, slope) for y in (scores, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("block", [1, 200, 2**18])
@pytest.mark.parametrize("length", [5, 33, 70])
def test_causal_blocks_leave_out_the_keys_behind_them(
    length: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(additive, "BLOCK", block)
    inputs, seen = parts(queries=length, keys=length), torch.ones(length, length).tril().double()
    expected = plain(*inputs) * seen
    scores = additive.TanhScores.apply(*inputs, True) * seen
    torch.testing.assert_close(scores, expected)
    slope = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(y, inputs, slope) for y in (scores, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("largest", [39.0, 41.0, 300.0])
def test_products_of_exponentials_and_sigmoids_equal_the_formula(largest: float) -> None:
    """Beyond a reach the exponentials would overflow, so the sigmoids take over."""
    torch.manual_seed(0)
    left, right = (torch.randn(1, 2, size, 3) for size in (5, 4))
    left[0, 0, 0], right[0, 0, 0] = largest, 0.5 - largest  # they nearly cancel
    weight = torch.randn(1, 3)
    inputs = [x.requires_grad_() for x in (left, right, weight)]
    got, wanted = additive.TanhScores.apply(*inputs), plain(*inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=3e-5)  # float32 near 300
    slope = torch.randn_like(wanted)
    ours, theirs = (torch.autograd.grad(y, inputs, slope) for y in (got, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("options", [{}, {"hidden": 5}])
def test_scores_are_those_of_the_formula_with_matrices_of_each_head(options: dict[str, int]) -> None:
    mechanism = MultiHead.build("additive", 8, 2, 10, **options).double().mechanism
    q, k = torch.randn(3, 2, 6, 4).double(), torch.randn(3, 2, 7, 4).double()
    mask = Mask.cross(torch.ones(3, 7, dtype=torch.bool), 6)
    scores = mechanism.scores(q, mechanism.cached_keys(k), mask)
    for head in range(2):
        left, right = q[:, head] @ mechanism.query[head], k[:, head] @ mechanism.key[head]
        units = (left[:, :, None] + right[:, None]).tanh()
        torch.testing.assert_close(scores[:, head], units @ mechanism.out[head])


def test_no_tensor_is_as_large_as_all_hidden_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive, "BLOCK", 2**12)
    inputs = parts(heads=1, rows=2, queries=64, keys=64)
    sizes = []

    def kept(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(kept, lambda x: x):
        scores = additive.TanhScores.apply(*inputs)
    assert max(sizes) <= 2 * 64 * 3
    left, right, _ = (x.detach() for x in inputs)
    seen = [block.units.numel() for block in additive.hidden_units(left[0], right[0])]
    assert max(seen) <= 2**12
    assert sum(seen) == 2 * 64 * 64 * 3
    assert scores.isfinite().all()
