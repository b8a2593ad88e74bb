"""The softmax with filled rows against the plain one, values and gradients."""

import pytest
import torch
from torch import Tensor

from attnkit.attention import visible_softmax
from attnkit.ops import fast_cpu, masked_softmax

MASKS = {
    "all": lambda t, s: None,
    "causal": lambda t, s: torch.ones(1, 1, t, s, dtype=torch.bool).tril(s - t),
    "pads": lambda t, s: (torch.arange(s) < torch.tensor([[s], [1]]))[:, None, None].expand(
        -1, -1, t, -1
    ),
    "blind": lambda t, s: torch.rand(2, 1, t, s) > 0.7,
    "nothing": lambda t, s: torch.zeros(2, 1, t, s, dtype=torch.bool),
}


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are few scores."""
    monkeypatch.setattr(masked_softmax, "LEAST_SCORES", 0)


def both(
    scores: Tensor, allowed: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Tensor, Tensor]]:
    """Weights and gradient of the scores, by the fast form and by the plain one."""
    answers = []
    shape = scores.shape if allowed is None else torch.broadcast_shapes(scores.shape, allowed.shape)
    direction = torch.randn(shape).to(scores.dtype)
    for plain in (False, True):
        monkeypatch.setattr(fast_cpu, "PLAIN", plain)
        given = scores.clone().requires_grad_()
        weights = visible_softmax(given, allowed)
        name = type(weights.grad_fn).__name__
        assert plain or name == "_MaskedSoftmaxBackward" or name == "SoftmaxBackward0"
        weights.backward(direction)
        assert given.grad is not None
        answers.append((weights.detach(), given.grad))
    return answers


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("keys", [1, 7, 16, 23, 64])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=str)
def test_weights_and_gradients_are_those_of_the_plain_form(
    mask: str, keys: int, rows: int, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    queries = max(1, keys - 2)
    scores = torch.randn(rows, 3, queries, keys, dtype=kind) * 4  # one matrix may serve all rows
    allowed = MASKS[mask](queries, keys)
    (y, gradient), (y_plain, gradient_plain) = both(scores, allowed, monkeypatch)
    torch.testing.assert_close(y, y_plain)
    torch.testing.assert_close(gradient, gradient_plain)
    assert allowed is None or not y.masked_select(~allowed).any()


def test_scores_of_any_size_give_no_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = torch.finfo(torch.float32).max / 4
    scores = torch.tensor([largest, -largest, 0.0, -largest]).expand(1, 1, 2, -1)
    allowed = torch.tensor([[False, True, False, True], [True, True, True, True]])[None, None]
    (y, gradient), (y_plain, _) = both(scores, allowed, monkeypatch)
    assert torch.equal(y, y_plain)
    assert gradient.isfinite().all()


def test_bfloat16_rounds_as_the_plain_form_does(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    scores = torch.randn(2, 4, 9, 21).bfloat16()
    allowed = MASKS["pads"](9, 21)
    (y, gradient), (y_plain, gradient_plain) = both(scores, allowed, monkeypatch)
    assert torch.equal(y, y_plain)
    torch.testing.assert_close(gradient, gradient_plain, atol=2e-3, rtol=2e-2)


def test_whole_vectors_without_a_mask_go_to_torch() -> None:
    assert not masked_softmax.worthwhile(torch.zeros(1, 1, 8, 32), None)
    assert masked_softmax.worthwhile(torch.zeros(1, 1, 8, 33), None)


def test_a_second_derivative_is_refused() -> None:
    scores = torch.randn(1, 1, 2, 3, requires_grad=True)
    first = torch.autograd.grad(visible_softmax(scores, None).square().sum(), scores,
                                create_graph=False, retain_graph=True)  # fmt: skip
    assert first[0].shape == scores.shape
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(visible_softmax(scores, None).square().sum(), scores, create_graph=True)
