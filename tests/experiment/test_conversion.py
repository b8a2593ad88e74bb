"""Attention surgery: what is kept, learnt and touched, and what becomes of runs that are there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.conversion_runs import make_run, settings, stages
from helpers.events import record_events

from attnkit import mechanisms
from attnkit.data.batch import Batch, collate
from attnkit.data.preparation import prepare
from attnkit.errors import RecipeError, StoppedError
from attnkit.experiment import attention_transfer as transferring
from attnkit.experiment.conversion import _Conversion, changed_places, convert, swap
from attnkit.recipe.schema import Layers
from attnkit.runs import Run
from attnkit.train.events import Event, ProgressEvent, ScoredEvent, SkippedEvent, StartedEvent
from attnkit.train.optimiser import weights_of
from attnkit.train.signals import StopSignals

PARTS = {"mixture": ("scaled-dot", "synthesizer-random"), "interleaved": ("local", "scaled-dot")}
DECODER = {"shape": "decoder", "layers": Layers(encoder=0, decoder=1)}
DEEP = {"layers": Layers(encoder=1, decoder=2)}
OTHER = {"heads": 1, "positions": "none", "ff": 1024, "layers": Layers(encoder=1, decoder=1)}
"""What a model that is no transformer has."""
SELF = "{{encoder: {0}, decoder: {0}}}"


def batches(run: Run, rows: int = 8) -> list[Batch]:
    """The first training rows, in batches of four."""
    encoded = prepare(run.recipe, tokenizer=run.tokenizer()).train
    numbers = torch.arange(rows).numpy()
    return [collate(encoded, numbers[start : start + 4]) for start in range(0, rows, 4)]


def answer(run: Run) -> torch.Tensor:
    batch = batches(run)[0]
    with torch.no_grad():
        logits: torch.Tensor = run.model()(batch.source, batch.input)
    return logits


@pytest.mark.sampled(13)
@pytest.mark.parametrize("word", mechanisms.names())
def test_a_run_is_converted_to_every_mechanism_wherever_that_can_be(word: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, layers=Layers(encoder=2, decoder=2))
    options = {"parts": PARTS[word]} if word in PARTS else {}
    able = mechanisms.resolve_capabilities(word, options)
    places = {"encoder": able.encoder, "decoder": able.causal, "cross": able.cross}
    chosen = f"{{name: {word}, parts: [{', '.join(PARTS[word])}]}}" if options else word
    attention = ", ".join(f"{place}: {chosen}" for place, can in places.items() if can)
    *_, scored = record_events(convert, settings(run, f"{{{attention}}}"))
    assert isinstance(scored, ScoredEvent)
    names = [f"base-{word}-{stage}" for stage in ("swapped", "transferred", "tuned")]
    assert [row.variant for row in scored.comparison.rows] == ["base", *names]
    assert not any(test.not_comparable for test in scored.comparison.differences)
    for converted in stages(run, f"base-{word}"):
        assert converted.finished
        attention = converted.recipe.model.attention
        assert all(getattr(attention, place).name == word for place, can in places.items() if can)
        origin = converted.manifest.converted
        assert origin.run == run.path.as_posix()
        assert origin.weights == run.manifest.files["model.safetensors"]
        assert answer(converted).isfinite().all()


def test_the_same_mechanism_gives_the_same_model(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    told = record_events(convert, settings(run, "scaled-dot", transfer=1, tune=0))
    (swapped,) = stages(run, "base-scaled-dot", ("swapped",))
    assert torch.equal(answer(swapped), answer(run))
    assert swapped.manifest.converted.new == swapped.manifest.converted.left_out == []
    (loss,) = [event.loss for event in told if isinstance(event, ProgressEvent)]
    assert loss < 1e-9  # by rounding: with and without gradients
    assert isinstance(told[-1], ScoredEvent)
    assert told[-1].comparison.differences[0].value == 0


def test_what_fits_by_name_and_shape_is_taken_over(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"encoder": "synthesizer-random"})
    record_events(convert, settings(run, "{encoder: additive}", transfer=0, tune=0))
    (swapped,) = stages(run, "base-additive", ("swapped",))
    old, new, facts = run.weights(), swapped.weights(), swapped.manifest.converted
    assert {n.rpartition("attention.")[2] for n in facts.left_out} == {"mechanism.table"}
    projections = {f"{part}.{kind}" for part in "qk" for kind in ("weight", "bias")}
    assert projections < {name.rpartition("attention.")[2] for name in facts.new}
    assert {*facts.kept, *facts.new} == {*new}
    assert {*facts.kept, *facts.left_out} == {*old}
    assert all(torch.equal(new[name], old[name]) for name in facts.kept)
    assert facts.transfer == facts.layers_with_averaged_maps == 0
    (change,) = swapped.manifest.changes
    assert change.model_dump() == {
        "step": 3,
        "key": "model.attention.encoder",
        "old": "synthesizer-random",
        "new": "additive",
    }


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("model", "attention", "layers"),
    [
        ({}, "linear", ("attention.", "cross.")),
        ({}, "{cross: linear}", ("cross.",)),
        (DEEP, "{decoder: {name: scaled-dot, residual_scores: true}}", ("decoder.blocks.1.att",)),
        (DECODER, "linear", ("attention.",)),
        (OTHER | {"type": "recurrent"}, "performer", ("attention.",)),
        (OTHER | {"type": "convolutional"}, "performer", ("attention.",)),
        ({"positions": "relative"}, SELF.format("gaussian"), (".attention.",)),
    ],
)
def test_transfer_lowers_the_error_and_trains_the_new_layers_alone(
    model: dict[str, Any], attention: str, layers: tuple[str, ...], tmp_path: Path
) -> None:
    run = make_run(tmp_path, **model)
    record_events(convert, settings(run, attention, transfer=30, tune=0))
    name = next((run.path.parents[1]).glob("base-*-swapped")).name.removesuffix("-swapped")
    swapped, transferred = stages(run, name, ("swapped", "transferred"))
    before, after = swapped.weights(), transferred.weights()
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed
    assert all(any(layer in name for layer in layers) for name in changed)
    kinds = changed_places(run.recipe.model, swapped.recipe.model)
    theirs = transferring.layers_of(teacher := run.model(), kinds)
    errors = []
    for converted in (swapped, transferred):
        ours = transferring.layers_of(converted.model(), kinds)
        calls = [transferring.layer_calls(teacher, theirs, batch) for batch in batches(run)]
        errors.append(sum(transferring.matching_loss(ours, some).item() for some in calls))
    assert errors[1] < 0.8 * errors[0]
    ends = transferred.manifest.converted.mean_squared_error
    assert ends["last"] < ends["first"]


def test_the_error_is_that_of_real_tokens_alone(tmp_path: Path) -> None:
    """Rows of one batch have the error that each row has alone, weighted by its tokens."""
    run = make_run(tmp_path)
    model = run.untrained().eval()
    torch.manual_seed(3)
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    teacher = run.model()
    theirs, ours = (transferring.layers_of(some, ["decoder"]) for some in (teacher, model))
    encoded = prepare(run.recipe, tokenizer=run.tokenizer()).train
    whole, alone = collate(encoded, torch.arange(6).numpy()), []
    for row in range(6):
        batch = collate(encoded, torch.tensor([row]).numpy())
        calls = transferring.layer_calls(teacher, theirs, batch)
        alone.append((transferring.matching_loss(ours, calls).item(), batch.input.shape[1]))
    together = transferring.matching_loss(ours, transferring.layer_calls(teacher, theirs, whole))
    mean = sum(loss * tokens for loss, tokens in alone) / sum(tokens for _, tokens in alone)
    assert together.item() == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_averaged_maps_are_those_of_a_plain_loop(shape: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, **(DECODER if shape == "decoder" else {}))
    model, positions = run.model(), 40
    layers = transferring.layers_of(model, ["encoder", "decoder"])
    found = transferring.averaged_maps(model, layers, batches(run), positions)
    encoded = prepare(run.recipe, tokenizer=run.tokenizer()).train
    sums = {place: torch.zeros(2, 2, positions, positions) for place in layers}
    for row in range(8):
        batch = collate(encoded, torch.tensor([row]).numpy())
        for place, given, _, _ in transferring.layer_calls(model, layers, batch):
            maps = layers[place].weights(given["x"], given["mask"], bias=given.get("bias"))[0]
            size = maps.shape[-1]
            seen = given["mask"].dense()[0, 0]
            sums[place][0, :, :size, :size] += maps * seen * seen.sum(-1, keepdim=True)
            sums[place][1, :, :size, :size] += seen
    assert found.keys() == sums.keys()
    for place, (total, count) in sums.items():
        torch.testing.assert_close(found[place], total / count.clamp_min(1))


@pytest.mark.parametrize(("place", "error"), [("decoder", 1e-5), ("encoder", 0.03)])
def test_a_random_synthesizer_begins_as_the_averaged_maps(place: str, error: float, tmp_path: Path) -> None:
    """Where the old maps are a table too, it is the same model; nearly, if texts differ in length.

    The table is another one by what all entries of a row have in common.
    """
    run = make_run(tmp_path, {place: "synthesizer-random"})
    fixed = f"{{{place}: {{name: synthesizer-random, trainable: false, scale: 1}}}}"
    record_events(convert, settings(run, fixed, transfer=0, tune=0))
    (swapped,) = stages(run, "base-synthesizer-random", ("swapped",))
    assert swapped.manifest.converted.layers_with_averaged_maps == 1
    torch.testing.assert_close(answer(swapped), answer(run), rtol=0, atol=error)
    name = f"{place}.blocks.0.attention.mechanism.table"
    assert not torch.allclose(swapped.weights()[name], run.weights()[name], atol=0.01)


@pytest.mark.slow
def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    record_events(convert, settings(run, "linear"))
    files = [stage.path / "model.safetensors" for stage in stages(run, "base-linear")]
    before = [file.stat().st_mtime_ns for file in files]
    again = record_events(convert, settings(run, "linear"))
    assert sum(isinstance(event, SkippedEvent) for event in again) == 3
    assert [file.stat().st_mtime_ns for file in files] == before
    for words, other, key in (((), {"transfer": 3}, "transfer: 2 -> 3"), (("train.lr=1e-4",), {}, "train.lr: ")):
        with pytest.raises(RecipeError, match="was converted with other settings") as refused:
            record_events(convert, settings(run, "linear", *words, **other))
        assert key in str(refused.value)
        assert "\n" not in str(refused.value)
    record_events(convert, settings(run, "linear", transfer=3, fresh=True))
    assert [file.stat().st_mtime_ns for file in files] != before


def test_a_run_that_has_changed_since_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    record_events(convert, settings(run, "linear", transfer=0, tune=0))
    weights = {name: tensor + 1 for name, tensor in run.weights().items()}
    run.finish(weights, step=4, seconds=1.0)
    with pytest.raises(RecipeError, match="weights: "):
        record_events(convert, settings(Run.open(run.path), "linear", transfer=0, tune=0))


def test_a_stop_leaves_runs_that_the_same_command_completes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    chosen = settings(run, "linear", transfer=5)
    stop = StopSignals()

    def emit(event: Event) -> None:
        if isinstance(event, StartedEvent):
            stop.request("SIGTERM")

    with pytest.raises(StoppedError, match="SIGTERM during attention transfer"):
        _Conversion(chosen, stop, emit).run()
    swapped, transferred = stages(run, "base-linear", ("swapped", "transferred"))
    assert swapped.finished
    assert not transferred.finished
    *_, last = record_events(convert, chosen)
    assert isinstance(last, ScoredEvent)
    assert all(stage.finished for stage in stages(run, "base-linear"))


def test_a_weight_of_another_shape_is_new_and_the_old_one_left_out(tmp_path: Path) -> None:
    model = make_run(tmp_path).untrained()
    old = {name: tensor.clone() for name, tensor in weights_of(model).items()}
    name = "encoder.blocks.0.attention.q.bias"
    old[name] = old[name][:-1]
    swapped = swap(old, model)
    assert swapped["new"] == swapped["left_out"] == [name]
    assert len(swapped["kept"]) == len(old) - 1
