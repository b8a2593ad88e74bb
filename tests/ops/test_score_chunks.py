"""Attention in chunks against whole maps."""

import pytest
import torch
from torch import Tensor

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.ops import score_chunks

WORDS = {"differential": {}, "parallax": {}, "sigmoid": {}, "stick-breaking": {"include_self": True}}
WORDS |= {"selective": {}, "block-topk": {"block": 4, "blocks": 1}}
CAUSAL_ONLY = {"stick-breaking", "selective"}


def with_gradients(
    layer: MultiHead, x: Tensor, memory: Tensor | None, mask: Mask, bias: Tensor | None
) -> list[Tensor]:
    """The output for real queries, and all gradients."""
    y = layer(x, mask, memory=memory, bias=bias).y
    if memory is None:
        y = y * mask.valid[..., None]
    given = [part for part in (x, memory, bias) if part is not None]
    total, sources = (y * torch.linspace(0, 1, y.shape[-1])).sin().sum(), [*given, *layer.parameters()]
    first, again = (torch.autograd.grad(total, sources, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, again)
    return [y, *first]


def both_ways(monkeypatch: pytest.MonkeyPatch, *given: object, chunked: bool = True) -> None:
    """In chunks, where they are taken, as without."""
    found, taken = [], []
    apply = score_chunks.ChunkedMix.apply
    monkeypatch.setattr(score_chunks.ChunkedMix, "apply", lambda *each: (taken.append(1), apply(*each))[1])
    for least in (1, 10**12):
        monkeypatch.setattr(score_chunks, "MIN_SCORES", least)
        found.append(with_gradients(*given))  # type: ignore[arg-type]
    assert len(taken) == chunked
    for one, whole in zip(*found, strict=True):
        torch.testing.assert_close(one, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("chunk", [600, 2**18])
@pytest.mark.parametrize("length", [2, 33, 70])
@pytest.mark.parametrize("pads", ["none", "right", "left"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("word", WORDS)
def test_chunks_answer_as_whole_maps(
    word: str, causal: bool, pads: str, length: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if word in CAUSAL_ONLY and not causal:
        pytest.skip("it hides the future")
    monkeypatch.setattr(score_chunks, "CHUNK_SCORES", chunk)
    monkeypatch.setattr(score_chunks, "MIN_QUERIES", 1)
    monkeypatch.setattr(score_chunks, "MAX_KEPT_SCORES", 0 if chunk == 600 else 2**24)
    torch.manual_seed(length)
    heads = {} if word == "differential" else {"key_heads": 2}
    layer = MultiHead.build(word, 24, 4, 100, **WORDS[word], **heads).double()
    x = torch.randn(4, length, 24).double().requires_grad_()
    valid = torch.ones(4, length, dtype=torch.bool)
    if pads == "none":
        mask = Mask.packed(length, x.device, causal=causal)
    else:
        side = slice(0, length // 2) if pads == "left" else slice(length - length // 2, None)
        valid[1, side] = valid[2] = False  # the third row has nothing
        mask = Mask.of(valid, length, causal=causal)
    bias = torch.randn(1, 1, length, length).double().requires_grad_() if layer.mechanism.fuses_bias else None
    # two tokens are one block, and blocks of rows padded on the left are not columns
    chunked = word != "block-topk" or (length > 2 and pads != "left")
    both_ways(monkeypatch, layer, x, None, mask, bias, chunked=chunked)


@pytest.mark.parametrize("word", [word for word in WORDS if word not in {*CAUSAL_ONLY, "block-topk"}])
def test_chunks_answer_for_another_sequence(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = MultiHead.build(word, 24, 4, 100, cross=True, **WORDS[word]).double()
    x, memory = (torch.randn(3, length, 24).double().requires_grad_() for length in (9, 17))
    valid = torch.ones(3, 17, dtype=torch.bool)
    valid[1, 5:] = valid[2] = False
    both_ways(monkeypatch, layer, x, memory, Mask.cross(valid, 9), None)


@pytest.mark.parametrize("word", ["sigmoid", "differential", "stick-breaking"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_long_text_never_has_a_whole_map(word: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of which keys may be seen."""
    monkeypatch.setattr(score_chunks, "MIN_SCORES", 1)
    monkeypatch.setattr(score_chunks, "CHUNK_SCORES", 1)
    monkeypatch.setattr(score_chunks, "MAX_KEPT_MASK", 0)
    length, sizes, dense = 600, list[int](), Mask.dense
    monkeypatch.setattr(Mask, "dense", lambda mask: (found := dense(mask), sizes.append(found.numel()))[0])
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[0, 500:] = False
    mask = Mask.packed(length, valid.device, causal=True) if packed else Mask.of(valid, length, causal=True)
    x = torch.randn(2, length, 8, requires_grad=True)
    MultiHead.build(word, 8, 2, length)(x, mask).y.sum().backward()
    assert max(sizes, default=0) <= 256 * length * len(mask.valid)


@pytest.mark.parametrize("word", WORDS)
def test_a_second_derivative_through_chunks_is_refused(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_chunks, "MIN_SCORES", 1)
    layer, x = MultiHead.build(word, 8, 2, 9, **WORDS[word]), torch.randn(1, 9, 8, requires_grad=True)
    y = layer(x, Mask.packed(9, x.device, causal=True)).y
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.parametrize("word", WORDS)
def test_float32_agrees_with_float64(word: str) -> None:
    torch.manual_seed(0)
    layer, x = MultiHead.build(word, 64, 4, 200), torch.randn(2, 160, 64)
    mask = Mask.packed(160, x.device, causal=True)
    with torch.no_grad():
        single = layer(x, mask).y
        torch.testing.assert_close(single.double(), layer.double()(x.double(), mask).y, rtol=0, atol=2e-6)
