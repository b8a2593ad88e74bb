"""What a checkpoint holds of a training, as tensors and plain values."""

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnkit.errors import DataError
from attnkit.train.averaging import Weights, weights_of

if TYPE_CHECKING:
    from attnkit.train.fit import Training


@dataclass
class Counters:
    """Where a training stands, in plain numbers."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    """Batches of the epoch that are used up."""
    tokens: int = 0
    """Real target tokens so far."""
    seconds: float = 0.0
    best: float | None = None
    """Best monitored value."""
    best_step: int | None = None
    worse: int = 0
    """Validations since the best one."""
    recent: list[int] = field(default_factory=list)
    """Steps of the validations whose weights the next average takes in."""


def pack(training: "Training") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state of a checkpoint."""
    tensors = {f"model.{name}": tensor for name, tensor in weights_of(training.model).items()}
    for name, state in _optimizer_states(training):
        tensors |= {f"optimizer.{name}.{key}": value for key, value in state.items()}
    tensors["rng.cpu"] = torch.get_rng_state()
    if training.job.device.type == "cuda":
        tensors["rng.cuda"] = torch.cuda.get_rng_state(training.job.device)
    tensors["interval"] = training.interval
    for prefix, weights in (("ema", training.averaging.moving), ("best", training.best)):
        tensors |= {f"{prefix}.{name}": tensor for name, tensor in (weights or {}).items()}
    state = asdict(training.counters)
    return tensors, {"counters": state, "scaler": training.worker.scaler.state_dict()}


def unpack(training: "Training", tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Put a checkpoint back, all but the random state, which comes last.

    Raises:
        DataError: the checkpoint is of another model or another version.
    """
    try:
        values = state["counters"]
        training.counters = Counters(**{f.name: values[f.name] for f in fields(Counters)})
        training.worker.scaler.load_state_dict(state["scaler"])
        _copy(weights_of(training.model), tensors, "model.")
        for name, kept in _optimizer_states(training, create=True):
            _copy(kept, tensors, f"optimizer.{name}.")
        training.interval.copy_(tensors["interval"])
        if training.averaging.moving is not None:
            _copy(training.averaging.moving, tensors, "ema.")
        best = {k.removeprefix("best."): v for k, v in tensors.items() if k.startswith("best.")}
        training.best = best or None
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{training.job.run.path}: the checkpoint does not fit this training ({error}); start"
            " anew with --fresh"
        ) from error


def restore_random(tensors: dict[str, Tensor], device: torch.device) -> None:
    """Set the random state of the processor and the device, after everything that could draw."""
    torch.set_rng_state(tensors["rng.cpu"])
    if device.type == "cuda" and "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"], device)


def _optimizer_states(
    training: "Training", *, create: bool = False
) -> list[tuple[str, dict[str, Tensor]]]:
    """The optimiser's tensors by parameter name; with `create`, zeros where there are none yet."""
    states = training.optimizer.state
    found = []
    for name, parameter in training.model.named_parameters():
        if not parameter.requires_grad:
            continue
        if create and not states[parameter]:
            states[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        if states.get(parameter):
            found.append((name, states[parameter]))
    return found


def _copy(own: Weights, tensors: dict[str, Tensor], prefix: str) -> None:
    with torch.no_grad():
        for name, tensor in own.items():
            stored = tensors[prefix + name]
            if stored.shape != tensor.shape:
                raise ValueError(f"{prefix}{name} is {list(stored.shape)}")
            tensor.copy_(stored)
