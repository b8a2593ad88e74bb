"""Tests of the capture of attention maps of a run: tokens, outputs, batches, limits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.map_recording import LENGTH, cases, model_config, record_maps, save_run, stack_weights
from helpers.trained import ROWS, tokenizer

from attnkit.analysis import capture as capture_run
from attnkit.analysis.capture import MapReader, capture
from attnkit.analysis.inputs import InputBuilder, tokens_of
from attnkit.analysis.maps import Capture
from attnkit.data.tokenizer import BOS, EOS, UNK
from attnkit.errors import DataError, NotFiniteError, UsageError
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.search import translate
from attnkit.show.attention_matrix import matrix_of

TEXT = "two red dogs and a cat"
SEARCHES = {
    "greedy": SearchConfig(method="greedy", max_length=8),
    "beam 3": SearchConfig(method="beam", beam=3, max_length=8),
    "sampled, seed 4": SearchConfig(method="sample", seed=4, max_length=8),
}
SHAPES = ("pair", "causal", "joint")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Return an encoder-decoder, a language model, and a decoder that reads a source before its target."""
    folder = tmp_path_factory.mktemp("runs")
    causal = model_config(role="decoder", positions="rope")
    return {
        "pair": save_run(folder / "pair", model_config()),
        "causal": save_run(folder / "causal", causal, task="language-modeling"),
        "joint": save_run(folder / "joint", causal),
    }


def ids(text: str) -> list[int]:
    return tokenizer().target.encode([text])[0]


def assert_close(found: Capture, expected: Capture, atol: float = 0) -> None:
    assert list(found.maps) == list(expected.maps)
    for kind, maps in found.maps.items():
        others = expected.maps[kind]
        np.testing.assert_allclose(maps.weights, others.weights, rtol=0, atol=atol)
        assert (maps.queries, maps.keys, maps.heads) == (others.queries, others.keys, others.heads)
        for layer, other in zip(maps.layers, others.layers, strict=True):
            assert layer._replace(distance=None) == other._replace(distance=None)
            assert (layer.distance is None) == (other.distance is None)
            np.testing.assert_allclose(layer.distance or 0, other.distance or 0, rtol=0, atol=atol)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("how", SEARCHES)
def test_maps_of_a_search_equal_those_of_its_output(runs: dict[str, Run], shape: str, how: str) -> None:
    run, spec = runs[shape], SEARCHES[how]
    state = torch.get_rng_state()
    found = capture(run, TEXT, search=spec, step="input", device="cpu")
    assert torch.equal(torch.get_rng_state(), state)
    (((output, _),),) = translate(run.model(), tokenizer(), [TEXT], spec, max_source=LENGTH, prompts=shape == "causal")
    assert (found.output, found.how) == (output, how)
    maps, model = found.maps["decoder"], run.model()
    read = torch.tensor([[token.id for token in maps.queries]])
    source = torch.tensor([[*ids(TEXT), EOS]]) if shape != "causal" else None
    if shape == "joint":
        read = read[:, len(ids(TEXT)) + 1 :]
    with record_maps(model) as recorded, torch.inference_mode():
        model.hidden(source, read)
    for kind, layers in recorded.items():
        expected = stack_weights(layers)[:, 0].numpy()
        np.testing.assert_array_equal(found.maps[kind].weights, expected)  # type: ignore[index]


def test_axes_of_an_encoder_decoder_are_the_ids_it_reads(runs: dict[str, Run]) -> None:
    found = capture(runs["pair"], TEXT, target="ein hund", step="input", device="cpu")
    source, target = [*ids(TEXT), EOS], [BOS, *ids("ein hund")]
    axes = {kind: [[t.id for t in axis] for axis in (m.queries, m.keys)] for kind, m in found.maps.items()}
    assert axes == {"encoder": [source, source], "decoder": [target, target], "cross": [target, source]}
    assert found.maps["cross"].weights.shape == (2, 4, len(target), len(source))
    assert found.maps["cross"].weights.dtype == np.float32
    assert (found.source, found.output) == (TEXT, "ein hund")
    assert (found.model, found.facts["tokenizer"]) == ("toy/base/seed-1", tokenizer().digest)


@pytest.mark.parametrize(("shape", "name"), [("pair", "output"), ("causal", "text"), ("joint", "text")])
def test_names_of_decoder_axes(runs: dict[str, Run], shape: str, name: str) -> None:
    found = capture(runs[shape], TEXT, target="ein hund", kinds=["decoder"], device="cpu")
    assert matrix_of(found.maps["decoder"]).axes == (f"{name} (queries)", f"{name} (keys)")


