"""Tests of attention conversion: kept and new weights, attention transfer, averaged maps, existing runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.conversion_runs import make_run, settings, stages
from helpers.events import record_events

from attnkit import mechanisms
from attnkit.data.batch import Batch, collate
from attnkit.data.preparation import prepare
from attnkit.errors import RecipeError, StoppedError
from attnkit.experiment import attention_transfer
from attnkit.experiment.conversion import _Conversion, changed_places, convert, swap
from attnkit.recipe.schema import Layers
from attnkit.runs import Run
from attnkit.train.events import Event, ProgressEvent, ScoredEvent, SkippedEvent, StartedEvent
from attnkit.train.optimizer import weights_of
from attnkit.train.signals import StopSignals

PARTS = {"mixture": ("scaled-dot", "synthesizer-random"), "interleaved": ("local", "scaled-dot")}
DECODER = {"shape": "decoder", "layers": Layers(encoder=0, decoder=1)}
DEEP = {"layers": Layers(encoder=1, decoder=2)}
OTHER = {"heads": 1, "positions": "none", "ff": 1024, "layers": Layers(encoder=1, decoder=1)}
"""Options of models that are not transformers."""


def batches(run: Run, rows: int = 8) -> list[Batch]:
    """Return the first training rows in batches of four."""
    encoded = prepare(run.recipe, tokenizer=run.tokenizer()).train
    return [collate(encoded, np.arange(start, start + 4)) for start in range(0, rows, 4)]


def single_rows(run: Run, rows: int) -> list[Batch]:
    encoded = prepare(run.recipe, tokenizer=run.tokenizer()).train
    return [collate(encoded, np.array([row])) for row in range(rows)]


def logits(run: Run) -> torch.Tensor:
    batch = batches(run)[0]
    with torch.no_grad():
        return run.model()(batch.source, batch.input)


def swap_only(run: Run, attention: str, name: str) -> Run:
    """Convert a run without training and return the converted run."""
    record_events(convert, settings(run, attention, transfer=0, tune=0))
    (swapped,) = stages(run, f"base-{name}", ("swapped",))
    return swapped


@pytest.mark.sampled(13)
@pytest.mark.parametrize("word", mechanisms.names())
def test_run_is_converted_to_every_mechanism_in_all_possible_places(word: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, layers=Layers(encoder=2, decoder=2))
    options = {"parts": PARTS[word]} if word in PARTS else {}
    able = mechanisms.resolve_capabilities(word, options)
    possible = {"encoder": able.encoder, "decoder": able.causal, "cross": able.cross}
    places = [place for place, can in possible.items() if can]
    mechanism = f"{{name: {word}, parts: [{', '.join(PARTS[word])}]}}" if options else word
    attention = ", ".join(f"{place}: {mechanism}" for place in places)
    *_, scored = record_events(convert, settings(run, f"{{{attention}}}"))
    names = [f"base-{word}-{stage}" for stage in ("swapped", "transferred", "tuned")]
    assert [row.variant for row in scored.comparison.rows] == ["base", *names]
    assert not any(test.not_comparable for test in scored.comparison.differences)
    for converted in stages(run, f"base-{word}"):
        assert converted.finished
        assert {getattr(converted.recipe.model.attention, place).name for place in places} == {word}
        origin = converted.manifest.converted
        assert origin.run == run.path.as_posix()
        assert origin.weights == run.manifest.files["model.safetensors"]
        assert logits(converted).isfinite().all()


def test_same_mechanism_gives_the_same_model(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    events = record_events(convert, settings(run, "scaled-dot", transfer=1, tune=0))
    (swapped,) = stages(run, "base-scaled-dot", ("swapped",))
    assert torch.equal(logits(swapped), logits(run))
    assert swapped.manifest.converted.new == swapped.manifest.converted.left_out == []
    (loss,) = [event.loss for event in events if isinstance(event, ProgressEvent)]
    assert loss < 1e-9  # by rounding: with and without gradients
    assert events[-1].comparison.differences[0].value == 0


def test_weights_with_the_same_name_and_shape_are_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"encoder": "synthesizer-random"})
    swapped = swap_only(run, "{encoder: additive}", "additive")
    old, new, facts = run.weights(), swapped.weights(), swapped.manifest.converted
    assert {name.rpartition("attention.")[2] for name in facts.left_out} == {"mechanism.table"}
    projections = {f"{part}.{kind}" for part in "qk" for kind in ("weight", "bias")}
    assert projections < {name.rpartition("attention.")[2] for name in facts.new}
    assert {*facts.kept, *facts.new} == {*new}
    assert {*facts.kept, *facts.left_out} == {*old}
    assert all(torch.equal(new[name], old[name]) for name in facts.kept)
    assert facts.transfer == facts.layers_with_averaged_maps == 0
    (change,) = swapped.manifest.changes
    expected = {"key": "model.attention.encoder", "old": "synthesizer-random", "new": "additive"}
    assert change.model_dump() == {"step": 3, **expected}


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
        ({"positions": "relative"}, "{encoder: gaussian, decoder: gaussian}", (".attention.",)),
    ],
)
def test_transfer_reduces_the_error_and_trains_only_the_new_layers(
    model: dict[str, Any], attention: str, layers: tuple[str, ...], tmp_path: Path
) -> None:
    run = make_run(tmp_path, **model)
    record_events(convert, settings(run, attention, transfer=30, tune=0))
    name = next(run.path.parents[1].glob("base-*-swapped")).name.removesuffix("-swapped")
    swapped, transferred = stages(run, name, ("swapped", "transferred"))
    before, after = swapped.weights(), transferred.weights()
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed
    assert all(any(layer in name for layer in layers) for name in changed)
    places = changed_places(run.recipe.model, swapped.recipe.model)
    teacher_layers = attention_transfer.layers_of(teacher := run.model(), places)
    calls = [attention_transfer.layer_calls(teacher, teacher_layers, batch) for batch in batches(run)]
    errors = []
    for converted in (swapped, transferred):
        new_layers = attention_transfer.layers_of(converted.model(), places)
        errors.append(sum(attention_transfer.matching_loss(new_layers, call).item() for call in calls))
    assert errors[1] < 0.8 * errors[0]
    recorded = transferred.manifest.converted.mean_squared_error
    assert recorded["last"] < recorded["first"]


def test_transfer_error_ignores_padding(tmp_path: Path) -> None:
    """A batch has the mean of the errors of its rows alone, weighted by their numbers of tokens."""
    run = make_run(tmp_path)
    model = run.untrained().eval()
    torch.manual_seed(3)
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    teacher = run.model()
    teacher_layers, layers = (attention_transfer.layers_of(some, ["decoder"]) for some in (teacher, model))

    def error(batch: Batch) -> float:
        calls = attention_transfer.layer_calls(teacher, teacher_layers, batch)
        return attention_transfer.matching_loss(layers, calls).item()

    rows = single_rows(run, 6)
    tokens = [row.input.shape[1] for row in rows]
    whole = collate(prepare(run.recipe, tokenizer=run.tokenizer()).train, np.arange(6))
    assert error(whole) == pytest.approx(np.average([error(row) for row in rows], weights=tokens), rel=1e-4)


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_averaged_maps_equal_those_of_a_plain_loop(shape: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, **(DECODER if shape == "decoder" else {}))
    model, positions = run.model(), 40
    layers = attention_transfer.layers_of(model, ["encoder", "decoder"])
    found = attention_transfer.averaged_maps(model, layers, batches(run), positions)
    sums = {place: torch.zeros(2, 2, positions, positions) for place in layers}
    for batch in single_rows(run, 8):
        for place, inputs, _, _ in attention_transfer.layer_calls(model, layers, batch):
            maps = layers[place].weights(inputs["x"], inputs["mask"], bias=inputs.get("bias"))[0]
            size = maps.shape[-1]
            visible = inputs["mask"].dense()[0, 0]
            sums[place][0, :, :size, :size] += maps * visible * visible.sum(-1, keepdim=True)
            sums[place][1, :, :size, :size] += visible
    assert found.keys() == sums.keys()
    for place, (total, count) in sums.items():
        torch.testing.assert_close(found[place], total / count.clamp_min(1))


@pytest.mark.parametrize(("place", "error"), [("decoder", 1e-5), ("encoder", 0.03)])
def test_random_synthesizer_starts_from_the_averaged_maps(place: str, error: float, tmp_path: Path) -> None:
    """If the old maps are a table too, the model is the same; approximately, if texts differ in length.

    The tables differ by a constant in each row.
    """
    run = make_run(tmp_path, {place: "synthesizer-random"})
    fixed = f"{{{place}: {{name: synthesizer-random, trainable: false, scale: 1}}}}"
    swapped = swap_only(run, fixed, "synthesizer-random")
    assert swapped.manifest.converted.layers_with_averaged_maps == 1
    torch.testing.assert_close(logits(swapped), logits(run), rtol=0, atol=error)
    name = f"{place}.blocks.0.attention.mechanism.table"
    assert not torch.allclose(swapped.weights()[name], run.weights()[name], atol=0.01)


@pytest.mark.slow
def test_finished_conversion_is_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    record_events(convert, settings(run, "linear"))
    files = [stage.path / "model.safetensors" for stage in stages(run, "base-linear")]
    before = [file.stat().st_mtime_ns for file in files]
    events = record_events(convert, settings(run, "linear"))
    assert sum(isinstance(event, SkippedEvent) for event in events) == 3
    assert [file.stat().st_mtime_ns for file in files] == before
    for words, other, key in (((), {"transfer": 3}, "transfer: 2 -> 3"), (("train.lr=1e-4",), {}, "train.lr: ")):
        with pytest.raises(RecipeError, match=rf"^.*was converted with other settings.*{key}.*$"):
            record_events(convert, settings(run, "linear", *words, **other))
    record_events(convert, settings(run, "linear", transfer=3, fresh=True))
    assert [file.stat().st_mtime_ns for file in files] != before


def test_conversion_of_a_run_that_has_changed_raises(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    swap_only(run, "linear", "linear")
    run.finish({name: tensor + 1 for name, tensor in run.weights().items()}, step=4, seconds=1.0)
    with pytest.raises(RecipeError, match="weights: "):
        swap_only(Run.open(run.path), "linear", "linear")


def test_stopped_conversion_is_completed_by_the_same_command(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    chosen, stop = settings(run, "linear", transfer=5), StopSignals()

    def emit(event: Event) -> None:
        if isinstance(event, StartedEvent):
            stop.request("SIGTERM")

    with pytest.raises(StoppedError, match="SIGTERM during attention transfer"):
        _Conversion(chosen, stop, emit).run()
    assert [stage.finished for stage in stages(run, "base-linear", ("swapped", "transferred"))] == [True, False]
    assert isinstance(record_events(convert, chosen)[-1], ScoredEvent)
    assert all(stage.finished for stage in stages(run, "base-linear"))


def test_weight_of_another_shape_is_new(tmp_path: Path) -> None:
    model = make_run(tmp_path).untrained()
    old = {name: tensor.clone() for name, tensor in weights_of(model).items()}
    name = "encoder.blocks.0.attention.q.bias"
    old[name] = old[name][:-1]
    swapped = swap(old, model)
    assert swapped["new"] == swapped["left_out"] == [name]
    assert len(swapped["kept"]) == len(old) - 1
