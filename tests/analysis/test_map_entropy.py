"""Entropy and gradient of maps, against plain sums, autograd and the bound of cosine scores."""

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
from attnkit.errors import DataError
from attnkit.runs import Run

BOUND = 0.474475
"""Most that the entropy of softmax over cosines lies below log n: methods, by two-level weights."""


def bits_of(scores: torch.Tensor) -> tuple[float, float, float]:
    """Entropy in bits, its share of the largest, and the gradient of one query."""
    weights = scores.double().softmax(-1)[None, None, None]
    sums = spread_sums(weights, torch.ones_like(weights, dtype=torch.bool))
    return tuple(sums[:3, 0].tolist())  # type: ignore[return-value]


def test_the_gradient_is_half_the_l1_norm_of_the_jacobian() -> None:
    scores = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    bits, share, gradient = bits_of(scores)
    assert gradient == pytest.approx(float(jacobian.abs().sum()) / 2)
    weights = scores.softmax(-1).numpy()
    assert bits == pytest.approx(-(weights * np.log2(weights)).sum())
    assert share == pytest.approx(bits / math.log2(7))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_softmax_of_cosines_has_at_least_log_n_less_the_bound(cosines: list[float]) -> None:
    bits, _, _ = bits_of(torch.tensor(cosines))
    assert bits * math.log(2) >= math.log(len(cosines)) - BOUND - 1e-6


def test_the_bound_of_cosines_is_reached_with_two_levels() -> None:
    n = 1000
    worst = max(
        math.log(n) - bits_of(torch.tensor([1.0] * ones + [-1.0] * (n - ones)))[0] * math.log(2)
        for ones in range(1, n, 7)
    )
    assert worst == pytest.approx(BOUND, abs=1e-4)


@pytest.mark.parametrize("role", ["encoder", "decoder", "cross"])
def test_the_end_of_training_is_what_maps_of_each_text_say(tmp_path: Path, role: Any) -> None:
    shape = "encoder-decoder"
    run = save_run(tmp_path, model_config("scaled-dot", "encoder", shape=shape))
    found = probe_entropy(run, ROWS, kinds=[role], device="cpu")
    texts = [(row.source, row.target) for row in ROWS]
    plain: dict[tuple[int, int], list[tuple[int, float, float]]] = {}
    for capture in MapReader(run, kinds=[role], step="input", device="cpu").read_pairs(texts):
        maps = capture.maps[role]
        for layer, heads in zip(maps.layers, statistics(maps), strict=True):
            for head, numbers in enumerate(heads):
                assert numbers.entropy is not None
                assert numbers.spread is not None
                value = len(maps.queries), numbers.entropy, numbers.spread
                plain.setdefault((layer.number, head), []).append(value)
    end = [one for one in found if one.stage.name == "end"]
    assert [(one.layer.number, one.head) for one in end] == list(plain)
    for one in end:
        rows = plain[one.layer.number, one.head]
        queries = sum(count for count, _, _ in rows)
        # the first query of a decoder sees one key, so its share is undefined
        several = [count - (role == "decoder") for count, _, _ in rows]
        spread = one.spread
        assert spread.entropy == pytest.approx(sum(n * e for n, e, _ in rows) / queries, rel=1e-4)
        share = sum(n * s for n, (_, _, s) in zip(several, rows, strict=True)) / sum(several)
        assert spread.share == pytest.approx(share, rel=1e-4)


@pytest.mark.parametrize(("word", "entropy"), [("linear", True), ("nystrom", False), ("entmax", True)])
def test_what_is_no_softmax_has_no_gradient(tmp_path: Path, word: str, entropy: bool) -> None:
    """The rows of nystrom may have negative weights, so their entropy is undefined too."""
    options = {"landmarks": 2} if word == "nystrom" else {}
    run = save_run(tmp_path, model_config(word, "encoder", options))
    found = probe_entropy(run, ROWS, kinds=["encoder"], device="cpu")
    assert all(one.spread.gradient is None for one in found)
    defined = [one.spread.entropy is not None for one in found]
    assert all(defined) if entropy else not all(defined)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trained for four updates so small that they change nothing, with three checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "recipe.yaml").write_text(
        "task: translation\ndata: {corpus: toy-translation, size: 100, max_length: 64}\n"
        "tokenizer: {size: 150}\nmodel: {width: 8, layers: 1, heads: 2, ff: 8}\n"
        "train: {steps: 4, lr: 1e-9, batch_tokens: 500, valid_every: 1, average: 3, seeds: [5],"
        " precision: fp32}\nsearch: {method: greedy, max_length: 2}\n"
    )
    from attnkit.cli import main

    words = ["train", str(folder / "recipe.yaml"), "--out", str(folder / "runs"), "--quiet"]
    assert main(words) == 0
    return Run.open(folder / "runs" / "recipe" / "base" / "seed-5")


def test_the_stages_go_from_the_very_start_over_the_checkpoints_to_the_end(trained: Run) -> None:
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
    """The same, to be changed."""
    return Run.open(shutil.copytree(trained.path, tmp_path / "copied"))


def test_a_checkpoint_that_is_the_end_is_not_shown_twice(copied: Run) -> None:
    last = [model.state_dict() for stage, model in stages(copied) if stage.name == "step 4"]
    weights = {name: tensor for name, tensor in last[0].items() if name in copied.weights()}
    copied.finish(weights, step=4, seconds=1.0)
    assert [stage.name for stage, _ in stages(copied)] == ["start", "step 2", "step 3", "end"]


def test_a_training_that_began_from_another_run_has_no_start(copied: Run) -> None:
    recipe = copied.recipe
    train = recipe.train.model_copy(update={"init": "transfer/pretrain"})
    copied.replace_recipe(recipe.model_copy(update={"train": train}))
    assert [stage.name for stage, _ in stages(copied)] == ["step 2", "step 3", "step 4", "end"]


def test_damaged_checkpoints_are_refused(copied: Run) -> None:
    path = copied.checkpoints / "step-3" / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"step-3: damaged checkpoint"):
        probe_entropy(copied, ROWS)


def test_a_language_model_is_read_in_blocks(tmp_path: Path) -> None:
    run = make_run(tmp_path, task="language-modeling")
    found = probe_entropy(run, ROWS, device="cpu")
    assert {(one.stage.name, one.kind) for one in found} == {("start", "decoder"), ("end", "decoder")}