def test_rows_of_cross_attention_are_predicted_tokens(runs: dict[str, Run]) -> None:
    read = capture(runs["pair"], TEXT, target="ein hund", device="cpu", step="input").maps
    predicted = capture(runs["pair"], TEXT, target="ein hund", device="cpu").maps
    assert [token.id for token in predicted["cross"].queries] == [*ids("ein hund"), EOS]
    assert predicted["cross"].queries[-1].word is None
    assert (predicted["cross"].step, read["cross"].step) == ("output", "input")
    np.testing.assert_array_equal(predicted["cross"].weights, read["cross"].weights)
    assert predicted["decoder"].queries == read["decoder"].queries
    assert predicted["decoder"].step == "input"


def test_truncated_output_has_no_row_for_the_next_token(runs: dict[str, Run]) -> None:
    cut = SearchConfig(method="greedy", max_length=3, min_length=2)
    read, predicted = (
        capture(runs["pair"], TEXT, search=cut, step=step, device="cpu").maps["cross"] for step in ("input", "output")
    )
    assert [token.id for token in predicted.queries] == [token.id for token in read.queries][1:]
    np.testing.assert_array_equal(predicted.weights, read.weights[:, :, :-1])


def test_axes_of_decoder_only_models_are_all_tokens(runs: dict[str, Run]) -> None:
    text, target = "two cats", "ein hund"
    causal = capture(runs["causal"], text, target=target, device="cpu").maps["decoder"]
    assert [t.id for t in causal.queries] == [BOS, *ids(text), *ids(target)]
    joint = capture(runs["joint"], text, target=target, device="cpu").maps["decoder"]
    assert [t.id for t in joint.queries] == [*ids(text), EOS, BOS, *ids(target)]
    for maps in (causal, joint):
        assert maps.queries == maps.keys
        np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-5)
        assert not np.triu(maps.weights, 1).any()


def test_pieces_belong_to_words_and_special_tokens_to_none(runs: dict[str, Run]) -> None:
    maps = capture(runs["pair"], "two \u6f22 katzen", target="a", device="cpu").maps["cross"]
    keys = maps.keys
    assert keys[-1] == ("</s>", EOS, None, True)
    text = [token for token in keys if not token.special]
    assert [token.text for token in text if token.id == UNK] == ["<unk>"]
    assert text[0].word == 0
    for before, token in zip(text, text[1:], strict=False):
        assert token.word is not None
        assert before.word is not None
        assert token.word - before.word == token.text.startswith("\u2581")
    assert [t.word for t in maps.by_word().keys] == [0, 1, 2, None]
    np.testing.assert_allclose(maps.by_word().weights.sum(-1), 1, atol=1e-5)


def test_special_pieces_of_the_recipe_belong_to_no_word() -> None:
    source = tokenizer().source
    piece = source.pieces(ids("and"))[0]
    special = [token for token in tokens_of([(source, ids("cat and cat"))], [piece]) if token.text == piece]
    assert special
    assert all(token.special and token.word is None for token in special)


def test_special_pieces_of_letters_and_digits_are_text(tmp_path: Path) -> None:
    pieces = tokenizer().source.pieces(ids("cat and two cats"))
    run = save_run(tmp_path, model_config(), special=tuple({p for p in pieces if p.isalnum()}))
    keys = capture(run, "cat and two cats", target="a", device="cpu").maps["cross"].keys
    assert any(token.text.isalnum() for token in keys)
    assert [token.special for token in keys] == [False] * (len(keys) - 1) + [True]


@pytest.mark.parametrize("shape", SHAPES)
def test_maps_do_not_depend_on_the_batch(runs: dict[str, Run], shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [(row.source, row.target) for row in ROWS]
    alone = [capture(runs[shape], text, target=target, device="cpu") for text, target in texts]
    for most in (1, 40, 8192):
        monkeypatch.setattr(capture_run, "BATCH_TOKENS", most)
        batched = MapReader(runs[shape], device="cpu").read_pairs(iter(texts))
        for expected, found in zip(alone, batched, strict=True):
            assert (found.source, found.output) == (expected.source, expected.output)
            assert_close(found, expected, atol=1e-5)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("word", "role"), [case for case in cases() if case[0] not in ("scaled-dot", "dot")])
