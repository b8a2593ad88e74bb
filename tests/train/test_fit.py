"""Tests of the training loop: resuming, gradient accumulation, averaging, early stopping and errors."""

import json
import re
from itertools import count, pairwise
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
from attnkit.recipe import Recipe
from attnkit.recipe.schema import AttentionConfig, DataConfig, Roles
from attnkit.runs import Run
from attnkit.storage import files
from attnkit.storage.tensors import read
from attnkit.train import checkpoint, events
from attnkit.train.batch_stream import BatchStream, score_budget
from attnkit.train.fit import Training
from attnkit.train.loss import LossOptions
from attnkit.train.precision import GradientWorker
from attnkit.train.validation import TeacherForcedSums, Validator

EPOCH = 5  # number of updates of one batch in an epoch of the small corpus


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def with_model(recipe: Recipe, **options: Any) -> Recipe:
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=options)})


def stop_after(folder: Path, recipe: Recipe, step: int, resumed_from: int = 0) -> None:
    with pytest.raises(StoppedError, match=f"after step {step}, which is saved"):
        run_training(job(folder, recipe, StopAt([step - resumed_from])))


def train(folder: Path, recipe: Recipe, stops: list[int] | None = None) -> list[str]:
    """Return the digests after training that is stopped and resumed after these updates."""
    for number, (before, stop) in enumerate(pairwise([0, *(stops or [])])):
        stop_after(folder, recipe, stop, before)
        torch.rand(number + 3)  # the resumed training must not depend on the random state before it
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
def test_resumed_training_equals_uninterrupted_training(tmp_path: Path, options: dict[str, Any]) -> None:
    recipe = small_recipe(write_corpus(tmp_path), **options)
    expected = train(tmp_path / "whole", recipe)
    # first step, mid-epoch, the epoch's last batch and the boundary after it, three in one epoch
    for stops in ([1, EPOCH - 1, 6, 7, 8], [3, EPOCH]):
        assert train(tmp_path / "-".join(map(str, stops)), recipe, stops) == expected, stops


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["lstm-additive", "gru-scaled-dot", "sru-additive", "convs2s"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_model_type_resumes_exactly(tmp_path: Path, kind: str, precision: str) -> None:
    recipe = with_model(small_recipe(write_corpus(tmp_path), precision=precision), **BASELINES[kind])
    assert train(tmp_path / "parts", recipe, [3, EPOCH]) == train(tmp_path / "whole", recipe)


def test_subword_sampling_resumes_exactly(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path))
    sampled = recipe.tokenizer.model_copy(update={"type": "unigram", "size": 60, "sampling": 0.3})
    recipe = recipe.model_copy(update={"tokenizer": sampled})
    assert train(tmp_path / "parts", recipe, [7]) == train(tmp_path / "whole", recipe)


def test_damaged_newest_checkpoint_costs_only_its_steps(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path))
    expected = train(tmp_path / "whole", recipe)
    stop_after(tmp_path, recipe, 8)
    path = tmp_path / "run" / "checkpoints" / "step-8" / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    emitted = run_training(job(tmp_path, recipe))
    note = next(event for event in emitted if isinstance(event, events.NoteEvent))
    assert "resuming from step 5 and repeating 3 steps" in note.text
    assert list(digests(tmp_path)) == expected


def test_epoch_of_the_small_corpus_has_five_batches(tmp_path: Path) -> None:
    prepared = prepare(small_recipe(write_corpus(tmp_path)), cache=tmp_path / "cache")
    assert len(BatchStream(lambda _: prepared.train, 56, seed=1).batches) == EPOCH


def test_peak_memory_includes_the_time_before_resuming(tmp_path: Path) -> None:
    """Checkpoints of earlier versions have none."""
    training = Training(job(tmp_path, small_recipe(write_corpus(tmp_path))))
    if not training.measures_memory:
        pytest.skip("peak memory is unknown on this system")
    training.progress.peak_memory_bytes = 10**15  # before resuming
    training.advance()
    training.save()
    assert training.progress.peak_memory_bytes == 10**15
    tensors, values = training.pack()
    del values["counters"]["peak_memory_bytes"]
    training.unpack(tmp_path, tensors, values)
    assert training.progress.peak_memory_bytes is None


