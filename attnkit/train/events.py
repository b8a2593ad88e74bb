"""Events of training: frozen records for the caller to display.

`json()` returns plain JSON values with an "event" key (the class name without "Event", in lower case); NaN and
infinity become null.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnkit.recipe.metrics import metric_facts

if TYPE_CHECKING:
    from attnkit.scoring import Comparison


@dataclass(frozen=True)
class Event:
    """Base class, with the variant and seed of the training; None if the event belongs to no single training."""

    variant: str | None = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)

    def json(self) -> dict[str, Any]:
        """Return the event as plain JSON values."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        name = type(self).__name__.removesuffix("Event").lower()
        return {"event": name} | {k: _plain(v) for k, v in values.items()}


@dataclass(frozen=True)
class NoteEvent(Event):
    """A message for the user, without effect on the training."""

    text: str
    passing: bool = False
    """Whether the message only reports the current activity and need not stay on the screen."""


@dataclass(frozen=True)
class PreparedEvent(Event):
    """The data is tokenized and encoded; `reports` are lines for the user (rows kept and dropped)."""

    reports: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartedEvent(Event):
    """A training starts, or resumes from step `resumed_from` if that is not None."""

    recipe: str
    steps: int
    parameters: int
    device: str
    precision: str
    resumed_from: int | None = None
    warmup: int = 0
    """Number of first steps during which the learning rate rises."""


@dataclass(frozen=True)
class ProgressEvent(Event):
    """One log interval: plain cross-entropy in nats per token (or another `loss_name`), target tokens per second."""

    step: int
    steps: int
    loss: float
    lr: float
    tokens_per_second: float
    grad_norm: float | None = None
    remaining_seconds: float | None = None
    loss_name: str = "training loss"


@dataclass(frozen=True)
class ValidatedEvent(Event):
    """One validation; `value` is the metric named by `monitor`, `best` its best value so far."""

    step: int
    loss: float
    perplexity: float
    monitor: str
    value: float
    best: float


@dataclass(frozen=True)
class SavedEvent(Event):
    """A checkpoint is on disk."""

    step: int
    path: Path


@dataclass(frozen=True)
class FinishedEvent(Event):
    """A training has ended: step of the stored weights, duration, reason (steps, patience or converted)."""

    step: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class SkippedEvent(Event):
    """A training was skipped, for example because it is already done."""

    reason: str


@dataclass(frozen=True)
class FailedEvent(Event):
    """One of several trainings failed; the others continue."""

    reason: str
    code: int
    """Exit code of the command if this failure is the first."""


@dataclass(frozen=True)
class EvaluatedEvent(Event):
    """A run has been scored on these splits."""

    splits: tuple[str, ...]


@dataclass(frozen=True)
class ScoredEvent(Event):
    """All runs have been scored; the JSON form has the keys of `attnkit eval --format json`."""

    comparison: "Comparison"

    def json(self) -> dict[str, Any]:
        values = super().json()
        del values["comparison"]
        return {**values, **_plain(self.comparison.json())}


Emit = Callable[[Event], object]


def ignore(event: Event) -> None:
    """Discard an event."""


def score_text(monitor: str, value: float) -> str:
    """Return the result of a validation as text, with three decimals for losses and one for scores."""
    if monitor == "loss":
        return f"validation loss {value:.3f}"
    return f"validation {metric_facts(monitor).title} {value:.1f}"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
