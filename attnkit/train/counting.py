"""Language models that are counted: the training text is read once, in place of the loop of `fit`.

Nothing is saved on the way; a run that was stopped counts again from the start.
"""

import time
from collections.abc import Iterator

import numpy as np
import torch

from attnkit import models
from attnkit.data.batch import Batch, collate
from attnkit.data.encoded import Encoded
from attnkit.data.preparation import train_epoch
from attnkit.errors import StoppedError
from attnkit.models import NGram
from attnkit.train import events
from attnkit.train.averaging import weights_of
from attnkit.train.fit import TrainingJob
from attnkit.train.peak_memory import peak_memory, reset_peak_memory
from attnkit.train.validation import Validator

BATCH_TOKENS = 2**17
"""Tokens that are counted at a time."""


def count(job: TrainingJob) -> None:
    """Count a model; the caller locks the run.

    Raises:
        StoppedError: a signal came; nothing is saved.
        OutputError, OutputPathError: the run cannot be written.
    """
    size = len(job.prepared.tokenizer.target)
    torch.manual_seed(job.seed)
    watched = reset_peak_memory(str(job.device)) is not None
    job.run.log.truncate(None)
    start = time.perf_counter()
    model = models.build(job.recipe.model, (size, size), job.recipe.data.max_length)
    assert isinstance(model, NGram)
    job.emit(events.NoteEvent("counting the training text", passing=True))
    rows = train_epoch(job.prepared, job.recipe, 0, job.seed)
    model.count(_batches(rows, job))
    model = model.to(job.device)
    job.emit(events.StartedEvent(job.run.name, 1, model.numbers, str(job.device), "fp32"))
    seconds = time.perf_counter() - start
    _validate(model, job, seconds)
    tokens = int(rows.target.lengths.sum(dtype=np.int64)) + len(rows)
    job.run.finish(
        weights_of(model),
        step=1,
        seconds=seconds,
        reason="steps",
        updates=1,
        tokens=tokens,
        tokens_per_second=round(tokens / max(seconds, 1e-9), 1),
        peak_memory_bytes=peak_memory(str(job.device)) if watched else None,
    )
    job.emit(events.FinishedEvent(1, seconds, "steps"))


def _batches(rows: Encoded, job: TrainingJob) -> Iterator[Batch]:
    """All rows in order, many at a time."""
    many = max(1, BATCH_TOKENS // int(rows.target.lengths.max(initial=1) + 1))
    for first in range(0, len(rows), many):
        _obey(job)
        yield collate(rows, np.arange(first, min(first + many, len(rows))))


def _obey(job: TrainingJob) -> None:
    if job.stop.requested:
        raise StoppedError(
            f"stopped by {job.stop.requested} while counting; run the same command again to start "
            "this run anew"
        )


def _validate(model: NGram, job: TrainingJob, seconds: float) -> None:
    validator = Validator(job.recipe, model, job.prepared)
    sums, value = validator.measure(weights_of(model))
    job.run.log.append({
        "step": 1,
        "valid_loss": sums.loss,
        "valid_perplexity": sums.perplexity,
        "monitor": validator.monitor,
        "value": value,
        "valid_seconds": seconds,
    })  # fmt: skip
    told = 1, sums.loss, sums.perplexity, validator.monitor, value, value
    job.emit(events.ValidatedEvent(*told))
