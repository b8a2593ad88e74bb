"""Tests of the Performer: random features, when they are drawn again, their range."""

import copy

import pytest
import torch
from helpers.tensors import packed
from torch.nn import functional as F

from attnkit.attention import Shape
from attnkit.layers import MultiHead
from attnkit.mechanisms.performer import Performer, directions

X = torch.tensor([0.5, 0.0], dtype=torch.float64)


def build(width: int = 4, **options: object) -> Performer:
    torch.manual_seed(1)
    return Performer(Shape(1, width, 64), **options).double()


def estimates(features: int, *, hyperbolic: bool = False) -> torch.Tensor:
    """Return an estimate of e^(x x) = e^.25 from each of many draws."""
    drawn = torch.stack([directions(features, 2, 7 + n) for n in range(3000)]).double() @ X
    signs = (1, -1) if hyperbolic else (1,)
    pairs = sum((2 * sign * drawn - X.square().sum()).exp() for sign in signs) / len(signs)
    return pairs.mean(-1)


@pytest.mark.parametrize("hyperbolic", [False, True])
def test_mean_of_the_kernel_is_the_exponential(hyperbolic: bool) -> None:
    # the standard error of the mean is .02: sqrt(2.83 / 6000)
    assert abs(estimates(2, hyperbolic=hyperbolic).mean().item() - 1.284025) < 0.06


def test_orthogonal_directions_have_the_smaller_error() -> None:
    orthogonal = (estimates(2) - 1.284025).square().mean()
    independent = torch.randn(3000, 2, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) @ X
    assert orthogonal < ((2 * independent - 0.25).exp().mean(-1) - 1.284025).square().mean()


def test_directions_favour_no_sign() -> None:
    """The first coordinate of what QR returns was never positive, which biased the kernel."""
    firsts = torch.stack([directions(3, 3, seed)[:, 0] for seed in range(400)])
    assert 0.45 < (firsts > 0).double().mean() < 0.55
    assert (firsts > 0).double().mean(0).sub(0.5).abs().max() < 0.1


def test_directions_are_orthogonal_in_blocks_and_differ_in_length() -> None:
    drawn = directions(11, 4, 5)
    for start in (0, 4, 8):
        block = F.normalize(drawn[start : start + 4], dim=-1)
        torch.testing.assert_close(block @ block.T, torch.eye(len(block)), atol=1e-5, rtol=0)
    lengths = directions(4000, 4, 5).norm(dim=1)
    assert abs(lengths.square().mean().item() - 4) < 0.2
    assert lengths.std() > 0.5


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", ["softmax", "hyperbolic"])
def test_many_features_approximate_scaled_dot(kernel: str, causal: bool) -> None:
    q, k, v = torch.randn(3, 1, 1, 9, 4, generator=torch.Generator().manual_seed(2)).double()
    y = build(features=20000, kernel=kernel)(q / 2, k / 2, v, packed(9, causal)).y
    assert (y - F.scaled_dot_product_attention(q / 2, k / 2, v, is_causal=causal)).abs().max() < 0.05


def test_long_keys_do_not_vanish() -> None:
    """With |k|^2 / 2 outside of the maximum, long keys fell below epsilon and got equal weights."""
    k = torch.tensor([[60.0, 0, 0, 0], [0, 60, 0, 0]])[None, None]
    maps = build(features=64).float().weights(k * 0.01, k, k, packed(2, causal=False))
    torch.testing.assert_close(maps.sum(-1), torch.ones(1, 1, 2))
    assert (maps - 0.5).abs().max() > 0.1


def test_directions_change_at_every_nth_training_call_only() -> None:
    mechanism = build(redraw_every=3)
    x = torch.randn(1, 1, 5, 4).double()
    projections = []
    for _ in range(6):
        mechanism(x, x, x, packed(5))
        projections.append(mechanism.projection.clone())
    changes = [not torch.equal(a, b) for a, b in zip(projections, projections[1:], strict=False)]
    assert changes == [False, True, False, False, True]
    mechanism.eval()
    first, *later = (mechanism(x, x, x, packed(5)).y for _ in range(6))
    assert all(torch.equal(y, first) for y in later)
    mechanism.train()
    mechanism.weights(x, x, x, packed(5))
    assert int(mechanism.calls) == 6


def test_resumed_training_draws_the_same_directions() -> None:
    mechanism = build(redraw_every=4)
    x, mask = torch.randn(1, 1, 5, 4).double(), packed(5)
    for _ in range(6):
        mechanism(x, x, x, mask)
    torch.manual_seed(99)
    resumed = Performer(Shape(1, 4, 64), redraw_every=4).double()
    resumed(x, x, x, mask)
    resumed.load_state_dict(mechanism.state_dict())
    for _ in range(7):
        torch.rand(3)  # the global generator has no effect
        torch.testing.assert_close(resumed(x, x, x, mask).y, mechanism(x, x, x, mask).y, rtol=0, atol=0)
    assert torch.equal(copy.deepcopy(mechanism).projection, resumed.projection)


def test_new_directions_do_not_change_the_gradient_of_an_earlier_pass() -> None:
    mechanism, mask = build(redraw_every=2), packed(40)
    x = torch.randn(1, 1, 40, 4).double().requires_grad_()
    (expected,) = torch.autograd.grad(mechanism(x, x, x, mask).y.sum(), x)
    mechanism.calls.zero_()
    y = mechanism(x, x, x, mask).y
    mechanism(x, x, x, mask)  # the second call draws again
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_features_and_buffers_follow_the_options() -> None:
    assert build(64).projection.shape == (266, 64)
    assert build(1).projection.shape == (1, 1)
    assert build(features=5).projection.shape == (5, 4)
    assert build(kernel="relu").projection is None
    assert not list(build(features=5).parameters())
    assert set(build(features=5).state_dict()) == {"projection", "seed", "calls"}
    layer = MultiHead.build("performer", 8, 2, 10, features=6, kernel="hyperbolic")
    assert layer(torch.randn(1, 3, 8), packed(3)).state[0].shape == (1, 2, 12, 5)
