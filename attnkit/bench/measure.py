"""What a measuring process does: one mechanism alone for its memory, or all in turn for time."""

import ctypes
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit import mechanisms
from attnkit.attention import Attention, Mask, Out, Shape
from attnkit.bench.plan import PASSES, Candidate, Workload
from attnkit.layers import MultiHead
from attnkit.train.memory import keep_freed_memory

SHORTEST = 0.02
"""Seconds that one sample lasts at least: faster passes are repeated within it."""
WARM = 64
"""Length of the run that loads kernels and starts threads before anything is measured."""
SPARE = 0.95
"""Share of the free memory that a process may take."""

CONTROL = Path("/sys/fs/cgroup")
GROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""Files with the limit and the use of a control group, of both its versions."""

Answer = tuple[str, Any]


class Fused(Attention):
    """Torch's fused kernel, the baseline."""

    def forward(
        self,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor | None,
        mask: Mask,
        state: Any = None,
        prior: Tensor | None = None,
        bias: Tensor | None = None,
        gates: Tensor | None = None,
    ) -> Out:
        """softmax(q k^T / sqrt(D)) v over all keys, or the earlier ones."""
        assert q is not None
        assert k is not None
        assert v is not None
        return Out(F.scaled_dot_product_attention(q, k, v, is_causal=mask.causal), None)


class Inputs:
    """Random queries, keys, values and gates of one length, made when they are first wanted."""

    def __init__(self, setting: Workload, length: int) -> None:
        self.setting, self.length = setting, length
        self.kind = getattr(torch, setting.dtype)
        self.mask = Mask.packed(length, torch.device(setting.device), causal=setting.causal)
        self._made: dict[tuple[str, int, int], Tensor] = {}

    def heads(self, name: str, heads: int, width: int) -> Tensor:
        """[B, heads, T, width]."""
        if (name, heads, width) not in self._made:
            self._made[name, heads, width] = self._random(heads, self.length, width)
        return self._made[name, heads, width]

    @cached_property
    def x(self) -> Tensor:
        """[B, T, W]."""
        return self._random(self.length, self.setting.heads * self.setting.head_width)

    def _random(self, *shape: int) -> Tensor:
        made = torch.randn(self.setting.batch, *shape, dtype=self.kind, device=self.setting.device)
        return made.requires_grad_()


class Runner:
    """A layer of a subject built for one length, and its passes as calls without arguments."""

    def __init__(self, subject: Candidate, inputs: Inputs, depth: int = 0) -> None:
        setting, length = inputs.setting, inputs.length
        width = setting.heads * setting.head_width
        if subject.word:
            causal = setting.causal or None
            layer = MultiHead.build(
                subject.word, width, setting.heads, length, depth=depth, causal=causal,
                **subject.options,
            )  # fmt: skip
        else:
            layer = MultiHead(width, Fused(Shape(setting.heads, setting.head_width, length)))
        self.module = layer if setting.layer else layer.mechanism
        self.module.to(setting.device, inputs.kind)
        self.sources = [inputs.x] if setting.layer else list(self._heads(layer.mechanism, inputs))
        self.call = self._layer(layer, inputs) if setting.layer else self._mixing(layer, inputs)
        self.gradient = torch.ones((), dtype=inputs.kind, device=setting.device)

    def _heads(self, mechanism: Attention, inputs: Inputs) -> Iterator[Tensor]:
        setting = inputs.setting
        for name in mechanism.uses:
            sets = {"q": mechanism.query_sets, "k": mechanism.key_sets}.get(name, 1)
            heads = sets * (mechanism.key_heads if name in "kv" else setting.heads)
            width = mechanism.gates if name == "g" else setting.head_width
            yield inputs.heads(name, heads, width)

    def _mixing(self, layer: MultiHead, inputs: Inputs) -> Callable[[], Tensor]:
        given = dict(zip(layer.mechanism.uses, self.sources, strict=True))
        k, v, gates = (given.get(name) for name in "kvg")
        queries = [given[name] for name in "qx" if name in given]
        q = torch.cat(queries, 1) if queries else None
        return lambda: layer.mechanism(q, k, v, inputs.mask, gates=gates).y

    def _layer(self, layer: MultiHead, inputs: Inputs) -> Callable[[], Tensor]:
        return lambda: layer(inputs.x, inputs.mask).y

    def run(self, kind: str) -> None:
        """One pass: forward as in evaluation, or forward and backward as in training."""
        backward = kind == PASSES[1]
        self.module.train(backward)
        with torch.set_grad_enabled(backward):
            y = self.call()
            if backward:
                wanted = [*self.sources, *self.module.parameters()]
                torch.autograd.grad(y, wanted, self.gradient.expand_as(y), allow_unused=True)


