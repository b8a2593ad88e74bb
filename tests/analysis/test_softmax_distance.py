"""Tests of exact softmax attention as the reference of a map, and of the distance from it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.map_recording import build, model_config, record_maps, save_run
from helpers.saved_maps import load

from attnkit.analysis.capture import capture
from attnkit.analysis.map_files import save
from attnkit.analysis.recorder import exact_softmax, half_l1_distance
from attnkit.attention.mask import Mask
from attnkit.models import Model

SOURCE = torch.tensor([[5, 9, 7, 11, 6, 8, 3], [9, 8, 3, 0, 0, 0, 0]])
TARGET = torch.tensor([[2, 7, 5, 9, 6], [2, 8, 9, 6, 5]])


def read(model: Model) -> None:
    with torch.no_grad():
        model(SOURCE, TARGET)


def test_distance_is_half_the_l1_norm_of_the_difference() -> None:
    rows = torch.tensor([[0.5, 0.5, 0], [1, 0, 0], [0, 0, 1], [2, -1, 0]])[None, None]
    others = torch.tensor([[0.5, 0.5, 0], [0, 1, 0], [0.5, 0, 0.5], [1, 0, 0]])[None, None]
    assert half_l1_distance(rows, others).tolist() == [[[0, 1, 0.5, 1]]]


def test_reference_by_hand() -> None:
    """One head of width 4; the scores of the keys are 0, ln 3 and a larger one that is masked."""
    q = torch.tensor([[[[2.0, 0, 0, 0]]]])
    k = torch.tensor([[[[0.0, 0, 0, 0], [math.log(3), 0, 0, 0], [9, 0, 0, 0]]]])
    mask = Mask.cross(torch.tensor([[True, True, False]]), 1)
    torch.testing.assert_close(exact_softmax(q, k, mask), torch.tensor([[[[0.25, 0.75, 0]]]]))
    bias = torch.tensor([math.log(3), 0.0, 0.0]).expand(1, 1, 1, 3)
    torch.testing.assert_close(exact_softmax(q, k, mask, bias), torch.tensor([[[[0.5, 0.5, 0]]]]))


@pytest.mark.parametrize(
    ("role", "options", "more"),
    [
        ("encoder", {}, {}),
        ("decoder", {}, {"positions": "rope"}),
        ("decoder", {}, {"positions": "alibi"}),
        ("cross", {"key_heads": 2}, {}),
    ],
)
def test_softmax_attention_equals_its_reference(role: str, options: dict[str, Any], more: dict[str, Any]) -> None:
    model = build(model_config("scaled-dot", role, options, "encoder-decoder", **more))
    with record_maps(model) as found:
        read(model)
    for maps in found[role]:
        torch.testing.assert_close(maps.weights, maps.exact(), rtol=0, atol=1e-6)


def test_reference_of_a_sparse_mechanism_sees_all_keys() -> None:
    model = build(model_config("local", "encoder", {"window": 1}, "encoder-decoder"))
    with record_maps(model, kinds=["encoder"]) as found:
        read(model)
    for maps in found["encoder"]:
        exact = maps.exact()
        assert exact is not None
        assert (maps.weights[0, :, 0, 2:] == 0).all()
        assert (exact[0] > 0).all()
        assert (exact[1, :, :, 3:] == 0).all()


@pytest.mark.parametrize("word", ["linear", "performer", "efficient", "nystrom", "linformer"])
def test_distance_of_effective_maps(word: str, tmp_path: Path) -> None:
    section = model_config(word, "encoder", {"landmarks": 2} if word == "nystrom" else {}, heads=2)
    run = save_run(tmp_path, section.model_copy(update={"shape": "encoder-decoder"}))
    found = capture(run, "two red dogs and a cat", target="ein hund", heads=[1], reference=True, device="cpu")
    assert found.reference is not None
    maps, exact = found.maps["encoder"], found.reference.maps["encoder"]
    for number, layer in enumerate(maps.layers):
        distance = np.abs(maps.weights[number] - exact.weights[number]).sum(-1).mean(-1) / 2
        assert layer.distance == pytest.approx(tuple(distance), abs=1e-6)
        assert distance.max() > 0.01


def test_nystrom_is_exact_for_few_tokens(tmp_path: Path) -> None:
    run = save_run(tmp_path, model_config("nystrom", "encoder", shape="encoder-decoder"))
    found = capture(run, "a cat", target="ein hund", device="cpu")
    assert max(max(layer.distance or (1,)) for layer in found.maps["encoder"].layers) < 1e-6


@pytest.mark.parametrize("word", ["synthesizer-dense", "synthesizer-random", "fixed-pattern"])
def test_mechanisms_without_queries_and_keys_have_no_reference(word: str, tmp_path: Path) -> None:
    run = save_run(tmp_path, model_config(word, "encoder", shape="encoder-decoder"))
    found = capture(run, "a cat", target="ein hund", reference=True, device="cpu")
    assert found.reference is not None
    assert list(found.maps) == ["encoder", "decoder", "cross"]
    assert list(found.reference.maps) == ["decoder", "cross"]
    assert all(layer.distance is None for layer in found.maps["encoder"].layers)


def test_capture_has_distances_by_head_and_a_reference(tmp_path: Path) -> None:
    run = save_run(tmp_path, model_config("linear", "decoder", shape="encoder-decoder"))
    found = capture(run, "a cat", target="ein hund", heads=[1, 3], reference=True, device="cpu")
    assert found.reference is not None
    maps, exact = found.maps["decoder"], found.reference.maps["decoder"]
    assert [(len(layer.distance or ()), layer.exact) for layer in maps.layers] == [(2, False)] * 2
    assert [(layer.mechanism, layer.exact) for layer in exact.layers] == [("scaled-dot", True)] * 2
    assert found.maps["cross"].layers[0].distance is None
    assert found.reference.model == "toy/base/seed-1, exact softmax on the same queries and keys"
    save(tmp_path / "maps.npz", found)
    again = load(tmp_path / "maps.npz")
    assert again.reference is not None
    assert again.maps["decoder"].layers == maps.layers
    assert np.array_equal(again.reference.maps["decoder"].weights, exact.weights)