def test_stop_after_the_last_update_finishes_the_run(tmp_path: Path) -> None:
    emitted = run_training(job(tmp_path, small_recipe(write_corpus(tmp_path)), StopAt([12])))
    assert isinstance(emitted[-1], events.FinishedEvent)
    assert Run.open(tmp_path / "run").finished


@pytest.mark.slow
def test_logged_speed_includes_the_time_before_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()  # a clock on which every update takes a second
    monkeypatch.setattr("attnkit.train.fit.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    recipe = small_recipe(write_corpus(tmp_path), log_every=4)
    speeds = []
    for stops in ([], [3], [5, 6]):
        folder = tmp_path / f"stops-{stops}"
        train(folder, recipe, stops)
        records = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
        speeds.append([r["tokens_per_second"] for r in records if "tokens_per_second" in r])
    assert len(speeds[0]) > 1
    assert speeds[1] == speeds[2] == speeds[0]


@pytest.mark.parametrize("stop", [4, 10])
def test_resuming_repeats_no_log_record(tmp_path: Path, stop: int) -> None:
    recipe = small_recipe(write_corpus(tmp_path))
    stop_after(tmp_path, recipe, stop)
    emitted = run_training(job(tmp_path, recipe))
    started = next(event for event in emitted if isinstance(event, events.StartedEvent))
    assert started.resumed_from == stop
    steps = [record["step"] for record in Run.open(tmp_path / "run").log.records()]
    assert steps == [3, 5, 6, 9, 10, 12, 12]


def model_and_batches(tmp_path: Path) -> tuple[Any, Batch, list[Batch]]:
    """Return a model, a batch of 32 rows and the same rows as 4 batches of 8."""
    recipe = with_model(small_recipe(write_corpus(tmp_path)), dropout=0.0)
    prepared = prepare(recipe, cache=tmp_path / "cache")
    rows = plan(None, prepared.train.target.lengths, batch_tokens=10**6, seed=0, epoch=0)[0][:32]
    parts = [collate(prepared.train, rows[i : i + 8]) for i in range(0, 32, 8)]
    torch.manual_seed(3)
    model = models.build(recipe.model, prepared.tokenizer.sizes, 32)
    return model.double(), collate(prepared.train, rows), parts


def test_four_batches_of_eight_give_the_gradient_of_one_of_32(tmp_path: Path) -> None:
    model, whole, parts = model_and_batches(tmp_path)
    gradients, losses = [], []
    for batches in ([whole], parts):
        worker = GradientWorker(model, "fp32")
        tokens = sum(batch.tokens for batch in batches)
        total = 0.0
        for batch in batches:
            batch_losses = worker.losses(batch, LossOptions(0.1))
            worker.backward(batch_losses.total, tokens)
            total += batch_losses.nll.item()
        losses.append(total / tokens)
        gradients.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad(set_to_none=True)
    # float64: only the order of summation differs
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.03), ("fp16", 0.005)])
def test_16_bit_gradient_is_close_to_that_of_float32(tmp_path: Path, precision: str, tolerance: float) -> None:
    model, batch, _ = model_and_batches(tmp_path)
    model = model.float()
    gradients = []
    for kind in ("fp32", precision):
        worker = GradientWorker(model, kind)
        worker.backward(worker.losses(batch, LossOptions(0.1)).total, batch.tokens)
        scale = worker.scaler.get_scale() if worker.scaler.is_enabled() else 1.0
        gradients.append(torch.cat([p.grad.flatten() / scale for p in model.parameters()]))
        model.zero_grad(set_to_none=True)
    assert (gradients[0] - gradients[1]).norm() < tolerance * gradients[0].norm()


