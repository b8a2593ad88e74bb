"""The training loop: one for all models, devices and precisions.  It yields events, never prints.

An update sums the losses of its micro-batches and divides once by all their real target tokens.
All that decides the next update is in a checkpoint, so that a stopped and resumed training ends bit
for bit as an uninterrupted one (same device, same number of threads).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnkit import models
from attnkit.data.batch import Batch
from attnkit.data.preparation import PreparedData, train_epoch
from attnkit.errors import AttnkitError, DivergedError, NotFiniteError, StoppedError, out_of_memory
from attnkit.recipe import schema
from attnkit.runs import Run
from attnkit.train import checkpoint
from attnkit.train.averaging import Averaging, Weights, weights_of
from attnkit.train.batch_stream import BatchStream, score_budget
from attnkit.train.diagnose import diverged, too_large
from attnkit.train.events import (
    Event,
    FinishedEvent,
    NoteEvent,
    ProgressEvent,
    SavedEvent,
    StartedEvent,
    ValidatedEvent,
)
from attnkit.train.logs import Tensorboard
from attnkit.train.optimiser import learning_rate, optimizer
from attnkit.train.precision import GradientWorker
from attnkit.train.signals import Stop
from attnkit.train.state import Counters, pack, restore_random, unpack
from attnkit.train.validation import Validator


@dataclass(frozen=True)
class TrainingJob:
    """One training: a recipe, its data, its run directory and where it computes."""

    recipe: schema.Recipe
    prepared: PreparedData
    run: Run
    seed: int
    device: torch.device
    precision: str
    stop: Stop


def fit(job: TrainingJob) -> Iterator[Event]:
    """Train to the end, or go on from the newest checkpoint; the run is locked by the caller.

    Raises:
        DivergedError: a loss or gradient is not finite; nothing was updated by it.
        MemoryLimitError: a batch does not fit.
        StoppedError: a signal came; the state is saved.
        OutputError, OutputPathError: the run cannot be written.
        DataError: every checkpoint is damaged.
    """
    training = Training(job)
    yield from training.resume()
    while not training.done:
        yield from training.advance()
        if job.stop.requested and not training.done:
            if training.saved != training.counters.step:
                yield training.save()
            raise StoppedError(
                f"stopped by {job.stop.requested} after step {training.counters.step}, which is"
                " saved; run the same command again to go on"
            )
    yield training.finish()


class Training:
    """The live state of one training and the steps that change it."""

    def __init__(self, job: TrainingJob) -> None:
        self.job, self.train = job, job.recipe.train
        recipe, prepared = job.recipe, job.prepared
        torch.manual_seed(job.seed)
        sizes = (len(prepared.tokenizer.source), len(prepared.tokenizer.target))
        self.model = models.build(recipe.model, sizes, recipe.data.max_length).to(job.device)
        self.optimizer = optimizer(self.model.named_parameters(), self.train)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.worker = GradientWorker(self.model, job.precision, compiled=self.train.compile)
        self.averaging = Averaging(self.train, self.model)
        self.validator = Validator(recipe, self.model, prepared.tokenizer, prepared.valid)
        if self.validator.needs_rows:
            self.validator.rows = list(prepared.corpus.rows("valid"))
        self.stream = self._stream(0, 0)
        self.counters = Counters()
        self.best: Weights | None = None
        self.saved: int | None = None
        self.interval = torch.zeros(2, dtype=torch.float64, device=job.device)  # nll, tokens
        self.clock = Clock()
        self.tensorboard = Tensorboard(job.run.path) if self.train.tensorboard else None

    @property
    def done(self) -> bool:
        """Whether the last update was made, or validations have stopped improving."""
        return self.counters.step >= self.train.steps or self.exhausted

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out."""
        return 0 < self.train.patience <= self.counters.worse

    def resume(self) -> Iterator[Event]:
        """Load the newest checkpoint, if there is one, and cut the log back to it."""
        found = checkpoint.latest(self.job.run)
        for text in found.messages if found else ():
            yield NoteEvent(text)
        self.job.run.truncate_log(found.step if found else None)
        if found is not None:
            yield from self._load(found)
        else:
            size = sum(t.numel() * t.element_size() for t in weights_of(self.model).values())
            # weights and two averages of gradients, the moving and the best weights
            copies = 3 + (self.train.ema > 0) + (self.train.choose == "best")
            # what stays, averaged validations included, and the one that is being written
            count = max(2, self.train.average) + 1
            checkpoint.preflight(self.job.run.path, size * copies, count)
        yield StartedEvent(
            self.job.run.name,
            self.train.steps,
            sum(p.numel() for p in self.parameters),
            str(self.job.device),
            self.job.precision,
            found.step if found else None,
        )

    def advance(self) -> Iterator[Event]:
        """One update, and what is due after it: log, validation, checkpoint."""
        self._update()
        step = self.counters.step
        if step % self.train.log_every == 0 or step == self.train.steps:
            yield self._log()
        validated = False
        if due(step, self.train.valid_every) or step == self.train.steps:
            yield self._validate()
            validated = True
        save_every = self.train.save_every or self.train.valid_every or 1000
        if validated or due(step, save_every) or self.done:
            yield self.save()

    def _update(self) -> None:
        with self.clock:
            batches = self.stream.take(self.train.accumulate)
            tokens = sum(batch.tokens for batch in batches)
            self.counters.step += 1
            rate = learning_rate(self.counters.step, self.train, self.job.recipe.model.width)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            batch = None
            try:
                for batch in batches:
                    losses = self.worker.losses(*self._move(batch), self.train.label_smoothing)
                    self.worker.backward(losses.total, tokens)
                    self.interval[0] += losses.nll
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                raise too_large(
                    self.counters.step, batch, self.train.batch_tokens, self.train.accumulate
                ) from error
            self.interval[1] += tokens
            self.counters.tokens += tokens
            self._apply(batches)
            self.averaging.update(self.counters.step)

    def _apply(self, batches: list[Batch]) -> None:
        """Clip (after unscaling), check, and change the weights."""
        scaler = self.worker.scaler
        scaler.unscale_(self.optimizer)
        limit = self.train.clip or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit)
        self.norm = float(norm)
        overflow = scaler.is_enabled() and scaler.get_scale() > 1
        finite = self.norm == self.norm and self.norm != float("inf")
        if not finite and (not overflow or not bool(self.interval[0].isfinite())):
            what = "the gradient" if bool(self.interval[0].isfinite()) else "the loss"
            raise diverged(self.counters.step, what, batches, self.model, self._rerun, self.saved)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.worker.refresh()

    def _rerun(self, batch: Batch) -> None:
        """The forward pass of a batch by the master weights, to find what is not finite."""
        source, inputs, _ = self._move(batch)
        self.model(source, inputs)

    def _move(self, batch: Batch) -> tuple[Tensor | None, Tensor, Tensor]:
        device = self.job.device
        source = None if batch.source is None else batch.source.to(device)
        return source, batch.input.to(device), batch.output.to(device)

    def _log(self) -> ProgressEvent:
        nll, tokens = self.interval.tolist()
        seconds = self.clock.lap()
        record = {
            "step": self.counters.step,
            "epoch": self.stream.epoch,
            "loss": nll / tokens,
            "lr": self.optimizer.param_groups[0]["lr"],
            "grad_norm": self.norm,
            "tokens": self.counters.tokens,
            "tokens_per_second": tokens / seconds,
            "seconds": self.clock.total,
        }
        self.job.run.log(record)
        if self.tensorboard is not None:
            self.tensorboard.add("train", record)
        self.interval.zero_()
        left = self.train.steps - self.counters.step
        return ProgressEvent(
            self.counters.step,
            self.train.steps,
            record["loss"],
            record["lr"],
            record["tokens_per_second"],
            self.norm,
            left * self.clock.total / max(1, self.counters.step),
        )

    def _validate(self) -> ValidatedEvent:
        step = self.counters.step
        self.averaging.remember(step)
        weights = self.averaging.candidate()
        try:
            result, value = self.validator.measure(weights)
        except NotFiniteError as error:
            raise DivergedError(
                f"step {step}: the validation found that the model answers NaN or infinity; try a"
                " lower train.lr or a longer train.warmup"
            ) from error
        best = self.counters.best
        lower = self.validator.lower_is_better
        better = best is None or (value < best if lower else value > best)
        self.counters.worse = 0 if better else self.counters.worse + 1
        if better:
            self.counters.best, self.counters.best_step = value, step
            if self.train.choose == "best":
                self.best = {name: t.detach().cpu().clone() for name, t in weights.items()}
        record = {
            "step": step,
            "valid_loss": result.loss,
            "valid_perplexity": result.perplexity,
            "monitor": self.validator.monitor,
            "value": value,
            "valid_seconds": self.clock.total,
        }
        self.job.run.log(record)
        if self.tensorboard is not None:
            self.tensorboard.add("valid", record)
        assert self.counters.best is not None
        return ValidatedEvent(
            step,
            result.loss,
            result.perplexity,
            self.validator.monitor,
            value,
            self.counters.best,
        )

    def save(self) -> SavedEvent:
        """A checkpoint of everything that decides the next update."""
        counters = self.counters
        counters.epoch, counters.position = self.stream.epoch, self.stream.position
        counters.seconds = self.clock.total
        counters.recent = sorted(self.averaging.recent)
        tensors, state = pack(self)
        path = checkpoint.save(
            self.job.run, counters.step, tensors, state, keep=set(counters.recent)
        )
        self.saved = counters.step
        return SavedEvent(counters.step, path)

    def _load(self, found: checkpoint.Checkpoint) -> Iterator[Event]:
        tensors, state = checkpoint.load(found.path)
        unpack(self, tensors, state)
        self.saved = found.step
        self.clock = Clock(self.counters.seconds)
        self.stream = self._stream(self.counters.epoch, self.counters.position)
        for step in self.counters.recent:
            try:
                self.averaging.recent[step] = self._earlier(step)
            except AttnkitError as error:
                yield NoteEvent(f"the average leaves out step {step}: {error}")
        self.worker.refresh()
        restore_random(tensors, self.job.device)

    def _earlier(self, step: int) -> Weights:
        """The weights of a validation before the stop, for the average."""
        path = self.job.run.checkpoints / f"step-{step}"
        tensors, _ = checkpoint.load(path, prefix="model.")
        return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}

    def finish(self) -> FinishedEvent:
        """Store the chosen weights and the end of the training."""
        best = self.train.choose == "best" and self.best is not None
        # the last update was validated, so the candidate is the one that was measured
        weights = self.best if best else self.averaging.candidate()
        step = self.counters.best_step if best else self.counters.step
        assert weights is not None
        assert step is not None
        reason = "patience" if self.exhausted else "steps"
        seconds = self.clock.total
        self.job.run.finish(
            weights,
            step=step,
            seconds=seconds,
            reason=reason,
            updates=self.counters.step,
            tokens=self.counters.tokens,
            tokens_per_second=round(self.counters.tokens / max(seconds, 1e-9), 1),
        )
        if self.tensorboard is not None:
            self.tensorboard.close()
        return FinishedEvent(step, seconds, reason)

    def _stream(self, epoch: int, position: int) -> BatchStream:
        return BatchStream(
            lambda number: train_epoch(self.job.prepared, self.job.recipe, number, self.job.seed),
            self.train.batch_tokens,
            self.job.seed,
            score_budget(self.job.recipe),
            epoch=epoch,
            position=position,
        )


class Clock:
    """Seconds spent on updates only: not on validation, saving or decoding."""

    def __init__(self, total: float = 0.0) -> None:
        self.total = total
        self._mark = total
        self._start = 0.0

    def __enter__(self) -> "Clock":
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.total += time.perf_counter() - self._start

    def lap(self) -> float:
        """Seconds since the last lap, at least a nanosecond."""
        spent, self._mark = self.total - self._mark, self.total
        return max(spent, 1e-9)


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many updates happens now; 0 is never."""
    return every > 0 and step % every == 0
