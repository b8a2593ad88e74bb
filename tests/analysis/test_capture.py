"""Capture of a run: the tokens that it reads, wherever the output comes from."""

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
    """An encoder-decoder, a language model, and a decoder that reads a source before its target."""
    folder = tmp_path_factory.mktemp("runs")
    causal = model_config(role="decoder", positions="rope")
    return {
        "pair": save_run(folder / "pair", model_config()),
        "causal": save_run(folder / "causal", causal, task="language-modeling"),
        "joint": save_run(folder / "joint", causal),
    }


def ids(text: str) -> list[int]:
    return tokenizer().target.encode([text])[0]


def same(one: Capture, other: Capture, atol: float = 0) -> None:
    assert list(one.maps) == list(other.maps)
    for kind, maps in one.maps.items():
        others = other.maps[kind]
        np.testing.assert_allclose(maps.weights, others.weights, rtol=0, atol=atol)
        assert (maps.queries, maps.keys, maps.heads) == (others.queries, others.keys, others.heads)
        for layer, its in zip(maps.layers, others.layers, strict=True):
            assert layer._replace(distance=None) == its._replace(distance=None)
            assert (layer.distance is None) == (its.distance is None)
            np.testing.assert_allclose(layer.distance or 0, its.distance or 0, rtol=0, atol=atol)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("how", SEARCHES)
def test_maps_are_those_of_the_ids_that_generate_writes(runs: dict[str, Run], shape: str, how: str) -> None:
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
    with record_maps(model) as told, torch.inference_mode():
        model.hidden(source, read)
    for kind, layers in told.items():
        plain = stack_weights(layers)[:, 0].numpy()
        np.testing.assert_array_equal(found.maps[kind].weights, plain)  # type: ignore[index]


def test_axes_of_an_encoder_decoder_are_the_ids_that_it_reads(runs: dict[str, Run]) -> None:
    found = capture(runs["pair"], TEXT, target="ein hund", step="input", device="cpu")
    source, target = [*ids(TEXT), EOS], [BOS, *ids("ein hund")]
    axes = {kind: (maps.queries, maps.keys) for kind, maps in found.maps.items()}
    told = {kind: [[t.id for t in axis] for axis in both] for kind, both in axes.items()}
    assert told == {"encoder": [source, source], "decoder": [target, target], "cross": [target, source]}
    assert found.maps["cross"].weights.shape == (2, 4, len(target), len(source))
    assert found.maps["cross"].weights.dtype == np.float32
    assert (found.source, found.output) == (TEXT, "ein hund")
    assert (found.model, found.facts["tokenizer"]) == ("toy/base/seed-1", tokenizer().digest)


@pytest.mark.parametrize(("shape", "sides"), [("pair", "output"), ("causal", "text"), ("joint", "text")])
def test_what_a_decoder_alone_reads_is_called_text(runs: dict[str, Run], shape: str, sides: str) -> None:
    found = capture(runs[shape], TEXT, target="ein hund", kinds=["decoder"], device="cpu")
    assert matrix_of(found.maps["decoder"]).axes == (f"{sides} (queries)", f"{sides} (keys)")


def test_rows_of_cross_attention_are_named_by_what_they_predict(runs: dict[str, Run]) -> None:
    read, predicted = (
        capture(runs["pair"], TEXT, target="ein hund", device="cpu", **step).maps for step in ({"step": "input"}, {})
    )
    assert [token.id for token in predicted["cross"].queries] == [*ids("ein hund"), EOS]
    assert [token.word for token in predicted["cross"].queries][-1] is None
    assert (predicted["cross"].step, read["cross"].step) == ("output", "input")
    np.testing.assert_array_equal(predicted["cross"].weights, read["cross"].weights)
    assert predicted["decoder"].queries == read["decoder"].queries
    assert predicted["decoder"].step == "input"


