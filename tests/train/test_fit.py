"""The training loop: exact resume, sums before division, averages, stops, and what goes wrong."""

import json
import re
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.model_types import BASELINES
from helpers.small import StopAt, digests, job, run_training, small_recipe, write_corpus

from attnkit import models
from attnkit.data.batch import Batch, collate, plan
from attnkit.data.preparation import prepare
from attnkit.errors import DivergedError, MemoryLimitError, StoppedError
from attnkit.recipe.schema import AttentionConfig, DataConfig, Roles
from attnkit.runs import Run
from attnkit.storage import files
from attnkit.storage.tensors import read
from attnkit.train import checkpoint
from attnkit.train.batch_stream import BatchStream, score_budget
from attnkit.train.events import (
    Event,
    FinishedEvent,
    NoteEvent,
    ProgressEvent,
    SavedEvent,
    StartedEvent,
    ValidatedEvent,
)
from attnkit.train.fit import Training
from attnkit.train.loss import LossOptions
from attnkit.train.precision import GradientWorker
from attnkit.train.validation import TeacherForcedSums, Validator

EPOCH = 5  # updates of one batch in an epoch of the small corpus


@pytest.fixture(autouse=True)
def _own_random_state() -> None:
    torch.manual_seed(0)


def resumed(folder: Path, recipe: Any, stops: list[int]) -> list[str]:
    """Train with stops at these updates, and return the digests."""
    for number, stop in enumerate(stops):
        before = stops[number - 1] if number else 0
        with pytest.raises(StoppedError, match=f"after step {stop}, which is saved"):
            run_training(job(folder, recipe, StopAt([stop - before])))
        torch.rand(number + 3)  # whatever happens to the random state between the two
    run_training(job(folder, recipe))
    return list(digests(folder))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16 with accumulation": {"precision": "bf16", "accumulate": 3},
    "fp16 with a moving average": {"precision": "fp16", "ema": 0.9},
    "averages and the best": {"average": 3, "choose": "best", "valid_every": 2},
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_stopped_and_resumed_training_ends_bit_for_bit_as_an_uninterrupted_one(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    recipe = small_recipe(write_corpus(tmp_path), **options)
    whole = tmp_path / "whole"
    run_training(job(whole, recipe))
    expected = list(digests(whole))
    # first step, mid-epoch, the epoch's last batch and the boundary after it, thrice in one epoch
    for stops in ([1, EPOCH - 1, 6, 7, 8], [3, EPOCH]):
        folder = tmp_path / "-".join(map(str, stops))
        assert resumed(folder, recipe, stops) == expected, stops


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["lstm-additive", "gru-scaled-dot", "sru-additive", "convs2s"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_type_of_model_resumes_bit_for_bit(tmp_path: Path, kind: str, precision: str) -> None:
    recipe = small_recipe(write_corpus(tmp_path), precision=precision)
    changed = recipe.model.model_copy(update=BASELINES[kind])
    recipe = recipe.model_copy(update={"model": changed})
    whole = tmp_path / "whole"
    run_training(job(whole, recipe))
    assert resumed(tmp_path / "parts", recipe, [3, EPOCH]) == list(digests(whole))


def test_the_small_corpus_has_as_many_batches_as_the_stops_assume(tmp_path: Path) -> None:
    made = job(tmp_path, small_recipe(write_corpus(tmp_path)))
    stream = BatchStream(lambda _: made.prepared.train, 56, seed=1)
    assert len(stream.batches) == EPOCH


def test_the_peak_memory_is_that_of_all_parts_and_old_checkpoints_have_none(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path))
    training = Training(job(tmp_path, recipe))
    if not training.measures_memory:
        pytest.skip("this system does not tell")
    training.progress.peak_memory_bytes = 10**15  # of the part before a resumption
    training.advance()
    training.save()
    assert training.progress.peak_memory_bytes == 10**15
    tensors, values = training.pack()
    del values["counters"]["peak_memory_bytes"]
    training.unpack(tmp_path, tensors, values)
    assert training.progress.peak_memory_bytes is None


def test_a_stop_after_the_last_update_finishes_the_run(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path))
    events = run_training(job(tmp_path, recipe, StopAt([12])))
    assert isinstance(events[-1], FinishedEvent)
    assert Run.open(tmp_path / "run").finished


