"""Recording: every mechanism in every role, and nothing else changes."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.recorded import build, cases, heard, sections
from torch import Tensor

from attnkit.analysis.recorder import attention_layers, record
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
    model = build(sections(word, role)).double()
    found = heard(model)
    with torch.no_grad():
        plain = read(model)
        computed = {name: calls[-1] for name, calls in found.items()}
        with record(model) as recorded:
            again = read(model)
    assert torch.equal(plain, again)
    names = {part: name for name, part in model.named_modules()}
    lengths = SOURCES if role == "encoder" else TARGETS
    for number, layer in enumerate(attention_layers(model)[role]):  # type: ignore[index]
        maps = recorded[role].maps[number]  # type: ignore[index]
        v, y = computed[names[layer]]
        ours = mix(torch.from_numpy(maps).double(), v)
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
    test_of = build(sections(word, role, options, "encoder-decoder", **more)).double()
    found = heard(test_of)
    with torch.no_grad():
        read(test_of)
        computed = {name: calls[-1] for name, calls in found.items()}
        with record(test_of) as recorded:
            read(test_of)
    last = attention_layers(test_of)[role][1]  # type: ignore[index]
    name = next(name for name, part in test_of.named_modules() if part is last)
    v, y = computed[name]
    maps = torch.from_numpy(recorded[role].maps[1]).double()  # type: ignore[index]
    length = SOURCES[0] if role == "encoder" else TARGETS[0]
    ours = mix(maps, v)[0, :, :length]
    torch.testing.assert_close(ours, y[0, :, :length], rtol=0, atol=2e-5)


def test_training_mode_random_state_and_gradients_stay_as_they_are() -> None:
    section = sections("performer", "cross", {"redraw_every": 1}, dropout=0.3)
    plain, watched = build(section).train(), build(section).train()
    torch.manual_seed(3)
    read(plain).sum().backward()
    state = torch.get_rng_state()
    torch.manual_seed(3)
    with record(watched) as recorded:
        read(watched).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(part.training for part in watched.modules())
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
    assert recorded["cross"].maps is not None


def test_maps_of_a_model_in_training_are_those_of_evaluation() -> None:
    section = sections(options={"attention_dropout": 0.5, "score_noise": 1.0}, dropout=0.0)
    model = build(section)
    with record(model, kinds=["encoder"], layers=[0]) as still:
        read(model)
    model.train()
    with record(model, kinds=["encoder"], layers=[0]) as moving:
        read(model)
    assert np.array_equal(still["encoder"].maps, moving["encoder"].maps)  # type: ignore[arg-type]


def test_only_the_chosen_layers_and_heads_are_kept() -> None:
    model = build(sections())
    with record(model) as whole:
        read(model)
    with record(model, kinds=["cross"], layers=[1], heads=[3, 1]) as part:
        read(model)
    assert list(part) == ["cross"]
    assert part["cross"].heads == (1, 3)
    assert [layer.number for layer in part["cross"].layers] == [1]
    assert part["cross"].maps is not None
    assert whole["cross"].maps is not None
    assert np.array_equal(part["cross"].maps, whole["cross"].maps[1:, :, [1, 3]])


def test_layers_say_what_they_are() -> None:
    model = build(sections("nystrom", "encoder", shape="encoder-decoder"))
    with record(model) as recorded:
        read(model)
    nystrom, dot = recorded["encoder"].layers[1], recorded["cross"].layers[0]
    assert (nystrom.number, nystrom.mechanism, nystrom.exact, nystrom.static) == (
        1, "nystrom", False, False,
    )  # fmt: skip
    assert (dot.number, dot.mechanism, dot.exact, dot.static) == (0, "scaled-dot", True, False)


@pytest.mark.parametrize(
    ("word", "static"),
    [("synthesizer-random", True), ("fixed-pattern", True), ("synthesizer-factorized-random", True),
     ("synthesizer-dense", False), ("mixture", False), ("gated-delta", False)],
)  # fmt: skip
def test_a_map_is_static_when_nothing_of_the_text_is_read(word: str, static: bool) -> None:
    model = build(sections(word, "encoder"))
    with record(model, kinds=["encoder"]) as recorded:
        read(model)
    one = recorded["encoder"].maps
    other = torch.where(SOURCE == 0, 0, SOURCE.flip(1).masked_fill(SOURCE.flip(1) == 0, 9))
    with record(model, kinds=["encoder"]) as again, torch.no_grad():
        model(other, TARGET)
    assert recorded["encoder"].layers[0].static is static
    assert one is not None
    assert again["encoder"].maps is not None
    assert np.array_equal(one, again["encoder"].maps) is static


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"kinds": ["cross"]}, "--kind cross: this model has decoder attention only"),
        ({"layers": [2]}, "--layer 2: decoder attention has layers 0, 1"),
        ({"heads": [4]}, "--head 4: decoder attention has heads 0 to 3"),
    ],
)
def test_what_is_not_there_is_refused(asked: dict[str, Any], text: str) -> None:
    model = build(sections(role="decoder"))
    with pytest.raises(UsageError) as error, record(model, **asked):
        pass
    assert str(error.value) == text


def test_no_hook_stays_after_an_error() -> None:
    model = build(sections())
    with pytest.raises(RuntimeError, match="stop"), record(model):
        raise RuntimeError("stop")
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_decoding_step_by_step_is_refused_under_a_recording() -> None:
    model = build(sections())
    _, state = model.step(TARGET[:, :1], model.start(SOURCE))
    with record(model), pytest.raises(ValueError, match="step by step"):
        model.step(TARGET[:, 1:2], state)
    model.step(TARGET[:, 1:2], state)
