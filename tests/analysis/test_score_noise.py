"""Tests of noise on attention scores: where it is added, reproducibility, studies of its effect."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.map_recording import build, build_layer, cases, model_config, record_maps, save_run
from helpers.trained import LENGTH, ROWS, tokenizer
from torch import Tensor

from attnkit.analysis.head_ablation import probe_heads
from attnkit.analysis.map_entropy import probe_entropy
from attnkit.analysis.map_rank import probe_rank
from attnkit.analysis.recorder import attention_layers
from attnkit.analysis.score_noise import NoisyPart, noisy, probe_noise
from attnkit.attention import Mask, Scored
from attnkit.errors import MissingInputError, UsageError
from attnkit.layers import MultiHead
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.scoring.teacher_forced import teacher_forced_scores
from attnkit.search import translate

KINDS = {(word, role): type(build_layer(word, role).mechanism) for word, role in cases()}
SCORED = [case for case, kind in KINDS.items() if issubclass(kind, Scored)]
OTHER = [case for case in SCORED if KINDS[case].normalize is not Scored.normalize and case[0] != "block-topk"]  # type: ignore[attr-defined]
"""Mechanisms whose weights are not a softmax of the visible scores."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return save_run(tmp_path_factory.mktemp("noise"), model_config())


@pytest.mark.parametrize(("word", "role"), [case for case in SCORED if case not in OTHER])
def test_noise_is_added_before_the_softmax(word: str, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(3))
    layer = attention_layers(build(model_config(word, role)))[role][1]  # type: ignore[index]
    # noise is drawn in the order of memory, which differs between mechanisms
    monkeypatch.setattr(torch, "randn_like", lambda scores: drawn.to(scores))
    x, memory = torch.randn(2, 2, 9, 16, generator=torch.Generator().manual_seed(2))
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, 6:] = False
    arguments = (x, *mask_and_memory(role, valid, memory))
    with torch.no_grad():
        plain = layer.weights(*arguments)
        with noisy(layer, [layer], 1.5, seed=3):
            found = layer.weights(*arguments)
        assert torch.equal(layer.weights(*arguments), plain)
    visible = plain > 0
    assert (found[~visible] == 0).all()
    expected = (plain.log() + 1.5 * drawn).softmax(-1).nan_to_num()
    torch.testing.assert_close(found[visible], expected[visible], rtol=1e-4, atol=1e-6)


def mask_and_memory(role: str, valid: Tensor, memory: Tensor) -> tuple[Mask, Tensor | None]:
    if role == "cross":
        return Mask.cross(valid, 9), memory
    return Mask.of(valid, 9, role == "decoder"), None


