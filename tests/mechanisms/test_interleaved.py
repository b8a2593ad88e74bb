"""Tests of interleaved attention: layers use the parts in turn, and models of them decode."""

from typing import Any

import pytest
import torch
from helpers.tiny_models import tiny_model

from attnkit import mechanisms, models
from attnkit.attention import Attention
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.recipe import schema


def hybrid_model() -> Any:
    parts = ("gated-delta", {"name": "local", "window": 3}, {"name": "scaled-dot", "key_heads": 2})
    attention = {"decoder": {"name": "interleaved", "parts": parts}}
    layers = {"encoder": 0, "decoder": 5}
    return tiny_model(30, shape="decoder", positions="rope", layers=layers, attention=attention).double().eval()


def test_layers_use_the_parts_in_turn() -> None:
    words = [mechanisms.word_of(type(m)) for m in hybrid_model().modules() if isinstance(m, Attention)]
    assert words == ["gated-delta", "local", "scaled-dot", "gated-delta", "local"]


@pytest.mark.parametrize("depth", range(4))
def test_layer_equals_a_layer_of_its_part_and_options(depth: int) -> None:
    options = {"key_heads": 2, "entropy_scale": True} if depth % 2 else {}
    parts = ("additive", {"name": "scaled-dot", "key_heads": 2, "entropy_scale": True})
    torch.manual_seed(0)
    layer = MultiHead.build("interleaved", 16, 4, 20, depth=depth, parts=parts)
    torch.manual_seed(0)
    alone = MultiHead.build("scaled-dot" if depth % 2 else "additive", 16, 4, 20, depth=depth, **options)
    assert str(layer) == str(alone)
    torch.testing.assert_close(layer.state_dict(), alone.state_dict(), rtol=0, atol=0)


@torch.no_grad()
def test_decoding_steps_equal_one_pass() -> None:
    model = hybrid_model()
    ids = torch.randint(4, 30, (3, 20), generator=torch.Generator().manual_seed(2))
    state, steps = model.start(None, 3), []
    for column in ids.T:
        logits, state = model.step(column[:, None], state)
        steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, 1), model.output(model.hidden(None, ids)))


def test_capabilities_are_those_of_all_parts() -> None:
    def resolve(*parts: str) -> mechanisms.MechanismSpec:
        return mechanisms.resolve_capabilities("interleaved", {"parts": parts})

    assert not resolve("local", "scaled-dot").cross
    assert resolve("linear", "scaled-dot").cross
    assert not resolve("nystrom", "scaled-dot").causal
    assert resolve("fixed-pattern", "scaled-dot").positions == ("rope",)
    assert resolve("local", "scaled-dot").positions == ("rope", "alibi", "relative")
    assert resolve("linear", "gated-delta").state == "constant"
    assert resolve("linear", "scaled-dot").state == "growing"
    assert resolve("linear", "scaled-dot").map == "effective"
    assert resolve("gaussian", "scaled-dot").map == "exact"
    assert resolve("local", "scaled-dot").cost == "T*window*D, T*S*D"


def test_invalid_option_of_a_later_layer_raises_before_training() -> None:
    attention = schema.Roles(encoder=schema.AttentionConfig(name="interleaved", parts=["dot", "dot"]))
    model = schema.ModelConfig(attention=attention)
    recipe = schema.Recipe(task="translation", data=schema.DataConfig(corpus="x"), model=model)
    with pytest.raises(UsageError, match="local: window must be at least 0, got -1"):
        models.check_options(recipe, "encoder", {"parts": ("dot", {"name": "local", "window": -1})})
