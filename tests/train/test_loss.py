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
    monkeypatch.setattr(loss, "LEAST_TOKENS", 0)
    hidden, weight, targets = problem(rows, 9)
    fused = loss.token_losses(hidden, weight, targets, smoothing)
    logits = hidden @ weight.t()
    plain = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(fused.total, plain)
    torch.testing.assert_close(fused.nll, F.cross_entropy(logits, targets, reduction="sum"))
    scale = 0.37
    ours = torch.autograd.grad(fused.total * scale, (hidden, weight))
    theirs = torch.autograd.grad(plain * scale, (hidden, weight))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize(("chunk", "least", "products"), [(1, 0, 64), (1, 2, 3), (10**6, 2, 1)])
def test_a_chunk_has_at_least_a_multiple_of_the_width(
    chunk: int, least: int, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, product = [], loss.product
    monkeypatch.setattr(loss, "product", lambda *given: made.append(0) or product(*given))
    monkeypatch.setattr(loss, "CHUNK", chunk)
    monkeypatch.setattr(loss, "LEAST_TOKENS", least)
    loss.token_losses(*(part.detach() for part in problem(64, 9)))
    assert len(made) == products


@pytest.mark.parametrize("types", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_hidden_states_and_weights_may_have_different_types(types: tuple[str, str]) -> None:
    hidden, weight, targets = problem(64, 50)
    exact = torch.autograd.grad(
        loss.token_losses(hidden, weight, targets, 0.1).total, [hidden, weight]
    )
    mixed = [
        x.detach().to(getattr(torch, name)).requires_grad_()
        for x, name in zip((hidden, weight), types, strict=True)
    ]
    try:
        total = loss.token_losses(*mixed, targets, 0.1).total
        found = torch.autograd.grad(total, mixed)
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        pytest.skip("oneDNN has no products of bfloat16 on this processor")
    for rough, fine, own in zip(found, exact, mixed, strict=True):
        assert rough.dtype == own.dtype
        assert (rough - fine).norm() < 0.02 * fine.norm()


def test_half_precision_gradients_stay_close_and_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK", 1000)
    monkeypatch.setattr(loss, "LEAST_TOKENS", 0)
    hidden, weight, targets = problem(64, 50)
    exact = torch.autograd.grad(loss.token_losses(hidden, weight, targets, 0.1).total, weight)[0]
    low = [x.detach().bfloat16().requires_grad_() for x in (hidden, weight)]
    rough = torch.autograd.grad(loss.token_losses(*low, targets, 0.1).total, low[1])[0]
    assert (rough - exact).norm() < 0.02 * exact.norm()


def test_no_gradient_is_formed_when_none_is_wanted() -> None:
    hidden, weight, targets = problem(3, 5)
    with torch.no_grad():
        losses = loss.token_losses(hidden, weight, targets)
    assert not losses.total.requires_grad


def test_a_second_derivative_is_refused() -> None:
    hidden, weight, targets = problem(3, 5)
    total = loss.token_losses(hidden, weight, targets).total
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(total, [hidden], create_graph=True)