def test_logged_loss_is_cross_entropy_per_token(tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path), log_every=1, steps=1, label_smoothing=0.3)
    small_job = job(tmp_path, with_model(recipe, dropout=0.0))
    training = Training(small_job)
    batch = BatchStream(lambda _: small_job.prepared.train, 56, seed=1).take(1)[0]
    with torch.no_grad():
        logits = training.model(batch.source, batch.input)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.output.flatten(), ignore_index=0)
    (progress,) = [event for event in run_training(small_job) if isinstance(event, events.ProgressEvent)]
    assert progress.loss == pytest.approx(expected.item(), rel=1e-6)


def test_remaining_time_is_estimated_from_the_last_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow start, or a time when the process was suspended, does not count for ever."""
    now = 0.0
    monkeypatch.setattr("attnkit.train.fit.time", SimpleNamespace(perf_counter=lambda: now))
    estimates = []

    def pass_time(event: events.Event) -> None:
        nonlocal now
        if isinstance(event, events.ProgressEvent):
            estimates.append(event.remaining_seconds)
        now += 1000 if len(estimates) == 3 else 2

    run_training(job(tmp_path, small_recipe(write_corpus(tmp_path), log_every=1, steps=40)), watch=pass_time)
    assert estimates[3] > 36 * 200
    assert estimates[29:] == [pytest.approx(left * 2, abs=2 * left) for left in range(10, -1, -1)]


@pytest.mark.parametrize(("average", "steps"), [(3, [8, 10, 12]), (9, [2, 4, 6, 8, 10, 12])])
def test_averaged_weights_are_the_mean_of_the_last_validations(average: int, steps: list[int], tmp_path: Path) -> None:
    run_training(job(tmp_path, small_recipe(write_corpus(tmp_path), average=average, valid_every=2)))
    run = Run.open(tmp_path / "run")
    stored = [read(run.checkpoints / f"step-{s}" / "tensors.safetensors") for s in steps]
    for name, tensor in run.weights().items():
        mean = torch.stack([weights[f"model.{name}"] for weights in stored]).mean(0)
        torch.testing.assert_close(tensor, mean)


def test_moving_averages_follow_their_formula(tmp_path: Path) -> None:
    small_job = job(tmp_path, small_recipe(write_corpus(tmp_path), ema=0.5, steps=2, valid_every=1))
    start = {n: p.detach().clone() for n, p in Training(small_job).model.named_parameters()}
    run_training(small_job)
    run = Run.open(tmp_path / "run")
    first, second = (read(run.checkpoints / f"step-{s}" / "tensors.safetensors") for s in (1, 2))
    for name, tensor in run.weights().items():
        average = 2 / 11 * start[name] + 9 / 11 * first[f"model.{name}"]
        torch.testing.assert_close(tensor, 3 / 12 * average + 9 / 12 * second[f"model.{name}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "kept", "largest"), [({"average": 3, "valid_every": 2}, 4, 3), ({"ema": 0.5, "choose": "best"}, 3, 5)]
)
def test_required_space_is_that_of_all_checkpoints_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], kept: int, largest: int
) -> None:
    """Space for three checkpoints of three copies was required whatever was averaged."""
    required: list[int] = []
    monkeypatch.setattr("attnkit.storage.files.check_space", lambda _, size: required.append(size))
    run_training(job(tmp_path, small_recipe(write_corpus(tmp_path), **settings)))
    run = Run.open(tmp_path / "run")
    assert len(list(run.checkpoints.iterdir())) == kept - 1
    size = sum(t.numel() * t.element_size() for t in run.weights().values())
    assert required == [size * largest * kept * 11 // 10]


def test_training_stops_when_patience_runs_out(tmp_path: Path) -> None:
    # with this learning rate the first validation is the best
    recipe = small_recipe(write_corpus(tmp_path), lr=1e-12, valid_every=1, patience=2, choose="best", steps=12)
    emitted = run_training(job(tmp_path, recipe))
    values = [event.value for event in emitted if isinstance(event, events.ValidatedEvent)]
    best = values.index(min(values)) + 1
    assert len(values) - best == 2
    assert emitted[-1].reason == "patience"
    assert emitted[-1].step == best
    notes = [event.text for event in emitted if isinstance(event, events.NoteEvent)]
    assert notes[-1].startswith(f"stops after step {len(values)}: 2 validations (train.patience)")


def script_validations(monkeypatch: pytest.MonkeyPatch, scores: list[tuple[float, float]]) -> None:
    """Make the validations after steps 1, 2, ... return these values of the monitor and losses."""

    def measure(self: Validator, weights: Any) -> tuple[TeacherForcedSums, float]:
        value, loss = scores[trainings[-1].progress.step - 1]
        return TeacherForcedSums(loss, 0, 1), value

    trainings: list[Training] = []
    init = Training.__init__
    monkeypatch.setattr(Training, "__init__", lambda self, job: (trainings.append(self), init(self, job))[1])
    monkeypatch.setattr(Validator, "measure", measure)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("scores", "updates", "best"),
    [
        ([(0.0, 9 - n) for n in range(8)], 8, 8),  # BLEU 0 throughout, the loss falls
        ([(0.0, 9.0), (0.0, 8.0), (0.0, 8.0), (0.0, 8.5)] + [(0.0, 1.0)] * 4, 4, 2),
        ([(0.0, 5.0), (0.0, 4.0), (1.0, 6.0), (0.0, 1.0), (1.0, 7.0)] + [(2.0, 2.0)] * 3, 5, 3),
        ([(0.0, 5.0)] * 2 + [(3.0, 9.0)] + [(3.0, 9.0 - n) for n in range(5)], 8, 8),
    ],
    ids=["zeros", "zeros whose loss stops falling", "a worse score", "equal scores"],
)
def test_of_equal_scores_the_lower_loss_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: Any, updates: int, best: int
) -> None:
    script_validations(monkeypatch, scores)
    options: Any = {"monitor": "bleu", "choose": "best", "patience": 2, "valid_every": 1}
    recipe = small_recipe(write_corpus(tmp_path), steps=8, **options)
    whole = tmp_path / "whole"
    emitted = run_training(job(whole, recipe))
    finished = Run.open(whole / "run").manifest.finished
    assert (finished.updates, finished.step) == (updates, best)
    assert finished.reason == ("steps" if updates == 8 else "patience")
    notes = [event.text for event in emitted if isinstance(event, events.NoteEvent)]
    assert any(f"step {best} (BLEU " in text for text in notes) == (updates < 8)
    # each checkpoint holds the best score so far
    assert train(tmp_path / "parts", recipe, [*range(1, updates)]) == list(digests(whole))


def test_checkpoint_without_the_best_loss_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a checkpoint of an earlier version, the next of equal scores is better."""
    script_validations(monkeypatch, [(0.0, 5.0), (0.0, 6.0), (0.0, 7.0), (0.0, 8.0)])
    options: Any = {"monitor": "bleu", "choose": "best", "valid_every": 1}
    recipe = small_recipe(write_corpus(tmp_path), steps=4, **options)
    stop_after(tmp_path, recipe, 2)
    run = Run.open(tmp_path / "run")
    values, state = checkpoint.load(run.checkpoints / "step-2")
    assert state["counters"].pop("best_loss") == 5.0
    assert state["counters"]["best_step"] == 1
    files.remove(run.checkpoints / "step-2")
    checkpoint.save(run, 2, values, state)
    run_training(job(tmp_path, recipe))
    assert Run.open(tmp_path / "run").manifest.finished.step == 3