@pytest.mark.parametrize(("word", "role"), OTHER)
def test_noise_is_added_before_other_normalizations(word: str, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, inputs = attention_layers(build(model_config(word, role)))[role][1], list[Tensor]()  # type: ignore[index]
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    normalize = layer.mechanism.normalize

    def keep_scores(scores: Tensor, mask: Mask, own: Tensor) -> Tensor:
        inputs.append(scores)
        weights: Tensor = normalize(scores, mask, own)
        return weights

    monkeypatch.setattr(layer.mechanism, "normalize", keep_scores)
    x = torch.randn(2, 9, 16)
    arguments = (x, *mask_and_memory(role, torch.ones(2, 9, dtype=torch.bool), x))
    with torch.no_grad():
        layer.weights(*arguments)
        with noisy(layer, [layer], 1.5, seed=3):
            layer.weights(*arguments)
    torch.testing.assert_close(inputs[1], inputs[0] + 1.5)


def test_noise_in_fused_paths_and_cached_steps() -> None:
    """Noise is reproducible by its seed and does not change the random state."""
    model = build(model_config())
    layers = attention_layers(model)["cross"]
    texts, spec = [row.source for row in ROWS], SearchConfig(method="greedy", max_length=8)

    def decoded() -> list[Any]:
        return list(translate(model, tokenizer(), texts, spec, max_source=LENGTH))

    state = torch.get_rng_state()
    plain = decoded()
    with noisy(model, layers, 8.0, seed=1):
        first = decoded()
    with noisy(model, layers, 8.0, seed=1):
        assert decoded() == first
    assert first != plain
    assert decoded() == plain
    assert torch.equal(torch.get_rng_state(), state)


def test_noise_ends_after_an_error() -> None:
    model = build(model_config())
    (layer, _) = attention_layers(model)["cross"]
    with pytest.raises(RuntimeError, match="inside"), noisy(model, [layer], 1.0, seed=1):
        raise RuntimeError("inside")
    assert isinstance(layer.mechanism, Scored)
    assert layer.mechanism.evaluation_noise == 0.0


@pytest.mark.parametrize("by", ["model", "kind", "layer"])
def test_scores_with_noise_in_each_part(run: Run, by: str) -> None:
    reports: list[tuple[int, int]] = []
    metrics = ["perplexity", "accuracy"]
    options: dict[str, Any] = {"sigmas": [0.5, 3.0], "by": by, "seeds": 2, "metrics": metrics, "device": "cpu"}
    found = probe_noise(run, ROWS, progress=lambda *numbers: reports.append(numbers), **options)
    kinds = ("encoder", "decoder", "cross")
    parts = {
        "model": [NoisyPart()],
        "kind": [NoisyPart(kind) for kind in kinds],  # type: ignore[arg-type]
        "layer": [NoisyPart(kind, layer) for kind in kinds for layer in (0, 1)],  # type: ignore[arg-type]
    }[by]
    assert list(found.noisy) == [(part, sigma) for part in parts for sigma in (0.5, 3.0)]
    assert reports[-1] == (4 * len(parts), 4 * len(parts))
    model = run.model()
    for (part, sigma), values in found.noisy.items():
        layers: list[MultiHead] = [
            layer
            for kind, several in attention_layers(model).items()
            for number, layer in enumerate(several)
            if part.kind in (None, kind) and part.layer in (None, number)
        ]
        for seed in (1, 2):
            with noisy(model, layers, sigma, seed):
                scores = teacher_forced_scores(metrics, model, run.tokenizer(), ROWS, max_length=LENGTH, stream=False)
            for name, score in scores.items():
                assert values[name][seed - 1] == score.value
                assert score.value != found.clean[name].value or name == "accuracy"


def test_recorded_maps_have_noise() -> None:
    """So that other studies can be run on a noisy model."""
    model = build(model_config())
    (layer, _) = attention_layers(model)["encoder"]
    source = torch.tensor([[7, 9, 11, 3]])
    with record_maps(model, kinds=["encoder"], layers=[0]) as recorded:
        for sigma in (0.0, 5.0):
            with noisy(model, [layer], sigma, 1):
                model.hidden(source, torch.tensor([[2, 8]]))
    plain, found = (maps.weights for maps in recorded["encoder"])
    assert not torch.allclose(plain, found, atol=0.05)


@pytest.mark.parametrize(
    ("word", "options", "message"),
    [
        (
            "linear",
            {},
            "encoder attention is linear, which has no attention scores to add noise to; "
            "choose another --kind or --layer",
        ),
        ("nystrom", {"kinds": ["encoder"]}, "encoder attention is nystrom, which has no attention scores"),
        ("scaled-dot", {"sigmas": [0.0]}, "--sigma 0: must be above 0 and at most 20"),
        ("scaled-dot", {"sigmas": [1.0, math.nan]}, "--sigma nan"),
        ("scaled-dot", {"sigmas": [21.0]}, "--sigma 21"),
        ("scaled-dot", {"seeds": 0}, "--seeds 0: must be at least 1"),
        ("scaled-dot", {"metrics": ["length-ratio"]}, "neither higher nor lower is better"),
    ],
)
def test_invalid_arguments_raise(tmp_path: Path, word: str, options: dict[str, Any], message: str) -> None:
    run = save_run(tmp_path, model_config(word, "encoder", shape="encoder-decoder"))
    with pytest.raises(UsageError, match=message):
        probe_noise(run, ROWS, **options)


def test_kinds_with_scores_can_be_selected(tmp_path: Path) -> None:
    run = save_run(tmp_path, model_config("linear", "encoder", shape="encoder-decoder"))
    found = probe_noise(run, ROWS, sigmas=[1.0], seeds=1, kinds=["cross"], device="cpu")
    assert list(found.noisy) == [(NoisyPart(), 1.0)]


@pytest.mark.parametrize("probe", [probe_entropy, probe_heads, probe_noise, probe_rank])
def test_empty_split_raises(probe: Any, run: Run) -> None:
    with pytest.raises(MissingInputError, match="no rows"):
        probe(run, [])
