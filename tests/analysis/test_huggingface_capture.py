"""Tests of attention maps of Hugging Face models against the values and contexts of the same attention."""

import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import pretrained

from attnkit.analysis.huggingface_capture import capture
from attnkit.analysis.maps import AttentionMaps
from attnkit.errors import DataError, MemoryLimitError, NotFiniteError, UsageError
from attnkit.huggingface import Pretrained, open_model
from attnkit.recipe.schema import SearchConfig

TEXT, TARGET = "The animal", "Nobody"
"""At most 8 tokens together, as many as a head is wide, so that values determine weights."""

PARTS = {
    "bart": ("v_proj", "plain", "out_proj"),
    "marian": ("v_proj", "plain", "out_proj"),
    "t5": ("Attention.v", "plain", "Attention.o"),
    "gpt2": ("c_attn", "thirds", "attn.c_proj"),
    "llama": ("v_proj", "plain", "o_proj"),
    "gpt-neox": ("query_key_value", "interleaved", "attention.dense"),
    "bloom": ("query_key_value", "interleaved", "attention.dense"),
    "mpt": ("Wqkv", "thirds", "out_proj"),
    "mistral": ("v_proj", "plain", "o_proj"),
    "gpt-oss": ("v_proj", "plain", "o_proj"),
    "jamba": ("v_proj", "plain", "o_proj"),
    "bert": ("self.value", "plain", "attention.output.dense"),
    "roberta": ("self.value", "plain", "attention.output.dense"),
}
"""Projection of the values, its layout, and the projection of the contexts, by model."""


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that opens models by name, each once."""

    @cache
    def open_by_name(name: str) -> Pretrained:
        template = "<s> $A </s>" if name in ("bart", "bert", "roberta") else "$A"
        folder = pretrained.save_pretrained(tmp_path_factory.mktemp(name), name, template=template)
        return open_model(folder, device="cpu")

    return open_by_name


def kind_of(name: str, model: Pretrained) -> str:
    if model.shape != "encoder-decoder":
        return model.shape
    if "encoder_attn" in name or "EncDec" in name:
        return "cross"
    return "encoder" if name.startswith(("encoder", "model.encoder")) else "decoder"


def solve_weights(values: torch.Tensor, context: torch.Tensor, layout: str, heads: int) -> np.ndarray:
    """Return the weights [H, T, S] that map values [S, ...] to the context [T, H D]."""
    width = context.shape[-1] // heads
    rows = values.double()
    if layout == "thirds":
        rows = rows.chunk(3, -1)[2]
    elif layout == "interleaved":
        rows = rows.view(len(rows), heads, 3, width)[:, :, 2].flatten(1)
    by_head = rows.view(len(rows), -1, width).repeat_interleave(heads * width // rows.shape[1], 1).transpose(0, 1)
    mixed = context.double().view(len(context), heads, width).transpose(0, 1)
    return (mixed @ torch.linalg.pinv(by_head)).numpy()


def keep_output(kept: list[torch.Tensor]) -> Callable[..., None]:
    return lambda _, __, output: kept.append(output[0])


def keep_input(kept: list[torch.Tensor]) -> Callable[..., None]:
    return lambda _, inputs: kept.append(inputs[0][0])


def expected_weights(name: str, model: Pretrained, found: dict[str, AttentionMaps]) -> dict[str, list[np.ndarray]]:
    """Compute weights from the values and contexts of a pass of the model as opened, not eager."""
    value, layout, out = PARTS[name]
    values: dict[str, list[Any]] = {"encoder": [], "decoder": [], "cross": []}
    contexts: dict[str, list[Any]] = {"encoder": [], "decoder": [], "cross": []}
    handles = []
    for where, part in model.model.named_modules():
        kind = kind_of(where, model)
        if where.endswith(value):
            handles.append(part.register_forward_hook(keep_output(values[kind])))
        elif where.endswith(out):
            handles.append(part.register_forward_pre_hook(keep_input(contexts[kind])))
    first = found.get("encoder") or found["decoder"]
    inputs = {"input_ids": torch.tensor([[token.id for token in first.keys]])}
    if "cross" in found:
        inputs["decoder_input_ids"] = torch.tensor([[token.id for token in found["decoder"].queries]])
    with torch.no_grad():
        model.model(**inputs)
    for handle in handles:
        handle.remove()
    return {
        kind: [solve_weights(v, c, layout, len(maps.heads)) for v, c in zip(values[kind], contexts[kind], strict=True)]
        for kind, maps in found.items()
    }


@pytest.mark.parametrize("name", PARTS)
def test_maps_map_values_to_contexts(name: str, opened: Any) -> None:
    """The contexts come from the fused kernel where the model has one, so from no code of attnkit."""
    model = opened(name)
    target = None if model.shape == "encoder" else TARGET
    found = capture(model, "The" if model.shape == "decoder" else TEXT, target=target).maps
    assert {*found} == ({"encoder", "decoder", "cross"} if model.shape == "encoder-decoder" else {model.shape})
    expected = expected_weights(name, model, found)
    for kind, maps in found.items():
        assert maps.weights.dtype == np.float32
        assert max(maps.weights.shape[2:]) <= 8
        assert np.abs(maps.weights - np.stack(expected[kind])).max() < 1e-4, kind
        assert maps.weights.std() > 0.03
        if kind == "decoder":
            assert not np.triu(maps.weights, 1).any()


@pytest.mark.parametrize("name", ["bart", "t5", "llama", "gpt2", "bert", "mistral"])
def test_eager_attention_equals_the_fused_kernel_and_ends(name: str, opened: Any) -> None:
    model = opened(name)
    ids = torch.arange(5, 17)[None]
    more = {"decoder_input_ids": ids} if model.shape == "encoder-decoder" else {}
    with torch.no_grad():
        assert model.model.config._attn_implementation == "sdpa"
        before = model.model(ids, **more)[0]
        with model.eager():
            assert model.model.config._attn_implementation == "eager"
            eager = model.model(ids, **more)[0]
        after = model.model(ids, **more)[0]
    assert (before - eager).abs().max() < 1e-4 * before.abs().max()
    assert torch.equal(before, after)


def test_capture_of_selected_layers_and_heads(opened: Any) -> None:
    model = opened("bart")
    whole = capture(model, TEXT, target=TARGET)
    part = capture(model, TEXT, target=TARGET, kinds=["cross"], layers=[2, 0], heads=[3, 1])
    assert list(part.maps) == ["cross"]
    maps = part.maps["cross"]
    assert [layer.number for layer in maps.layers] == [0, 2]
    assert maps.heads == (1, 3)
    expected = whole.maps["cross"].weights[[0, 2]][:, [1, 3]]
    assert np.array_equal(maps.weights, expected)
    assert maps.layers[0].mechanism == "softmax"
    assert maps.layers[0].exact


def test_too_large_maps_raise(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.analysis.maps.TEXT_WEIGHTS", 3 * 4 * 6**2 - 1)
    text = "The " * 3
    assert len(opened("gpt2").tokenizer(text)["input_ids"]) == 6
    with pytest.raises(DataError, match="the text: the attention maps need .* shorten the text"):
        capture(opened("gpt2"), text)


def test_missing_layer_raises_before_decoding(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.analysis.huggingface_capture._generate", None)
    for name, layers in (("bart", "0, 1"), ("jamba", "1, 3")):
        with pytest.raises(UsageError, match=f"--layer 99: .* has layers {layers}"):
            capture(opened(name), TEXT, layers=[99], search=SearchConfig(method="greedy"))


def test_layers_without_attention_keep_their_numbers(opened: Any) -> None:
    maps = capture(opened("jamba"), TEXT).maps["decoder"]
    assert [layer.number for layer in maps.layers] == [1, 3]
    with pytest.raises(UsageError, match="--layer 2: decoder attention has layers 1, 3"):
        capture(opened("jamba"), TEXT, layers=[2])


def test_shared_layer_has_a_map_for_each_use(opened: Any) -> None:
    maps = capture(opened("albert"), TEXT).maps["encoder"]
    assert [layer.number for layer in maps.layers] == [0, 1, 2]
    assert not np.allclose(maps.weights[0], maps.weights[1], atol=1e-3)


def test_weights_before_a_sliding_window_are_zero(opened: Any) -> None:
    weights = capture(opened("mistral"), pretrained.TEXTS[0]).maps["decoder"].weights
    distance = np.subtract.outer(np.arange(weights.shape[2]), np.arange(weights.shape[3]))
    assert not weights[:, :, distance >= 3].any()
    assert (weights[:, :, (distance >= 0) & (distance < 3)] > 0).all()
    assert np.abs(weights.sum(-1) - 1).max() < 1e-5


def test_rows_with_an_attention_sink_sum_below_one(opened: Any) -> None:
    sums = capture(opened("gpt-oss"), TEXT).maps["decoder"].weights.sum(-1)
    assert 0 < sums.min() < sums.max() < 1


def test_axes_of_an_encoder_decoder(opened: Any) -> None:
    found = capture(opened("bart"), TEXT, target=TARGET)
    assert (found.how, found.output) == ("given", TARGET)
    cross = found.maps["cross"]
    assert [token.text for token in cross.keys] == ["<s>", "The", "\u2581an", "imal", "</s>"]
    assert [token.special for token in cross.keys] == [True, False, False, False, True]
    assert [token.word for token in cross.keys] == [None, 0, 1, 1, None]
    assert [token.text for token in cross.queries] == ["<s>", "N", "o", "bo", "dy", "</s>"]
    read = capture(opened("bart"), TEXT, target=TARGET, step="input").maps
    assert [t.text for t in read["cross"].queries] == ["</s>", "<s>", "N", "o", "bo", "dy"]
    assert read["cross"].queries == read["decoder"].keys == found.maps["decoder"].keys
    np.testing.assert_array_equal(read["cross"].weights, cross.weights)


def test_target_follows_the_prompt_after_a_space(opened: Any) -> None:
    llama = opened("llama")
    apart = capture(llama, "The", target="animal").maps["decoder"]
    spaced = capture(llama, "The ", target="animal").maps["decoder"]
    alone = capture(llama, "The animal")
    assert alone.how == alone.output == ""
    assert [token.text for token in apart.keys] == ["The", "\u2581an", "imal"]
    assert apart.keys == spaced.keys == alone.maps["decoder"].keys
    assert np.array_equal(apart.weights, alone.maps["decoder"].weights)


@pytest.mark.parametrize("name", ["marian", "t5", "llama"])
@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_output_equals_that_of_generate(name: str, method: Any, opened: Any) -> None:
    model = opened(name)
    spec = SearchConfig(method=method, beam=3, max_length=6, seed=5)
    found = capture(model, TEXT, search=spec)
    assert found.how == {"greedy": "greedy", "beam": "beam 3", "sample": "sampled, seed 5"}[method]
    ids = torch.tensor([model.tokenizer(TEXT)["input_ids"]])
    torch.manual_seed(5)
    written = model.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=6,
        num_beams=3 if method == "beam" else 1,
        do_sample=method == "sample",
        top_k=0,
    )[0].tolist()
    if written[-1] == model.tokenizer.eos_token_id:
        written.pop()
    elif len(written) > 5:
        assert found.facts["note"] == "the output was truncated to 6 tokens"
    maps = found.maps["decoder"]
    assert [token.id for token in maps.queries] == written
    assert np.abs(maps.weights.sum(-1) - 1).max() < 1e-5


def test_decoder_deeper_than_its_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of transformers' T5 is too short, so decoding failed."""
    deep = ("T5", "ForConditionalGeneration", pretrained.T5 | {"num_layers": 1})
    monkeypatch.setitem(pretrained.SETTINGS, "t5", deep)
    model = open_model(pretrained.save_pretrained(tmp_path, "t5"), device="cpu")
    maps = capture(model, TEXT, search=SearchConfig(method="beam", beam=2, max_length=5)).maps
    assert {kind: len(each.layers) for kind, each in maps.items()} == {"encoder": 1, "decoder": 3, "cross": 3}
    assert len(maps["decoder"].queries) > 1