@pytest.mark.slow
def test_the_speed_of_an_interval_counts_the_time_before_a_resumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which every update takes a second."""
    ticks = count()
    monkeypatch.setattr("attnkit.train.fit.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    recipe = small_recipe(write_corpus(tmp_path), log_every=4)
    speeds = []
    for stops in ([], [3], [5, 6]):
        folder = tmp_path / f"stops-{stops}"
        resumed(folder, recipe, stops)
        records = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
        speeds.append([r["tokens_per_second"] for r in records if "tokens_per_second" in r])
    assert len(speeds[0]) > 1
    assert speeds[1] == speeds[2] == speeds[0]


@pytest.mark.parametrize("stop", [4, 10])
def test_resuming_a_checkpoint_made_after_the_last_one_repeats_no_log_line(tmp_path: Path, stop: int) -> None:
    recipe = small_recipe(write_corpus(tmp_path))
    with pytest.raises(StoppedError):
        run_training(job(tmp_path, recipe, StopAt([stop])))
    events = run_training(job(tmp_path, recipe))
    started = next(event for event in events if isinstance(event, StartedEvent))
    assert started.resumed_from == stop
    steps = [record["step"] for record in Run.open(tmp_path / "run").log.records()]
    assert steps == [3, 5, 6, 9, 10, 12, 12]


def whole_and_parts(tmp_path: Path) -> tuple[Any, Batch, list[Batch]]:
    recipe = small_recipe(write_corpus(tmp_path))
    prepared = prepare(recipe, cache=tmp_path / "cache")
    rows = plan(None, prepared.train.target.lengths, batch_tokens=10**6, seed=0, epoch=0)[0][:32]
    parts = [collate(prepared.train, rows[i : i + 8]) for i in range(0, 32, 8)]
    torch.manual_seed(3)
    sizes = (len(prepared.tokenizer.source),) * 2
    model = models.build(recipe.model.model_copy(update={"dropout": 0.0}), sizes, 32)
    return model.double(), collate(prepared.train, rows), parts


def test_four_batches_of_eight_give_the_gradient_of_one_of_thirty_two(tmp_path: Path) -> None:
    model, whole, parts = whole_and_parts(tmp_path)
    gradients, losses = [], []
    for batches in ([whole], parts):
        worker = GradientWorker(model, "fp32")
        tokens = sum(batch.tokens for batch in batches)
        total = 0.0
        for batch in batches:
            found = worker.losses(batch, LossOptions(0.1))
            worker.backward(found.total, tokens)
            total += found.nll.item()
        losses.append(total / tokens)
        gradients.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad(set_to_none=True)
    # float64: only the order of summation differs
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.03), ("fp16", 0.005)])
def test_short_floats_give_nearly_the_gradient_of_float32(tmp_path: Path, precision: str, tolerance: float) -> None:
    model, whole, _ = whole_and_parts(tmp_path)
    model = model.float()
    norms = []
    for kind in ("fp32", precision):
        worker = GradientWorker(model, kind)
        found = worker.losses(whole, LossOptions(0.1))
        worker.backward(found.total, whole.tokens)
        scale = worker.scaler.get_scale() if worker.scaler.is_enabled() else 1.0
        norms.append(torch.cat([p.grad.flatten() / scale for p in model.parameters()]))
        model.zero_grad(set_to_none=True)
    assert (norms[0] - norms[1]).norm() < tolerance * norms[0].norm()


def test_the_logged_loss_is_plain_cross_entropy_a_token(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path), log_every=1, steps=1, label_smoothing=0.3)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"dropout": 0.0})})
    made = job(tmp_path, recipe)
    training = Training(made)
    batch = BatchStream(lambda _: made.prepared.train, 56, seed=1).take(1)[0]
    with torch.no_grad():
        logits = training.model(batch.source, batch.input)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.output.flatten(), ignore_index=0)
    (progress,) = [event for event in run_training(made) if isinstance(event, ProgressEvent)]
    assert progress.loss == pytest.approx(expected.item(), rel=1e-6)


def test_the_remaining_time_is_that_of_the_last_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow start, or a time when the process was stopped, does not count for ever."""
    now = 0.0
    monkeypatch.setattr("attnkit.train.fit.time", SimpleNamespace(perf_counter=lambda: now))
    recipe = small_recipe(write_corpus(tmp_path), log_every=1, steps=40)
    told = []

    def pass_time(event: Event) -> None:
        nonlocal now
        if isinstance(event, ProgressEvent):
            told.append(event.remaining_seconds)
        now += 1000 if len(told) == 3 else 2

    run_training(job(tmp_path, recipe), watch=pass_time)
    assert told[3] > 36 * 200
    assert told[29:] == [pytest.approx(left * 2, abs=2 * left) for left in range(10, -1, -1)]


