"""Models with noise on the scores of their layers."""

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
OTHER = [case for case in SCORED if KINDS[case].normalise is not Scored.normalise and case[0] != "block-topk"]  # type: ignore[attr-defined]
"""Those whose weights are no softmax of what they may see."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return save_run(tmp_path_factory.mktemp("noise"), model_config())


@pytest.mark.parametrize(("word", "role"), [case for case in SCORED if case not in OTHER])
def test_noise_is_added_to_what_the_softmax_sees_and_masked_keys_stay_masked(
    word: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(3))
    layer = attention_layers(build(model_config(word, role)))[role][1]  # type: ignore[index]
    # some scores lie otherwise in memory, which is the order that noise is drawn in
    monkeypatch.setattr(torch, "randn_like", lambda scores: drawn.to(scores))
    x, memory = torch.randn(2, 2, 9, 16, generator=torch.Generator().manual_seed(2))
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, 6:] = False
    cross = role == "cross"
    mask = Mask.cross(valid, 9) if cross else Mask.of(valid, 9, role == "decoder")
    with torch.no_grad():
        plain = layer.weights(x, mask, memory if cross else None)
        with noisy(layer, [layer], 1.5, seed=3):
            moved = layer.weights(x, mask, memory if cross else None)
        again = layer.weights(x, mask, memory if cross else None)
    assert torch.equal(plain, again)
    seen = plain > 0
    assert (moved[~seen] == 0).all()
    expected = (plain.log() + 1.5 * drawn).softmax(-1).nan_to_num()
    torch.testing.assert_close(moved[seen], expected[seen], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("word", "role"), OTHER)
def test_noise_is_added_to_what_another_rule_than_the_softmax_sees(
    word: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, seen = attention_layers(build(model_config(word, role)))[role][1], list[Tensor]()  # type: ignore[index]
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    rule = layer.mechanism.normalise

    def noted(scores: Tensor, mask: Mask, own: Tensor) -> Tensor:
        seen.append(scores)
        weights: Tensor = rule(scores, mask, own)
        return weights

    monkeypatch.setattr(layer.mechanism, "normalise", noted)
    x, valid = torch.randn(2, 9, 16), torch.ones(2, 9, dtype=torch.bool)
    cross = role == "cross"
    mask = Mask.cross(valid, 9) if cross else Mask.of(valid, 9, role == "decoder")
    with torch.no_grad():
        layer.weights(x, mask, x if cross else None)
        with noisy(layer, [layer], 1.5, seed=3):
            layer.weights(x, mask, x if cross else None)
    torch.testing.assert_close(seen[1], seen[0] + 1.5)


def test_fused_paths_and_cached_steps_are_noisy_too_and_the_random_state_stays() -> None:
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


def test_noise_ends_with_an_error_too() -> None:
    model = build(model_config())
    (layer, _) = attention_layers(model)["cross"]
    with pytest.raises(RuntimeError, match="inside"), noisy(model, [layer], 1.0, seed=1):
        raise RuntimeError("inside")
    assert isinstance(layer.mechanism, Scored)
    assert layer.mechanism.evaluation_noise == 0.0


@pytest.mark.parametrize("by", ["model", "kind", "layer"])
def test_a_model_is_scored_with_noise_in_each_part(run: Run, by: str) -> None:
    told: list[tuple[int, int]] = []
    found = probe_noise(
        run,
        ROWS,
        sigmas=[0.5, 3.0],
        by=by,
        seeds=2,
        metrics=["perplexity", "accuracy"],
        device="cpu",
        progress=lambda *numbers: told.append(numbers),
    )
    kinds = ("encoder", "decoder", "cross")
    parts = {
        "model": [NoisyPart()],
        "kind": [NoisyPart(kind) for kind in kinds],  # type: ignore[arg-type]
        "layer": [NoisyPart(kind, layer) for kind in kinds for layer in (0, 1)],  # type: ignore[arg-type]
    }[by]
    assert list(found.noisy) == [(part, sigma) for part in parts for sigma in (0.5, 3.0)]
    assert told[-1] == (4 * len(parts), 4 * len(parts))
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
                scores = teacher_forced_scores(
                    ["perplexity", "accuracy"], model, run.tokenizer(), ROWS, max_length=LENGTH, stream=False
                )
            for name, score in scores.items():
                assert values[name][seed - 1] == score.value
                assert score.value != found.clean[name].value or name == "accuracy"


def test_recorded_maps_are_those_with_noise() -> None:
    """So that other studies can look at a noisy model."""
    model = build(model_config())
    (layer, _) = attention_layers(model)["encoder"]
    source = torch.tensor([[7, 9, 11, 3]])
    with record_maps(model, kinds=["encoder"], layers=[0]) as seen:
        for sigma in (0.0, 5.0):
            with noisy(model, [layer], sigma, 1):
                model.hidden(source, torch.tensor([[2, 8]]))
    plain, moved = (one.weights for one in seen["encoder"])
    assert not torch.allclose(plain, moved, atol=0.05)


@pytest.mark.parametrize(
    ("word", "options", "message"),
    [
        (
            "linear",
            {},
            "encoder attention is linear, which has no attention scores to add noise to; choose another "
            "--kind or --layer",
        ),
        ("nystrom", {"kinds": ["encoder"]}, "encoder attention is nystrom, which has no attention scores"),
        ("scaled-dot", {"sigmas": [0.0]}, "--sigma 0: must be above 0 and at most 20"),
        ("scaled-dot", {"sigmas": [1.0, math.nan]}, "--sigma nan"),
        ("scaled-dot", {"sigmas": [21.0]}, "--sigma 21"),
        ("scaled-dot", {"seeds": 0}, "--seeds 0: must be at least 1"),
        ("scaled-dot", {"metrics": ["length-ratio"]}, "neither higher nor lower is better"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, word: str, options: dict[str, Any], message: str) -> None:
    run = save_run(tmp_path, model_config(word, "encoder", shape="encoder-decoder"))
    with pytest.raises(UsageError, match=message):
        probe_noise(run, ROWS, **options)


def test_the_kinds_that_have_scores_can_be_chosen(tmp_path: Path) -> None:
    run = save_run(tmp_path, model_config("linear", "encoder", shape="encoder-decoder"))
    found = probe_noise(run, ROWS, sigmas=[1.0], seeds=1, kinds=["cross"], device="cpu")
    assert list(found.noisy) == [(NoisyPart(), 1.0)]


@pytest.mark.parametrize("probe", [probe_entropy, probe_heads, probe_noise, probe_rank])
def test_no_rows_are_refused(probe: Any, run: Run) -> None:
    with pytest.raises(MissingInputError, match="no rows"):
        probe(run, [])
