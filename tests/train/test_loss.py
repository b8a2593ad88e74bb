"""The fused loss against torch's own composition."""

import pytest
import torch
from torch.nn import functional as F

from attnkit.recipe.schema import TrainConfig
from attnkit.train import loss
from attnkit.train.loss import LossOptions, options_at, tailr_weights


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
    monkeypatch.setattr(loss, "MIN_TOKENS", 0)
    hidden, weight, targets = problem(rows, 9)
    fused = loss.token_losses(hidden, weight, targets, LossOptions(smoothing))
    logits = hidden @ weight.t()
    plain = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(fused.total, plain)
    torch.testing.assert_close(fused.nll, F.cross_entropy(logits, targets, reduction="sum"))
    scale = 0.37
    ours = torch.autograd.grad(fused.total * scale, (hidden, weight))
    theirs = torch.autograd.grad(plain * scale, (hidden, weight))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("chunk", "least", "products"), [(1, 0, 64), (1, 2, 3), (10**6, 2, 1)])
def test_a_chunk_has_at_least_a_multiple_of_the_width(
    chunk: int, least: int, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, product = [], loss.product
    monkeypatch.setattr(loss, "product", lambda *given: made.append(0) or product(*given))
    monkeypatch.setattr(loss, "CHUNK", chunk)
    monkeypatch.setattr(loss, "MIN_TOKENS", least)
    loss.token_losses(*(part.detach() for part in problem(64, 9)))
    assert len(made) == products


@pytest.mark.parametrize("types", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_hidden_states_and_weights_may_have_different_types(types: tuple[str, str]) -> None:
    hidden, weight, targets = problem(64, 50)
    exact = torch.autograd.grad(loss.token_losses(hidden, weight, targets, LossOptions(0.1)).total, [hidden, weight])
    mixed = [
        x.detach().to(getattr(torch, name)).requires_grad_() for x, name in zip((hidden, weight), types, strict=True)
    ]
    try:
        total = loss.token_losses(*mixed, targets, LossOptions(0.1)).total
        found = torch.autograd.grad(total, mixed)
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        pytest.skip("oneDNN has no products of bfloat16 on this processor")
    for rough, fine, own in zip(found, exact, mixed, strict=True):
        assert rough.dtype == own.dtype
        assert (rough - fine).norm() < 0.02 * fine.norm()


def test_no_gradient_is_formed_when_none_is_wanted() -> None:
    hidden, weight, targets = problem(3, 5)
    with torch.no_grad():
        losses = loss.token_losses(hidden, weight, targets)
    assert not losses.total.requires_grad


def test_a_second_derivative_is_refused() -> None:
    hidden, weight, targets = problem(3, 5)
    total = loss.token_losses(hidden, weight, targets).total
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(total, [hidden], create_graph=True)


# TaiLr


def detached(log_p: torch.Tensor, gamma: float, floor: float) -> torch.Tensor:
    """The loss as the paper writes it, out of log space."""
    p = log_p.exp()
    weights = (p / (gamma + (1 - gamma) * p)).clamp(floor, 1).detach()
    return -(weights * log_p).sum()


def closed(log_p: torch.Tensor, gamma: float) -> torch.Tensor:
    """The form without a constant weight, which a floor of 0 allows."""
    if gamma == 1:
        return -log_p.exp().sum()
    return -(gamma + (1 - gamma) * log_p.exp()).log().sum() / (1 - gamma)


@pytest.mark.parametrize("chunk", [1, 40, 10**6])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("floor", [0.0, 0.3])
@pytest.mark.parametrize("gamma", [1e-7, 0.1, 0.8, 1.0])
def test_tailr_and_its_gradients_equal_the_plain_composition(
    gamma: float, floor: float, smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "CHUNK", chunk)
    monkeypatch.setattr(loss, "MIN_TOKENS", 0)
    hidden, weight, targets = problem(17, 9)
    fused = loss.token_losses(hidden, weight, targets, LossOptions(smoothing, gamma, floor))
    logs = (hidden @ weight.t()).log_softmax(-1)
    plain = (1 - smoothing) * detached(logs.gather(1, targets[:, None]), gamma, floor)
    plain = plain - smoothing / 9 * logs.sum()
    torch.testing.assert_close(fused.total, plain)
    torch.testing.assert_close(fused.nll, F.nll_loss(logs, targets, reduction="sum"))
    ours = torch.autograd.grad(fused.total, (hidden, weight))
    theirs = torch.autograd.grad(plain, (hidden, weight))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.8, 1 - 1e-6, 1.0])
def test_both_forms_of_tailr_have_one_gradient(gamma: float) -> None:
    hidden, weight, targets = problem(17, 9)
    total = loss.token_losses(hidden, weight, targets, LossOptions(gamma=gamma)).total
    log_p = (hidden @ weight.t()).log_softmax(-1).gather(1, targets[:, None])
    ours = torch.autograd.grad(total, (hidden, weight))
    theirs = torch.autograd.grad(closed(log_p, gamma), (hidden, weight))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_tailr_of_one_token_by_hand() -> None:
    """p = 0.2 and gamma = 0.1: w = 0.2 / 0.28, and dL/dz of the target is -w (1 - p)."""
    logits = torch.tensor([[0.2, 0.8]], dtype=torch.float64).log().requires_grad_()
    target, options = torch.tensor([0]), LossOptions(gamma=0.1)
    total = loss.token_losses(logits, torch.eye(2, dtype=torch.float64), target, options).total
    assert total.item() == pytest.approx(1.149599, abs=1e-6)
    assert closed(logits[0, :1], 0.1).item() == pytest.approx(1.414406, abs=1e-6)
    (gradient,) = torch.autograd.grad(total, logits)
    assert gradient[0, 0].item() == pytest.approx(-0.571429, abs=1e-6)


def test_a_token_of_no_probability_keeps_a_finite_weight() -> None:
    log_p = torch.tensor([-2000.0, -100.0, 0.0])
    assert tailr_weights(log_p, 0.1).tolist() == pytest.approx([0, 10 * 3.7e-44, 1], abs=1e-44)
    assert tailr_weights(log_p, 1e-7, 0.2).tolist() == pytest.approx([0.2, 0.2, 1])


def test_gamma_grows_over_the_annealing() -> None:
    train = TrainConfig.model_validate({"loss": "tailr", "tailr": {"gamma": 0.8, "anneal": 4}})
    assert [options_at(step, train).gamma for step in (1, 2, 4, 9)] == [0.2, 0.4, 0.8, 0.8]
    assert options_at(1, TrainConfig(tailr=train.tailr)).gamma == 0
