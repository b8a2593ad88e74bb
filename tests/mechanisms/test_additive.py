"""Tests of additive attention: the formula, its blocks, and their memory."""

import pytest
import torch
from helpers.tensors import sequences, trainable, with_gradients
from torch import Tensor

from attnkit.attention.mask import Mask
from attnkit.layers import MultiHead
from attnkit.mechanisms import additive


def formula(left: Tensor, right: Tensor, weight: Tensor) -> Tensor:
    """Return the scores from all hidden units at once, [H, B, T, S]."""
    units = (left[:, :, :, None] + right[:, :, None]).tanh()
    return (units * weight[:, None, None, None]).sum(-1)


def inputs(heads: int = 2, rows: int = 3, queries: int = 5, keys: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(heads, rows, queries, 3), (heads, rows, keys, 3), (heads, 3)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "block"),
    [(5, 4, False, block) for block in (1, 12, 40, 60, 130, 2**18)]
    + [(length, length, True, block) for length in (5, 33, 70) for block in (1, 200, 2**18)],
)
def test_blocks_equal_the_formula_forward_and_backward(
    queries: int, keys: int, causal: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Causal blocks leave out later keys."""
    monkeypatch.setattr(additive, "BLOCK", block)
    tensors = inputs(queries=queries, keys=keys)
    visible = torch.ones(queries, keys).tril() if causal else torch.ones(())
    expected = with_gradients(formula(*tensors) * visible, tensors)
    scores = additive.TanhScores.apply(*tensors, causal)
    torch.testing.assert_close(with_gradients(scores * visible, tensors), expected)


@pytest.mark.parametrize("largest", [39.0, 41.0, 300.0])
def test_large_inputs_equal_the_formula(largest: float) -> None:
    """Sigmoids replace products of exponentials where these would overflow."""
    torch.manual_seed(0)
    left, right = (torch.randn(1, 2, size, 3) for size in (5, 4))
    left[0, 0, 0], right[0, 0, 0] = largest, 0.5 - largest  # they nearly cancel
    tensors = trainable([left, right, torch.randn(1, 3)])
    scores = with_gradients(additive.TanhScores.apply(*tensors), tensors)
    expected = with_gradients(formula(*tensors), tensors)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=3e-5)  # float32 near 300


@pytest.mark.parametrize("options", [{}, {"hidden": 5}])
def test_each_head_has_its_own_matrices(options: dict[str, int]) -> None:
    mechanism = MultiHead.build("additive", 8, 2, 10, **options).double().mechanism
    (q,), (k,) = sequences(6, 4, rows=3, heads=2), sequences(7, 4, rows=3, heads=2)
    scores = mechanism.scores(q, mechanism.cached_keys(k), Mask.cross(torch.ones(3, 7, dtype=torch.bool), 6))
    for head in range(2):
        left, right = q[:, head] @ mechanism.query[head], k[:, head] @ mechanism.key[head]
        units = (left[:, :, None] + right[:, None]).tanh()
        torch.testing.assert_close(scores[:, head], units @ mechanism.out[head])


def test_no_tensor_holds_all_hidden_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive, "BLOCK", 2**12)
    tensors = inputs(heads=1, rows=2, queries=64, keys=64)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        additive.TanhScores.apply(*tensors)
    assert max(saved) <= 2 * 64 * 3
    left, right, _ = (x.detach() for x in tensors)
    sizes = [block.units.numel() for block in additive.hidden_units(left[0], right[0])]
    assert max(sizes) <= 2**12
    assert sum(sizes) == 2 * 64 * 64 * 3
