"""Tests of entropy and gradient of maps against sums, autograd and the bound of cosine scores; stages of training."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.map_recording import model_config, save_run
from helpers.trained import ROWS, make_run
from hypothesis import given
from hypothesis import strategies as st

from attnkit.analysis.capture import MapReader
from attnkit.analysis.map_entropy import probe_entropy, spread_sums, stages
from attnkit.analysis.map_statistics import statistics
from attnkit.cli import main
from attnkit.errors import DataError
from attnkit.runs import Run

BOUND = 0.474475
"""Maximum distance of the entropy of softmax over cosines from log n, reached by scores of two levels."""


def bits_of(scores: torch.Tensor) -> tuple[float, float, float]:
    """Return the entropy in bits, its share of the maximum, and the gradient of one query."""
    weights = scores.double().softmax(-1)[None, None, None]
    sums = spread_sums(weights, torch.ones_like(weights, dtype=torch.bool))
    return tuple(sums[:3, 0].tolist())  # type: ignore[return-value]


def test_gradient_is_half_the_l1_norm_of_the_jacobian() -> None:
    scores = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    bits, share, gradient = bits_of(scores)
    assert gradient == pytest.approx(float(jacobian.abs().sum()) / 2)
    weights = scores.softmax(-1).numpy()
    assert bits == pytest.approx(-(weights * np.log2(weights)).sum())
    assert share == pytest.approx(bits / math.log2(7))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_entropy_of_softmax_of_cosines_is_above_the_bound(cosines: list[float]) -> None:
    bits, _, _ = bits_of(torch.tensor(cosines))
    assert bits * math.log(2) >= math.log(len(cosines)) - BOUND - 1e-6


def test_bound_is_reached_with_two_levels() -> None:
    n = 1000
    worst = max(
        math.log(n) - bits_of(torch.tensor([1.0] * ones + [-1.0] * (n - ones)))[0] * math.log(2)
        for ones in range(1, n, 7)
    )
    assert worst == pytest.approx(BOUND, abs=1e-4)


@pytest.mark.parametrize("role", ["encoder", "decoder", "cross"])
def test_values_equal_means_over_the_maps_of_single_texts(tmp_path: Path, role: Any) -> None:
    run = save_run(tmp_path, model_config())
    found = probe_entropy(run, ROWS, kinds=[role], device="cpu")
    texts = [(row.source, row.target) for row in ROWS]
    by_head: dict[tuple[int, int], list[tuple[int, int, float, float]]] = {}
    for capture in MapReader(run, kinds=[role], step="input", device="cpu").read_pairs(texts):
        maps = capture.maps[role]
        for layer, heads in zip(maps.layers, statistics(maps), strict=True):
            for head, numbers in enumerate(heads):
                assert numbers.entropy is not None
                assert numbers.spread is not None
                # the first query of a decoder sees one key, so its share is undefined
                counts = len(maps.queries), len(maps.queries) - (role == "decoder")
                by_head.setdefault((layer.number, head), []).append((*counts, numbers.entropy, numbers.spread))
    end = [row for row in found if row.stage.name == "end"]
    assert [(row.layer.number, row.head) for row in end] == list(by_head)
    for row in end:
        queries, several, entropies, shares = zip(*by_head[row.layer.number, row.head], strict=True)
        assert row.spread.entropy == pytest.approx(np.average(entropies, weights=queries), rel=1e-4)
        assert row.spread.share == pytest.approx(np.average(shares, weights=several), rel=1e-4)


@pytest.mark.parametrize(("word", "entropy"), [("linear", True), ("nystrom", False), ("entmax", True)])
def test_mechanisms_without_softmax_have_no_gradient(tmp_path: Path, word: str, entropy: bool) -> None:
    """The weights of nystrom may be negative, so its entropy is undefined, too."""
    options = {"landmarks": 2} if word == "nystrom" else {}
    run = save_run(tmp_path, model_config(word, "encoder", options))
    found = probe_entropy(run, ROWS, kinds=["encoder"], device="cpu")
    assert all(row.spread.gradient is None for row in found)
    assert all(row.spread.entropy is not None for row in found) == entropy


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of four updates with a negligible learning rate, with three checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "recipe.yaml").write_text(
        "task: translation\ndata: {corpus: toy-translation, size: 100, max_length: 64}\n"
        "tokenizer: {size: 150}\nmodel: {width: 8, layers: 1, heads: 2, ff: 8}\n"
        "train: {steps: 4, lr: 1e-9, batch_tokens: 500, valid_every: 1, average: 3, seeds: [5],"
        " precision: fp32}\nsearch: {method: greedy, max_length: 2}\n"
    )
    assert main(["train", str(folder / "recipe.yaml"), "--out", str(folder / "runs"), "--quiet"]) == 0
    return Run.open(folder / "runs" / "recipe" / "base" / "seed-5")


def test_stages_are_start_checkpoints_and_end(trained: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.path.rglob("*")}
    found = list(stages(trained))
    assert [stage for stage, _ in found] == [(0, "start"), (2, "step 2"), (3, "step 3"), (4, "step 4"), (4, "end")]
    states = [model.state_dict() for _, model in found]
    for name, tensor in states[0].items():
        for state in states[1:]:
            torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-7)
    assert any(not torch.equal(t, states[2][name]) for name, t in states[1].items())
    assert {path: path.stat().st_mtime_ns for path in trained.path.rglob("*")} == before


@pytest.fixture
def copied(trained: Run, tmp_path: Path) -> Run:
    """Return a copy of the run that may be changed."""
    return Run.open(shutil.copytree(trained.path, tmp_path / "copied"))


def test_checkpoint_equal_to_the_end_is_left_out(copied: Run) -> None:
    last = next(model.state_dict() for stage, model in stages(copied) if stage.name == "step 4")
    weights = {name: tensor for name, tensor in last.items() if name in copied.weights()}
    copied.finish(weights, step=4, seconds=1.0)
    assert [stage.name for stage, _ in stages(copied)] == ["start", "step 2", "step 3", "end"]


def test_training_initialized_from_another_run_has_no_start(copied: Run) -> None:
    recipe = copied.recipe
    train = recipe.train.model_copy(update={"init": "transfer/pretrain"})
    copied.replace_recipe(recipe.model_copy(update={"train": train}))
    assert [stage.name for stage, _ in stages(copied)] == ["step 2", "step 3", "step 4", "end"]


def test_damaged_checkpoint_raises(copied: Run) -> None:
    path = copied.checkpoints / "step-3" / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"step-3: damaged checkpoint"):
        probe_entropy(copied, ROWS)


def test_entropy_of_a_language_model(tmp_path: Path) -> None:
    found = probe_entropy(make_run(tmp_path, task="language-modeling"), ROWS, device="cpu")
    assert {(row.stage.name, row.kind) for row in found} == {("start", "decoder"), ("end", "decoder")}