@pytest.mark.parametrize(("average", "steps"), [(3, [8, 10, 12]), (9, [2, 4, 6, 8, 10, 12])])
def test_averaged_weights_are_the_mean_of_the_last_validations(average: int, steps: list[int], tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path), average=average, valid_every=2)
    run_training(job(tmp_path, recipe))
    run = Run.open(tmp_path / "run")
    stored = [read(run.checkpoints / f"step-{s}" / "tensors.safetensors") for s in steps]
    for name, tensor in run.weights().items():
        mean = torch.stack([weights[f"model.{name}"] for weights in stored]).mean(0)
        torch.testing.assert_close(tensor, mean)


def test_checkpoints_are_saved_between_validations_too(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path), steps=7, valid_every=0, save_every=3)
    told = run_training(job(tmp_path, recipe))
    assert [event.step for event in told if isinstance(event, SavedEvent)] == [3, 6, 7]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "kept", "largest"), [({"average": 3, "valid_every": 2}, 4, 3), ({"ema": 0.5, "choose": "best"}, 3, 5)]
)
def test_space_is_demanded_for_all_that_a_training_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], kept: int, largest: int
) -> None:
    """Three checkpoints of three copies were demanded, whatever was averaged."""
    demanded: list[int] = []
    monkeypatch.setattr("attnkit.storage.files.check_space", lambda _, size: demanded.append(size))
    run_training(job(tmp_path, small_recipe(write_corpus(tmp_path), **settings)))
    run = Run.open(tmp_path / "run")
    assert len(list(run.checkpoints.iterdir())) == kept - 1
    size = sum(t.numel() * t.element_size() for t in run.weights().values())
    assert demanded == [size * largest * kept * 11 // 10]


def test_moving_averages_follow_their_formula(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path), ema=0.5, steps=2, valid_every=1)
    made = job(tmp_path, recipe)
    start = {n: p.detach().clone() for n, p in Training(made).model.named_parameters()}
    run_training(made)
    run = Run.open(tmp_path / "run")
    one, two = (read(run.checkpoints / f"step-{s}" / "tensors.safetensors") for s in (1, 2))
    for name, tensor in run.weights().items():
        first = 2 / 11 * start[name] + 9 / 11 * one[f"model.{name}"]
        torch.testing.assert_close(tensor, 3 / 12 * first + 9 / 12 * two[f"model.{name}"])


def test_training_stops_when_validations_no_longer_improve(tmp_path: Path) -> None:
    # no learning at all: the first validation is the best
    recipe = small_recipe(write_corpus(tmp_path), lr=1e-12, valid_every=1, patience=2, choose="best", steps=12)
    events = run_training(job(tmp_path, recipe))
    values = [event.value for event in events if isinstance(event, ValidatedEvent)]
    worst = len(values) - 1 - values.index(min(values))
    assert worst == 2
    assert events[-1].reason == "patience"
    assert events[-1].step == values.index(min(values)) + 1
    said = [event.text for event in events if isinstance(event, NoteEvent)]
    assert said[-1].startswith(f"stops after step {len(values)}: 2 validations (train.patience)")


