"""Stock classes of transformers compute what our models do."""

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


@pytest.mark.sampled(5)
@pytest.mark.parametrize("options", ARCHITECTURES, ids=str)
def test_encoder_decoders_have_equal_logits(options: dict[str, Any], tmp_path: Path) -> None:
    chosen = recipe(**options)
    model = build(chosen)
    opened = exported(model, chosen, tmp_path)
    kind = "Pegasus" if options["norm"] == "pre" else "Marian"
    assert type(opened.model).__name__.startswith(kind)
    source, ids = batch(chosen)
    opened.model.double()
    with torch.no_grad():
        found, expected = opened.logits(source, ids), model.double()(source, ids)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)  # of tables in float32


@pytest.mark.parametrize("options", DECODERS, ids=str)
def test_decoders_have_equal_logits(options: dict[str, Any], tmp_path: Path) -> None:
    chosen = recipe("decoder", **options)
    model = build(chosen)
    opened = exported(model, chosen, tmp_path)
    assert type(opened.model).__name__ == "OPTForCausalLM"
    _, ids = batch(chosen)
    opened.model.double()
    with torch.no_grad():
        found, expected = opened.logits(None, ids), model.double()(None, ids)
    torch.testing.assert_close(found[ids != PAD], expected[ids != PAD], atol=1e-6, rtol=0)


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
    texts = [row.source for row in ROWS] + ["cats  \t and dogs " * 8]  # the last one is too long
    opened = exported(model, chosen, tmp_path)
    ours = [found[0][0] for found in translate(model, tokenizer(), texts, spec, max_source=LENGTH)]
    assert [*opened.outputs(texts)] == ours
    assert len({*ours}) > 3


def test_a_prompt_is_continued(tmp_path: Path) -> None:
    chosen = recipe("decoder", tie="none", positions="learned")
    model = make_decisive(build(chosen))
    prompts = ["ein hund", "zwei katzen und", "katzen"]
    found = translate(model, tokenizer(), prompts, chosen.search, max_source=LENGTH, prompts=True)
    ours = [answers[0][0] for answers in found]
    opened = exported(model, chosen, tmp_path)
    assert [*opened.outputs(prompts)] == ours
    assert any(ours)
