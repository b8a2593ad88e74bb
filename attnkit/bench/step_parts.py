"""Where the time of a step goes: what torch's profiler saw, by part of the model and of the loop.

Layers are marked while they are measured; what is outside of them (data, loss, optimiser, search)
is marked where it is written, by `torch.profiler.record_function`.  An operation belongs to the
innermost mark around it; one of the backward pass to the mark of the operation that it derives.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from attnkit.attention import Attention
from attnkit.errors import OutputError
from attnkit.layers import Dropout, FeedForward, MultiHead
from attnkit.models import Model, Transformer
from attnkit.models.embedding import Embedding
from attnkit.models.fast_decoder import FastAttention, FastBlock, FastDecoder
from attnkit.storage.files import write_output

MARK = "attnkit: "
"""Before the names of ranges, in profiles of every program."""
LAYERS: tuple[tuple[type[nn.Module], str], ...] = (
    (Embedding, "embedding"),
    (MultiHead, "projections"),
    (Attention, "attention"),
    (FeedForward, "feed-forward"),
    (nn.LayerNorm, "normalisation"),
    (Dropout, "dropout"),
)
FAST: tuple[tuple[type, str, str], ...] = (
    (FastAttention, "project", "projections"),
    (FastAttention, "mix", "attention"),
    (FastAttention, "merge", "projections"),
    (FastBlock, "feed_forward", "feed-forward"),
)
"""Methods of the fast decoder, which takes no hooks."""
REST = "rest of the model"
BACKWARD = "autograd::engine::evaluate_function: "


class StepPart(NamedTuple):
    """Seconds of one part in an average step."""

    name: str
    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast something is computed, and where its time goes."""

    device: str
    threads: int
    seconds: float
    """Of the whole: an average update, or all lines."""
    tokens_per_second: float
    """Real target tokens, or those of the outputs."""
    operations_per_token: float
    """Of matrix products, two a multiplication."""
    peaks: dict[str, float]
    """Operations a second of large matrix products here, by precision."""
    peak_memory_bytes: int | None
    parts: list[StepPart]
    """Of what was profiled."""

    @property
    def operations_per_second(self) -> float:
        """What is made of the machine."""
        return self.operations_per_token * self.tokens_per_second

    def record(self) -> dict[str, Any]:
        """Everything, for programs."""
        parts = [part._asdict() for part in self.parts]
        more = {"operations_per_second": self.operations_per_second, "parts": parts}
        return asdict(self) | more


@contextmanager
def marked(model: nn.Module) -> Iterator[None]:
    """Every call of a layer of `LAYERS` is a range of that name in a profile."""
    ranges: list[Any] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            ranges.append(record_function(MARK + name))
            ranges[-1].__enter__()

        return hook

    def leave(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    fast = not model.training and isinstance(model, Model) and FastDecoder.of(model) is not None
    hookless = set(model.decoder.modules()) if fast and isinstance(model, Transformer) else set()
    plain = [(kind, name, getattr(kind, name)) for kind, name, _ in FAST]
    hooks = []
    for module in set(model.modules()) - hookless:
        name = next((name for kind, name in LAYERS if isinstance(module, kind)), None)
        if name is not None and (model.training or not isinstance(module, Dropout)):
            hooks.append(module.register_forward_pre_hook(enter(name)))
            hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        for kind, method, part in FAST:
            setattr(kind, method, record_function(MARK + part)(getattr(kind, method)))
        yield
    finally:
        for kind, method, function in plain:
            setattr(kind, method, function)
        for hook in hooks:
            hook.remove()


def split(
    model: nn.Module, step: Callable[[], object], steps: int, device: str, trace: Path | None = None
) -> list[StepPart]:
    """Make steps under the profiler; the parts of an average one, the longest first.

    Seconds are of the device that computes: of its operations, and on a CPU also of Python between
    them.  `trace` is written in the format of Chrome's and Perfetto's viewers.

    Raises:
        OutputError: the trace cannot be written.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler talks to stderr
    cuda = device.startswith("cuda")
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    with marked(model), profile(activities=activities) as profiler:
        for _ in range(steps):
            step()
    if trace is not None:
        _write_trace(profiler, trace)
    events = sorted(profiler.events() or (), key=lambda event: event.time_range.start)
    forward_part: dict[int, str] = {}  # by the number that autograd gives an operation
    for event in events:
        if event.sequence_nr >= 0 and _enclosing(event, _derived) is None:
            forward_part[event.sequence_nr] = _enclosing(event, _mark) or REST
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in events:
        derived = _enclosing(event, _derived)
        backward = derived in forward_part
        name = forward_part[derived] if derived in forward_part else _enclosing(event, _mark)
        taken = event.self_device_time_total if cuda else event.self_cpu_time_total
        seconds[name or REST][backward] += taken / 1e6 / steps
    parts = [StepPart(name, *both) for name, both in seconds.items()]
    return sorted(parts, key=lambda part: -part.total)


def _write_trace(profiler: profile, path: Path) -> None:
    """A whole file or none: torch says nothing of a disk that is full."""
    with TemporaryDirectory() as folder:
        written = Path(folder) / path.name
        profiler.export_chrome_trace(str(written))
        if not written.exists():
            raise OutputError(f"{path}: torch could not write the trace; is {folder} full?")
        write_output(path, written.read_bytes())


def _enclosing(event: Any, wanted: Callable[[Any], Any]) -> Any:
    """The first answer that is not None, of this event and those around it."""
    while event is not None:
        if (found := wanted(event)) is not None:
            return found
        event = event.cpu_parent
    return None


def _mark(event: Any) -> str | None:
    return event.name.removeprefix(MARK) if event.name.startswith(MARK) else None


def _derived(event: Any) -> int | None:
    """The number of the operation whose gradient this event computes."""
    known = event.name.startswith(BACKWARD) and event.sequence_nr >= 0
    return event.sequence_nr if known else None