def test_maps_of_every_mechanism_do_not_depend_on_the_batch(word: str, role: str, tmp_path: Path) -> None:
    """Also with padding, and with distances and the exact reference."""
    section = model_config(word, role, shape="encoder-decoder")
    reader = MapReader(save_run(tmp_path, section), reference=True, device="cpu")
    texts = [(row.source, row.target) for row in ROWS]
    for text, found in zip(texts, reader.read_pairs(texts), strict=True):
        alone = reader.read(*text)
        assert_close(found, alone, atol=2e-5)
        assert alone.reference is not None
        assert found.reference is not None
        assert_close(found.reference, alone.reference, atol=2e-5)


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [(" ", None, "^the text is empty: give at least one word.*$"), ("cat", "", "^the target of the text is empty.*$")],
)
def test_empty_texts_raise(runs: dict[str, Run], text: str, target: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        capture(runs["pair"], text, target=target, device="cpu")


def test_error_of_one_of_several_texts_has_its_number(runs: dict[str, Run]) -> None:
    with pytest.raises(UsageError, match="text 2 is empty"):
        list(MapReader(runs["pair"], device="cpu").read_pairs([("cat", "a"), ("", "a")]))


@pytest.mark.parametrize(
    ("section", "text", "target", "message"),
    [
        (model_config(positions="learned"), "cat " * 40, "a", "reads at most 25"),
        (model_config("linformer", "encoder", shape="encoder-decoder"), "cat " * 40, "a", "most 25"),
        (
            model_config("synthesizer-random", "decoder", shape="encoder-decoder"),
            "a",
            "cat " * 40,
            "the text with its target: 41 tokens, special tokens included, but the model reads at most",
        ),
        (model_config(role="decoder", positions="learned"), "cat " * 60, None, "reads at most 50"),
    ],
)
def test_texts_beyond_the_limit_raise(
    tmp_path: Path, section: Any, text: str, target: str | None, message: str
) -> None:
    run = save_run(tmp_path, section, task="language-modeling" if target is None else "translation")
    with pytest.raises(DataError, match=f"{message}.*shorten the text, or train with a larger data.max_length"):
        capture(run, text, target=target, device="cpu")


def test_output_beyond_the_limit_is_truncated(tmp_path: Path) -> None:
    """The model reads at most 25 tokens with the begin token, and wrote 25 after it."""
    run = save_run(tmp_path, model_config("synthesizer-random", "decoder", shape="encoder-decoder"))
    spec = SearchConfig(method="greedy", max_length=99, min_length=98)
    found = capture(run, "cat", search=spec, device="cpu")
    assert len(found.maps["decoder"].queries) == 25
    assert found.facts["note"].endswith("the output was truncated to 25 tokens")


def test_longer_texts_than_in_training_have_a_note(runs: dict[str, Run]) -> None:
    found = capture(runs["pair"], "cat " * 40, target="a", device="cpu")
    length = len(found.maps["encoder"].keys)
    assert length > LENGTH
    assert found.facts["note"] == f"a sequence has {length} tokens, more than in training ({LENGTH}, data.max_length)"
    assert "note" not in capture(runs["pair"], "cat", target="a", device="cpu").facts


def test_too_large_maps_raise_before_decoding(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InputBuilder, "with_search", None)
    with pytest.raises(DataError, match=r"the text: the attention maps need 6\.4 GB, but the limit is 4\.3 GB"):
        capture(runs["pair"], "cat " * 19_999, kinds=["encoder"], layers=[0], heads=[1])
    with pytest.raises(DataError, match="shorten the text, or select maps by --kind, --layer and --head"):
        capture(runs["causal"], "cat " * 19_999, device="cpu")


def test_model_with_nan_raises(tmp_path: Path) -> None:
    reader = MapReader(save_run(tmp_path, model_config()), device="cpu")
    with torch.no_grad():
        reader.model.output.weight[5:].fill_(float("nan"))
    with pytest.raises(NotFiniteError, match="the model outputs NaN or infinity"):
        reader.read("cat", "a cat")


def test_capture_of_selected_layers_and_heads(runs: dict[str, Run]) -> None:
    expected = capture(runs["pair"], TEXT, target="ein hund", device="cpu").maps["cross"].choose([1], [2])
    part = capture(runs["pair"], TEXT, target="ein hund", kinds=["cross"], layers=[1], heads=[2], device="cpu")
    assert list(part.maps) == ["cross"]
    assert np.array_equal(part.maps["cross"].weights, expected.weights)
    assert (part.maps["cross"].layers, part.maps["cross"].heads) == (expected.layers, (2,))
