"""Maps of Hugging Face models: against the values and contexts of the same attention."""

import socket
from collections.abc import Callable
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
"""Where values leave and contexts enter projections, and how values are laid out."""


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Opens models by name, each once."""
    made: dict[str, Pretrained] = {}

    def give(name: str) -> Pretrained:
        if name not in made:
            template = "<s> $A </s>" if name in ("bart", "bert", "roberta") else "$A"
            folder = pretrained.save_pretrained(tmp_path_factory.mktemp(name), name, template=template)
            made[name] = open_model(folder, device="cpu")
        return made[name]

    return give


def kind_of(name: str, model: Pretrained) -> str:
    if model.shape != "encoder-decoder":
        return model.shape
    if "encoder_attn" in name or "EncDec" in name:
        return "cross"
    return "encoder" if name.startswith(("encoder", "model.encoder")) else "decoder"


def solved(values: torch.Tensor, context: torch.Tensor, layout: str, heads: int) -> np.ndarray:
    """The weights [H, T, S] by which values [S, ...] make the context [T, H D]."""
    width = context.shape[-1] // heads
    rows = values.double()
    if layout == "thirds":
        rows = rows.chunk(3, -1)[2]
    elif layout == "interleaved":
        rows = rows.view(len(rows), heads, 3, width)[:, :, 2].flatten(1)
    own = rows.view(len(rows), -1, width).repeat_interleave(heads * width // rows.shape[1], 1)
    mixed = context.double().view(len(context), heads, width).transpose(0, 1)
    return (mixed @ torch.linalg.pinv(own.transpose(0, 1))).numpy()


def leaving(kept: list[torch.Tensor]) -> Callable[..., None]:
    return lambda _, __, output: kept.append(output[0])


def entering(kept: list[torch.Tensor]) -> Callable[..., None]:
    return lambda _, inputs: kept.append(inputs[0][0])


def recomputed(name: str, model: Pretrained, found: dict[str, AttentionMaps]) -> dict[str, list[np.ndarray]]:
    """Weights from the values and contexts of a pass as the model was opened, not eager."""
    value, layout, out = PARTS[name]
    values: dict[str, list[Any]] = {"encoder": [], "decoder": [], "cross": []}
    contexts: dict[str, list[Any]] = {"encoder": [], "decoder": [], "cross": []}
    handles = []
    for where, part in model.model.named_modules():
        kind = kind_of(where, model)
        if where.endswith(value):
            handles.append(part.register_forward_hook(leaving(values[kind])))
        elif where.endswith(out):
            handles.append(part.register_forward_pre_hook(entering(contexts[kind])))
    own = found["encoder" if "encoder" in found else "decoder"]
    inputs = {"input_ids": torch.tensor([[token.id for token in own.keys]])}
    if "cross" in found:
        ids = [token.id for token in found["decoder"].queries]
        inputs["decoder_input_ids"] = torch.tensor([ids])
    with torch.no_grad():
        model.model(**inputs)
    for handle in handles:
        handle.remove()
    return {
        kind: [solved(v, c, layout, len(maps.heads)) for v, c in zip(values[kind], contexts[kind], strict=True)]
        for kind, maps in found.items()
    }


@pytest.mark.parametrize("name", PARTS)
def test_maps_are_the_weights_that_make_contexts_of_values(name: str, opened: Any) -> None:
    """The contexts come from the fused kernel where the model has one: nothing of ours is used."""
    model = opened(name)
    given = {} if model.shape == "encoder" else {"target": TARGET}
    text = "The" if model.shape == "decoder" else TEXT
    found = capture(model, text, **given).maps
    assert set(found) == set({"encoder-decoder": ("encoder", "decoder", "cross")}.get(model.shape, (model.shape,)))
    expected = recomputed(name, model, found)
    for kind, maps in found.items():
        assert maps.weights.dtype == np.float32
        assert max(maps.weights.shape[2:]) <= 8
        assert np.abs(maps.weights - np.stack(expected[kind])).max() < 1e-4, kind
        assert maps.weights.std() > 0.03
        if kind == "decoder":
            assert not np.triu(maps.weights, 1).any()


@pytest.mark.parametrize("name", ["bart", "t5", "llama", "gpt2", "bert", "mistral"])
def test_eager_answers_as_the_fused_kernel_and_is_left_again(name: str, opened: Any) -> None:
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


def test_layers_and_heads_are_those_of_the_whole(opened: Any) -> None:
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


def test_maps_that_would_fill_the_memory_are_refused(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.analysis.maps.TEXT_WEIGHTS", 3 * 4 * 6**2 - 1)
    text = "The " * 3
    assert len(opened("gpt2").tokenizer(text)["input_ids"]) == 6
    with pytest.raises(DataError, match="the text: the attention maps need .* shorten the text"):
        capture(opened("gpt2"), text)


def test_a_layer_that_is_not_there_is_refused_before_the_text_is_read(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("an output was written")

    monkeypatch.setattr("attnkit.analysis.huggingface_capture._generate", fail)
    for name, layers in (("bart", "0, 1"), ("jamba", "1, 3")):
        with pytest.raises(UsageError, match=f"--layer 99: .* has layers {layers}"):
            capture(opened(name), TEXT, layers=[99], search=SearchConfig(method="greedy"))


def test_layers_without_attention_keep_their_numbers(opened: Any) -> None:
    maps = capture(opened("jamba"), TEXT).maps["decoder"]
    assert [layer.number for layer in maps.layers] == [1, 3]
    with pytest.raises(UsageError, match="--layer 2: decoder attention has layers 1, 3"):
        capture(opened("jamba"), TEXT, layers=[2])


def test_a_layer_that_is_used_again_counts_each_time(opened: Any) -> None:
    maps = capture(opened("albert"), TEXT).maps["encoder"]
    assert [layer.number for layer in maps.layers] == [0, 1, 2]
    assert not np.allclose(maps.weights[0], maps.weights[1], atol=1e-3)


def test_a_sliding_window_leaves_zeros_before_it(opened: Any) -> None:
    weights = capture(opened("mistral"), pretrained.TEXTS[0]).maps["decoder"].weights
    distance = np.subtract.outer(np.arange(weights.shape[2]), np.arange(weights.shape[3]))
    assert not weights[:, :, distance >= 3].any()
    assert (weights[:, :, (distance >= 0) & (distance < 3)] > 0).all()
    assert np.abs(weights.sum(-1) - 1).max() < 1e-5


def test_rows_sum_below_one_where_a_sink_takes_the_rest(opened: Any) -> None:
    sums = capture(opened("gpt-oss"), TEXT).maps["decoder"].weights.sum(-1)
    assert sums.max() < 1
    assert sums.min() > 0


def test_an_encoder_decoder_reads_start_and_target_without_the_end(opened: Any) -> None:
    made = capture(opened("bart"), TEXT, target=TARGET)
    assert made.how == "given"
    assert made.output == TARGET
    cross = made.maps["cross"]
    assert [token.text for token in cross.keys] == ["<s>", "The", "\u2581an", "imal", "</s>"]
    assert [token.special for token in cross.keys] == [True, False, False, False, True]
    assert [token.word for token in cross.keys] == [None, 0, 1, 1, None]
    assert [token.text for token in cross.queries] == ["<s>", "N", "o", "bo", "dy", "</s>"]
    read = capture(opened("bart"), TEXT, target=TARGET, step="input").maps
    assert [t.text for t in read["cross"].queries] == ["</s>", "<s>", "N", "o", "bo", "dy"]
    assert read["cross"].queries == read["decoder"].keys == made.maps["decoder"].keys
    np.testing.assert_array_equal(read["cross"].weights, cross.weights)


def test_a_target_follows_a_prompt_after_a_space(opened: Any) -> None:
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
def test_the_output_is_what_generate_writes(name: str, method: Any, opened: Any) -> None:
    model = opened(name)
    spec = SearchConfig(method=method, beam=3, max_length=6, seed=5)
    made = capture(model, TEXT, search=spec)
    assert made.how == {"greedy": "greedy", "beam": "beam 3", "sample": "sampled, seed 5"}[method]
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
        assert made.facts["note"] == "the output was truncated to 6 tokens"
    maps = made.maps["decoder"]
    assert [token.id for token in maps.queries] == written
    assert np.abs(maps.weights.sum(-1) - 1).max() < 1e-5


def test_a_decoder_may_be_deeper_than_its_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's cache of T5 is too short there: decoding failed."""
    deep = ("T5", "ForConditionalGeneration", pretrained.T5 | {"num_layers": 1})
    monkeypatch.setitem(pretrained.SETTINGS, "t5", deep)
    model = open_model(pretrained.save_pretrained(tmp_path, "t5"), device="cpu")
    made = capture(model, TEXT, search=SearchConfig(method="beam", beam=2, max_length=5))
    sizes = {kind: len(maps.layers) for kind, maps in made.maps.items()}
    assert sizes == {"encoder": 1, "decoder": 3, "cross": 3}
    assert len(made.maps["decoder"].queries) > 1


