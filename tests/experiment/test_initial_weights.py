"""Tests of `train.init`: trainings that start from the weights of another run."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.events import record_events

from attnkit.data.tokenizer import Tokenizer
from attnkit.errors import AttnkitError, DataError, MissingInputError, RecipeError
from attnkit.experiment.initial_weights import initial_run, starting_weights
from attnkit.experiment.settings import TrainingSettings
from attnkit.experiment.training import train
from attnkit.recipe import load
from attnkit.runs import Run, run_path
from attnkit.train.checkpoint import latest

FIRST = """
task: translation
data: {corpus: toy-translation, size: 60, max_length: 24}
tokenizer: {size: 150}
model: {width: 16, heads: 2, ff: 16, layers: 1, dropout: 0.2}
train: {steps: 3, batch_tokens: 300, valid_every: 2, precision: fp32, seeds: [1]}
search: {method: greedy, max_length: 3}
eval: {splits: [valid], bootstrap: 0}
data.valid_rows: 10
variants:
  plain: {}
  random: {model.attention: {encoder: synthesizer-random, decoder: synthesizer-random}}
"""
SECOND = """
extends: first.yaml
data: {seed: 2}
train: {init: first.yaml}
"""


@pytest.fixture(autouse=True)
def _recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write two recipes, of which the second starts from the first, into the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("first.yaml").write_text(FIRST)
    Path("second.yaml").write_text(SECOND)


def run_training(name: str, *overrides: str, variants: Sequence[str] = ("plain",), **options: Any) -> None:
    settings: dict[str, Any] = {"out": Path("runs"), "device": "cpu", "variants": variants}
    record_events(train, TrainingSettings(file=load(f"{name}.yaml", overrides), **settings | options))


def open_run(name: str, variant: str = "plain", seed: int = 1) -> Run:
    return Run.open(run_path("runs", name, variant, seed))


def training_error(
    *overrides: str, variants: Sequence[str] = ("plain",), kind: type[AttnkitError] = AttnkitError
) -> str:
    """Return the message with which the second training raises before it writes anything."""
    with pytest.raises(kind) as caught:
        run_training("second", *overrides, variants=variants)
    assert not Path("runs/second").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_and_tokenizer_come_from_the_same_variant_and_seed() -> None:
    variants = ("plain", "random")
    run_training("first", variants=variants)
    overrides = "train.steps=1", "train.lr=1e-12", "train.warmup=0", "train.schedule=constant"
    run_training("second", *overrides, variants=variants)
    for variant in variants:
        first, second = open_run("first", variant), open_run("second", variant)
        origin = {"run": f"runs/first/{variant}/seed-1", "recipe": "first", "variant": variant, "seed": 1}
        weights = first.manifest.files["model.safetensors"]
        assert second.manifest.init.model_dump() == {**origin, "weights": weights}
        assert second.tokenizer().digest == first.tokenizer().digest
        torch.testing.assert_close(second.weights(), first.weights(), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_training_without_init_is_independent() -> None:
    run_training("first")
    run_training("second", "train.init=null")
    assert open_run("second").manifest.init is None
    assert open_run("second").tokenizer().digest != open_run("first").tokenizer().digest


def test_missing_run_raises_with_the_command_that_trains_it(tmp_path: Path) -> None:
    error = training_error(kind=MissingInputError)
    assert error.startswith("second.yaml:4:15: train.init: runs/first/plain/seed-1 does not exist")
    assert error.endswith(f"train it first: attnkit train {tmp_path}/first.yaml")
    run_training("first")
    with pytest.raises(MissingInputError, match=r"seed-2 does not exist.*yaml --seed 2$"):
        run_training("second", seeds=[2])
    with pytest.raises(MissingInputError, match=r"elsewhere/first.* --out elsewhere$"):
        run_training("second", out=Path("elsewhere"))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.init=absent"], "train.init: no recipe 'absent'.*no such run"),
        (["train.init=runs"], "runs/plain/seed-1 does not exist; it must hold a finished run"),
        (["model.width=32"], r"must be float32 \[32\], got float32 \[16\]"),
        (["model.layers.decoder=2"], r"is missing .26 missing in all"),
        (["model.init_std=0.02"], "model.init_std is null in train.init and 0.02 in the recipe; give both recipes"),
        (["model.heads=4"], "plain: model.heads is 2 in train.init and 4 in the recipe; give both recipes the same"),
        (["tokenizer.size=99"], "command line: tokenizer.size: 99, but the tokenizer comes from"),
        (["variants.plain.model.attention.encoder=synthesizer-random"], "do not fit variant plain"),
    ],
    ids=str,
)
def test_recipe_that_does_not_fit_raises_before_training(overrides: list[str], message: str) -> None:
    run_training("first")
    assert re.search(message, training_error(*overrides))


def test_length_that_changes_shapes_raises() -> None:
    run_training("first", variants=("random",))
    error = training_error("data.max_length=30", variants=("random",), kind=RecipeError)
    assert "table must be float32 [2, 31, 31], got float32 [2, 25, 25]" in error
    assert "the same model and data.max_length" in error


@pytest.mark.slow
def test_variant_of_a_sweep_starts_from_its_variant_of_the_recipe() -> None:
    run_training("first")
    name = "plain,lr=0.001"
    run_training("second", "train.lr=1e-3,1e-4", variants=(name,))
    assert open_run("second", name).manifest.init.variant == "plain"


@pytest.mark.slow
@pytest.mark.parametrize(("init", "seed"), [("runs/first/plain/seed-1", 2), ("runs/first", 1)])
def test_init_may_be_a_run_for_any_seed_or_a_folder_of_runs(init: str, seed: int) -> None:
    run_training("first")
    run_training("second", f"train.init={init}", seeds=[seed])
    assert open_run("second", seed=seed).manifest.init.seed == 1


def test_unfinished_run_raises() -> None:
    run_training("first")
    open_run("first").update(finished=None)
    assert "is not finished" in training_error()


@pytest.mark.slow
def test_resumed_training_does_not_need_the_first_run() -> None:
    """Its own checkpoints suffice for the weights of an uninterrupted training."""
    run_training("first")
    run_training("second", "train.steps=6")
    expected = open_run("second").manifest.files["model.safetensors"]
    run_training("second", "train.steps=4", fresh=True)
    Path("runs/first").rename("elsewhere")
    run_training("second", "train.steps=6", allow_change=True)
    assert latest(open_run("second")).step == 6
    assert open_run("second").manifest.files["model.safetensors"] == expected


def test_run_without_checkpoint_does_not_continue_from_other_weights() -> None:
    run_training("first")
    run_training("second")
    run = open_run("second")
    shutil.rmtree(run.checkpoints)  # as before the first checkpoint
    run.update(finished=None)
    run_training("first", "train.lr=1e-2", fresh=True)
    with pytest.raises(DataError, match="started from other weights"):
        run_training("second")


def test_encoder_starts_from_the_encoder_of_an_encoder_decoder() -> None:
    run_training("first")
    rows = '{"source": "a b", "target": "yes"}\n{"source": "c", "target": "no"}\n'
    Path("rows.jsonl").write_text(rows)
    Path("third.yaml").write_text(
        "task: classification\n"
        "data: {train: rows.jsonl, valid: rows.jsonl, labels: [no, yes], max_length: 24}\n"
        "model: {shape: encoder, width: 16, heads: 2, ff: 16, layers: 1}\n"
        "train: {init: first.yaml, steps: 1, precision: fp32}\n"
        "variants: {plain: {}}\n"
    )
    file = load("third.yaml")
    run = initial_run(file, "plain", 1, Path("runs"))
    names = starting_weights(file.variants["plain"], run)
    assert {name.split(".")[0] for name in names} == {"embed_source", "encoder"}
    run_training("third")
    tokenizer = Tokenizer.load(open_run("third").path)
    assert len(tokenizer.target) == 4 + 2
    assert tokenizer.source.model == run.tokenizer().source.model


@pytest.mark.slow
def test_first_run_may_move_but_not_change() -> None:
    run_training("first")
    run_training("second")
    Path("runs/first").rename("moved")
    run_training("second", "train.init=moved")
    run_training("first", "train.lr=1e-2")
    with pytest.raises(DataError, match="started from other weights"):
        run_training("second", "train.init=runs/first")


def test_run_that_starts_from_itself_raises() -> None:
    """With --fresh, the run was removed before the error was found."""
    run_training("first")
    before = open_run("first").weights()
    for fresh in (False, True):
        with pytest.raises(RecipeError, match="is the run to train; use another --out"):
            run_training("first", "train.init=first.yaml", fresh=fresh)
    assert all(torch.equal(tensor, before[name]) for name, tensor in open_run("first").weights().items())
