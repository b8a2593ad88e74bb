"""The measuring process: a mechanism alone for memory, then alternating with the baseline for time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit import mechanisms
from attnkit.attention import Attention, Mask, Out, Shape
from attnkit.bench.plan import BASELINE, PASSES, Candidate, Workload
from attnkit.device import clock
from attnkit.errors import AttnkitError, out_of_memory
from attnkit.layers import MultiHead
from attnkit.memory import free_memory, keep_freed_memory, peak_memory, process_memory, reset_peak_memory

SHORTEST_SAMPLE = 0.02
"""Minimum seconds of a sample, within which faster passes are repeated."""
WARM_UP_LENGTH = 64
"""Length of the pass that loads kernels and starts threads before measuring."""
MEMORY_SHARE = 0.95
"""Fraction of the free memory that a process may use."""

Message = tuple[str, Any]


class Fused(Attention):
    """Torch's fused kernel, the baseline."""

    def forward(self, q: Any, k: Any, v: Any, mask: Mask, *_: Any, **__: Any) -> Out:
        """Return softmax(q k^T / sqrt(D)) v over all keys, or the earlier ones if causal."""
        return Out(F.scaled_dot_product_attention(q, k, v, is_causal=mask.causal), None)


class Inputs:
    """Random inputs of one length by name and shape, created on first use."""

    def __init__(self, workload: Workload, length: int) -> None:
        self.workload, self.length = workload, length
        self.dtype = getattr(torch, workload.dtype)
        self.mask = Mask.packed(length, torch.device(workload.device), causal=workload.causal)
        self._tensors: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Return a random tensor [B, *shape]."""
        if (name, shape) not in self._tensors:
            size, device = (self.workload.batch, *shape), self.workload.device
            tensor = torch.randn(size, dtype=self.dtype, device=device, requires_grad=True)
            self._tensors[name, shape] = tensor
        return self._tensors[name, shape]


class Call(NamedTuple):
    """A layer or its mechanism, the tensors that it reads, and its forward pass."""

    module: nn.Module
    sources: Sequence[Tensor]
    forward: Callable[[], Tensor]


class Runner:
    """Passes of a candidate at one length; layers that differ by depth run one after the other."""

    def __init__(self, candidate: Candidate, inputs: Inputs) -> None:
        mechanism, options = candidate.mechanism, candidate.options
        count = len(mechanisms.layer_schedule(mechanism, options)) if mechanism else 1
        self.calls = [_call(candidate, inputs, depth) for depth in range(count)]
        self.gradient = torch.ones((), dtype=inputs.dtype, device=inputs.workload.device)
        self.device = inputs.workload.device

    def run(self, kind: str) -> None:
        """Run a pass: forward as in evaluation, or forward and backward as in training."""
        backward = kind == PASSES[1]
        for module, sources, forward in self.calls:
            module.train(backward)
            with torch.set_grad_enabled(backward):
                y = forward()
                if backward:
                    tensors = [*sources, *module.parameters()]
                    torch.autograd.grad(y, tensors, self.gradient.expand_as(y), allow_unused=True)

    def seconds(self, kind: str, times: int = 1) -> float:
        """Return the seconds of one pass of one layer, averaged over `times` passes."""
        start = clock(self.device)
        for _ in range(times):
            self.run(kind)
        return (clock(self.device) - start) / times / len(self.calls)


def _call(candidate: Candidate, inputs: Inputs, depth: int) -> Call:
    """Build the layer at a depth, with its inputs."""
    workload, length = inputs.workload, inputs.length
    heads, width = workload.heads, workload.heads * workload.head_width
    if candidate.mechanism:
        layer = MultiHead.build(
            candidate.mechanism, width, heads, length, depth=depth, causal=workload.causal, **candidate.options
        )
    else:
        layer = MultiHead(width, Fused(Shape(heads, workload.head_width, length)))
    layer.to(workload.device, inputs.dtype)
    if workload.layer:
        x = inputs.tensor("x", length, width)
        return Call(layer, [x], lambda: layer(x, inputs.mask).y)
    tensors, mechanism = {}, layer.mechanism
    for name in mechanism.uses:
        each = {"q": mechanism.query_sets, "k": mechanism.key_sets, "v": mechanism.value_sets}
        sets = each.get(name, 1)
        count = sets * (mechanism.key_heads if name in "kv" else heads)
        size = mechanism.gates if name == "g" else workload.head_width
        tensors[name] = inputs.tensor(name, count, length, size)
    k, v, gates = (tensors.get(name) for name in "kvg")
    queries = [tensors[name] for name in "qx" if name in tensors]
    q = torch.cat(queries, 1) if queries else None
    return Call(mechanism, [*tensors.values()], lambda: mechanism(q, k, v, inputs.mask, gates=gates).y)


def serve(connection: Connection, workload: Workload, candidate: Candidate, length: int, kind: str) -> None:
    """Send the messages of `probe`, or an error; the receiving command may have ended meanwhile."""
    for path in workload.plugins:
        mechanisms.plug_in(path)
    if workload.threads:
        torch.set_num_threads(workload.threads)
    if workload.device == "cpu":
        keep_freed_memory()  # as training does
        _limit_memory()
    torch.manual_seed(0)
    with suppress(ConnectionError):
        try:
            for message in probe(workload, candidate, length, kind):
                connection.send(message)
        except ConnectionError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            if out_of_memory(error):
                text = "memory"
            elif not isinstance(error, AttnkitError):
                text = f"{type(error).__name__}: {text}"
            connection.send(("error", text))


def probe(workload: Workload, candidate: Candidate, length: int, kind: str) -> Iterator[Message]:
    """Yield that the mechanism is built, seconds and peak bytes of its first pass, then rounds of samples.

    A round has the seconds of the candidate and of the baseline, which alternate.
    """
    Runner(candidate, Inputs(workload, min(WARM_UP_LENGTH, length))).run(kind)
    inputs = Inputs(workload, length)
    runner = Runner(candidate, inputs)
    yield "ready", None
    base_memory = reset_peak_memory(workload.device)
    first = runner.seconds(kind)
    peak = peak_memory(workload.device)
    yield "first", (first, None if base_memory is None or peak is None else max(0, peak - base_memory))
    runners = [runner, Runner(Candidate(BASELINE), inputs)] if candidate.mechanism else [runner]
    pass_seconds = [first, *(r.seconds(kind) for r in runners[1:])]
    counts = [max(1, round(SHORTEST_SAMPLE / max(seconds, 1e-6))) for seconds in pass_seconds]
    pairs = list(zip(runners, counts, strict=True))
    for number in range(workload.repeats):
        if number and (number + 1) * first > workload.budget:
            return
        order = pairs if number % 2 == 0 else pairs[::-1]
        samples = {runner: runner.seconds(kind, count) for runner, count in order}
        yield "round", (samples[runner], samples[runners[-1]])


def _limit_memory() -> None:
    """Make allocations fail at the end of free memory, before the system kills processes."""
    import resource

    free, used = free_memory(), process_memory("VmData")
    if free is not None and used is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + int(MEMORY_SHARE * free)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
