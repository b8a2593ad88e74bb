"""The fused loss against torch's own composition."""

import pytest
import torch
from torch.nn import functional as F

from attnkit.train import loss


def problem(rows: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 12, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(size, 12, generator=generator, dtype=torch.float64).requires_grad_()
    return hidden, weight, torch.randint(0, size, (rows,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 40, 10**6])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_loss_and_gradients_equal_the_plain_composition(
    rows: int, smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "CHUNK", chunk)
    hidden, weight, targets = problem(rows, 9)
    fused = loss.cross_entropy(hidden, weight, targets, smoothing)
    logits = hidden @ weight.t()
    plain = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(fused.total, plain)
    torch.testing.assert_close(fused.nll, F.cross_entropy(logits, targets, reduction="sum"))
    scale = 0.37
    ours = torch.autograd.grad(fused.total * scale, (hidden, weight))
    theirs = torch.autograd.grad(plain * scale, (hidden, weight))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)


def test_half_precision_gradients_stay_close_and_finite() -> None:
    hidden, weight, targets = problem(64, 50)
    exact = torch.autograd.grad(loss.cross_entropy(hidden, weight, targets, 0.1).total, weight)[0]
    low = [x.detach().bfloat16().requires_grad_() for x in (hidden, weight)]
    rough = torch.autograd.grad(loss.cross_entropy(*low, targets, 0.1).total, low[1])[0]
    assert (rough - exact).norm() < 0.02 * exact.norm()


def test_no_gradient_is_formed_when_none_is_wanted() -> None:
    hidden, weight, targets = problem(3, 5)
    with torch.no_grad():
        losses = loss.cross_entropy(hidden, weight, targets)
    assert not losses.total.requires_grad


def test_a_second_derivative_is_refused() -> None:
    hidden, weight, targets = problem(3, 5)
    total = loss.cross_entropy(hidden, weight, targets).total
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(total, [hidden], create_graph=True)
