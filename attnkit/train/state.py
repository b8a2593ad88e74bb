"""The state of a training, which checkpoints store and restore."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnkit import models
from attnkit.data.preparation import PreparedData
from attnkit.distributed import group
from attnkit.errors import DataError, RecipeError
from attnkit.recipe import schema
from attnkit.recipe.metrics import metric_facts
from attnkit.runs import Run, json_files
from attnkit.runs.json_files import Count, Seconds
from attnkit.text import counted
from attnkit.train import checkpoint
from attnkit.train.optimizer import Averaging, Weights, optimizer, snapshot, weights_of
from attnkit.train.precision import GradientWorker
from attnkit.train.validation import MonitoredScore, Validator


class TrainingProgress(json_files.Schema):
    """Counters and best values of a training."""

    step: Count
    epoch: Count
    position: Count
    """Number of batches of the epoch that have been used."""
    tokens: Count
    """Number of target tokens so far, pads excluded."""
    seconds: Seconds
    """Time spent on updates, without validation, saving and decoding."""
    logged_seconds: Seconds = 0.0
    """`seconds` at the last log record; `TrainingState.interval` covers the updates since."""
    monitor: str | None = None
    """Metric of `best`; None in checkpoints of earlier versions."""
    best: float | None = None
    best_loss: float | None = None
    """Validation loss at `best_step`; None in checkpoints of earlier versions."""
    best_step: Count | None = None
    worse: Count = 0
    """Number of validations since the best one."""
    recent: list[Count] = []
    """Steps of the validations whose weights the average includes."""
    peak_memory_bytes: Count | None = None
    """Peak memory so far; None if unknown."""

    @property
    def best_score(self) -> MonitoredScore | None:
        """Best score so far, None before the first validation; an unknown loss counts as infinite."""
        if self.best is None:
            return None
        return MonitoredScore(self.best, math.inf if self.best_loss is None else self.best_loss)

    def validated(self, score: MonitoredScore, monitor: str) -> bool:
        """Record the validation after the current step and return whether it is the best so far."""
        best = self.best_score
        if best is not None and not score.better_than(best, monitor):
            self.worse += 1
            return False
        self.worse, self.best_step = 0, self.step
        self.best, self.best_loss = score
        return True

    def why_exhausted(self) -> str:
        """Return the message for the user when patience has run out."""
        best, monitor = self.best_score, self.monitor
        assert best is not None
        reached = f"loss {best.loss:.4g}"
        if monitor not in (None, "loss"):
            reached = f"{metric_facts(monitor).title} {best.value:.4g}, {reached}"
        validations = f"{counted(self.worse, 'validation')} (train.patience)"
        return f"stops after step {self.step:,}: {validations} did not improve on step {self.best_step:,} ({reached})"


class StoredState(json_files.Schema):
    """Schema of a checkpoint's state.json."""

    counters: TrainingProgress
    scaler: dict[str, float]