def scripted(monkeypatch: pytest.MonkeyPatch, scores: list[tuple[float, float]]) -> None:
    """Have the validations after steps 1, 2, ... give these values of the monitor and losses."""

    def measure(self: Validator, weights: Any) -> tuple[TeacherForcedSums, float]:
        value, loss = scores[training[-1].progress.step - 1]
        return TeacherForcedSums(loss, 0, 1), value

    training: list[Training] = []
    begin = Training.__init__
    monkeypatch.setattr(Training, "__init__", lambda self, made: (training.append(self), begin(self, made))[1])
    monkeypatch.setattr(Validator, "measure", measure)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("scores", "ends", "best"),
    [
        ([(0.0, 9 - n) for n in range(8)], 8, 8),  # BLEU 0 throughout, the loss falls
        ([(0.0, 9.0), (0.0, 8.0), (0.0, 8.0), (0.0, 8.5)] + [(0.0, 1.0)] * 4, 4, 2),
        ([(0.0, 5.0), (0.0, 4.0), (1.0, 6.0), (0.0, 1.0), (1.0, 7.0)] + [(2.0, 2.0)] * 3, 5, 3),
        ([(0.0, 5.0)] * 2 + [(3.0, 9.0)] + [(3.0, 9.0 - n) for n in range(5)], 8, 8),
    ],
    ids=["zeros", "zeros whose loss stops falling", "a worse score", "equal scores"],
)
def test_of_equal_scores_the_lower_loss_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: Any, ends: int, best: int
) -> None:
    scripted(monkeypatch, scores)
    options: Any = {"monitor": "bleu", "choose": "best", "patience": 2, "valid_every": 1}
    recipe = small_recipe(write_corpus(tmp_path), steps=8, **options)
    whole = tmp_path / "whole"
    events = run_training(job(whole, recipe))
    finished = Run.open(whole / "run").manifest.finished
    assert (finished.updates, finished.step) == (ends, best)
    assert finished.reason == ("steps" if ends == 8 else "patience")
    said = [event.text for event in events if isinstance(event, NoteEvent)]
    assert any(f"step {best} (BLEU " in text for text in said) == (ends < 8)
    # what a validation has to better is in each checkpoint
    assert resumed(tmp_path / "parts", recipe, [*range(1, ends)]) == list(digests(whole))


