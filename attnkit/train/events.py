"""Events of training: frozen records that it emits, and that the caller draws or prints.

`json()` gives plain JSON values with an "event" key (the class name without "Event", in lower
case); what JSON cannot hold (NaN, infinities) becomes null.
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
    """Base class: the variant and seed of the training it belongs to, None without one."""

    variant: str | None = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)

    def json(self) -> dict[str, Any]:
        """The event as plain JSON values."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        name = type(self).__name__.removesuffix("Event").lower()
        return {"event": name} | {k: _plain(v) for k, v in values.items()}


@dataclass(frozen=True)
class NoteEvent(Event):
    """Something that the user should know; nothing depends on it."""

    text: str
    passing: bool = False
    """Whether it reports the current activity only, nothing to keep on the screen."""


@dataclass(frozen=True)
class PreparedEvent(Event):
    """The data is tokenized and encoded; `reports` are lines for a person (rows kept, dropped)."""

    reports: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartedEvent(Event):
    """One training begins, or resumes from the step `resumed_from` where that is not None.

    The learning rate rises during the first `warmup` steps.
    """

    recipe: str
    steps: int
    parameters: int
    device: str
    precision: str
    resumed_from: int | None = None
    warmup: int = 0


@dataclass(frozen=True)
class ProgressEvent(Event):
    """One log interval: plain cross-entropy in nats a token, target tokens a second.

    `loss_name` says where the loss is another one, as in attention transfer.
    """

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
    """One validation; `monitor` names what `value` measures, `best` is the best value so far."""

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
    """One training ended at `step` after `seconds`; `reason` says why (steps, patience)."""

    step: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class SkippedEvent(Event):
    """One training was not run, for example because it is already done."""

    reason: str


@dataclass(frozen=True)
class FailedEvent(Event):
    """One of several trainings side by side failed; the others go on."""

    reason: str
    code: int
    """The exit code of the command if it is the first to fail."""


@dataclass(frozen=True)
class EvaluatedEvent(Event):
    """One run is scored on these splits."""

    splits: tuple[str, ...]


@dataclass(frozen=True)
class ScoredEvent(Event):
    """All runs are scored; in JSON it has the keys of `attnkit eval --format json`."""

    comparison: "Comparison"

    def json(self) -> dict[str, Any]:
        found = super().json()
        del found["comparison"]
        return {**found, **_plain(self.comparison.json())}


Emit = Callable[[Event], object]
"""What is called with each event."""


def ignore(event: Event) -> None:
    """Takes an event, and shows nothing."""


def score_text(monitor: str, value: float) -> str:
    """The result of a validation: scores have one decimal, losses three."""
    if monitor == "loss":
        return f"validation loss {value:.3f}"
    return f"validation {metric_facts(monitor).title} {value:.1f}"


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
