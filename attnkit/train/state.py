"""The state of a training: what a checkpoint stores and restores."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnkit import models
from attnkit.errors import DataError
from attnkit.recipe import schema
from attnkit.runs import json_files
from attnkit.runs.json_files import Count, Seconds
from attnkit.train.averaging import Averaging, Weights, weights_of
from attnkit.train.optimiser import optimizer
from attnkit.train.precision import GradientWorker


class TrainingProgress(json_files.Schema):
    """How far a training has come, in plain numbers."""

    step: Count = 0
    epoch: Count = 0
    position: Count = 0
    """Batches of the epoch that are used up."""
    tokens: Count = 0
    """Real target tokens so far."""
    seconds: Seconds = 0.0
    """Spent on updates: not on validation, saving or decoding."""
    logged_seconds: Seconds = 0.0
    """The part of it that the log covers; `TrainingState.interval` is of the rest."""
    best: float | None = None
    """Best monitored value."""
    best_step: Count | None = None
    worse: Count = 0
    """Validations since the best one."""
    recent: list[Count] = []
    """Steps of the validations whose weights the next average includes."""
    peak_memory_bytes: Count | None = None
    """Most memory in use so far; None where it cannot be known."""


class StoredState(json_files.Schema):
    """state.json of a checkpoint."""

    counters: TrainingProgress
    scaler: dict[str, float]


class TrainingState:
    """Model, optimiser, averages and progress: with the random state, what decides an update."""

    def __init__(
        self, recipe: schema.Recipe, sizes: tuple[int, int], device: torch.device, precision: str
    ) -> None:
        self.train = train = recipe.train
        self.device = device
        self.model = models.build_for(recipe, sizes).to(device)
        self.optimizer = optimizer(self.model.named_parameters(), train)
        self.worker = GradientWorker(self.model, precision, compiled=train.compile)
        self.averaging = Averaging(train, self.model)
        self.progress = TrainingProgress()
        self.best: Weights | None = None
        # [2]: nll in nats and target tokens since the last log record
        self.interval = torch.zeros(2, dtype=torch.float64, device=device)

    def adopt(self, weights: Weights) -> None:
        """Start from these weights (`train.init`)."""
        self.model.load_state_dict(weights, strict=False)
        self.worker.refresh()
        self.averaging = Averaging(self.train, self.model)

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors of a checkpoint, and the rest of it as plain values."""
        tensors = {f"model.{name}": tensor for name, tensor in weights_of(self.model).items()}
        for name, moments in self.moments().items():
            tensors |= {f"optimizer.{name}.{key}": value for key, value in moments.items()}
        tensors["rng.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        tensors["interval"] = self.interval
        for prefix, weights in (("ema", self.averaging.moving), ("best", self.best)):
            tensors |= {f"{prefix}.{name}": tensor for name, tensor in (weights or {}).items()}
        values = {"counters": self.progress.model_dump(), "scaler": self.worker.scaler.state_dict()}
        return tensors, values

    def unpack(self, path: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `pack` gave; `path` is named in errors.

        Raises:
            DataError: the checkpoint is of another model or another version.
        """
        json_files.check(values, StoredState, str(path))
        try:
            counters = values["counters"]
            new = {"peak_memory_bytes": None, "logged_seconds": counters["seconds"]}  # since 0.1.0
            counters = new | counters
            self.progress = TrainingProgress(
                **{name: counters[name] for name in TrainingProgress.model_fields}
            )
            self.worker.scaler.load_state_dict(values["scaler"])
            _copy(weights_of(self.model), tensors, "model.")
            for name, moments in self.moments(create=True).items():
                _copy(moments, tensors, f"optimizer.{name}.")
            _copy({"interval": self.interval}, tensors, "")
            if self.averaging.moving is not None:
                _copy(self.averaging.moving, tensors, "ema.")
            best = {k.removeprefix("best."): v for k, v in tensors.items() if k.startswith("best.")}
            self.best = best or None
            self.worker.refresh()
            _copy({"rng.cpu": torch.get_rng_state()}, tensors, "")  # of the same form
            torch.set_rng_state(tensors["rng.cpu"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{path}: the checkpoint does not fit this training ({error}); start over with"
                " --fresh"
            ) from error
        if self.device.type == "cuda" and "rng.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["rng.cuda"], self.device)

    def moments(self, *, create: bool = False) -> dict[str, dict[str, Tensor]]:
        """The optimiser's tensors by parameter; with `create`, zeros where there are none yet."""
        states = self.optimizer.state
        out = {}
        for name, parameter in self.model.named_parameters():
            if create and parameter.requires_grad and not states[parameter]:
                states[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
            if states.get(parameter):
                out[name] = states[parameter]
        return out


def _copy(live: Weights, tensors: dict[str, Tensor], prefix: str) -> None:
    """Overwrite live tensors with those stored under the prefix."""
    with torch.no_grad():
        for name, tensor in live.items():
            stored = tensors[prefix + name]
            if (stored.shape, stored.dtype) != (tensor.shape, tensor.dtype):
                raise ValueError(f"{prefix}{name} is {stored.dtype} {list(stored.shape)}")
            tensor.copy_(stored)