def test_monitor_may_be_a_metric_of_decoded_outputs(tmp_path: Path) -> None:
    emitted = run_training(job(tmp_path, small_recipe(write_corpus(tmp_path), monitor="chrf", steps=5)))
    validated = next(event for event in emitted if isinstance(event, events.ValidatedEvent))
    assert validated.monitor == "chrf"
    assert 0 <= validated.value <= 100


@pytest.mark.parametrize(
    ("parameter", "module"),
    [
        ("decoder.blocks.0.feed_forward.up.weight", "decoder.blocks.0.feed_forward.up"),
        ("encoder.blocks.0.attention.q.weight", "encoder.blocks.0.attention.q"),
        ("embed_source.tokens.weight", "embed_source.tokens"),
    ],
)
def test_non_finite_loss_names_the_module_and_prevents_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameter: str, module: str
) -> None:
    small_job = job(tmp_path, small_recipe(write_corpus(tmp_path)))
    advance, updates = Training.advance, []

    def poison(self: Training) -> None:
        with torch.no_grad():
            self.model.get_parameter(parameter)[:, 0] = torch.nan
        advance(self)

    monkeypatch.setattr(Training, "advance", poison)
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *arguments: updates.append(arguments))
    with pytest.raises(DivergedError) as caught:
        run_training(small_job)
    text = str(caught.value)
    assert text.startswith(f"step 1: the loss is not finite (first in the output of {module}; ")
    assert re.search(r"training rows \d+(, \d+)*", text)
    assert "nothing is saved yet" in text
    assert caught.value.code == 3
    assert updates == []
    assert [path.name for path in small_job.run.checkpoints.glob("step-*")] == ["step-0"]


