"""Tests of the fused loss against torch's own functions and values computed by hand."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit.recipe.schema import TrainConfig
from attnkit.train import loss
from attnkit.train.loss import LossOptions, options_at, tailr_weights


def inputs(rows: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, weights of the projection and targets."""
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 12, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(size, 12, generator=generator, dtype=torch.float64).requires_grad_()
    return hidden, weight, torch.randint(0, size, (rows,), generator=generator)


def reference(hidden: Tensor, weight: Tensor, targets: Tensor, options: LossOptions) -> tuple[Tensor, Tensor]:
    """Return the loss and the cross-entropy as plain compositions, TaiLr as its paper writes it."""
    smoothing, gamma, floor = options
    logits = hidden @ weight.t()
    nll = F.cross_entropy(logits, targets, reduction="sum")
    if gamma == 0:
        return F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum"), nll
    log_p = logits.log_softmax(-1)
    target_log_p = log_p.gather(1, targets[:, None])
    p = target_log_p.exp()
    weights = (p / (gamma + (1 - gamma) * p)).clamp(floor, 1).detach()
    return -(1 - smoothing) * (weights * target_log_p).sum() - smoothing / len(weight) * log_p.sum(), nll


@pytest.mark.parametrize("chunk", [1, 40, 10**6])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("rows", "gamma", "floor"),
    [
        *((rows, 0.0, 0.0) for rows in (1, 2, 17)),
        *((17, gamma, floor) for gamma in (1e-7, 0.1, 0.8, 1.0) for floor in (0.0, 0.3)),
    ],
)
def test_loss_and_gradients_equal_the_plain_composition(
    rows: int, gamma: float, floor: float, smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "CHUNK", chunk)
    monkeypatch.setattr(loss, "MIN_TOKENS", 0)
    hidden, weight, targets = inputs(rows, 9)
    options = LossOptions(smoothing, gamma, floor)
    fused = loss.token_losses(hidden, weight, targets, options)
    total, nll = reference(hidden, weight, targets, options)
    torch.testing.assert_close(fused.total, total)
    torch.testing.assert_close(fused.nll, nll)
    gradients = [torch.autograd.grad(value * 0.37, (hidden, weight)) for value in (fused.total, total)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("chunk", "minimum", "products"), [(1, 0, 64), (1, 2, 3), (10**6, 2, 1)])
def test_chunk_has_at_least_a_multiple_of_the_width(
    chunk: int, minimum: int, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, product = [], loss.product
    monkeypatch.setattr(loss, "product", lambda *matrices: calls.append(0) or product(*matrices))
    monkeypatch.setattr(loss, "CHUNK", chunk)
    monkeypatch.setattr(loss, "MIN_TOKENS", minimum)
    loss.token_losses(*(tensor.detach() for tensor in inputs(64, 9)))
    assert len(calls) == products


@pytest.mark.parametrize("types", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_hidden_states_and_weights_may_have_different_types(types: tuple[str, str]) -> None:
    hidden, weight, targets = inputs(64, 50)
    exact = torch.autograd.grad(loss.token_losses(hidden, weight, targets, LossOptions(0.1)).total, [hidden, weight])
    mixed = [
        x.detach().to(getattr(torch, name)).requires_grad_() for x, name in zip((hidden, weight), types, strict=True)
    ]
    try:
        gradients = torch.autograd.grad(loss.token_losses(*mixed, targets, LossOptions(0.1)).total, mixed)
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        pytest.skip("oneDNN has no products of bfloat16 on this processor")
    for gradient, expected, tensor in zip(gradients, exact, mixed, strict=True):
        assert gradient.dtype == tensor.dtype
        assert (gradient - expected).norm() < 0.02 * expected.norm()


def test_no_grad_computes_no_gradient() -> None:
    with torch.no_grad():
        losses = loss.token_losses(*inputs(3, 5))
    assert not losses.total.requires_grad


def test_second_derivative_raises() -> None:
    hidden, weight, targets = inputs(3, 5)
    total = loss.token_losses(hidden, weight, targets).total
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(total, [hidden], create_graph=True)


def closed_form(log_p: Tensor, gamma: float) -> Tensor:
    """Return the TaiLr loss without a constant weight, which has the same gradient if the floor is 0."""
    if gamma == 1:
        return -log_p.exp().sum()
    return -(gamma + (1 - gamma) * log_p.exp()).log().sum() / (1 - gamma)


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.8, 1 - 1e-6, 1.0])
def test_tailr_has_the_gradient_of_its_closed_form(gamma: float) -> None:
    hidden, weight, targets = inputs(17, 9)
    total = loss.token_losses(hidden, weight, targets, LossOptions(gamma=gamma)).total
    log_p = (hidden @ weight.t()).log_softmax(-1).gather(1, targets[:, None])
    gradients = [torch.autograd.grad(value, (hidden, weight)) for value in (total, closed_form(log_p, gamma))]
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-9)


def test_tailr_of_one_token_by_hand() -> None:
    """p = 0.2 and gamma = 0.1: w = 0.2 / 0.28, and dL/dz of the target is -w (1 - p)."""
    logits = torch.tensor([[0.2, 0.8]], dtype=torch.float64).log().requires_grad_()
    target, options = torch.tensor([0]), LossOptions(gamma=0.1)
    total = loss.token_losses(logits, torch.eye(2, dtype=torch.float64), target, options).total
    assert total.item() == pytest.approx(1.149599, abs=1e-6)
    assert closed_form(logits[0, :1], 0.1).item() == pytest.approx(1.414406, abs=1e-6)
    (gradient,) = torch.autograd.grad(total, logits)
    assert gradient[0, 0].item() == pytest.approx(-0.571429, abs=1e-6)


def test_tailr_weight_of_a_token_without_probability_is_finite() -> None:
    log_p = torch.tensor([-2000.0, -100.0, 0.0])
    assert tailr_weights(log_p, 0.1).tolist() == pytest.approx([0, 10 * 3.7e-44, 1], abs=1e-44)
    assert tailr_weights(log_p, 1e-7, 0.2).tolist() == pytest.approx([0.2, 0.2, 1])


def test_gamma_grows_over_the_annealing() -> None:
    train = TrainConfig.model_validate({"loss": "tailr", "tailr": {"gamma": 0.8, "anneal": 4}})
    assert [options_at(step, train).gamma for step in (1, 2, 4, 9)] == [0.2, 0.4, 0.8, 0.8]
    assert options_at(1, TrainConfig(tailr=train.tailr)).gamma == 0
