"""Tests of exports to transformers: its own classes give the same logits and outputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.export_models import ARCHITECTURES, LENGTH, batch, build, make_decisive, recipe, tokenizer
from helpers.peers import peer
from helpers.trained import ROWS

from attnkit.data.tokenizer import PAD
from attnkit.models import Model
from attnkit.recipe import Recipe
from attnkit.search import translate

peer("transformers")
to_huggingface = pytest.importorskip("attnkit.export.to_huggingface")
DECODERS = [options for options in ARCHITECTURES if options.get("shared", True)]


def exported(model: Model, chosen: Recipe, folder: Path) -> Any:
    pieces = tokenizer(chosen.tokenizer.shared)
    to_huggingface.write(model, pieces, chosen, folder)
    return to_huggingface.HuggingFaceModel(folder, len(pieces.target))


def check_logits(chosen: Recipe, folder: Path, kind: str) -> None:
    """Check that the exported model has the given class and equal logits."""
    model = build(chosen)
    opened = exported(model, chosen, folder)
    assert type(opened.model).__name__.startswith(kind)
    source, ids = batch(chosen)
    source, checked = (None, ids != PAD) if kind.startswith("OPT") else (source, ids >= 0)
    opened.model.double()
    with torch.no_grad():
        found, expected = opened.logits(source, ids), model.double()(source, ids)
    torch.testing.assert_close(found[checked], expected[checked], atol=1e-6, rtol=0)  # float32 position tables


@pytest.mark.sampled(5)
@pytest.mark.parametrize("options", ARCHITECTURES, ids=str)
def test_encoder_decoders_have_equal_logits(options: dict[str, Any], tmp_path: Path) -> None:
    check_logits(recipe(**options), tmp_path, "Pegasus" if options["norm"] == "pre" else "Marian")


@pytest.mark.parametrize("options", DECODERS, ids=str)
def test_decoders_have_equal_logits(options: dict[str, Any], tmp_path: Path) -> None:
    check_logits(recipe("decoder", **options), tmp_path, "OPTForCausalLM")


@pytest.mark.parametrize(
    "search",
    [
        {"beam": 3},
        {"method": "greedy"},
        {"beam": 2, "min_length": 3},
        {"beam": 4, "length_penalty": 0.3, "no_repeat_ngram": 2},
    ],
    ids=str,
)
def test_outputs_are_equal(search: dict[str, Any], tmp_path: Path) -> None:
    chosen = recipe(tie="none", positions="learned")
    spec = chosen.search.model_copy(update={"max_length": LENGTH} | search)
    chosen = chosen.model_copy(update={"search": spec})
    model = make_decisive(build(chosen))
    texts = [row.source for row in ROWS] + ["cats  \t and dogs " * 8]  # the last text is too long
    opened = exported(model, chosen, tmp_path)
    expected = [results[0][0] for results in translate(model, tokenizer(), texts, spec, max_source=LENGTH)]
    assert [*opened.outputs(texts)] == expected
    assert len({*expected}) > 3


def test_prompts_are_continued_equally(tmp_path: Path) -> None:
    chosen = recipe("decoder", tie="none", positions="learned")
    model = make_decisive(build(chosen))
    prompts = ["ein hund", "zwei katzen und", "katzen"]
    results = translate(model, tokenizer(), prompts, chosen.search, max_source=LENGTH, prompts=True)
    expected = [result[0][0] for result in results]
    assert [*exported(model, chosen, tmp_path).outputs(prompts)] == expected
    assert any(expected)