def test_sampling_leaves_the_random_state_alone(opened: Any) -> None:
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
def test_what_is_not_there_is_refused(name: str, text: str, more: dict[str, Any], message: str, opened: Any) -> None:
    with pytest.raises(UsageError) as caught:
        capture(opened(name), text, **more)
    assert message in str(caught.value)


def test_texts_beyond_the_limit_are_refused(opened: Any) -> None:
    long = "The " * 80
    with pytest.raises(DataError, match=r"the text: \d+ tokens, special .* at most 64: shorten the text"):
        capture(opened("gpt2"), long)
    with pytest.raises(DataError, match="the target: .* at most 64"):
        capture(opened("bart"), TEXT, target=long)
    assert capture(opened("bloom"), long).maps["decoder"].weights.shape[2] > 64  # no limit
    with pytest.raises(DataError, match="lone surrogates"):
        capture(opened("gpt2"), "a\ud800b")


def test_the_longest_text_is_read_and_an_output_stops_at_the_limit(opened: Any) -> None:
    text = "The" * 60
    assert len(opened("gpt2").tokenizer(text)["input_ids"]) == 60
    made = capture(opened("gpt2"), text, search=SearchConfig(method="greedy", max_length=50))
    assert made.maps["decoder"].weights.shape == (3, 4, 64, 64)
    with pytest.raises(DataError, match="leaves no position of .* for an output: shorten the text"):
        capture(opened("gpt2"), "The" * 64, search=SearchConfig(method="greedy"))
    limit = opened("roberta").limit  # two positions less than its table has rows but one
    longest = capture(opened("roberta"), "The" * (limit - 2))
    assert longest.maps["encoder"].weights.shape[2] == limit


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
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
def test_faults_inside_the_library_are_told_in_a_line(
    fault: Exception, expected: type[Exception], message: str, tmp_path: Path
) -> None:
    model = open_model(pretrained.save_pretrained(tmp_path, "gpt2"), device="cpu")

    def fail(*_: object) -> None:
        raise fault

    model.model.transformer.register_forward_pre_hook(fail)
    with pytest.raises(expected) as caught:
        capture(model, TEXT)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_another_form_are_refused(tmp_path: Path) -> None:
    """Longformer gives them by the distance of the key."""
    pretrained.SETTINGS["longformer"] = ("Longformer", "ForMaskedLM", pretrained.PLAIN | {"attention_window": 4})
    model = open_model(pretrained.save_pretrained(tmp_path, "longformer"), device="cpu")
    with pytest.raises(DataError, match="encoder attention returns weights of shape .* 6 keys"):
        capture(model, "The animal didn")


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    pretrained.SETTINGS["mamba"] = (
        "Mamba",
        "ForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    )
    model = open_model(pretrained.save_pretrained(tmp_path, "mamba"), device="cpu")
    with pytest.raises(DataError, match="MambaForCausalLM returns no weights of decoder attention"):
        capture(model, TEXT)


def test_scores_under_the_name_of_weights_are_refused(tmp_path: Path) -> None:
    pretrained.SETTINGS["squeezebert"] = (
        "SqueezeBert",
        "ForMaskedLM",
        pretrained.PLAIN
        | {
            "embedding_size": 32,
            **{f"{part}_groups": 1 for part in ("q", "k", "v", "post_attention", "intermediate", "output")},
        },
    )
    model = open_model(pretrained.save_pretrained(tmp_path, "squeezebert"), device="cpu")
    with pytest.raises(DataError, match="as encoder attention, which are not weights"):
        capture(model, TEXT)


def test_a_character_belongs_to_the_last_of_its_bytes(opened: Any) -> None:
    maps = capture(opened("gpt2"), "Gr\u00fc\u00dfe \u4f60!").maps["decoder"]
    assert [token.text for token in maps.keys[:5]] == ["Gr", "", "\u00fc", "", "\u00df"]
    merged = maps.by_word()
    assert [token.text for token in merged.keys] == ["Gr\u00fc\u00dfe", "\u2581\u4f60!"]
    assert np.abs(merged.weights.sum(-1) - 1).max() < 1e-5


def test_what_a_map_depends_on_is_noted(opened: Any) -> None:
    model = opened("gpt2")
    facts = capture(model, TEXT).facts
    assert set(facts) == {"weights", "tokenizer", "attnkit", "torch", "transformers"}
    assert len(facts["weights"]) == len(facts["tokenizer"]) == 64
