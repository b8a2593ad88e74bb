"""Trainings that start from the weights of others: `train.init`."""

import shutil
from collections.abc import Sequence
from pathlib import Path

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
from attnkit.train.events import Event

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two recipes, of which the second starts from the first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.yaml").write_text(FIRST)
    (tmp_path / "second.yaml").write_text(SECOND)
    return tmp_path


def trained(name: str, *overrides: str, **options: object) -> list[Event]:
    settings: dict[str, object] = {"out": Path("runs"), "device": "cpu"}
    return record_events(train, TrainingSettings(file=load(name, overrides), **settings | options))


def begun(*overrides: str, variants: Sequence[str] = ("plain",)) -> None:
    trained("first.yaml", *overrides, variants=variants)


def run_of(name: str, variant: str = "plain", seed: int = 1) -> Run:
    return Run.open(run_path("runs", name, variant, seed))


def refusal(*overrides: str, variants: Sequence[str] = ("plain",)) -> AttnkitError:
    with pytest.raises(AttnkitError) as caught:
        trained("second.yaml", *overrides, variants=variants)
    assert not Path("runs/second").exists()  # nothing was begun
    assert "\n" not in str(caught.value)
    return caught.value


def test_weights_and_tokenizer_are_those_of_the_run_of_this_variant_and_seed(folder: Path) -> None:
    begun(variants=("plain", "random"))
    trained("second.yaml", "train.steps=1", "train.lr=1e-12", "train.warmup=0", "train.schedule=constant")
    for variant in ("plain", "random"):
        first, second = run_of("first", variant), run_of("second", variant)
        assert second.manifest.init.model_dump() == {
            "run": f"runs/first/{variant}/seed-1",
            "recipe": "first",
            "variant": variant,
            "seed": 1,
            "weights": first.manifest.files["model.safetensors"],
        }
        assert second.tokenizer().digest == first.tokenizer().digest
        torch.testing.assert_close(second.weights(), first.weights(), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_without_it_a_training_starts_elsewhere(folder: Path) -> None:
    begun()
    trained("second.yaml", "train.init=null", variants=("plain",))
    assert run_of("second").manifest.init is None
    assert run_of("second").tokenizer().digest != run_of("first").tokenizer().digest


def test_what_is_missing_is_told_with_the_command_that_makes_it(folder: Path) -> None:
    error = refusal()
    assert isinstance(error, MissingInputError)
    assert str(error).startswith("second.yaml:4:15: train.init: runs/first/plain/seed-1 does not exist")
    assert str(error).endswith(f"train it first: attnkit train {folder}/first.yaml")
    begun()
    with pytest.raises(MissingInputError, match=r"seed-2 does not exist.*yaml --seed 2$"):
        trained("second.yaml", variants=("plain",), seeds=[2])
    with pytest.raises(MissingInputError, match=r"elsewhere/first.* --out elsewhere$"):
        trained("second.yaml", out=Path("elsewhere"))


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
def test_what_does_not_fit_is_refused_before_training(folder: Path, overrides: list[str], message: str) -> None:
    begun()
    with pytest.raises(AttnkitError, match=message):
        trained("second.yaml", *overrides, variants=("plain",))
    assert not Path("runs/second").exists()


def test_a_length_that_changes_shapes_is_refused_with_them(folder: Path) -> None:
    begun(variants=("random",))
    error = refusal("data.max_length=30", variants=("random",))
    assert isinstance(error, RecipeError)
    assert "table must be float32 [2, 31, 31], got float32 [2, 25, 25]" in str(error)
    assert "the same model and data.max_length" in str(error)


@pytest.mark.slow
def test_variants_of_a_sweep_start_from_the_variant_that_they_are_made_of(folder: Path) -> None:
    begun()
    name = "plain,lr=0.001"
    trained("second.yaml", "train.lr=1e-3,1e-4", variants=(name,))
    assert run_of("second", name).manifest.init.variant == "plain"


@pytest.mark.slow
def test_a_run_folder_starts_any_seed_and_a_folder_of_runs_the_same_one(folder: Path) -> None:
    begun()
    for init in ("runs/first/plain/seed-1", "runs/first"):
        seeds = [2] if init.endswith("seed-1") else [1]
        trained("second.yaml", f"train.init={init}", variants=("plain",), seeds=seeds)
        assert run_of("second", seed=seeds[0]).manifest.init.seed == 1


def test_an_unfinished_run_is_no_start(folder: Path) -> None:
    begun()
    run_of("first").update(finished=None)
    assert "is not finished" in str(refusal())


@pytest.mark.slow
def test_a_stopped_training_ends_as_one_left_alone_without_the_first_run(folder: Path) -> None:
    begun()
    trained("second.yaml", "train.steps=6", variants=("plain",))
    whole = run_of("second").manifest.files["model.safetensors"]
    trained("second.yaml", "train.steps=4", variants=("plain",), fresh=True)
    Path("runs/first").rename("elsewhere")  # its own checkpoints are enough
    trained("second.yaml", "train.steps=6", variants=("plain",), allow_change=True)
    found = latest(run_of("second"))
    assert found is not None
    assert found.step == 6
    assert run_of("second").manifest.files["model.safetensors"] == whole


def test_other_weights_under_the_same_name_do_not_continue_a_run_without_checkpoint(folder: Path) -> None:
    begun()
    trained("second.yaml", variants=("plain",))
    run = run_of("second")
    shutil.rmtree(run.checkpoints)  # as it was before its first one
    run.update(finished=None)
    trained("first.yaml", "train.lr=1e-2", variants=("plain",), fresh=True)
    with pytest.raises(DataError, match="started from other weights"):
        trained("second.yaml", variants=("plain",))


def test_an_encoder_takes_the_encoder_of_an_encoder_decoder(folder: Path) -> None:
    begun()
    rows = '{"source": "a b", "target": "yes"}\n{"source": "c", "target": "no"}\n'
    (folder / "rows.jsonl").write_text(rows)
    (folder / "third.yaml").write_text(
        "task: classification\n"
        "data: {train: rows.jsonl, valid: rows.jsonl, labels: [no, yes], max_length: 24}\n"
        "model: {shape: encoder, width: 16, heads: 2, ff: 16, layers: 1}\n"
        "train: {init: first.yaml, steps: 1, precision: fp32}\n"
        "variants: {plain: {}}\n"
    )
    file = load("third.yaml")
    run = initial_run(file, "plain", 1, Path("runs"))
    assert run is not None
    names = starting_weights(file.variants["plain"], run)
    assert {name.split(".")[0] for name in names} == {"embed_source", "encoder"}
    trained("third.yaml")
    tokenizer = Tokenizer.load(run_of("third").path)
    assert len(tokenizer.target) == 4 + 2
    assert tokenizer.source.model == run.tokenizer().source.model


@pytest.mark.slow
def test_changed_weights_of_a_moved_start_are_refused(folder: Path) -> None:
    begun()
    trained("second.yaml", variants=("plain",))
    Path("runs/first").rename("moved")
    trained("second.yaml", "train.init=moved", variants=("plain",))  # the same weights elsewhere
    trained("first.yaml", "train.lr=1e-2", variants=("plain",))
    with pytest.raises(DataError, match="started from other weights"):
        trained("second.yaml", "train.init=runs/first", variants=("plain",))


def test_a_run_does_not_start_from_itself(folder: Path) -> None:
    """With --fresh it was removed before that was found out."""
    begun()
    before = run_of("first").weights()
    for fresh in (False, True):
        with pytest.raises(RecipeError, match="is the run to train; use another --out"):
            trained("first.yaml", "train.init=first.yaml", variants=("plain",), fresh=fresh)
    assert all(torch.equal(tensor, before[name]) for name, tensor in run_of("first").weights().items())
