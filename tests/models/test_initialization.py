"""Tests of `model.init_std`, which draws matrices and tables as GPT-2 does."""

import math
from typing import Any

import pytest
import torch
from helpers.tiny_models import tiny_model
from torch import nn

from attnkit.layers import FeedForward, MultiHead
from attnkit.recipe import schema

STD, WIDTH, LAYERS = 0.02, 96, 3


def build(**options: object) -> Any:
    layers = {"encoder": LAYERS, "decoder": LAYERS}
    return tiny_model(400, width=WIDTH, ff=2 * WIDTH, positions="learned", layers=layers, **options)


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder", "encoder"])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_standard_deviation_is_smaller_at_the_end_of_sublayers(shape: str, activation: str) -> None:
    model = build(init_std=STD, shape=shape, activation=activation)
    ends = [part.o for part in model.modules() if isinstance(part, MultiHead)]
    ends += [part.down for part in model.modules() if isinstance(part, FeedForward)]
    assert len(ends) == {"encoder-decoder": 5, "decoder": 2, "encoder": 2}[shape] * LAYERS
    for part in model.modules():
        if not isinstance(part, nn.Linear | nn.Embedding):
            continue
        weight = part.weight[part.weight.abs().sum(1) > 0]  # the row of padding is zero
        expected = STD / math.sqrt(2 * LAYERS) if any(part is end for end in ends) else STD
        assert weight.std().item() == pytest.approx(expected, rel=0.15)
        assert getattr(part, "bias", None) is None or not part.bias.any()


def test_token_vectors_are_not_scaled_and_padding_stays_zero() -> None:
    embedding = build(init_std=STD, shape="decoder").embed_target.eval()
    assert not embedding.tokens.weight[0].any()
    ids, positions = torch.tensor([[5, 7]]), torch.tensor([[0, 1]])
    assert torch.equal(embedding(ids, positions), embedding.tokens(ids) + embedding.table(positions))


def test_weights_of_mechanisms_keep_their_own_initialization() -> None:
    """The table of a random Synthesizer is Glorot's, however other matrices are drawn."""
    attention = dict.fromkeys(("encoder", "decoder"), {"name": "synthesizer-random"})
    model, default = build(init_std=STD, attention=attention), build(attention=attention)
    tables = {name: table for name, table in model.named_parameters() if ".mechanism." in name}
    assert tables
    for name, table in tables.items():
        assert torch.equal(table, default.get_parameter(name)), name


def test_default_keeps_the_digest_of_recipes_and_the_scale_of_embeddings() -> None:
    assert "init_std" not in schema.ModelConfig().model_dump()
    assert math.isclose(build(shape="decoder").embed_target.scale, math.sqrt(WIDTH))
