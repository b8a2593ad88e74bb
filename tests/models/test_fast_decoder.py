"""Tests of the fast decoder against the plain one in every search."""

from typing import Any

import pytest
import torch
from helpers.tiny_models import tiny_model

from attnkit.data.tokenizer import BOS, EOS, PAD
from attnkit.models import Transformer, fast_decoder
from attnkit.models.fast_decoder import FastDecoder
from attnkit.ops import fast_cpu, onednn
from attnkit.recipe.schema import SearchConfig
from attnkit.search import search

SIZE = 60


def build(attention: dict[str, Any] | None = None, **options: Any) -> Transformer:
    """Return a model whose outputs differ from line to line; `attention` is that of decoder and cross."""
    roles = dict.fromkeys(("decoder", "cross"), attention or {})
    defaults = {"width": 32, "ff": 40, "layers": {"encoder": 1, "decoder": 2}}
    model = tiny_model(SIZE, max_length=80, seed=0, attention=roles, **defaults | options)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights) * 0.2)
    return model.eval()  # type: ignore[no-any-return]


def sources(count: int) -> torch.Tensor:
    rows = torch.randint(4, SIZE, (count, 19), generator=torch.Generator().manual_seed(1))
    for length, row in enumerate(rows):
        row[18 - length], row[19 - length :] = EOS, PAD
    return rows


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "options",
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
def test_searches_equal_those_of_the_plain_decoder(
    options: dict[str, Any], spec: SearchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, source = build(**options), sources(12)
    assert FastDecoder.of(model) is not None
    fast = sum(search(model, source, spec, lines=range(12)), [])
    monkeypatch.setattr(fast_cpu, "PLAIN", True)
    assert FastDecoder.of(model) is None
    plain = sum(search(model, source, spec, lines=range(12)), [])
    assert [hypothesis.ids for hypothesis in fast] == [hypothesis.ids for hypothesis in plain]
    assert [h.score for h in fast] == pytest.approx([h.score for h in plain], abs=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_search_with_a_model_in_bfloat16(norm: str) -> None:
    model = build(norm=norm).to(torch.bfloat16)
    rows = search(model, sources(3), SearchConfig(beam=2, max_length=6), lines=range(3))
    assert all(row[0].ids for row in rows)


@pytest.mark.parametrize("wider", [False, True])
@pytest.mark.parametrize("sentences", [6, 1])
@torch.inference_mode()
def test_steps_with_reordered_and_removed_rows_equal_the_plain_decoder(
    sentences: int, wider: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beyond the initial size of caches, and with each form of products."""
    for module in (onednn, fast_decoder):
        monkeypatch.setattr(module, "WIDER", wider)
    monkeypatch.setattr(onednn, "MIN_WORK", 5000)
    monkeypatch.setattr(fast_decoder, "MIN_PACKED_WEIGHTS", 1)
    monkeypatch.setattr(fast_decoder, "INITIAL_POSITIONS", 7)
    model, source, random = build(), sources(sentences), torch.Generator().manual_seed(2)
    decoder: Any = FastDecoder.of(model)
    fast, plain, ids = decoder.start(source), model.start(source), torch.full((sentences, 1), BOS)
    for step in range(40):
        if step:
            kept = torch.tensor([0, 5, 2]) if step == 20 and sentences == 6 else None
            beams = torch.randint(0, len(ids) // sentences, (sentences, 3), generator=random)
            rows = torch.arange(sentences)[:, None] * (len(ids) // sentences) + beams
            rows = (rows if kept is None else rows[kept]).flatten()
            fast, plain = fast.select(rows, kept), plain.select(rows, kept)
            sentences = len(rows) // 3
            ids = torch.randint(4, SIZE, (len(rows), 1), generator=random)
        (hidden, fast), (expected, plain) = decoder.advance(ids, fast), model.advance(ids, plain)
        torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)


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
    assert FastDecoder.of(build(attention)) is None


def test_models_with_hooks_noise_or_other_structure_have_no_fast_form() -> None:
    model = build()
    mechanism = model.decoder.get_submodule("blocks.0.attention.mechanism")
    for part in (mechanism, model.output, model.embed_target):
        handle = part.register_forward_hook(lambda *_: None)
        assert FastDecoder.of(model) is None
        handle.remove()
        assert FastDecoder.of(model) is not None
    mechanism.evaluation_noise = 0.1
    assert FastDecoder.of(model) is None
    assert FastDecoder.of(build(positions="alibi")) is None
    assert FastDecoder.of(build(shape="decoder")) is None