def test_non_finite_gradient_names_the_parameter_and_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_job = job(tmp_path, small_recipe(write_corpus(tmp_path), valid_every=2))
    backward = GradientWorker.backward

    def poison(self: GradientWorker, total: torch.Tensor, divisor: int) -> None:
        backward(self, total, divisor)
        if (small_job.run.checkpoints / "step-2").exists():
            self.model.encoder.blocks[0].norm_attention.weight.grad[3] = torch.inf

    monkeypatch.setattr(GradientWorker, "backward", poison)
    with pytest.raises(DivergedError, match=r"step 3: the gradient .* step 2 is saved") as caught:
        run_training(small_job)
    assert "gradient of encoder.blocks.0.norm_attention.weight" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (torch.OutOfMemoryError("out of memory"), MemoryLimitError, "try train.batch_tokens=28 train.accumulate=2"),
        (RuntimeError("shapes do not match"), RuntimeError, "^shapes do not match$"),
    ],
)
def test_out_of_memory_says_what_to_change(
    error: Exception, kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(GradientWorker, "losses", fail)
    with pytest.raises(kind, match=message):
        run_training(job(tmp_path, small_recipe(write_corpus(tmp_path))))


@pytest.mark.parametrize(
    ("settings", "saved"), [({}, [5, 10, 12]), ({"steps": 7, "valid_every": 0, "save_every": 3}, [3, 6, 7])]
)
def test_events_are_json_and_name_the_saved_steps(tmp_path: Path, settings: dict[str, Any], saved: list[int]) -> None:
    emitted = run_training(job(tmp_path, small_recipe(write_corpus(tmp_path), **settings)))
    kinds = {json.loads(json.dumps(event.json()))["event"] for event in emitted}
    assert kinds == {"started", "progress", "validated", "saved", "finished"}
    assert [event.step for event in emitted if isinstance(event, events.SavedEvent)] == saved


@pytest.mark.parametrize(("name", "expected"), [("scaled-dot", 500), ("synthesizer-random", 500), ("linear", None)])
def test_score_budget_applies_only_to_quadratic_mechanisms(tmp_path: Path, name: str, expected: int | None) -> None:
    data = write_corpus(tmp_path)
    attention = Roles(**dict.fromkeys(("encoder", "decoder", "cross"), AttentionConfig(name=name)))
    assert score_budget(with_model(small_recipe(data, batch_scores=500), attention=attention)) == expected
    assert score_budget(small_recipe(data, batch_scores=0)) is None


def test_language_model_and_decoder_of_pairs_learn(tmp_path: Path) -> None:
    data = write_corpus(tmp_path)
    recipe = with_model(small_recipe(data, steps=40, lr=1e-2, valid_every=20), shape="decoder")
    plain = DataConfig(train=data.train[0], valid=data.valid[0], test=data.test[0], format="plain", max_length=16)
    causal = recipe.train.model_copy(update={"objective": "causal"})
    language = recipe.model_copy(update={"task": "language-modeling", "data": plain, "train": causal})
    for number, decoder in enumerate((recipe, language)):
        emitted = run_training(job(tmp_path / str(number), decoder))
        losses = [e.loss for e in emitted if isinstance(e, events.ValidatedEvent)]
        assert losses[-1] < losses[0] < 4