def test_sampling_does_not_change_the_random_state(opened: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    spec = SearchConfig(method="sample", max_length=4)
    first = capture(opened("gpt2"), TEXT, search=spec)
    assert torch.equal(torch.rand(1), expected)
    assert capture(opened("gpt2"), TEXT, search=spec).output == first.output
    other = [capture(opened("gpt2"), TEXT, search=spec.model_copy(update={"seed": s})).output for s in (2, 3, 4)]
    assert {first.output} < {first.output, *other}


@pytest.mark.parametrize(
    ("name", "text", "more", "message"),
    [
        ("gpt2", " ", {}, "the text is empty: give at least one word"),
        ("bart", "The", {"target": ""}, "the target is empty: give at least one word"),
        ("bert", "The", {"target": "x"}, "a model of shape encoder has no output; remove target and search"),
        ("gpt2", "The", {"kinds": ["cross"]}, "--kind cross: this model has decoder attention"),
        ("gpt2", "The", {"layers": [3]}, "--layer 3: decoder attention has layers 0 to 2"),
        ("gpt2", "The", {"heads": [7]}, "--head 7: decoder attention has heads 0 to 3"),
    ],
)
def test_invalid_arguments_raise(name: str, text: str, more: dict[str, Any], message: str, opened: Any) -> None:
    with pytest.raises(UsageError, match=message):
        capture(opened(name), text, **more)


def test_texts_beyond_the_limit_raise(opened: Any) -> None:
    long = "The " * 80
    with pytest.raises(DataError, match=r"the text: \d+ tokens, special .* at most 64: shorten the text"):
        capture(opened("gpt2"), long)
    with pytest.raises(DataError, match="the target: .* at most 64"):
        capture(opened("bart"), TEXT, target=long)
    assert capture(opened("bloom"), long).maps["decoder"].weights.shape[2] > 64  # no limit
    with pytest.raises(DataError, match="lone surrogates"):
        capture(opened("gpt2"), "a\ud800b")


def test_longest_text_is_read_and_output_ends_at_the_limit(opened: Any) -> None:
    text = "The" * 60
    assert len(opened("gpt2").tokenizer(text)["input_ids"]) == 60
    found = capture(opened("gpt2"), text, search=SearchConfig(method="greedy", max_length=50))
    assert found.maps["decoder"].weights.shape == (3, 4, 64, 64)
    with pytest.raises(DataError, match="leaves no position of .* for an output: shorten the text"):
        capture(opened("gpt2"), "The" * 64, search=SearchConfig(method="greedy"))
    limit = opened("roberta").limit  # RoBERTa's table has rows for padding
    longest = capture(opened("roberta"), "The" * (limit - 2))
    assert longest.maps["encoder"].weights.shape[2] == limit


def test_weights_that_are_not_finite_raise(tmp_path: Path) -> None:
    model = open_model(pretrained.save_pretrained(tmp_path, "gpt2"), device="cpu")
    model.model.transformer.h[1].attn.c_attn.weight.data.fill_(float("nan"))
    with pytest.raises(NotFiniteError, match="outputs NaN or infinity"):
        capture(model, TEXT)


@pytest.mark.parametrize(
    ("fault", "expected", "message"),
    [
        (MemoryError(), MemoryLimitError, "out of memory: shorten the text"),
        (RuntimeError("CUDA out of memory."), MemoryLimitError, "out of memory"),
        (IndexError("index 9\nmore"), DataError, "could not run the model: index 9"),
    ],
)
def test_errors_of_the_library_are_one_line(
    fault: Exception, expected: type[Exception], message: str, tmp_path: Path
) -> None:
    model = open_model(pretrained.save_pretrained(tmp_path, "gpt2"), device="cpu")

    def fail(*_: object) -> None:
        raise fault

    model.model.transformer.register_forward_pre_hook(fail)
    with pytest.raises(expected, match=f"^.*{message}.*$"):
        capture(model, TEXT)


def test_weights_of_another_shape_raise(tmp_path: Path) -> None:
    """Longformer returns weights by the distance of the key."""
    pretrained.SETTINGS["longformer"] = ("Longformer", "ForMaskedLM", pretrained.PLAIN | {"attention_window": 4})
    model = open_model(pretrained.save_pretrained(tmp_path, "longformer"), device="cpu")
    with pytest.raises(DataError, match="encoder attention returns weights of shape .* 6 keys"):
        capture(model, "The animal didn")


def test_model_without_attention_raises(tmp_path: Path) -> None:
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    pretrained.SETTINGS["mamba"] = ("Mamba", "ForCausalLM", settings)
    model = open_model(pretrained.save_pretrained(tmp_path, "mamba"), device="cpu")
    with pytest.raises(DataError, match="MambaForCausalLM returns no weights of decoder attention"):
        capture(model, TEXT)


def test_scores_instead_of_weights_raise(tmp_path: Path) -> None:
    groups = {f"{part}_groups": 1 for part in ("q", "k", "v", "post_attention", "intermediate", "output")}
    settings = pretrained.PLAIN | {"embedding_size": 32} | groups
    pretrained.SETTINGS["squeezebert"] = ("SqueezeBert", "ForMaskedLM", settings)
    model = open_model(pretrained.save_pretrained(tmp_path, "squeezebert"), device="cpu")
    with pytest.raises(DataError, match="as encoder attention, which are not weights"):
        capture(model, TEXT)


def test_character_belongs_to_its_last_byte(opened: Any) -> None:
    maps = capture(opened("gpt2"), "Gr\u00fc\u00dfe \u4f60!").maps["decoder"]
    assert [token.text for token in maps.keys[:5]] == ["Gr", "", "\u00fc", "", "\u00df"]
    merged = maps.by_word()
    assert [token.text for token in merged.keys] == ["Gr\u00fc\u00dfe", "\u2581\u4f60!"]
    assert np.abs(merged.weights.sum(-1) - 1).max() < 1e-5


def test_facts_of_a_capture(opened: Any) -> None:
    facts = capture(opened("gpt2"), TEXT).facts
    assert set(facts) == {"weights", "tokenizer", "attnkit", "torch", "transformers"}
    assert len(facts["weights"]) == len(facts["tokenizer"]) == 64
