"""Mechanisms in the layers of Hugging Face models: what stays the same, and what is refused."""

import copy
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

FAMILIES = ("llama", "gpt2", "gpt-neox")
LENGTH = 16
PARTS: dict[str, dict[str, Any]] = {
    "interleaved": {"parts": ["local", "scaled-dot"]},
    "mixture": {"parts": ["scaled-dot", "synthesizer-random"]},
}


def able(word: str) -> bool:
    try:
        surgery.check(word, PARTS.get(word, {}))
    except UsageError:
        return False
    layer = MultiHead.build(word, 16, 2, LENGTH, causal=True, **PARTS.get(word, {}))
    return layer.mechanism.query_sets == 1  # parallax has projections of its own


WORDS = [word for word in mechanisms.names() if able(word)]


def ids(rows: int = 2, length: int = 9, seed: int = 1) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(5, SIZE, (rows, length), generator=draw)


def converted(word: str, family: str = "llama", **options: Any) -> Any:
    torch.manual_seed(3)
    model = copy.deepcopy(random_model(family)).double()
    surgery.install(model, word, PARTS.get(word, {}) | options, LENGTH)
    return model.eval()


def logits(model: Any, read: Tensor, **given: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=read, **given).logits
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_softmax_attention_in_its_own_place_changes_nothing(family: str) -> None:
    model, own = converted("scaled-dot", family), random_model(family).double().eval()
    read = ids()
    torch.testing.assert_close(logits(model, read), logits(own, read))
    valid = torch.ones_like(read)
    valid[0, :4] = 0
    given = {"attention_mask": valid, "position_ids": (valid.cumsum(1) - 1).clamp_min(0)}
    ours, theirs = logits(model, read, **given), logits(own, read, **given)
    torch.testing.assert_close(ours[valid.bool()], theirs[valid.bool()])


def test_half_of_the_mechanisms_and_more_can_stand_in_a_trained_model() -> None:
    assert len(WORDS) > len(mechanisms.names()) / 2, WORDS


@pytest.mark.sampled(5)
@pytest.mark.parametrize("word", WORDS)
def test_every_mechanism_reads_with_a_cache_as_without(word: str) -> None:
    model, read = converted(word), ids()
    whole = logits(model, read)
    with torch.no_grad():
        first = model(input_ids=read[:, :5], use_cache=True)
        cache, parts = first.past_key_values, [first.logits]
        for at in range(5, read.shape[1]):
            step = model(input_ids=read[:, at : at + 1], past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            parts.append(step.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("word", WORDS)
def test_rows_with_padding_read_as_rows_alone(word: str) -> None:
    model, read = converted(word), ids()
    valid = torch.ones_like(read)
    valid[0, :3] = 0
    given = {"attention_mask": valid, "position_ids": (valid.cumsum(1) - 1).clamp_min(0)}
    found = logits(model, read, **given)
    torch.testing.assert_close(found[0, 3:], logits(model, read[:1, 3:])[0])
    torch.testing.assert_close(found[1], logits(model, read[1:])[0])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("word", WORDS)
def test_no_mechanism_sees_later_tokens_and_gradients_are_finite(word: str) -> None:
    model, read = converted(word), ids()
    other = read.clone()
    other[:, 6:] = (other[:, 6:] + 7) % SIZE
    torch.testing.assert_close(logits(model, read)[:, :6], logits(model, other)[:, :6])
    model(input_ids=read).logits.sum().backward()
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
def test_what_a_trained_model_has_no_weights_for_is_refused(word: str, options: dict[str, Any], text: str) -> None:
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
def test_models_whose_attention_cannot_be_replaced_are_refused(
    family: str, changed: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        surgery.install(random_model(family, **changed), "linear", {}, LENGTH)


def saved(folder: Path, word: str, **options: Any) -> Any:
    """A converted model of float32 in a folder."""
    torch.manual_seed(3)
    model = copy.deepcopy(random_model("llama"))
    surgery.install(model, word, options, LENGTH)
    facts = {"attention": word, "options": options, "length": LENGTH}
    surgery.save(model, tokenizer(), folder, facts)
    return model.eval()


@pytest.mark.parametrize(
    ("word", "options"), [("linear", {}), ("performer", {"features": 8}), ("synthesizer-random", {})]
)
def test_a_saved_model_opens_as_it_was_and_merges_contexts(word: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = saved(tmp_path, word, **options)
    opened = open_model(tmp_path, device="cpu")
    torch.testing.assert_close(logits(opened.model, ids()), logits(model, ids()))
    bounded = word.startswith("synthesizer")
    assert opened.limit == (LENGTH if bounded else 64)
    assert HuggingFaceReader(opened).size == SIZE
    with pytest.raises(OSError, match="no file named"):  # never with the wrong attention
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_the_window_baseline_is_refused_where_keys_are_found_by_their_distance(tmp_path: Path) -> None:
    """Windows share their positions, but lie one after the other in the cache."""
    refusals = list[str]()
    for word in ("local", "linear"):
        saved(tmp_path, word)
        refusals.append(HuggingFaceReader(open_model(tmp_path, device="cpu")).window_refusal)
    assert "distances between keys" in refusals[0]
    assert refusals[1] == ""


def test_other_mechanisms_with_the_same_weights_are_other_facts(tmp_path: Path) -> None:
    hashes = set()
    for word in ("local", "linear"):
        saved(tmp_path, word)
        hashes.add(open_model(tmp_path, device="cpu").facts["weights"])
    assert len(hashes) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("word", ["performer", "synthesizer-random"])
def test_a_saved_model_opens_in_another_number_type(word: str, dtype: str, tmp_path: Path) -> None:
    model = saved(tmp_path, word)
    opened = open_model(tmp_path, device="cpu", dtype=dtype)
    own = surgery.mechanism_weights(opened.model)
    assert {x.dtype for x in own.values() if x.is_floating_point()} == {getattr(torch, dtype)}
    found, like = logits(opened.model, ids()).float(), logits(model, ids())
    assert (found - like).abs().mean() < 0.2 * like.std()


def test_mechanisms_beside_weights_of_few_bits_are_of_the_type_of_the_model() -> None:
    model = copy.deepcopy(random_model("llama"))
    for layer in model.model.layers:
        layer.self_attn.register_parameter(
            "bits", torch.nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False)
        )
    made = surgery.install(model, "performer", {"features": 8}, LENGTH)
    for part in made.values():
        assert {x.dtype for x in part.buffers() if x.is_floating_point()} == {torch.float32}


def test_a_saved_model_shows_the_maps_of_its_mechanism(tmp_path: Path) -> None:
    model = saved(tmp_path, "linear")
    opened = Pretrained("x", "decoder", model, tokenizer(), torch.device("cpu"), 64, tmp_path)
    with opened.eager(), torch.no_grad():
        maps = opened.model(input_ids=ids(), output_attentions=True).attentions
    assert [tuple(one.shape) for one in maps] == [(2, 4, 9, 9)] * 3
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(2, 4, 9))
    own = random_model("llama")
    own.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = own(input_ids=ids(), output_attentions=True).attentions
    own.set_attn_implementation("sdpa")
    assert not torch.allclose(maps[0], theirs[0], atol=1e-3)


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
def test_a_damaged_folder_is_refused(file: str, content: bytes, text: str, tmp_path: Path) -> None:
    saved(tmp_path, "synthesizer-random")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=text):
        open_model(tmp_path, device="cpu")
