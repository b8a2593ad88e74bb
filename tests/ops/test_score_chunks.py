"""Tests of attention in chunks of scores against whole maps."""

from unittest.mock import Mock

import pytest
import torch
from helpers.tensors import packed, valid_tokens
from torch import Tensor

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.ops import score_chunks

WORDS = {"differential": {}, "parallax": {}, "sigmoid": {}, "stick-breaking": {"include_self": True}}
WORDS |= {"selective": {}, "block-topk": {"block": 4, "blocks": 1}}
CAUSAL_ONLY = {"stick-breaking", "selective"}


def outputs(layer: MultiHead, x: Tensor, memory: Tensor | None, mask: Mask, bias: Tensor | None) -> list[Tensor]:
    """Return the output for real queries, and all gradients."""
    y = layer(x, mask, memory=memory, bias=bias).y
    if memory is None:
        y = y * mask.valid[..., None]
    inputs = [tensor for tensor in (x, memory, bias, *layer.parameters()) if tensor is not None]
    total = (y * torch.linspace(0, 1, y.shape[-1])).sin().sum()
    gradients, again = (torch.autograd.grad(total, inputs, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(gradients, again)
    return [y, *gradients]


def assert_chunks_equal_whole_maps(monkeypatch: pytest.MonkeyPatch, *arguments: object, chunked: bool = True) -> None:
    monkeypatch.setattr(score_chunks.ChunkedMix, "apply", apply := Mock(wraps=score_chunks.ChunkedMix.apply))
    results = []
    for least in (1, 10**12):
        monkeypatch.setattr(score_chunks, "MIN_SCORES", least)
        results.append(outputs(*arguments))  # type: ignore[arg-type]
    assert apply.call_count == chunked
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("chunk", [600, 2**18])
@pytest.mark.parametrize("length", [2, 33, 70])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("word", WORDS)
def test_self_attention_in_chunks_equals_whole_maps(
    word: str, causal: bool, padding: str, length: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if word in CAUSAL_ONLY and not causal:
        pytest.skip("causal only")
    monkeypatch.setattr(score_chunks, "CHUNK_SCORES", chunk)
    monkeypatch.setattr(score_chunks, "MIN_QUERIES", 1)
    monkeypatch.setattr(score_chunks, "MAX_KEPT_SCORES", 0 if chunk == 600 else 2**24)
    torch.manual_seed(length)
    heads = {} if word == "differential" else {"key_heads": 2}
    layer = MultiHead.build(word, 24, 4, 100, **WORDS[word], **heads).double()
    x, mask = torch.randn(4, length, 24).double().requires_grad_(), packed(length, causal)
    if padding != "none":
        pads = slice(0, length // 2) if padding == "left" else slice(length - length // 2, None)
        valid = valid_tokens(length, slice(0), pads, slice(None), slice(0))
        mask = Mask.of(valid, length, causal=causal)
    bias = torch.randn(1, 1, length, length).double().requires_grad_() if layer.mechanism.fuses_bias else None
    # two tokens are one block, and blocks of rows padded on the left are not columns
    chunked = word != "block-topk" or (length > 2 and padding != "left")
    assert_chunks_equal_whole_maps(monkeypatch, layer, x, None, mask, bias, chunked=chunked)


@pytest.mark.parametrize("word", [word for word in WORDS if word not in {*CAUSAL_ONLY, "block-topk"}])
def test_cross_attention_in_chunks_equals_whole_maps(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = MultiHead.build(word, 24, 4, 100, cross=True, **WORDS[word]).double()
    x, memory = (torch.randn(3, length, 24).double().requires_grad_() for length in (9, 17))
    mask = Mask.cross(valid_tokens(17, slice(0), slice(5, None), slice(None)), 9)
    assert_chunks_equal_whole_maps(monkeypatch, layer, x, memory, mask, None)


@pytest.mark.parametrize("word", ["sigmoid", "differential", "stick-breaking"])
@pytest.mark.parametrize("unpadded", [True, False])
def test_long_text_never_has_a_whole_map(word: str, unpadded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of which keys are visible."""
    for name, value in (("MIN_SCORES", 1), ("CHUNK_SCORES", 1), ("MAX_KEPT_MASK", 0)):
        monkeypatch.setattr(score_chunks, name, value)
    length, sizes, dense = 600, list[int](), Mask.dense
    monkeypatch.setattr(Mask, "dense", lambda mask: (found := dense(mask), sizes.append(found.numel()))[0])
    valid = valid_tokens(length, slice(500, None), slice(0))
    mask = packed(length) if unpadded else Mask.of(valid, length, causal=True)
    x = torch.randn(2, length, 8, requires_grad=True)
    MultiHead.build(word, 8, 2, length)(x, mask).y.sum().backward()
    assert max(sizes, default=0) <= 256 * length * len(mask.valid)


@pytest.mark.parametrize("word", WORDS)
def test_second_derivative_of_chunks_raises(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_chunks, "MIN_SCORES", 1)
    layer, x = MultiHead.build(word, 8, 2, 9, **WORDS[word]), torch.randn(1, 9, 8, requires_grad=True)
    y = layer(x, packed(9)).y
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.parametrize("word", WORDS)
@torch.no_grad()
def test_float32_agrees_with_float64(word: str) -> None:
    torch.manual_seed(0)
    layer, x, mask = MultiHead.build(word, 64, 4, 200), torch.randn(2, 160, 64), packed(160)
    single = layer(x, mask).y
    torch.testing.assert_close(single.double(), layer.double()(x.double(), mask).y, rtol=0, atol=2e-6)