def test_a_checkpoint_that_knows_no_loss_of_its_best_validation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of earlier versions: of equal values the next is better."""
    scripted(monkeypatch, [(0.0, 5.0), (0.0, 6.0), (0.0, 7.0), (0.0, 8.0)])
    options: Any = {"monitor": "bleu", "choose": "best", "valid_every": 1}
    recipe = small_recipe(write_corpus(tmp_path), steps=4, **options)
    with pytest.raises(StoppedError):
        run_training(job(tmp_path, recipe, StopAt([2])))
    run = Run.open(tmp_path / "run")
    values, state = checkpoint.load(run.checkpoints / "step-2")
    assert state["counters"].pop("best_loss") == 5.0
    assert state["counters"]["best_step"] == 1
    files.remove(run.checkpoints / "step-2")
    checkpoint.save(run, 2, values, state)
    run_training(job(tmp_path, recipe))
    assert Run.open(tmp_path / "run").manifest.finished.step == 3


def test_a_decoded_metric_can_be_watched(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path), monitor="chrf", steps=5)
    validated = [e for e in run_training(job(tmp_path, recipe)) if isinstance(e, ValidatedEvent)]
    assert validated[0].monitor == "chrf"
    assert 0 <= validated[0].value <= 100


@pytest.mark.parametrize(
    ("parameter", "module"),
    [
        ("decoder.blocks.0.feed_forward.up.weight", "decoder.blocks.0.feed_forward.up"),
        ("encoder.blocks.0.attention.q.weight", "encoder.blocks.0.attention.q"),
        ("embed_source.tokens.weight", "embed_source.tokens"),
    ],
)
def test_a_loss_that_is_not_finite_stops_before_the_update_and_names_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameter: str, module: str
) -> None:
    made = job(tmp_path, small_recipe(write_corpus(tmp_path)))
    plain, update, updates = Training.advance, torch.optim.AdamW.step, []

    def poison(self: Training) -> Any:
        with torch.no_grad():
            self.model.get_parameter(parameter)[:, 0] = torch.nan
        return plain(self)

    monkeypatch.setattr(Training, "advance", poison)
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_: updates.append(update))
    with pytest.raises(DivergedError) as caught:
        run_training(made)
    text = str(caught.value)
    assert text.startswith(f"step 1: the loss is not finite (first in the output of {module}; ")
    assert re.search(r"training rows \d+(, \d+)*", text)
    assert "nothing is saved yet" in text
    assert caught.value.code == 3
    assert updates == []
    assert [path.name for path in made.run.checkpoints.glob("step-*")] == ["step-0"]


def test_a_gradient_that_is_not_finite_names_its_parameter_and_the_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(tmp_path, small_recipe(write_corpus(tmp_path), valid_every=2))
    plain = GradientWorker.backward

    def spoil(self: GradientWorker, total: torch.Tensor, divisor: int) -> None:
        plain(self, total, divisor)
        if (made.run.checkpoints / "step-2").exists():
            self.model.encoder.blocks[0].norm_attention.weight.grad[3] = torch.inf

    monkeypatch.setattr(GradientWorker, "backward", spoil)
    with pytest.raises(DivergedError, match=r"step 3: the gradient .* step 2 is saved") as caught:
        run_training(made)
    assert "gradient of encoder.blocks.0.norm_attention.weight" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            MemoryLimitError,
            "try train.batch_tokens=28 train.accumulate=2",
        ),
        (RuntimeError("shapes do not match"), RuntimeError, "^shapes do not match$"),
    ],
)
def test_running_out_of_memory_says_what_to_change(
    error: Exception, kind: type[Exception], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(GradientWorker, "losses", fail)
    with pytest.raises(kind, match=text):
        run_training(job(tmp_path, small_recipe(write_corpus(tmp_path))))


def test_a_damaged_newest_checkpoint_costs_its_steps_only(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path))
    whole = tmp_path / "whole"
    run_training(job(whole, recipe))
    with pytest.raises(StoppedError):
        run_training(job(tmp_path, recipe, StopAt([8])))
    path = tmp_path / "run" / "checkpoints" / "step-8" / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    events = run_training(job(tmp_path, recipe))
    note = next(event for event in events if isinstance(event, NoteEvent))
    assert "resuming from step 5 and repeating 3 steps" in note.text
    assert list(digests(tmp_path)) == list(digests(whole))


def test_events_are_plain_json_with_an_event_key(tmp_path: Path) -> None:
    events = run_training(job(tmp_path, small_recipe(write_corpus(tmp_path))))
    kinds = {json.loads(json.dumps(event.json()))["event"] for event in events}
    assert kinds == {"started", "progress", "validated", "saved", "finished"}
    assert [e.step for e in events if isinstance(e, SavedEvent)] == [5, 10, 12]


def test_subword_sampling_changes_epochs_and_resumes_exactly(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path))
    sampled = recipe.tokenizer.model_copy(update={"type": "unigram", "size": 60, "sampling": 0.3})
    recipe = recipe.model_copy(update={"tokenizer": sampled})
    whole = tmp_path / "whole"
    run_training(job(whole, recipe))
    assert resumed(tmp_path / "parts", recipe, [7]) == list(digests(whole))


@pytest.mark.parametrize(("word", "expected"), [("scaled-dot", 500), ("synthesizer-random", 500), ("linear", None)])
def test_only_quadratic_mechanisms_keep_to_a_budget_of_scores(tmp_path: Path, word: str, expected: int | None) -> None:
    recipe = small_recipe(write_corpus(tmp_path), batch_scores=500)
    roles = dict.fromkeys(("encoder", "decoder", "cross"), AttentionConfig(name=word))
    model = recipe.model.model_copy(update={"attention": Roles(**roles)})
    recipe = recipe.model_copy(update={"model": model})
    assert score_budget(recipe) == expected
    free = small_recipe(write_corpus(tmp_path), batch_scores=0)
    assert score_budget(free) is None


def test_a_language_model_and_a_decoder_of_pairs_train(tmp_path: Path) -> None:
    data = write_corpus(tmp_path)
    recipe = small_recipe(data, steps=40, lr=1e-2, valid_every=20)
    decoder = recipe.model.model_copy(update={"shape": "decoder"})
    plain = DataConfig(train=data.train[0], valid=data.valid[0], test=data.test[0], format="plain", max_length=16)
    language = {"task": "language-modeling", "data": plain, "model": decoder}
    causal = {"train": recipe.train.model_copy(update={"objective": "causal"})}
    for number, changes in enumerate(({"model": decoder}, language | causal)):
        made = job(tmp_path / str(number), recipe.model_copy(update=changes))
        losses = [e.loss for e in run_training(made) if isinstance(e, ValidatedEvent)]
        assert losses[-1] < losses[0] < 4
