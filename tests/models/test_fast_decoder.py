"""The fast decoder answers as the plain one in every search."""

from typing import Any

import pytest
import torch

from attnkit.data.tokenizer import BOS, EOS, PAD
from attnkit.models import Transformer, build, fast_decoder
from attnkit.models.fast_decoder import FastDecoder
from attnkit.ops import fast_cpu, onednn
from attnkit.recipe.schema import ModelConfig, SearchConfig
from attnkit.search import search

SIZE = 60


def made(attention: dict[str, Any] | None = None, **changes: Any) -> Transformer:
    """A model whose outputs differ from line to line; `attention` is that of decoder and cross."""
    torch.manual_seed(0)
    options = {"width": 32, "ff": 40, "heads": 4, "layers": {"encoder": 1, "decoder": 2}, **changes}
    roles = dict.fromkeys(("decoder", "cross"), attention or {})
    model = build(ModelConfig.model_validate(options | {"attention": roles}), (SIZE, SIZE), 80)
    assert isinstance(model, Transformer)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights) * 0.2)
    return model.eval()


def sources(count: int) -> torch.Tensor:
    rows = torch.randint(4, SIZE, (count, 19), generator=torch.Generator().manual_seed(1))
    for row, length in enumerate(range(count)):
        rows[row, 18 - length] = EOS
        rows[row, 19 - length :] = PAD
    return rows


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "post", "positions": "learned", "tie": "none"},
        {"positions": "rope", "activation": "swiglu", "bias": False},
        {"attention": {"name": "dot"}, "positions": "none", "width": 8, "heads": 2},
    ],
)
@pytest.mark.parametrize(
    "spec",
    [
        SearchConfig(beam=3, n_best=2, max_length=40),
        SearchConfig(beam=2, max_length=20, no_repeat_ngram=2, length_penalty=0.0),
        SearchConfig(method="greedy", max_length=40),
        SearchConfig(method="sample", n_best=3, max_length=20),
    ],
    ids=lambda spec: spec.method,
)
def test_searches_find_the_same(changes: dict[str, Any], spec: SearchConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = made(**changes), sources(12)
    assert FastDecoder.of(model) is not None
    fast = search(model, source, spec, lines=range(12))
    monkeypatch.setattr(fast_cpu, "PLAIN", True)
    assert FastDecoder.of(model) is None
    plain = search(model, source, spec, lines=range(12))
    assert [[h.ids for h in row] for row in fast] == [[h.ids for h in row] for row in plain]
    for one, other in zip(sum(fast, []), sum(plain, []), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_model_in_bfloat16_is_searched(norm: str) -> None:
    model = made(norm=norm).to(torch.bfloat16)
    found = search(model, sources(3), SearchConfig(beam=2, max_length=6), lines=range(3))
    assert all(row[0].ids for row in found)


@pytest.mark.parametrize("wider", [False, True])
@pytest.mark.parametrize("sentences", [6, 1])
@torch.inference_mode()
def test_steps_of_reordered_and_leaving_rows_are_those_of_the_plain_decoder(
    sentences: int, wider: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also past the room that caches have at first, and with each form of products."""
    for module in (onednn, fast_decoder):
        monkeypatch.setattr(module, "WIDER", wider)
    monkeypatch.setattr(onednn, "MIN_WORK", 5000)
    monkeypatch.setattr(fast_decoder, "MIN_PACKED_WEIGHTS", 1)
    monkeypatch.setattr(fast_decoder, "INITIAL_POSITIONS", 7)
    model, source, random = made(), sources(sentences), torch.Generator().manual_seed(2)
    reader = FastDecoder.of(model)
    assert reader is not None
    fast, plain, ids = reader.start(source), model.start(source), None
    for step in range(40):
        if ids is None:
            ids = torch.full((sentences, 1), BOS)
        else:
            stay = torch.tensor([0, 5, 2]) if step == 20 and sentences == 6 else None
            beams = torch.randint(0, len(ids) // sentences, (sentences, 3), generator=random)
            rows = torch.arange(sentences)[:, None] * (len(ids) // sentences) + beams
            rows = (rows if stay is None else rows[stay]).flatten()
            fast, plain = fast.select(rows, stay), plain.select(rows, stay)
            sentences = len(rows) // 3
            ids = torch.randint(4, SIZE, (len(rows), 1), generator=random)
        (found, fast), (expected, plain) = reader.advance(ids, fast), model.advance(ids, plain)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "attention",
    [
        {"name": "linear"},
        {"name": "scaled-dot", "key_heads": 2},
        {"name": "scaled-dot", "key_norm": True},
        {"name": "scaled-dot", "qk_norm": True},
        {"name": "scaled-dot", "logit_cap": 5.0},
        {"name": "scaled-dot", "output_gate": "head"},
        {"name": "sigmoid"},
    ],
)
def test_other_attention_has_no_fast_form(attention: dict[str, Any]) -> None:
    assert FastDecoder.of(made(attention)) is None


def test_what_watches_or_disturbs_layers_is_not_bypassed() -> None:
    model = made()
    layer = model.decoder.get_submodule("blocks.0.attention.mechanism")
    handle = layer.register_forward_hook(lambda *_: None)
    assert FastDecoder.of(model) is None
    handle.remove()
    assert FastDecoder.of(model) is not None
    for part in (model.output, model.embed_target):
        handle = part.register_forward_hook(lambda *_: None)
        assert FastDecoder.of(model) is None
        handle.remove()
    layer.evaluation_noise = 0.1
    assert FastDecoder.of(model) is None
    assert FastDecoder.of(made(positions="alibi")) is None
    assert FastDecoder.of(made(shape="decoder")) is None