class TrainingState:
    """Model, optimizer, averages and progress, which together with the random state decide every update."""

    def __init__(self, recipe: schema.Recipe, prepared: PreparedData, device: torch.device, precision: str) -> None:
        self.train = train = recipe.train
        self.device = device
        self.model = models.build_for(recipe, prepared.tokenizer.sizes).to(device)
        self.validator = Validator(recipe, self.model, prepared)  # copies the model, so before sharding
        self.worker = GradientWorker(self.model, precision, compiled=train.compile, parallel=train.parallel)
        self.optimizer = optimizer(self.model.named_parameters(), train)
        self.averaging = Averaging(train, self.model)
        self.progress = TrainingProgress(step=0, epoch=0, position=0, tokens=0, seconds=0.0, monitor=train.monitor)
        self.best: Weights | None = None
        # [2]: nll in nats and number of target tokens since the last log record
        self.interval = torch.zeros(2, dtype=torch.float64, device=device)
        # []: nll in nats of this rank since `sync_stats`; in a single process a view of `interval`
        self.local_nll = self.interval[0].clone() if group.is_distributed() else self.interval[0]
        self.sharded = group.is_distributed() and train.parallel == "fsdp"

    def sync_stats(self, number: int = 0) -> int:
        """Return the sum of a number over ranks, and move the sum of `local_nll` over ranks to `interval`."""
        if not group.is_distributed():
            return number
        local = torch.stack((self.local_nll.cpu(), torch.tensor(float(number), dtype=torch.float64)))
        sums = group.all_reduce_sum(local)
        self.interval[0] += sums[0]
        self.local_nll.zero_()
        return int(sums[1])

    def full_state_dict(self, weights: Weights, everywhere: bool = True) -> Weights:
        """Gather sharded tensors, as `train.parallel.full_state_dict`; collective."""
        if not self.sharded:
            return weights
        from attnkit.train.parallel import full_state_dict

        return full_state_dict(weights, everywhere)

    def weights_at(self, run: Run, step: int) -> Weights:
        """Load the weights of a checkpoint, for the average.  Raises DataError if it is missing or damaged."""
        tensors, _ = checkpoint.load(run.checkpoints / f"step-{step}", prefix="model.")
        weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        if not self.sharded:
            return weights
        from attnkit.train.parallel import sharded_like

        return {name: sharded_like(weights[name], tensor) for name, tensor in weights_of(self.model).items()}

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors of a checkpoint, possibly sharded, and its other values."""
        tensors = {f"model.{name}": tensor for name, tensor in weights_of(self.model).items()}
        for name, moments in self.moments().items():
            tensors |= {f"optimizer.{name}.{key}": value for key, value in moments.items()}
        if group.is_distributed():  # the random state differs between ranks and is reseeded before each micro-batch
            torch.manual_seed(self.progress.step)
        tensors["rng.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        tensors["interval"] = self.interval
        for prefix, weights in (("ema", self.averaging.moving), ("best", self.best)):
            tensors |= {f"{prefix}.{name}": tensor for name, tensor in (weights or {}).items()}
        return tensors, {"counters": self.progress.model_dump(), "scaler": self.worker.scaler.state_dict()}

    def unpack(self, path: Path, tensors: Weights, values: dict[str, Any]) -> None:
        """Restore what `pack` returned; `path` is for error messages.

        Raises DataError if the checkpoint is of another model or version, or RecipeError if it is past `train.steps`.
        """
        self.progress = json_files.parse(values, StoredState, str(path)).counters
        if "logged_seconds" not in values["counters"]:  # checkpoint of version 0.1.0
            self.progress.logged_seconds = self.progress.seconds
        try:
            self.worker.scaler.load_state_dict(values["scaler"])
            _copy(weights_of(self.model), tensors, "model.")
            for name, moments in self.moments(create=True).items():
                _copy(moments, tensors, f"optimizer.{name}.")
            _copy({"interval": self.interval}, tensors, "")
            if self.averaging.moving is not None:
                _copy(self.averaging.moving, tensors, "ema.")
            if any(name.startswith("best.") for name in tensors):
                self.best = snapshot(weights_of(self.model))
                _copy(self.best, tensors, "best.")
            self._forget_other_best()
            generator = {"rng.cpu": torch.get_rng_state()}
            _copy(generator, tensors, "")
            torch.set_rng_state(generator["rng.cpu"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{path}: the checkpoint does not fit this training ({error}); start over with --fresh"
            ) from error
        if (done := self.progress.step) > (steps := self.train.steps):
            raise RecipeError(
                f"train.steps: {steps}, but the run is at step {done}; set at least {done}, or train again with "
                "--fresh"
            )
        if self.device.type == "cuda" and "rng.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["rng.cuda"], self.device)

    def _forget_other_best(self) -> None:
        """Discard a best value of another metric, or whose weights were not kept."""
        progress, train = self.progress, self.train
        other = progress.monitor not in (None, train.monitor)
        if other or (train.choose == "best" and self.best is None):
            progress.best, progress.best_loss, progress.best_step = None, None, None
            progress.worse, self.best = 0, None
        progress.monitor = train.monitor

    def moments(self, *, create: bool = False) -> dict[str, dict[str, Tensor]]:
        """Return the optimizer's tensors by parameter name; `create` makes missing ones as zeros."""
        states, moments = self.optimizer.state, {}
        for name, parameter in self.model.named_parameters():
            if create and parameter.requires_grad and not states[parameter]:
                states[parameter] = {
                    "step": torch.zeros((), device=parameter.device),  # fused AdamW keeps it on the device
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
            if states.get(parameter):
                moments[name] = states[parameter]
        return moments


def _copy(live: Weights, stored: Weights, prefix: str) -> None:
    """Copy the tensors stored under the prefix into the live ones, which may be sharded."""
    with torch.no_grad():
        for name, tensor in live.items():
            new = stored[prefix + name]
            if (new.shape, new.dtype) != (tensor.shape, tensor.dtype):
                raise ValueError(f"{prefix}{name} is {new.dtype} {list(new.shape)}")
            if hasattr(tensor, "device_mesh"):
                from attnkit.train.parallel import sharded_like

                new = sharded_like(new, tensor)
            tensor.copy_(new)