def test_an_output_that_was_cut_has_no_row_for_what_it_would_have_predicted(runs: dict[str, Run]) -> None:
    cut = SearchConfig(method="greedy", max_length=3, min_length=2)
    read, predicted = (
        capture(runs["pair"], TEXT, search=cut, step=step, device="cpu").maps["cross"] for step in ("input", "output")
    )
    assert [token.id for token in predicted.queries] == [token.id for token in read.queries][1:]
    np.testing.assert_array_equal(predicted.weights, read.weights[:, :, :-1])


def test_axes_of_decoders_are_all_tokens_in_one_row(runs: dict[str, Run]) -> None:
    (text, target) = ("two cats", "ein hund")
    causal = capture(runs["causal"], text, target=target, device="cpu").maps["decoder"]
    assert [t.id for t in causal.queries] == [BOS, *ids(text), *ids(target)]
    joint = capture(runs["joint"], text, target=target, device="cpu").maps["decoder"]
    assert [t.id for t in joint.queries] == [*ids(text), EOS, BOS, *ids(target)]
    for maps in (causal, joint):
        assert maps.queries == maps.keys
        np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-5)
        assert not np.triu(maps.weights, 1).any()


def test_pieces_make_words_and_special_tokens_none(runs: dict[str, Run]) -> None:
    keys = capture(runs["pair"], "two \u6f22 katzen", target="a", device="cpu").maps["cross"].keys
    assert keys[-1] == ("</s>", EOS, None, True)
    text = [token for token in keys if not token.special]
    assert UNK in [token.id for token in text]
    assert [token.text for token in text if token.id == UNK] == ["<unk>"]
    assert text[0].word == 0
    for before, token in zip(text, text[1:], strict=False):
        assert token.word is not None
        assert before.word is not None
        assert token.word - before.word == token.text.startswith("\u2581")
    words = capture(runs["pair"], "two \u6f22 katzen", target="a", device="cpu").maps["cross"]
    assert [t.word for t in words.by_word().keys] == [0, 1, 2, None]
    np.testing.assert_allclose(words.by_word().weights.sum(-1), 1, atol=1e-5)


def test_separators_of_the_recipe_are_special() -> None:
    """A piece that the recipe calls special stands between words."""
    source = tokenizer().source
    tokens = tokens_of([(source, ids("cat and cat"))], [source.pieces(ids("and"))[0]])
    there = [token for token in tokens if token.text == source.pieces(ids("and"))[0]]
    assert there
    assert all(token.special and token.word is None for token in there)


def test_letters_and_digits_that_are_kept_whole_are_text(tmp_path: Path) -> None:
    pieces = tokenizer().source.pieces(ids("cat and two cats"))
    run = save_run(tmp_path, model_config(), special=tuple({p for p in pieces if p.isalnum()}))
    keys = capture(run, "cat and two cats", target="a", device="cpu").maps["cross"].keys
    assert any(token.text.isalnum() for token in keys)
    assert [token.special for token in keys] == [False] * (len(keys) - 1) + [True]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_in_a_batch_has_the_maps_that_it_has_alone(
    runs: dict[str, Run], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [(row.source, row.target) for row in ROWS]
    alone = [capture(runs[shape], text, target=target, device="cpu") for text, target in texts]
    for most in (1, 40, 8192):
        monkeypatch.setattr(capture_run, "BATCH_TOKENS", most)
        together = list(MapReader(runs[shape], device="cpu").read_pairs(iter(texts)))
        for one, other in zip(alone, together, strict=True):
            assert (one.source, one.output) == (other.source, other.output)
            same(one, other, atol=1e-5)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("word", "role"), [case for case in cases() if case[0] not in ("scaled-dot", "dot")])
def test_every_mechanism_is_captured_in_batches(word: str, role: str, tmp_path: Path) -> None:
    """Also where it has pads beside it, with its distance and reference."""
    section = model_config(word, role, shape="encoder-decoder")
    reader = MapReader(save_run(tmp_path, section), reference=True, device="cpu")
    texts = [(row.source, row.target) for row in ROWS]
    together = list(reader.read_pairs(texts))
    for text, found in zip(texts, together, strict=True):
        alone = reader.read(*text)
        same(alone, found, atol=2e-5)
        assert alone.reference is not None
        assert found.reference is not None
        same(alone.reference, found.reference, atol=2e-5)


