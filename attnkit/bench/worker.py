"""What a measuring process does: one mechanism alone for its memory, or all in turn for time."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit import mechanisms
from attnkit.attention import Attention, Mask, Out, Shape
from attnkit.bench.plan import PASSES, Candidate, Workload
from attnkit.device import clock
from attnkit.layers import MultiHead
from attnkit.memory import free_memory, keep_freed_memory
from attnkit.train.peak_memory import peak_memory, process_memory, reset_peak_memory

SHORTEST_SAMPLE = 0.02
"""Seconds that one sample lasts at least: faster passes are repeated within it."""
WARM_UP_LENGTH = 64
"""Length of the run that loads kernels and starts threads before anything is measured."""
MEMORY_SHARE = 0.95
"""Share of the free memory that a process may take."""

Answer = tuple[str, Any]


class Fused(Attention):
    """Torch's fused kernel, the baseline."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, *_: Any, **__: Any) -> Out:
        """softmax(q k^T / sqrt(D)) v over all keys, or the earlier ones."""
        return Out(F.scaled_dot_product_attention(q, k, v, is_causal=mask.causal), None)


class Inputs:
    """Random inputs of one length by name and shape, made when they are first wanted."""

    def __init__(self, workload: Workload, length: int) -> None:
        self.workload, self.length = workload, length
        self.kind = getattr(torch, workload.dtype)
        self.mask = Mask.packed(length, torch.device(workload.device), causal=workload.causal)
        self._tensors: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def tensor(self, name: str, *shape: int) -> Tensor:
        """[B, *shape]."""
        if (name, shape) not in self._tensors:
            size, device = (self.workload.batch, *shape), self.workload.device
            tensor = torch.randn(size, dtype=self.kind, device=device, requires_grad=True)
            self._tensors[name, shape] = tensor
        return self._tensors[name, shape]


class Runner:
    """A layer of a candidate built for one length, and its passes as calls without arguments."""

    def __init__(self, candidate: Candidate, inputs: Inputs, depth: int = 0) -> None:
        workload, length = inputs.workload, inputs.length
        width = workload.heads * workload.head_width
        if candidate.word:
            layer = MultiHead.build(
                candidate.word, width, workload.heads, length, depth=depth,
                causal=workload.causal, **candidate.options,
            )  # fmt: skip
        else:
            layer = MultiHead(width, Fused(Shape(workload.heads, workload.head_width, length)))
        self.module = layer if workload.layer else layer.mechanism
        self.module.to(workload.device, inputs.kind)
        self.gradient = torch.ones((), dtype=inputs.kind, device=workload.device)
        self.call: Callable[[], Tensor]
        if workload.layer:
            x = inputs.tensor("x", length, width)
            self.sources, self.call = [x], lambda: layer(x, inputs.mask).y
            return
        given, mechanism = {}, layer.mechanism
        for name in mechanism.uses:
            sets = {"q": mechanism.query_sets, "k": mechanism.key_sets}.get(name, 1)
            heads = sets * (mechanism.key_heads if name in "kv" else workload.heads)
            size = mechanism.gates if name == "g" else workload.head_width
            given[name] = inputs.tensor(name, heads, length, size)
        self.sources = list(given.values())
        k, v, gates = (given.get(name) for name in "kvg")
        queries = [given[name] for name in "qx" if name in given]
        q = torch.cat(queries, 1) if queries else None
        self.call = lambda: mechanism(q, k, v, inputs.mask, gates=gates).y

    def run(self, kind: str) -> None:
        """One pass: forward as in evaluation, or forward and backward as in training."""
        backward = kind == PASSES[1]
        self.module.train(backward)
        with torch.set_grad_enabled(backward):
            y = self.call()
            if backward:
                wanted = [*self.sources, *self.module.parameters()]
                torch.autograd.grad(y, wanted, self.gradient.expand_as(y), allow_unused=True)


