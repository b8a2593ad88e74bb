"""Recording: every mechanism in every role, and nothing else changes."""

from typing import Any

import pytest
import torch
from helpers.map_recording import build, cases, model_config, record_maps, record_mechanisms, stack_weights
from torch import Tensor

from attnkit.analysis.recorder import attention_layers
from attnkit.attention import mix
from attnkit.errors import UsageError
from attnkit.models import Model

SOURCE = torch.tensor([[5, 9, 7, 11, 6, 8, 3], [9, 8, 3, 0, 0, 0, 0]])
TARGET = torch.tensor([[2, 7, 5, 9, 6], [2, 8, 9, 6, 0]])
SOURCES, TARGETS = (7, 3), (5, 4)


def read(model: Model) -> Tensor:
    """Logits of a padded batch, whatever the model's shape."""
    return model(None if model.shape == "decoder" else SOURCE, TARGET)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("word", "role"), list(cases()))
def test_maps_times_values_are_what_the_layer_computed(word: str, role: str) -> None:
    model = build(model_config(word, role)).double()
    found = record_mechanisms(model)
    with torch.no_grad():
        plain = read(model)
        computed = {name: calls[-1] for name, calls in found.items()}
        with record_maps(model) as told:
            again = read(model)
    assert torch.equal(plain, again)
    names = {part: name for name, part in model.named_modules()}
    lengths = SOURCES if role == "encoder" else TARGETS
    for number, layer in enumerate(attention_layers(model)[role]):  # type: ignore[index]
        v, y = computed[names[layer]]
        ours = mix(told[role][number].weights, v)
        for row, length in enumerate(lengths):
            torch.testing.assert_close(ours[row, :, :length], y[row, :, :length], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("role", "word", "options", "more"),
    [
        ("encoder", "scaled-dot", {"residual_scores": True}, {}),
        ("decoder", "scaled-dot", {"residual_scores": "mean"}, {"positions": "alibi"}),
        ("cross", "scaled-dot", {"residual_scores": True, "entropy_scale": True}, {}),
        ("decoder", "additive", {}, {"positions": "relative"}),
        ("decoder", "scaled-dot", {"key_heads": 2}, {"positions": "rope"}),
        ("cross", "dot", {"key_heads": 1}, {}),
        ("encoder", "linear", {}, {"positions": "rope"}),
    ],
)
def test_scores_carried_biases_and_shared_keys_are_in_the_maps(
    role: str, word: str, options: dict[str, Any], more: dict[str, Any]
) -> None:
    test_of = build(model_config(word, role, options, "encoder-decoder", **more)).double()
    found = record_mechanisms(test_of)
    with torch.no_grad():
        read(test_of)
        computed = {name: calls[-1] for name, calls in found.items()}
        with record_maps(test_of) as told:
            read(test_of)
    last = attention_layers(test_of)[role][1]  # type: ignore[index]
    name = next(name for name, part in test_of.named_modules() if part is last)
    v, y = computed[name]
    length = SOURCES[0] if role == "encoder" else TARGETS[0]
    ours = mix(told[role][1].weights, v)[0, :, :length]
    torch.testing.assert_close(ours, y[0, :, :length], rtol=0, atol=2e-5)


def test_training_mode_random_state_and_gradients_stay_as_they_are() -> None:
    section = model_config("performer", "cross", {"redraw_every": 1}, dropout=0.3)
    plain, watched = build(section).train(), build(section).train()
    torch.manual_seed(3)
    read(plain).sum().backward()
    state = torch.get_rng_state()
    torch.manual_seed(3)
    with record_maps(watched) as told:
        read(watched).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(part.training for part in watched.modules())
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
    assert len(told["cross"]) == 2


def test_maps_of_a_model_in_training_are_those_of_evaluation() -> None:
    section = model_config(options={"attention_dropout": 0.5, "score_noise": 1.0}, dropout=0.0)
    model = build(section)
    with record_maps(model, kinds=["encoder"], layers=[0]) as still:
        read(model)
    model.train()
    with record_maps(model, kinds=["encoder"], layers=[0]) as moving:
        read(model)
    assert torch.equal(still["encoder"][0].weights, moving["encoder"][0].weights)


def test_only_the_chosen_layers_and_heads_are_kept() -> None:
    model = build(model_config())
    with record_maps(model) as whole:
        read(model)
    with record_maps(model, kinds=["cross"], layers=[1], heads=[3, 1]) as part:
        read(model)
    assert list(part) == ["cross"]
    (one,) = part["cross"]
    assert (one.heads, one.layer.number) == ((1, 3), 1)
    assert torch.equal(one.weights, whole["cross"][1].weights[:, [1, 3]])


def test_layers_say_what_they_are() -> None:
    model = build(model_config("nystrom", "encoder", shape="encoder-decoder"))
    with record_maps(model) as told:
        read(model)
    nystrom, dot = told["encoder"][1].layer, told["cross"][0].layer
    assert (nystrom.number, nystrom.mechanism, nystrom.exact, nystrom.static) == (1, "nystrom", False, False)
    assert (dot.number, dot.mechanism, dot.exact, dot.static) == (0, "scaled-dot", True, False)


@pytest.mark.parametrize(
    ("word", "static"),
    [
        ("synthesizer-random", True),
        ("fixed-pattern", True),
        ("synthesizer-factorized-random", True),
        ("synthesizer-dense", False),
        ("mixture", False),
        ("gated-delta", False),
    ],
)
def test_a_map_is_static_when_nothing_of_the_text_is_read(word: str, static: bool) -> None:
    model = build(model_config(word, "encoder"))
    with record_maps(model, kinds=["encoder"]) as told:
        read(model)
    other = torch.where(SOURCE == 0, 0, SOURCE.flip(1).masked_fill(SOURCE.flip(1) == 0, 9))
    with record_maps(model, kinds=["encoder"]) as again, torch.no_grad():
        model(other, TARGET)
    assert told["encoder"][0].layer.static is static
    assert torch.equal(stack_weights(told["encoder"]), stack_weights(again["encoder"])) is static


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"kinds": ["cross"]}, "--kind cross: this model has decoder attention only"),
        ({"layers": [2]}, "--layer 2: decoder attention has layers 0, 1"),
        ({"heads": [4]}, "--head 4: decoder attention has heads 0 to 3"),
    ],
)
def test_what_is_not_there_is_refused(asked: dict[str, Any], text: str) -> None:
    model = build(model_config(role="decoder"))
    with pytest.raises(UsageError) as error, record_maps(model, **asked):
        pass
    assert str(error.value) == text


def test_no_hook_stays_after_an_error() -> None:
    model = build(model_config())
    with pytest.raises(RuntimeError, match="stop"), record_maps(model):
        raise RuntimeError("stop")
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_decoding_step_by_step_is_refused_under_a_recording() -> None:
    model = build(model_config())
    _, state = model.step(TARGET[:, :1], model.start(SOURCE))
    with record_maps(model), pytest.raises(ValueError, match="step by step"):
        model.step(TARGET[:, 1:2], state)
    model.step(TARGET[:, 1:2], state)
