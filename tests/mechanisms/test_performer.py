"""Performer: random features, their redraw, and their range."""

import copy

import pytest
import torch

from attnkit.attention import Mask, Shape
from attnkit.layers import MultiHead
from attnkit.mechanisms.performer import Performer, directions

X = torch.tensor([0.5, 0.0], dtype=torch.float64)


def build(width: int = 4, **options: object) -> Performer:
    torch.manual_seed(1)
    return Performer(Shape(1, width, 64), **options).double()


def estimates(seed: int, features: int, *, hyperbolic: bool = False) -> torch.Tensor:
    """One estimate of e^(x x) = e^.25 from each of many draws."""
    drawn = torch.stack([directions(features, 2, seed + n) for n in range(3000)]).double() @ X
    signs = (1, -1) if hyperbolic else (1,)
    pairs = sum((2 * sign * drawn - X.square().sum()).exp() for sign in signs) / len(signs)
    return pairs.mean(-1)


def test_the_mean_of_the_kernel_is_the_exponential() -> None:
    # the standard error of the mean is .02: sqrt(2.83 / 6000)
    for hyperbolic in (False, True):
        assert abs(estimates(7, 2, hyperbolic=hyperbolic).mean().item() - 1.284025) < 0.06


def test_orthogonal_directions_have_the_smaller_error() -> None:
    orthogonal = (estimates(7, 2) - 1.284025).square().mean()
    generator = torch.Generator().manual_seed(3)
    alike = torch.randn(3000, 2, 2, generator=generator, dtype=torch.float64) @ X
    independent = ((2 * alike - 0.25).exp().mean(-1) - 1.284025).square().mean()
    assert orthogonal < independent


def test_directions_favour_no_sign() -> None:
    """The first coordinate of what QR gives was never positive, which biased the kernel."""
    firsts = torch.stack([directions(3, 3, seed)[:, 0] for seed in range(400)])
    assert 0.45 < (firsts > 0).double().mean() < 0.55
    assert (firsts > 0).double().mean(0).sub(0.5).abs().max() < 0.1


def test_directions_are_orthogonal_in_blocks_with_lengths_of_their_own() -> None:
    drawn = directions(11, 4, 5)
    for start in (0, 4, 8):
        block = torch.nn.functional.normalize(drawn[start : start + 4], dim=-1)
        torch.testing.assert_close(block @ block.T, torch.eye(len(block)), atol=1e-5, rtol=0)
    lengths = directions(4000, 4, 5).norm(dim=1)
    assert abs(lengths.square().mean().item() - 4) < 0.2
    assert lengths.std() > 0.5


@pytest.mark.parametrize("kernel", ["softmax", "hyperbolic"])
def test_many_features_approximate_scaled_dot(kernel: str) -> None:
    made = build(features=20000, kernel=kernel)
    q, k, v = torch.randn(3, 1, 1, 9, 4, generator=torch.Generator().manual_seed(2)).double()
    for causal in (True, False):
        y = made(q / 2, k / 2, v, Mask.packed(9, q.device, causal=causal)).y
        wanted = torch.nn.functional.scaled_dot_product_attention(q / 2, k / 2, v, is_causal=causal)
        assert (y - wanted).abs().max() < 0.05


def test_long_keys_do_not_vanish() -> None:
    """With |k|^2 / 2 outside of the maximum, long keys fell below epsilon and all weighed alike."""
    made = build(features=64).float()
    k = torch.tensor([[60.0, 0, 0, 0], [0, 60, 0, 0]])[None, None]
    maps = made.weights(k * 0.01, k, k, Mask.packed(2, k.device, causal=False))
    assert maps.isfinite().all()
    torch.testing.assert_close(maps.sum(-1), torch.ones(1, 1, 2))
    assert (maps - 0.5).abs().max() > 0.1


def test_directions_change_at_every_nth_training_call_only() -> None:
    made = build(redraw_every=3)
    x, mask = torch.randn(1, 1, 5, 4).double(), Mask.packed(5, torch.device("cpu"), causal=True)
    seen = []
    for _ in range(6):
        made(x, x, x, mask)
        seen.append(made.projection.clone())
    changes = [not torch.equal(a, b) for a, b in zip(seen, seen[1:], strict=False)]
    assert changes == [False, True, False, False, True]
    made.eval()
    first = made(x, x, x, mask).y
    for _ in range(4):
        made(x, x, x, mask)
    torch.testing.assert_close(made(x, x, x, mask).y, first, rtol=0, atol=0)
    made.train()
    made.weights(x, x, x, mask)
    assert int(made.calls) == 6


def test_a_resumed_training_meets_the_same_directions() -> None:
    made = build(redraw_every=4)
    x, mask = torch.randn(1, 1, 5, 4).double(), Mask.packed(5, torch.device("cpu"), causal=True)
    for _ in range(6):
        made(x, x, x, mask)
    torch.manual_seed(99)
    other = Performer(Shape(1, 4, 64), redraw_every=4).double()
    other(x, x, x, mask)
    other.load_state_dict(made.state_dict())
    for _ in range(7):
        torch.rand(3)  # the global generator has no say
        torch.testing.assert_close(other(x, x, x, mask).y, made(x, x, x, mask).y, rtol=0, atol=0)
    assert torch.equal(copy.deepcopy(made).projection, other.projection)


def test_a_redraw_between_a_pass_and_its_gradient_does_not_disturb_it() -> None:
    made = build(redraw_every=2)
    mask = Mask.packed(40, torch.device("cpu"), causal=True)
    x = torch.randn(1, 1, 40, 4).double().requires_grad_()
    (wanted,) = torch.autograd.grad(made(x, x, x, mask).y.sum(), x)  # the first call
    made.calls.zero_()
    y = made(x, x, x, mask).y
    made(x, x, x, mask)  # the second call draws anew
    (found,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(found, wanted)


def test_features_and_buffers_follow_the_options() -> None:
    assert build(64).projection.shape == (266, 64)
    assert build(1).projection.shape == (1, 1)
    assert build(features=5).projection.shape == (5, 4)
    assert build(kernel="relu").projection is None
    made = build(features=5)
    assert not list(made.parameters())
    assert set(made.state_dict()) == {"projection", "seed", "calls"}
    layer = MultiHead.build("performer", 8, 2, 10, features=6, kernel="hyperbolic")
    x = torch.randn(1, 3, 8)
    assert layer(x, Mask.packed(3, x.device, causal=True)).state[0].shape == (1, 2, 12, 5)
