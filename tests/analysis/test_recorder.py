"""Tests of the recording of maps: every mechanism in every role, selection, no side effects."""

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
    """Return the logits of a padded batch."""
    return model(None if model.shape == "decoder" else SOURCE, TARGET)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("word", "role"), list(cases()))
def test_maps_times_values_are_the_outputs(word: str, role: str) -> None:
    check_maps(build(model_config(word, role)).double(), role)


def check_maps(model: Model, role: str) -> None:
    """Assert that maps times values are the outputs of each layer, and that recording does not change the model."""
    calls = record_mechanisms(model)
    with torch.no_grad():
        plain = read(model)
        last = {name: each[-1] for name, each in calls.items()}
        with record_maps(model) as recorded:
            assert torch.equal(read(model), plain)
    names = {part: name for name, part in model.named_modules()}
    for number, layer in enumerate(attention_layers(model)[role]):  # type: ignore[index]
        v, y = last[names[layer]]
        found = mix(recorded[role][number].weights, v)
        for row, length in enumerate(SOURCES if role == "encoder" else TARGETS):
            torch.testing.assert_close(found[row, :, :length], y[row, :, :length], rtol=0, atol=2e-5)


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
def test_maps_include_residual_scores_biases_and_shared_keys(
    role: str, word: str, options: dict[str, Any], more: dict[str, Any]
) -> None:
    check_maps(build(model_config(word, role, options, "encoder-decoder", **more)).double(), role)


def test_recording_does_not_change_training() -> None:
    section = model_config("performer", "cross", {"redraw_every": 1}, dropout=0.3)
    plain, recorded = build(section).train(), build(section).train()
    torch.manual_seed(3)
    read(plain).sum().backward()
    state = torch.get_rng_state()
    torch.manual_seed(3)
    with record_maps(recorded) as maps:
        read(recorded).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(part.training for part in recorded.modules())
    for expected, found in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad)  # type: ignore[arg-type]
    assert len(maps["cross"]) == 2


def test_maps_in_training_mode_equal_those_of_evaluation() -> None:
    model = build(model_config(options={"attention_dropout": 0.5, "score_noise": 1.0}, dropout=0.0))
    with record_maps(model, kinds=["encoder"], layers=[0]) as recorded:
        read(model)
        read(model.train())
    evaluation, training = recorded["encoder"]
    assert torch.equal(evaluation.weights, training.weights)


def test_only_selected_layers_and_heads_are_recorded() -> None:
    model = build(model_config())
    with record_maps(model) as whole:
        read(model)
    with record_maps(model, kinds=["cross"], layers=[1], heads=[3, 1]) as part:
        read(model)
    assert list(part) == ["cross"]
    (maps,) = part["cross"]
    assert (maps.heads, maps.layer.number) == ((1, 3), 1)
    assert torch.equal(maps.weights, whole["cross"][1].weights[:, [1, 3]])


def test_facts_of_layers() -> None:
    model = build(model_config("nystrom", "encoder", shape="encoder-decoder"))
    with record_maps(model) as recorded:
        read(model)
    nystrom, dot = recorded["encoder"][1].layer, recorded["cross"][0].layer
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
def test_map_is_static_if_it_does_not_depend_on_the_text(word: str, static: bool) -> None:
    model = build(model_config(word, "encoder"))
    with record_maps(model, kinds=["encoder"]) as first:
        read(model)
    other = torch.where(SOURCE == 0, 0, SOURCE.flip(1).masked_fill(SOURCE.flip(1) == 0, 9))
    with record_maps(model, kinds=["encoder"]) as second, torch.no_grad():
        model(other, TARGET)
    assert first["encoder"][0].layer.static is static
    assert torch.equal(stack_weights(first["encoder"]), stack_weights(second["encoder"])) is static


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ["cross"]}, "--kind cross: this model has decoder attention only"),
        ({"layers": [2]}, "--layer 2: decoder attention has layers 0, 1"),
        ({"heads": [4]}, "--head 4: decoder attention has heads 0 to 3"),
    ],
)
def test_missing_kind_layer_or_head_raises(options: dict[str, Any], message: str) -> None:
    model = build(model_config(role="decoder"))
    with pytest.raises(UsageError, match=f"^{message}$"), record_maps(model, **options):
        pass


def test_hooks_are_removed_after_an_error() -> None:
    model = build(model_config())
    with pytest.raises(RuntimeError, match="stop"), record_maps(model):
        raise RuntimeError("stop")
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_decoding_step_by_step_raises_while_recording() -> None:
    model = build(model_config())
    _, state = model.step(TARGET[:, :1], model.start(SOURCE))
    with record_maps(model), pytest.raises(ValueError, match="step by step"):
        model.step(TARGET[:, 1:2], state)
    model.step(TARGET[:, 1:2], state)
