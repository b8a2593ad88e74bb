"""Long texts in blocks of queries: answers and gradients are those of all scores at once."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask, Scored, scored
from attnkit.layers import MultiHead
from attnkit.layers.positions import Relative
from attnkit.ops.parameters import computing_with, parameters_of

WIDTH, HEADS = 16, 4
NEEDED = {"mixture": {"parts": ("dot", "gaussian")}}
WORDS = [word for word in mechanisms.names() if issubclass(mechanisms.load(word), Scored)]


def masks(length: int, cross: bool, causal: bool) -> list[Mask]:
    """No pads; pads behind, before and between the tokens of two rows."""
    valid = torch.ones(2, length, dtype=torch.bool)
    behind, before, between = valid.clone(), valid.clone(), valid.clone()
    behind[0, length - length // 3 :] = before[0, : length // 3] = between[0, 1::3] = False
    if cross:
        return [Mask.cross(one, length + 3) for one in (valid, behind, between)]
    packed = Mask.packed(length, valid.device, causal=causal)
    each = [Mask.of(one, length, causal=causal) for one in (valid, behind, before, between)]
    return [packed, *each, *([] if causal else [Mask.right(behind)])]


def answered(made: MultiHead, x: Tensor, memory: Tensor | None, mask: Mask) -> list[Tensor]:
    """The answers, and gradients of the input and of all parameters."""
    y = made(x, mask, memory).y
    real = mask.valid[:, :, None] if memory is None else torch.ones(())
    total = (y * real).sin().sum()
    given = [x, *made.parameters()]
    grads = torch.autograd.grad(total, given, allow_unused=True)
    return [y * real, *(one for one in grads if one is not None)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("length", [2, 7, 40])
@pytest.mark.parametrize("role", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("word", WORDS)
def test_blocks_give_what_all_scores_at_once_give(
    word: str, role: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not getattr(mechanisms.facts(word), {"decoder": "causal"}.get(role, role)):
        pytest.skip(f"{word} has no such role")
    torch.manual_seed(3)
    options = NEEDED.get(word, {}) | {"logit_cap": 4.0}  # which keeps from fused kernels
    made = MultiHead.build(word, WIDTH, HEADS, 40, role == "cross", causal=role == "decoder", **options).double()
    for parameter in made.parameters():
        parameter.data.mul_(3)
    assert isinstance(made.mechanism, Scored)
    for mask in masks(length, role == "cross", role == "decoder"):
        x = torch.randn(2, mask.q_pos.shape[1], WIDTH, dtype=torch.float64, requires_grad=True)
        memory = torch.randn(2, length, WIDTH, dtype=torch.float64) if role == "cross" else None
        monkeypatch.setattr(scored, "LONG", 2**60)
        plain = answered(made, x, memory, mask)
        monkeypatch.setattr(scored, "LONG", 0)
        monkeypatch.setattr(scored, "BLOCK", 3 * HEADS * length)
        with patch.object(Scored, "_block_weights", autospec=True, side_effect=Scored._block_weights) as block:
            found = answered(made, x, memory, mask)
        # path has an answer of its own
        assert block.called == (made.mechanism.query_blocks and word != "path")
        torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_a_learned_bias_is_cut_with_the_queries_also_where_heads_share_keys(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    made = MultiHead.build("scaled-dot", WIDTH, HEADS, 40, causal=causal, key_heads=2).double()
    x, table = torch.randn(2, 31, WIDTH).double(), Relative(HEADS, causal, 8).double()
    for mask in masks(31, False, causal):
        found = []
        monkeypatch.setattr(scored, "BLOCK", 3 * HEADS * 31)
        for long in (2**60, 0):
            monkeypatch.setattr(scored, "LONG", long)
            with patch.object(Scored, "_block_weights", autospec=True, side_effect=Scored._block_weights) as block:
                y = made(x, mask, bias=table(mask, x.dtype)).y * mask.valid[:, :, None]
            assert block.called == (long == 0)
            learned = [*made.parameters(), *table.parameters()]
            found.append([y, *torch.autograd.grad(y.sin().sum(), learned)])
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_of_a_block_is_that_of_the_noise_that_it_drew(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are linear in the values, so values times their gradient is the answer."""
    monkeypatch.setattr(scored, "LONG", 0)
    monkeypatch.setattr(scored, "BLOCK", 3 * HEADS * 31)
    made = MultiHead.build("sigmoid", WIDTH, HEADS, 40, causal=causal, attention_dropout=0.5)
    mechanism = made.double().mechanism
    q, k, v = (torch.randn(2, HEADS, 31, WIDTH // HEADS).double().requires_grad_() for _ in "qkv")
    mask = Mask.packed(31, q.device, causal=causal)
    y = mechanism(q, k, v, mask).y
    torch.rand(1)
    state = torch.get_rng_state()
    (found,) = torch.autograd.grad(y.sum(), [v])
    torch.testing.assert_close((found * v).sum(), y.sum())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("word", WORDS)
def test_blocks_are_made_again_with_the_parameters_of_their_answer(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16-bit training parameters are copies, which modules have only while they answer."""
    torch.manual_seed(3)
    made = MultiHead.build(word, WIDTH, HEADS, 40, **NEEDED.get(word, {})).double()
    x, found = torch.randn(2, 31, WIDTH).double(), []
    monkeypatch.setattr(scored, "BLOCK", 3 * HEADS * 31)
    for long in (2**60, 0):
        monkeypatch.setattr(scored, "LONG", long)
        own = parameters_of(made)
        with computing_with([one._replace(tensor=3 * one.tensor) for one in own]):
            y = made(x, Mask.packed(31, x.device, causal=made.mechanism.causal)).y
        assert parameters_of(made) == own
        found.append([y, *torch.autograd.grad(y.sin().sum(), [*made.parameters()])])
    torch.testing.assert_close(*found)


def test_the_gradient_of_a_block_is_computed_in_the_type_of_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    monkeypatch.setattr(scored, "BLOCK", 3 * HEADS * 31)
    made, x = MultiHead.build("entmax", WIDTH, HEADS, 40, causal=True), torch.randn(2, 31, WIDTH)
    plain, found, on = Scored._block_weights, [], []

    def watched(*given: Any) -> Tensor:
        on.append(torch.is_autocast_enabled("cpu"))
        return plain(*given)

    monkeypatch.setattr(Scored, "_block_weights", watched)
    for long in (2**60, 0):
        monkeypatch.setattr(scored, "LONG", long)
        with torch.autocast("cpu", torch.bfloat16):
            y = made(x, Mask.packed(31, x.device, causal=True)).y
        # no biases: that of keys has no gradient but rounding
        weights = [one for one in made.parameters() if one.dim() == 2]
        found.append([y.detach(), *torch.autograd.grad(y.float().sum(), weights)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * one.abs().max().item())
    assert len(on) == 2 * 11
    assert all(on)