class LayersInTurn:
    """All layers of a candidate that differ, one after the other; times are those of one layer."""

    def __init__(self, candidate: Candidate, inputs: Inputs) -> None:
        word, options = candidate.word, candidate.options
        self.count = len(mechanisms.in_turn(word, options)) if word else 1
        self.layers = [Runner(candidate, inputs, depth) for depth in range(self.count)]

    def run(self, kind: str) -> None:
        for layer in self.layers:
            layer.run(kind)


def serve(connection: Connection, workload: Workload) -> None:
    """Answer requests until there are no more; errors are answers too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends this process
    for path in workload.plugins:
        mechanisms.plug_in(path)
    if workload.threads:
        torch.set_num_threads(workload.threads)
    if workload.device == "cpu":
        keep_freed_memory()  # as training does
        _limit_memory()
    tasks: Mapping[str, Callable[..., Iterator[Answer]]] = {"probe": probe, "race": race}
    while request := connection.recv():
        name, arguments = request
        torch.manual_seed(0)
        try:
            for answer in tasks[name](workload, *arguments):
                connection.send(answer)
        except Exception as error:
            connection.send(("error", _error_text(error)))
        if workload.device.startswith("cuda"):
            torch.cuda.empty_cache()
        connection.send(("done", None))


def probe(
    workload: Workload, candidate: Candidate, length: int, passes: Sequence[str]
) -> Iterator[Answer]:
    """Whether it is built, then seconds and peak bytes of each pass as it first runs so long."""
    warm = LayersInTurn(candidate, Inputs(workload, min(WARM_UP_LENGTH, length)))
    for kind in passes:
        warm.run(kind)
    del warm
    runner = LayersInTurn(candidate, Inputs(workload, length))
    yield "ready", None
    for kind in passes:
        before = reset_peak_memory(workload.device)
        start = clock(workload.device)
        runner.run(kind)
        seconds = (clock(workload.device) - start) / runner.count
        peak = peak_memory(workload.device)
        size = None if before is None or peak is None else max(0, peak - before)
        yield kind, (seconds, size)


def race(
    workload: Workload,
    length: int,
    entries: Sequence[tuple[Candidate, Mapping[str, float]]],
) -> Iterator[Answer]:
    """Samples of every pass of every candidate, in turn; (label, pass, seconds of one run).

    `entries` has the seconds of a first run of each pass; the baseline comes first.
    """
    inputs = Inputs(workload, length)
    runners = [(LayersInTurn(candidate, inputs), candidate, known) for candidate, known in entries]
    for runner, _, known in runners:
        for kind, seconds in known.items():
            if seconds < 1:  # longer ones have no use for it
                runner.run(kind)
    for number in range(workload.repeats):
        turn = [
            (runner, candidate, kind, seconds)
            for runner, candidate, known in runners
            for kind, seconds in known.items()
            if number == 0 or (number + 1) * seconds <= workload.budget
        ]
        if number and all(not candidate.word for _, candidate, _, _ in turn):
            return
        for runner, candidate, kind, seconds in turn if number % 2 == 0 else turn[::-1]:
            count = max(1, round(SHORTEST_SAMPLE / max(seconds, 1e-6)))
            start = clock(workload.device)
            for _ in range(count):
                runner.run(kind)
            taken = (clock(workload.device) - start) / count / runner.count
            yield "sample", (number, candidate.label, kind, taken)


def _error_text(error: Exception) -> str:
    """What went wrong, in a line; nothing but "memory" where there was not enough."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)
    ):
        return "memory"
    ours = type(error).__module__.startswith("attnkit")
    return text if ours else f"{type(error).__name__}: {text}"


def _limit_memory() -> None:
    """Let allocations fail where memory ends, instead of having the system kill processes."""
    import resource

    free, used = free_memory(), process_memory("VmData")
    if free is not None and used is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + int(MEMORY_SHARE * free)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
