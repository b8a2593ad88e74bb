"""`model.init_std`: matrices and tables as GPT-2 draws them."""

import math

import pytest
import torch
from torch import nn

from attnkit.layers import FeedForward, MultiHead
from attnkit.models import Model, build
from attnkit.models.embedding import Embedding
from attnkit.recipe import schema

STD, WIDTH, LAYERS, SIZE = 0.02, 96, 3, 400


def made(attention: dict[str, str] | None = None, **options: object) -> Model:
    torch.manual_seed(3)
    sizes = {"width": WIDTH, "ff": 2 * WIDTH, "heads": 4, "positions": "learned"}
    layers = {"encoder": LAYERS, "decoder": LAYERS}
    roles = {"attention": {place: {"name": name} for place, name in (attention or {}).items()}}
    given = sizes | {"layers": layers} | roles | options
    model = schema.ModelConfig.model_validate(given)
    return build(model, (SIZE, SIZE), 60)


def spread(weight: torch.Tensor) -> float:
    return float(weight.detach()[weight.abs().sum(1) > 0].std())  # the row of pads is zero


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder", "encoder"])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_matrices_have_the_deviation_and_ends_of_sublayers_a_smaller_one(shape: str, activation: str) -> None:
    model = made(init_std=STD, shape=shape, activation=activation)
    last = STD / math.sqrt(2 * LAYERS)
    ends = [part.o for part in model.modules() if isinstance(part, MultiHead)]
    ends += [part.down for part in model.modules() if isinstance(part, FeedForward)]
    assert len(ends) == {"encoder-decoder": 5, "decoder": 2, "encoder": 2}[shape] * LAYERS
    for part in model.modules():
        if not isinstance(part, nn.Linear | nn.Embedding):
            continue
        expected = last if any(part is end for end in ends) else STD
        assert spread(part.weight) == pytest.approx(expected, rel=0.15)
        assert getattr(part, "bias", None) is None or not part.bias.any()


def test_token_vectors_are_not_scaled_and_pads_stay_zero() -> None:
    model = made(init_std=STD, shape="decoder")
    embedding = model.embed_target
    assert isinstance(embedding, Embedding)
    assert embedding.table is not None
    assert not embedding.tokens.weight[0].any()
    ids, places = torch.tensor([[5, 7]]), torch.tensor([[0, 1]])
    assert torch.equal(embedding.eval()(ids, places), embedding.tokens(ids) + embedding.table(places))


def test_what_a_mechanism_holds_itself_stays_as_it_made_it() -> None:
    """The table of a random Synthesizer is Glorot's, whatever the matrices around it are."""
    roles = {"encoder": "synthesizer-random", "decoder": "synthesizer-random"}
    ours, plain = made(init_std=STD, attention=roles), made(attention=roles)
    for (name, mine), theirs in zip(ours.named_parameters(), plain.parameters(), strict=True):
        if ".mechanism." in name:
            assert torch.equal(mine, theirs), name


def test_without_it_nothing_changes_and_recipes_of_before_have_their_digest() -> None:
    assert "init_std" not in schema.ModelConfig().model_dump()
    assert math.isclose(made(shape="decoder").embed_target.scale, math.sqrt(WIDTH))
