"""Layers that take turns: each is wholly its part, and a model of them decodes as it reads."""

from typing import Any

import pytest
import torch

from attnkit import mechanisms, models
from attnkit.attention import Attention
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.models import Model
from attnkit.recipe import schema

HYBRID = ("gated-delta", {"name": "local", "window": 3}, {"name": "scaled-dot", "key_heads": 2})


def model(parts: tuple[Any, ...] = HYBRID, layers: int = 5, positions: str = "rope") -> Model:
    torch.manual_seed(1)
    section = schema.ModelConfig(
        shape="decoder",
        width=16,
        heads=4,
        ff=16,
        dropout=0.0,
        positions=positions,
        layers=schema.Layers(encoder=0, decoder=layers),
        attention=schema.Roles(decoder=schema.AttentionConfig(name="interleaved", parts=parts)),
    )
    return models.build(section, (30, 30), 40).double().eval()


def words(made: Model) -> list[str]:
    return [mechanisms.word_of(type(m)) for m in made.modules() if isinstance(m, Attention)]


def test_layers_take_the_parts_in_turn_from_the_first_on() -> None:
    assert words(model()) == ["gated-delta", "local", "scaled-dot", "gated-delta", "local"]


def test_a_layer_is_that_of_its_part_with_all_its_options() -> None:
    parts = ("additive", {"name": "scaled-dot", "key_heads": 2, "entropy_scale": True})
    for depth, (word, options) in enumerate(
        [("additive", {}), ("scaled-dot", {"key_heads": 2, "entropy_scale": True})] * 2
    ):
        torch.manual_seed(0)
        made = MultiHead.build("interleaved", 16, 4, 20, depth=depth, parts=parts)
        torch.manual_seed(0)
        alone = MultiHead.build(word, 16, 4, 20, depth=depth, **options)
        assert str(made) == str(alone)
        assert made.state_dict().keys() == alone.state_dict().keys()
        same = zip(made.state_dict().values(), alone.state_dict().values(), strict=True)
        assert all(torch.equal(one, other) for one, other in same)


def test_a_model_of_layers_that_differ_decodes_as_it_reads() -> None:
    made = model()
    ids = torch.randint(4, 30, (3, 20), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        whole = made.output(made.hidden(None, ids))
        state, steps = made.start(None, 3), []
        for column in ids.T:
            logits, state = made.step(column[:, None], state)
            steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_a_place_can_do_what_all_parts_can() -> None:
    def able(*parts: str) -> mechanisms.MechanismSpec:
        return mechanisms.resolve_capabilities("interleaved", {"parts": parts})

    assert not able("local", "scaled-dot").cross
    assert able("linear", "scaled-dot").cross
    assert not able("nystrom", "scaled-dot").causal
    assert able("fixed-pattern", "scaled-dot").positions == ("rope",)
    assert able("local", "scaled-dot").positions == ("rope", "alibi", "relative")
    assert able("linear", "gated-delta").state == "constant"
    assert able("linear", "scaled-dot").state == "growing"
    assert able("linear", "scaled-dot").map == "effective"
    assert able("gaussian", "scaled-dot").map == "exact"
    assert able("local", "scaled-dot").cost == "T*window*D, T*S*D"


def test_every_layer_is_tried_before_training() -> None:
    section = schema.ModelConfig(
        attention=schema.Roles(encoder=schema.AttentionConfig(name="interleaved", parts=["dot", "dot"]))
    )
    recipe = schema.Recipe(task="translation", data=schema.DataConfig(corpus="x"), model=section)
    with pytest.raises(UsageError, match="local: window must be at least 0, got -1"):
        models.check_options(recipe, "encoder", {"parts": ("dot", {"name": "local", "window": -1})})
