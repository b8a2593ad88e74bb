"""The training loop for all models, devices and precisions. It emits events and never prints.

An update sums the losses of its micro-batches and divides once by the total number of their target tokens, pads
excluded. A checkpoint holds everything that decides the next update, so a resumed training is bit-identical to an
uninterrupted one (same device, same number of threads).

Several ranks (`attnkit.distributed`) run this loop in lockstep on different micro-batches: an update equals that of
one process that accumulates all of them. The random state (dropout) is then seeded by the position of the micro-batch
in the plan, whatever the rank. Only rank 0 writes.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from attnkit.data.batch import Batch
from attnkit.data.preparation import PreparedData, train_epoch
from attnkit.distributed import group
from attnkit.errors import (
    AttnkitError,
    DataError,
    DivergedError,
    NotFiniteError,
    PeerLostError,
    StoppedError,
    out_of_memory,
)
from attnkit.memory import peak_memory, reset_peak_memory
from attnkit.models import Model
from attnkit.recipe import schema
from attnkit.runs import Run
from attnkit.storage import files
from attnkit.train import checkpoint, events
from attnkit.train.batch_stream import BatchStream, score_budget
from attnkit.train.diagnose import diverged, too_large
from attnkit.train.log_writers import LogWriters
from attnkit.train.loss import options_at
from attnkit.train.optimizer import Averaging, Weights, learning_rate, snapshot, weights_of
from attnkit.train.signals import StopSignals
from attnkit.train.state import TrainingState
from attnkit.train.validation import MonitoredScore


@dataclass(frozen=True)
class TrainingJob:
    """One training: its recipe, data, run directory, device and callbacks."""

    recipe: schema.Recipe
    prepared: PreparedData
    run: Run
    seed: int
    device: torch.device
    precision: str
    stop: StopSignals
    initial: Callable[[], Weights] | None = None
    """Function that returns the initial weights of a new training; None: random."""
    emit: events.Emit = events.ignore


def fit(job: TrainingJob) -> None:
    """Train to the end, from the newest checkpoint if there is one; the caller must hold the run's lock.

    Raises:
        DivergedError: If a loss or gradient is not finite; it does not change the weights.
        MemoryLimitError: If a batch does not fit into memory.
        StoppedError: If a signal arrives; the state is saved.
        OutputError, OutputPathError: If the run cannot be written.
        DataError: If all checkpoints, a checkpoint that the average includes, or the log are damaged.
    """
    training: Training | None = None
    try:
        training = Training(job)
        training.resume()
        while not training.done:
            training.advance()
            if (name := training.stop_requested()) and not training.done:
                step = training.progress.step
                if training.saved != step:
                    training.save()
                raise StoppedError(
                    f"stopped by {name} after step {step}, which is saved; run the same command again to resume"
                )
        if training.exhausted:
            job.emit(events.NoteEvent(training.progress.why_exhausted()))
        training.finish()
    except RuntimeError as error:
        if (lost := group.lost(error)) is None:
            raise
        if isinstance(lost, PeerLostError):
            cause, step = str(lost).partition(";")[0], (training and training.saved) or 0
            raise PeerLostError(f"{cause}; step {step} is saved; run the same command again to resume") from error
        raise lost from error
    finally:
        if training is not None and training.writers is not None:
            training.writers.close()


class Training(TrainingState):
    """A training in progress and its operations."""

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        torch.manual_seed(job.seed)
        self.measures_memory = reset_peak_memory(str(job.device)) is not None
        if group.is_distributed():
            from attnkit.train.parallel import check_ranks

            check_ranks(job.recipe, job.prepared)
        super().__init__(job.recipe, job.prepared, job.device, job.precision)
        self.parameters = [p for param_group in self.optimizer.param_groups for p in param_group["params"]]
        self._open_stream()
        self.saved: int | None = None
        self.writers: LogWriters | None = None
        self.pace: deque[tuple[int, float]] = deque(maxlen=20)
        """Step and time of the latest log records, to estimate the remaining time."""

    @property
    def done(self) -> bool:
        """Whether all updates are made or patience has run out."""
        return self.progress.step >= self.train.steps or self.exhausted

    @property
    def exhausted(self) -> bool:
        """Whether `train.patience` validations in a row were no better than the best."""
        return 0 < self.train.patience <= self.progress.worse

    def resume(self) -> None:
        """Load the newest checkpoint and truncate the log to it, or save the first checkpoint of a new training."""
        found = [checkpoint.latest(self.job.run)] if group.is_main_process() else None
        (newest,) = group.broadcast_object(found)
        for text in newest.messages if newest else ():
            self.job.emit(events.NoteEvent(text))
        if newest is not None:
            if group.is_main_process():
                self.job.run.log.truncate(newest.step, newest.log)
            self._load(newest)
        else:
            if group.is_main_process():
                self.job.run.log.truncate(None)
            if self.job.initial is not None:
                self.model.load_state_dict(self.job.initial(), strict=False)
                self.averaging = Averaging(self.train, self.model)
            size = sum(t.numel() * t.element_size() for t in weights_of(self.model).values())
            # weights and the two moments of Adam, the moving average and the best weights
            copies = 3 + (self.train.ema > 0) + (self.train.choose == "best")
            # checkpoints that are kept, including those for the average, and the one being written
            count = max(2, self.train.average) + 1
            if group.is_main_process():
                files.check_space(self.job.run.path, size * copies * count * 11 // 10)
            self.moments(create=True)
            self._write_checkpoint()  # so that a failure to save shows now, not after hours
        if group.is_main_process():
            self.writers = LogWriters(self.job.run, self.job.recipe, newest.step if newest else None)
        self.pace.append((self.progress.step, time.perf_counter()))
        self.job.emit(
            events.StartedEvent(
                self.job.run.name,
                self.train.steps,
                sum(p.numel() for p in self.parameters),
                str(self.device),
                self.job.precision,
                newest.step if newest else None,
                self.train.warmup,
            )
        )

    def advance(self) -> None:
        """Make one update, then log, validate and save if they are due."""
        start = time.perf_counter()
        self._update()
        self.progress.seconds += time.perf_counter() - start
        step, last = self.progress.step, self.progress.step == self.train.steps
        if step % self.train.log_every == 0 or last:
            self._log()
        every = self.train.valid_every
        validated = last or (every > 0 and step % every == 0)
        if validated:
            self._validate()
        save_every = self.train.save_every or every or 1000
        if validated or step % save_every == 0:
            self.save()

    def stop_requested(self) -> str | None:
        """Return the name of the signal that asks any rank to stop, or None."""
        name = self.job.stop.requested
        if group.is_distributed() and group.all_reduce_sum(torch.tensor(float(name is not None))):
            return name or "a signal to another rank"
        return name

    def _update(self) -> None:
        self.progress.epoch, self.progress.position = self.stream.epoch, self.stream.position
        batches = self.stream.take(self.train.accumulate, group.rank(), group.world_size())
        tokens = self.sync_stats(sum(batch.tokens for batch in batches))
        step = self.progress.step + 1
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = learning_rate(step, self.train, self.job.recipe.model.width)
        batch, options = None, options_at(step, self.train)
        try:
            for number, batch in enumerate(batches, 1):
                if group.is_distributed():  # dropout depends on the position in the plan, not on the rank
                    torch.manual_seed(int(np.random.SeedSequence(batch.place).generate_state(1)[0]))
                with self.worker.communicating(last=number == len(batches)):
                    losses = self.worker.losses(batch, options)
                    self.worker.backward(losses.total, tokens)
                self.local_nll += losses.nll.detach()  # stays on the device: no synchronization
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise too_large(step, batch, self.train.batch_tokens, self.train.accumulate) from error
        self.progress.step = step
        self.progress.tokens += tokens
        self.interval[1] += tokens
        self._apply(batches)
        self.averaging.update(step)

    @record_function("attnkit: optimizer")
    def _apply(self, batches: list[Batch]) -> None:
        scaler = self.worker.scaler
        scaler.unscale_(self.optimizer)
        limit = self.train.clip or math.inf  # without clipping the norm is still measured
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit)
        self.gradient_norm = float(self.full_state_dict({"": norm})[""])  # synchronizes with the device
        if not math.isfinite(self.gradient_norm):
            finite_loss = bool(self.local_nll.isfinite())
            # a scaled fp16 gradient may overflow: the scaler skips the update and lowers its scale
            if not (finite_loss and scaler.is_enabled() and scaler.get_scale() > 1):
                raise self._diverged("the gradient" if finite_loss else "the loss", batches)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _diverged(self, quantity: str, batches: list[Batch]) -> DivergedError:
        """Return the error for a non-finite `quantity`; it names the first rank with such a loss, unless that is 0."""
        model: Model = self.model
        if self.sharded:
            model = self.validator.model
            model.load_state_dict(self.full_state_dict(weights_of(self.model)), strict=False)
        error = diverged(self.progress.step, quantity, batches, model, self.device, self.saved)
        messages = group.all_gather_object(str(error) if quantity == "the loss" else None)
        rank = next((number for number, text in enumerate(messages) if text), 0)
        return DivergedError(f"rank {rank}: {messages[rank]}") if rank else error

    def _record(self, kind: str, /, **record: Any) -> None:
        if not group.is_main_process():
            return
        self.job.run.require_locked()
        self.job.run.log.append(record)
        assert self.writers is not None
        self.writers.add(kind, record)

    @record_function("attnkit: log")
    def _log(self) -> None:
        progress = self.progress
        self.sync_stats()
        nll, tokens = self.interval.tolist()
        seconds = max(progress.seconds - progress.logged_seconds, 1e-9)
        progress.logged_seconds = progress.seconds
        loss, rate, speed = nll / tokens, self.optimizer.param_groups[0]["lr"], tokens / seconds
        self._record(
            "train",
            step=progress.step,
            epoch=self.stream.epoch,
            loss=loss,
            lr=rate,
            grad_norm=self.gradient_norm,
            tokens=progress.tokens,
            tokens_per_second=speed,
            seconds=progress.seconds,
        )
        self.interval.zero_()
        steps = self.train.steps
        (first_step, first_time), now = self.pace[0], time.perf_counter()
        remaining = (steps - progress.step) * (now - first_time) / (progress.step - first_step)
        self.pace.append((progress.step, now))
        self.job.emit(events.ProgressEvent(progress.step, steps, loss, rate, speed, self.gradient_norm, remaining))

    def _validate(self) -> None:
        progress, monitor = self.progress, self.validator.monitor
        step = progress.step
        self.averaging.remember(step)
        weights = self.averaging.candidate()
        try:
            sums, value = self.validator.measure(self.full_state_dict(weights))
        except NotFiniteError as error:
            raise DivergedError(
                f"step {step}: the model outputs NaN or infinity in the validation; try a lower"
                " train.lr or a longer train.warmup"
            ) from error
        best = progress.validated(MonitoredScore(value, sums.loss), monitor)
        if best and self.train.choose == "best":
            self.best = snapshot(weights)
        self._record("valid", step=step, **self.validator.record(sums, value, progress.seconds))
        assert progress.best is not None
        self.job.emit(events.ValidatedEvent(step, sums.loss, sums.perplexity, monitor, value, progress.best))

    def save(self) -> None:
        """Save a checkpoint and report it."""
        self._write_checkpoint()
        step = self.progress.step
        self.job.emit(events.SavedEvent(step, self.job.run.checkpoints / f"step-{step}"))

    def _write_checkpoint(self) -> None:
        run, progress = self.job.run, self.progress
        progress.epoch, progress.position = self.stream.epoch, self.stream.position
        self.sync_stats()
        self._measure_memory()
        progress.recent = sorted(self.averaging.recent)
        values, state = self.pack()
        values = self.full_state_dict(values, everywhere=False)
        if group.is_main_process():
            run.require_locked()
            checkpoint.save(run, progress.step, values, state, keep=set(progress.recent))
        self.saved = progress.step

    def _load(self, newest: checkpoint.Checkpoint) -> None:
        run = self.job.run
        self.unpack(newest.path, *checkpoint.load(newest.path))
        self.saved = newest.step
        self._open_stream()
        if group.is_main_process():
            old, new = run.manifest.world_size, group.world_size()
            if old != new:
                run.update(world_size=new, parallel=run.recipe.train.parallel if new > 1 else "none")
                if newest.step:
                    checkpoint.record_change(run, newest.step, "processes", old, new)
            recent, average = self.progress.recent, self.train.average
            # the next validation will replace the oldest one
            for step in recent[-average if self.done else 1 - average :] if average > 1 else ():
                try:
                    self.averaging.recent[step] = self.weights_at(run, step)
                except AttnkitError as error:
                    raise DataError(
                        f"{error}; the average of the last validations needs this checkpoint: restore it "
                        "from a copy, or start over with --fresh"
                    ) from error
        for step in group.broadcast_object(list(self.averaging.recent)):
            self.averaging.recent.setdefault(step, self.weights_at(run, step))

    def finish(self) -> None:
        """Store the selected weights and mark the run as finished."""
        progress = self.progress
        # the last update was validated, so these are the weights that the validation measured
        weights, step = self.averaging.candidate(), progress.step
        if self.train.choose == "best" and self.best is not None:
            assert progress.best_step is not None
            weights, step = self.best, progress.best_step
        reason = "patience" if self.exhausted else "steps"
        self._measure_memory()
        weights = self.full_state_dict(weights, everywhere=False)
        if group.is_main_process():
            self.job.run.finish(
                weights,
                step=step,
                seconds=progress.seconds,
                reason=reason,
                updates=progress.step,
                tokens=progress.tokens,
                tokens_per_second=round(progress.tokens / max(progress.seconds, 1e-9), 1),
                peak_memory_bytes=progress.peak_memory_bytes,
            )
        self.job.emit(events.FinishedEvent(step, progress.seconds, reason))

    def _measure_memory(self) -> None:
        """Update the peak memory, which includes the processes before a resumption."""
        peak = peak_memory(str(self.job.device)) if self.measures_memory else None
        if peak is not None:
            self.progress.peak_memory_bytes = max(self.progress.peak_memory_bytes or 0, peak)

    def _open_stream(self) -> None:
        job, progress = self.job, self.progress
        encoded = partial(train_epoch, job.prepared, job.recipe, seed=job.seed)
        budget, tokens = score_budget(job.recipe), self.train.batch_tokens
        self.stream = BatchStream(encoded, tokens, job.seed, budget, progress.epoch, progress.position)
