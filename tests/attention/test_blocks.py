"""Tests of long texts in blocks of queries: outputs and gradients equal those of all scores at once."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from helpers.tensors import assert_same_for_each, packed, sequences, trainable, valid_tokens, with_gradients
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask, Scored, scored
from attnkit.layers import MultiHead
from attnkit.layers.positions import Relative
from attnkit.ops.parameters import computing_with, parameters_of

WIDTH, HEADS = 16, 4
NEEDED = {"mixture": {"parts": ("dot", "gaussian")}}
WORDS = [word for word in mechanisms.names() if issubclass(mechanisms.load(word), Scored)]
LONG = (2**60, 0)
"""Lengths from which sequences are computed in blocks: never and always."""


def masks(length: int, cross: bool, causal: bool) -> list[Mask]:
    """Return masks of two rows without padding, and with padding behind, before and between the tokens."""
    pads = (slice(0), slice(length - length // 3, None), slice(length // 3), slice(1, None, 3))
    valid, behind, before, between = (valid_tokens(length, each, slice(0)) for each in pads)
    if cross:
        return [Mask.cross(keys, length + 3) for keys in (valid, behind, between)]
    each = [Mask.of(tokens, length, causal=causal) for tokens in (valid, behind, before, between)]
    return [packed(length, causal), *each, *([] if causal else [Mask.right(behind)])]


def outputs(layer: MultiHead, x: Tensor, memory: Tensor | None, mask: Mask) -> list[Tensor]:
    """Return the output, and the gradients of the input and of all parameters."""
    real = mask.valid[:, :, None] if memory is None else torch.ones(())
    y = layer(x, mask, memory).y * real
    gradients = torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()], allow_unused=True)
    return [y, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("length", [2, 7, 40])
@pytest.mark.parametrize("role", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("word", WORDS)
def test_blocks_equal_all_scores_at_once(word: str, role: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not getattr(mechanisms.facts(word), {"decoder": "causal"}.get(role, role)):
        pytest.skip(f"{word} has no such role")
    torch.manual_seed(3)
    options = NEEDED.get(word, {}) | {"logit_cap": 4.0}  # no fused kernel supports this
    layer = MultiHead.build(word, WIDTH, HEADS, 40, role == "cross", causal=role == "decoder", **options).double()
    for parameter in layer.parameters():
        parameter.data.mul_(3)
    assert isinstance(layer.mechanism, Scored)
    monkeypatch.setattr(scored, "BLOCK", 3 * HEADS * length)
    for mask in masks(length, role == "cross", role == "decoder"):
        x = torch.randn(2, mask.q_pos.shape[1], WIDTH, dtype=torch.float64, requires_grad=True)
        memory = torch.randn(2, length, WIDTH, dtype=torch.float64) if role == "cross" else None
        monkeypatch.setattr(scored, "LONG", LONG[0])
        expected = outputs(layer, x, memory, mask)
        monkeypatch.setattr(scored, "LONG", LONG[1])
        with patch.object(Scored, "_block_weights", autospec=True, side_effect=Scored._block_weights) as block:
            found = outputs(layer, x, memory, mask)
        # path computes its output in its own way
        assert block.called == (layer.mechanism.query_blocks and word != "path")
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_learned_bias_is_cut_into_blocks_with_shared_keys(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    layer = MultiHead.build("scaled-dot", WIDTH, HEADS, 40, causal=causal, key_heads=2).double()
    x, table = torch.randn(2, 31, WIDTH).double(), Relative(HEADS, causal, 8).double()
    monkeypatch.setattr(scored, "BLOCK", 3 * HEADS * 31)
    for mask in masks(31, False, causal):

        def compute(mask: Mask = mask) -> list[Tensor]:
            with patch.object(Scored, "_block_weights", autospec=True, side_effect=Scored._block_weights) as block:
                y = layer(x, mask, bias=table(mask, x.dtype)).y * mask.valid[:, :, None]
            assert block.called == (scored.LONG == 0)
            return with_gradients(y, [*layer.parameters(), *table.parameters()])

        assert_same_for_each(monkeypatch, scored, "LONG", LONG, compute)


@pytest.mark.parametrize("causal", [False, True])
def test_gradient_of_a_block_uses_the_noise_of_the_forward_pass(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is linear in the values, so values times their gradient is the output."""
    monkeypatch.setattr(scored, "LONG", 0)
    monkeypatch.setattr(scored, "BLOCK", 3 * HEADS * 31)
    layer = MultiHead.build("sigmoid", WIDTH, HEADS, 40, causal=causal, attention_dropout=0.5).double()
    q, k, v = trainable(sequences(31, *[WIDTH // HEADS] * 3, heads=HEADS))
    y = layer.mechanism(q, k, v, packed(31, causal)).y
    torch.rand(1)
    state = torch.get_rng_state()
    (gradient,) = torch.autograd.grad(y.sum(), [v])
    torch.testing.assert_close((gradient * v).sum(), y.sum())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("word", WORDS)
def test_blocks_are_recomputed_with_the_parameters_of_the_forward_pass(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 16-bit training parameters are copies, which modules have only during the forward pass."""
    torch.manual_seed(3)
    layer = MultiHead.build(word, WIDTH, HEADS, 40, **NEEDED.get(word, {})).double()
    x, parameters = torch.randn(2, 31, WIDTH).double(), parameters_of(layer)
    monkeypatch.setattr(scored, "BLOCK", 3 * HEADS * 31)

    def compute() -> list[Tensor]:
        with computing_with([parameter._replace(tensor=3 * parameter.tensor) for parameter in parameters]):
            y = layer(x, packed(31, layer.mechanism.causal)).y
        assert parameters_of(layer) == parameters
        return with_gradients(y, [*layer.parameters()])

    assert_same_for_each(monkeypatch, scored, "LONG", LONG, compute)


def test_gradient_of_a_block_is_computed_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    monkeypatch.setattr(scored, "BLOCK", 3 * HEADS * 31)
    layer, x = MultiHead.build("entmax", WIDTH, HEADS, 40, causal=True), torch.randn(2, 31, WIDTH)
    original, results, autocast = Scored._block_weights, [], []

    def watched(*arguments: Any) -> Tensor:
        autocast.append(torch.is_autocast_enabled("cpu"))
        return original(*arguments)

    monkeypatch.setattr(Scored, "_block_weights", watched)
    for long in LONG:
        monkeypatch.setattr(scored, "LONG", long)
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x, packed(31)).y
        # no biases: that of keys has no gradient but rounding
        weights = [parameter for parameter in layer.parameters() if parameter.dim() == 2]
        results.append([y.detach(), *torch.autograd.grad(y.float().sum(), weights)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())
    assert autocast == [True] * 2 * 11