@pytest.mark.parametrize(
    ("text", "target", "words"),
    [(" ", None, "the text is empty: give at least one word"), ("cat", "", "the target of the text is empty")],
)
def test_texts_that_cannot_be_read_are_refused(
    runs: dict[str, Run], text: str, target: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as found:
        capture(runs["pair"], text, target=target, device="cpu")
    assert "\n" not in str(found.value)


def test_errors_name_the_text_among_several(runs: dict[str, Run]) -> None:
    with pytest.raises(UsageError, match="text 2 is empty"):
        list(MapReader(runs["pair"], device="cpu").read_pairs([("cat", "a"), ("", "a")]))


@pytest.mark.parametrize(
    ("section", "text", "target", "words"),
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
def test_texts_beyond_the_limit_are_refused_with_both_lengths(
    tmp_path: Path, section: Any, text: str, target: str | None, words: str
) -> None:
    run = save_run(tmp_path, section, task="language-modeling" if target is None else "translation")
    with pytest.raises(DataError, match=words) as error:
        capture(run, text, target=target, device="cpu")
    assert "shorten the text, or train with a larger data.max_length" in str(error.value)


def test_an_output_at_the_limit_is_shown_as_far_as_it_was_read(tmp_path: Path) -> None:
    """The model has room for 25 tokens, begin token included, and wrote 25 after it."""
    run = save_run(tmp_path, model_config("synthesizer-random", "decoder", shape="encoder-decoder"))
    spec = SearchConfig(method="greedy", max_length=99, min_length=98)
    found = capture(run, "cat", search=spec, device="cpu")
    assert len(found.maps["decoder"].queries) == 25
    assert found.facts["note"].endswith("the output was truncated to 25 tokens")


def test_longer_texts_than_in_training_are_read_with_a_note(runs: dict[str, Run]) -> None:
    found = capture(runs["pair"], "cat " * 40, target="a", device="cpu")
    length = len(found.maps["encoder"].keys)
    assert length > LENGTH
    assert found.facts["note"] == (
        f"a sequence has {length} tokens, more than in training ({LENGTH}, data.max_length)"
    )
    assert "note" not in capture(runs["pair"], "cat", target="a", device="cpu").facts


def test_maps_that_fill_the_memory_are_refused_before_decoding(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InputBuilder, "with_search", None)
    with pytest.raises(DataError, match=r"the text: the attention maps need 6\.4 GB, but the limit is 4\.3 GB"):
        capture(runs["pair"], "cat " * 19_999, kinds=["encoder"], layers=[0], heads=[1])
    with pytest.raises(DataError, match="shorten the text, or select maps by --kind, --layer and --head"):
        capture(runs["causal"], "cat " * 19_999, device="cpu")


def test_a_damaged_model_is_told(tmp_path: Path) -> None:
    reader = MapReader(save_run(tmp_path, model_config()), device="cpu")
    with torch.no_grad():
        reader.model.output.weight[5:].fill_(float("nan"))
    with pytest.raises(NotFiniteError, match="the model outputs NaN or infinity"):
        reader.read("cat", "a cat")


def test_chosen_layers_and_heads_are_those_of_the_whole(runs: dict[str, Run]) -> None:
    whole = capture(runs["pair"], TEXT, target="ein hund", device="cpu")
    part = capture(runs["pair"], TEXT, target="ein hund", kinds=["cross"], layers=[1], heads=[2], device="cpu")
    assert list(part.maps) == ["cross"]
    chosen = whole.maps["cross"].choose([1], [2])
    assert np.array_equal(part.maps["cross"].weights, chosen.weights)
    assert (part.maps["cross"].layers, part.maps["cross"].heads) == (chosen.layers, (2,))
