"""Training of count-based language models: one pass over the training text instead of the loop of `fit`.

There are no checkpoints; a stopped run starts again from the beginning.
"""

import time
from collections.abc import Iterator

import numpy as np
import torch

from attnkit import models
from attnkit.data.batch import Batch, collate
from attnkit.data.encoded import Encoded
from attnkit.data.preparation import train_epoch
from attnkit.errors import DivergedError, NotFiniteError
from attnkit.memory import peak_memory, reset_peak_memory
from attnkit.models import CountedModel, NaiveBayes
from attnkit.train import events
from attnkit.train.fit import TrainingJob
from attnkit.train.optimizer import learning_rate, optimizer, weights_of
from attnkit.train.validation import Validator

BATCH_TOKENS = 2**17
"""Number of tokens counted at a time."""
STOPPED = " while counting; run the same command again to start this run over"


def count(job: TrainingJob) -> None:
    """Train a count-based model, and fit its vectors if it has any; the caller must hold the run's lock.

    Raises:
        DivergedError: If the vectors become NaN or infinite.
        StoppedError: If a signal arrives; nothing is saved.
        OutputError, OutputPathError: If the run cannot be written.
    """
    train, size = job.recipe.train, len(job.prepared.tokenizer.target)
    torch.manual_seed(job.seed)
    measures_memory = reset_peak_memory(str(job.device)) is not None
    job.run.log.truncate(None)
    start = time.perf_counter()
    model = models.build(job.recipe.model, (size, size), job.recipe.data.max_length)
    assert isinstance(model, CountedModel)
    job.emit(events.NoteEvent("counting the training text", passing=True))
    rows = train_epoch(job.prepared, job.recipe, 0, job.seed)
    model.count(_batches(rows, job))
    model = model.to(job.device)
    has_vectors = isinstance(model, NaiveBayes) and model.config.estimate == "skip-gram"
    steps = train.steps if has_vectors else 1
    job.emit(events.StartedEvent(job.run.name, steps, model.numbers, str(job.device), "fp32"))
    if isinstance(model, NaiveBayes) and has_vectors:
        _fit_vectors(model, job)
    seconds = time.perf_counter() - start
    _validate(model, job, steps, seconds)
    tokens = int(rows.target.lengths.sum(dtype=np.int64)) + len(rows)
    job.run.finish(
        weights_of(model),
        step=steps,
        seconds=seconds,
        reason="steps",
        updates=steps,
        tokens=tokens,
        tokens_per_second=round(tokens / max(seconds, 1e-9), 1),
        peak_memory_bytes=peak_memory(str(job.device)) if measures_memory else None,
    )
    job.emit(events.FinishedEvent(steps, seconds, "steps"))


def _batches(rows: Encoded, job: TrainingJob) -> Iterator[Batch]:
    batch_size = max(1, BATCH_TOKENS // int(rows.target.lengths.max(initial=1) + 1))
    for first in range(0, len(rows), batch_size):
        job.stop.obey(STOPPED)
        yield collate(rows, np.arange(first, min(first + batch_size, len(rows))))


def _fit_vectors(model: NaiveBayes, job: TrainingJob) -> None:
    """Fit the vectors by updates over all counts; the logged loss is in nats per pair."""
    train, start = job.recipe.train, time.perf_counter()
    adamw, pairs = optimizer(model.named_parameters(), train), len(model.unigram) ** 2
    for step in range(1, train.steps + 1):
        job.stop.obey(STOPPED)
        rate = learning_rate(step, train, job.recipe.model.width)
        for group in adamw.param_groups:
            group["lr"] = rate
        loss = model.pair_loss()
        loss.backward()  # type: ignore[no-untyped-call]
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        if not loss.isfinite():
            raise DivergedError(f"step {step}: the loss is not finite; try a lower train.lr")
        if step % train.log_every == 0 or step == train.steps:
            seconds = time.perf_counter() - start
            speed, left = step * pairs / seconds, (train.steps - step) * seconds / step
            value = float(loss.detach())
            job.run.log.append({"step": step, "loss": value, "lr": rate, "seconds": seconds})
            job.emit(events.ProgressEvent(step, train.steps, value, rate, speed, None, left))
    model.settle()


def _validate(model: CountedModel, job: TrainingJob, step: int, seconds: float) -> None:
    validator = Validator(job.recipe, model, job.prepared)
    try:
        sums, value = validator.measure(weights_of(model))
    except NotFiniteError as error:
        raise DivergedError("the model outputs NaN or infinity in the validation") from error
    job.run.log.append({"step": step, **validator.record(sums, value, seconds)})
    job.emit(events.ValidatedEvent(step, sums.loss, sums.perplexity, validator.monitor, value, best=value))
