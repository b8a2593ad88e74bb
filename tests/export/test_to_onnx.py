"""Tests of exports to ONNX: graphs give the outputs of the model at any batch size and length."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.export_models import LENGTH, batch, build, make_decisive, recipe, tokenizer
from helpers.peers import peer
from helpers.trained import ROWS

from attnkit import models
from attnkit.data.tokenizer import PAD
from attnkit.errors import DataError
from attnkit.models import Model
from attnkit.recipe import Recipe
from attnkit.recipe.schema import DataConfig, Layers
from attnkit.search import translate

peer("onnxscript")
peer("onnxruntime")
to_onnx = pytest.importorskip("attnkit.export.to_onnx")
ONE = Layers(encoder=1, decoder=1)
EVERY = (pytest.mark.slow, pytest.mark.every)


def exported(model: Model, chosen: Recipe, folder: Path) -> Any:
    return to_onnx.write(model, tokenizer(), chosen, folder).logits


def check_logits(model: Model, graphs: Any, source: Any, ids: Any) -> None:
    with torch.no_grad():
        expected = model(source, ids)
    torch.testing.assert_close(graphs(source, ids)[ids != PAD], expected[ids != PAD], atol=1e-5, rtol=1e-5)


def check_outputs(model: Model, graphs: Any, texts: list[str], chosen: Recipe, prompts: bool = False) -> None:
    options = {"max_source": LENGTH, "prompts": prompts}
    expected, found = ([*translate(m, tokenizer(), texts, chosen.search, **options)] for m in (model, graphs))
    assert [row[0][0] for row in found] == [row[0][0] for row in expected]


@pytest.mark.slow
def test_encoder_decoder_is_equal(tmp_path: Path) -> None:
    """In a mixture, the table of positions of a synthesizer made the exporter fix the batch size."""
    mixture = {"name": "mixture", "parts": ["synthesizer-random", "scaled-dot"]}
    places = {"encoder": "nystrom", "decoder": mixture, "cross": "additive"}
    chosen = recipe(attention=places, positions="learned", tie="none", layers=ONE)
    model = make_decisive(build(chosen))
    graphs = exported(model, chosen, tmp_path)
    for rows, longest in ((1, 2), (3, 9), (2, LENGTH)):
        check_logits(model, graphs, *batch(chosen, rows, longest))
    check_outputs(model, graphs, [row.source for row in ROWS], chosen)
    assert b"attnkit/" not in (tmp_path / "decoder.onnx").read_bytes()  # no paths of source files


@pytest.mark.parametrize(
    ("word", "positions"),
    [
        ("local", "rope"),
        pytest.param("linear", "sinusoidal", marks=EVERY),
        pytest.param("synthesizer-factorized-dense", "relative", marks=EVERY),
        pytest.param("selective", "alibi", marks=EVERY),
    ],
)
def test_decoder_is_equal_and_invalid_ids_raise(word: str, positions: str, tmp_path: Path) -> None:
    chosen = recipe("decoder", word, positions=positions, layers=ONE, activation="geglu")
    model = build(chosen)
    graphs = exported(model, chosen, tmp_path)
    for rows, longest in ((1, 2), (2, LENGTH)):
        check_logits(model, graphs, None, batch(chosen, rows, longest)[1])
    prompts = ["ein hund", "zwei katzen und", "katzen"]  # different lengths, so that there is padding in between
    check_outputs(model, graphs, prompts, chosen, prompts=True)
    with pytest.raises(DataError, match="ONNX Runtime cannot run the exported model: .*indices"):
        graphs(None, torch.full((1, 3), -(10**6)))


@pytest.mark.slow
def test_linear_attention_is_equal_at_any_length(tmp_path: Path) -> None:
    """The chunks of training would fix the length in the graph."""
    chosen = recipe("decoder", "linear", layers=ONE)
    chosen = chosen.model_copy(update={"data": DataConfig(train="t.txt", max_length=70)})
    model = build(chosen)
    graphs = exported(model, chosen, tmp_path)
    for longest in (2, 33, 64, 70):
        check_logits(model, graphs, None, batch(chosen, 2, longest)[1][:, :70])


@pytest.mark.slow
def test_encoder_is_equal(tmp_path: Path) -> None:
    chosen = recipe("encoder", "sparse", layers=ONE)
    model = models.build(chosen.model, (len(tokenizer().source), 7), LENGTH).eval()
    graphs = exported(model, chosen, tmp_path)
    source, _ = batch(chosen)
    with torch.no_grad():
        torch.testing.assert_close(graphs(source, None), model(source, None), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_operation_that_onnx_lacks_raises(tmp_path: Path) -> None:
    chosen = recipe("decoder", "gated-delta", layers=ONE)
    with pytest.raises(DataError, match="No ONNX function found.*linalg_solve_triangular"):
        exported(build(chosen), chosen, tmp_path)