class Turns:
    """All layers of a subject that differ, one after the other; times are those of one layer."""

    def __init__(self, subject: Candidate, inputs: Inputs) -> None:
        self.count = len(mechanisms.in_turn(subject.word, subject.options)) if subject.word else 1
        self.layers = [Runner(subject, inputs, depth) for depth in range(self.count)]

    def run(self, kind: str) -> None:
        """One pass of each layer."""
        for layer in self.layers:
            layer.run(kind)


def serve(connection: Connection, setting: Workload) -> None:
    """Answer requests until there are no more; errors are answers too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends this process
    for path in setting.plugins:
        mechanisms.plug_in(path)
    if setting.threads:
        torch.set_num_threads(setting.threads)
    if setting.device == "cpu":
        keep_freed_memory()  # as training does
        _limit_memory()
    tasks: Mapping[str, Callable[..., Iterator[Answer]]] = {"probe": probe, "race": race}
    while request := connection.recv():
        name, arguments = request
        torch.manual_seed(0)
        try:
            for answer in tasks[name](setting, *arguments):
                connection.send(answer)
        except Exception as error:
            connection.send(("error", _told(error)))
        if setting.device.startswith("cuda"):
            torch.cuda.empty_cache()
        connection.send(("done", None))


def probe(
    setting: Workload, subject: Candidate, length: int, passes: Sequence[str]
) -> Iterator[Answer]:
    """Whether it is built, then seconds and peak bytes of each pass as it first runs so long."""
    warm = Turns(subject, Inputs(setting, min(WARM, length)))
    for kind in passes:
        warm.run(kind)
    del warm
    runner = Turns(subject, Inputs(setting, length))
    yield "ready", None
    for kind in passes:
        before = _reset_peak(setting.device)
        start = _now(setting.device)
        runner.run(kind)
        seconds = (_now(setting.device) - start) / runner.count
        peak = _peak(setting.device)
        size = None if before is None or peak is None else max(0, peak - before)
        yield kind, (seconds, size)


def race(
    setting: Workload,
    length: int,
    entries: Sequence[tuple[Candidate, Mapping[str, float]]],
) -> Iterator[Answer]:
    """Samples of every pass of every subject, in turn; (label, pass, seconds of one run).

    `entries` has the seconds of a first run of each pass; the baseline comes first.
    """
    inputs = Inputs(setting, length)
    runners = [(Turns(subject, inputs), subject, known) for subject, known in entries]
    for runner, _, known in runners:
        for kind, seconds in known.items():
            if seconds < 1:  # longer ones have no use for it
                runner.run(kind)
    for number in range(setting.repeats):
        turn = [
            (runner, subject, kind, seconds)
            for runner, subject, known in runners
            for kind, seconds in known.items()
            if number == 0 or (number + 1) * seconds <= setting.budget
        ]
        if number and all(not subject.word for _, subject, _, _ in turn):
            return
        for runner, subject, kind, seconds in turn if number % 2 == 0 else turn[::-1]:
            count = max(1, round(SHORTEST / max(seconds, 1e-6)))
            start = _now(setting.device)
            for _ in range(count):
                runner.run(kind)
            taken = (_now(setting.device) - start) / count / runner.count
            yield "sample", (number, subject.label, kind, taken)


def _told(error: Exception) -> str:
    """What went wrong, in a line; nothing but "memory" where there was not enough."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)
    ):
        return "memory"
    return (
        text if type(error).__module__.startswith("attnkit") else f"{type(error).__name__}: {text}"
    )


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()
    return time.perf_counter()


def _reset_peak(device: str) -> int | None:
    """Begin to watch the peak; the bytes in use now, or None where they cannot be known."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    if device != "cpu":
        return None
    _trim()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak falls to what is in use
    except OSError:
        return None
    return _status("VmRSS")


def _peak(device: str) -> int | None:
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM") if device == "cpu" else None


def _status(name: str) -> int | None:
    """A number of bytes from what Linux tells of this process."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith(f"{name}:")), "")
    return int(line.split()[1]) * 1024 if line else None


def _limit_memory() -> None:
    """Let allocations fail where memory ends, instead of having the system kill processes."""
    import resource

    free, used = free_memory(), _status("VmData")
    if free is not None and used is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + int(SPARE * free)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def free_memory() -> int | None:
    """Bytes that a new process could take: of the machine, and of its control group."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable")))
    except (OSError, StopIteration):
        pass
    for most, now in GROUPS:
        try:
            limit, used = ((CONTROL / name).read_text().strip() for name in (most, now))
            found.append(int(limit) - int(used))
        except (OSError, ValueError):
            continue
    return max(0, min(found)) if found else None


def _trim() -> None:
    """Give freed memory back to the system, where the C library can (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
