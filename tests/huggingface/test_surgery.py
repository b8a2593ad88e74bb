"""Tests of mechanisms in the layers of Hugging Face models: caches, padding, saving, errors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers
from helpers.pretrained import SIZE, random_model, tokenizer

from attnkit import mechanisms
from attnkit.errors import DataError, UsageError
from attnkit.huggingface import Pretrained, open_model, surgery
from attnkit.layers import MultiHead
from attnkit.nbce.huggingface_reader import HuggingFaceReader

LENGTH = 16
PARTS: dict[str, dict[str, Any]] = {
    "interleaved": {"parts": ["local", "scaled-dot"]},
    "mixture": {"parts": ["scaled-dot", "synthesizer-random"]},
}


def is_supported(word: str) -> bool:
    try:
        surgery.check(word, PARTS.get(word, {}))
    except UsageError:
        return False
    layer = MultiHead.build(word, 16, 2, LENGTH, causal=True, **PARTS.get(word, {}))
    return layer.mechanism.query_sets == 1  # parallax has projections of its own


WORDS = [word for word in mechanisms.names() if is_supported(word)]


def ids(rows: int = 2, length: int = 9, seed: int = 1) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(5, SIZE, (rows, length), generator=draw)


def converted(word: str, family: str = "llama", **options: Any) -> Any:
    model = random_model(family).double()
    surgery.install(model, word, PARTS.get(word, {}) | options, LENGTH)
    return model.eval()


def logits(model: Any, tokens: Tensor, **options: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=tokens, **options).logits


def left_padding(tokens: Tensor, size: int) -> dict[str, Tensor]:
    """Return the mask and the positions for padding on the left of the first row."""
    mask = torch.ones_like(tokens)
    mask[0, :size] = 0
    return {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp_min(0)}


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt-neox"])
def test_softmax_attention_gives_the_logits_of_the_original_model(family: str) -> None:
    model, original, tokens = converted("scaled-dot", family), random_model(family).double().eval(), ids()
    torch.testing.assert_close(logits(model, tokens), logits(original, tokens))
    padded = left_padding(tokens, 4)
    valid = padded["attention_mask"].bool()
    found, expected = (logits(m, tokens, **padded)[valid] for m in (model, original))
    torch.testing.assert_close(found, expected)


def test_more_than_half_of_the_mechanisms_are_supported() -> None:
    assert len(WORDS) > len(mechanisms.names()) / 2, WORDS


@pytest.mark.sampled(5)
@pytest.mark.parametrize("word", WORDS)
def test_logits_with_a_cache_equal_those_without(word: str) -> None:
    model, tokens = converted(word), ids()
    cache, parts = None, []
    for part in tokens.split([5, 1, 1, 1, 1], 1):
        with torch.no_grad():
            out = model(input_ids=part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), logits(model, tokens))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("word", WORDS)
def test_rows_with_padding_equal_rows_alone(word: str) -> None:
    model, tokens = converted(word), ids()
    found = logits(model, tokens, **left_padding(tokens, 3))
    torch.testing.assert_close(found[0, 3:], logits(model, tokens[:1, 3:])[0])
    torch.testing.assert_close(found[1], logits(model, tokens[1:])[0])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("word", WORDS)
def test_mechanism_is_causal_and_gradients_are_finite(word: str) -> None:
    model, tokens = converted(word), ids()
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 7) % SIZE
    torch.testing.assert_close(logits(model, tokens)[:, :6], logits(model, changed)[:, :6])
    model(input_ids=tokens).logits.sum().backward()
    assert all(w.grad is None or w.grad.isfinite().all() for w in model.parameters())


@pytest.mark.parametrize(
    ("word", "options", "text"),
    [
        ("gated-delta", {}, "gated-delta needs gates"),
        ("nystrom", {}, "cannot be causal"),
        ("synthesizer-dense", {"reads": "slice"}, "slices of the layer's input"),
        ("scaled-dot", {"qk_norm": True}, "projections or norms"),
        ("scaled-dot", {"output_gate": "head"}, "projections or norms"),
        ("local", {"window": -1}, "window"),
        ("selective", {}, "keeps a state of earlier queries"),
        ("lokal", {}, "did you mean local"),
    ],
)
def test_unsupported_mechanism_or_option_raises(word: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        converted(word, **options)


@pytest.mark.parametrize(
    ("family", "changed", "text"),
    [
        ("bloom", {}, "does not use the attention interface"),
        ("mpt", {}, "does not use the attention interface"),
        ("mistral", {}, "sliding window"),
        ("gemma2", {"layer_types": ["full_attention"] * 3}, "caps its scores"),
        ("gpt-oss", {"layer_types": ["full_attention"] * 3}, "has attention sinks"),
    ],
)
def test_model_whose_attention_cannot_be_replaced_raises(family: str, changed: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        surgery.install(random_model(family, **changed), "linear", {}, LENGTH)


def save(folder: Path, word: str, **options: Any) -> Any:
    """Save a converted model of type float32 and return it."""
    model = random_model("llama")
    surgery.install(model, word, options, LENGTH)
    surgery.save(model, tokenizer(), folder, {"attention": word, "options": options, "length": LENGTH})
    return model.eval()


def reopen(folder: Path, **options: Any) -> Pretrained:
    return open_model(folder, device="cpu", **options)


@pytest.mark.parametrize(
    ("word", "options"), [("linear", {}), ("performer", {"features": 8}), ("synthesizer-random", {})]
)
def test_saved_model_is_reopened_and_reads_contexts(word: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = save(tmp_path, word, **options)
    opened = reopen(tmp_path)
    torch.testing.assert_close(logits(opened.model, ids()), logits(model, ids()))
    assert opened.limit == (LENGTH if word.startswith("synthesizer") else 64)
    assert HuggingFaceReader(opened).size == SIZE
    with pytest.raises(OSError, match="no file named"):  # transformers would use its own attention
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_window_baseline_is_refused_if_attention_depends_on_distances(tmp_path: Path) -> None:
    """Windows share their positions, but follow each other in the cache."""
    refusals = {}
    for word in ("local", "linear"):
        save(tmp_path, word)
        refusals[word] = HuggingFaceReader(reopen(tmp_path)).window_refusal
    assert "distances between keys" in refusals["local"]
    assert refusals["linear"] == ""


def test_hash_of_the_weights_depends_on_the_mechanism(tmp_path: Path) -> None:
    hashes = set()
    for word in ("local", "linear"):
        save(tmp_path, word)
        hashes.add(reopen(tmp_path).facts["weights"])
    assert len(hashes) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("word", ["performer", "synthesizer-random"])
def test_saved_model_opens_in_another_dtype(word: str, dtype: str, tmp_path: Path) -> None:
    model = save(tmp_path, word)
    opened = reopen(tmp_path, dtype=dtype)
    weights = surgery.mechanism_weights(opened.model).values()
    assert {x.dtype for x in weights if x.is_floating_point()} == {getattr(torch, dtype)}
    found, expected = logits(opened.model, ids()).float(), logits(model, ids())
    assert (found - expected).abs().mean() < 0.2 * expected.std()


def test_mechanism_in_a_quantized_model_has_the_dtype_of_the_model() -> None:
    model = random_model("llama")
    for layer in model.model.layers:
        bits = torch.nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False)
        layer.self_attn.register_parameter("bits", bits)
    for part in surgery.install(model, "performer", {"features": 8}, LENGTH).values():
        assert {x.dtype for x in part.buffers() if x.is_floating_point()} == {torch.float32}


def test_maps_are_those_of_the_mechanism(tmp_path: Path) -> None:
    def maps(model: Any) -> Any:
        opened = Pretrained("x", "decoder", model, tokenizer(), torch.device("cpu"), 64, tmp_path)
        with opened.eager(), torch.no_grad():
            return opened.model(input_ids=ids(), output_attentions=True).attentions

    found = maps(save(tmp_path, "linear"))
    assert [tuple(layer.shape) for layer in found] == [(2, 4, 9, 9)] * 3
    torch.testing.assert_close(found[0].sum(-1), torch.ones(2, 4, 9))
    assert not torch.allclose(found[0], maps(random_model("llama"))[0], atol=1e-3)


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        (surgery.FACTS, b"{", "not valid JSON"),
        (surgery.FACTS, b'{"attention": 1, "options": {}, "length": 3}', "damaged"),
        (surgery.FACTS, b'{"attention": "local", "options": {}, "length": 3}', "table is unexpected"),
        (surgery.FACTS, b'{"attention": "local", "options": {}, "length": "x"}', "damaged"),
        (surgery.FACTS, b'{"attention": "local", "options": 5, "length": 3}', "damaged"),
        (surgery.FACTS, b'{"attention": "\\ud800", "options": {}, "length": 3}', "not valid JSON"),
        (surgery.FACTS, b"[" * 100_000, "not valid JSON"),
        (surgery.WEIGHTS, b"x", "attention.safetensors"),
    ],
)
def test_damaged_folder_raises(file: str, content: bytes, text: str, tmp_path: Path) -> None:
    save(tmp_path, "synthesizer-random")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=text):
        reopen(tmp_path)
