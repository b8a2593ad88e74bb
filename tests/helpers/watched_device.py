"""Detection of code that mixes devices or waits for one, with tensors without values (device "meta") and no GPU."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from attnkit.attention.mask import Mask
from attnkit.contract.subject import QUERIES, WIDTH, Subject
from attnkit.layers import MultiHead

aten = torch.ops.aten
DEVICE = torch.device("meta")
LENGTHS = (9, 300)
"""Tokens per row: mechanisms often treat short rows differently."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises AssertionError for operations on tensors of two devices, and for operations that read values.

    Tensors without dimensions may be on the CPU, and be read with `counting`. `buffers` may be filled from the CPU.
    """

    def __init__(self, *, counting: bool = False, buffers: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counting, self.buffers = counting, {id(x) for x in buffers}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        reads = func is aten._local_scalar_dense.default
        if reads and not (self.counting and args[0].device.type == "cpu"):
            raise AssertionError("it reads a number from a tensor")
        fills_buffer = func is aten.copy_.default and id(args[0]) in self.buffers
        tensors = _tensors((*args, *kwargs.values()))
        if not fills_buffer:
            _check_one_device(func, tensors)
        try:
            result = func(*args, **kwargs)
        except NotImplementedError as error:
            raise AssertionError(f"{func} depends on values") from error
        if not fills_buffer:
            _check_one_device(func, tensors + _tensors((result,)))
        return result


class Lists(TorchFunctionMode):
    """Raises AssertionError for tensors on the device that are made from Python numbers, and for lists as indices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
            data = kwargs.get("data", args[-1] if args else None)
            if result.device == DEVICE and not isinstance(data, Tensor):
                raise AssertionError("it makes a tensor of numbers at every call")
        if func in (Tensor.__getitem__, Tensor.__setitem__) and args[0].device == DEVICE:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(x, list) for x in index):
                raise AssertionError("it takes a list as an index")
        return result


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among values, alone or in lists."""
    tensors = list[Tensor]()
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += _tensors(value)
    return tensors


def _check_one_device(func: Any, tensors: Iterable[Tensor]) -> None:
    devices = {x.device for x in tensors if x.dim()}
    assert len(devices) < 2, f"{func} mixes tensors of two devices"


@contextmanager
def _autocast() -> Iterator[None]:
    """Allow torch.autocast for device "meta", which does not support it."""
    real: Any = torch.autocast

    def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return nullcontext() if device_type == DEVICE.type else real(device_type, *args, **kwargs)

    try:
        torch.autocast = autocast  # type: ignore[misc, assignment]
        yield
    finally:
        torch.autocast = real  # type: ignore[misc]


def watch_updates_and_steps(subject: Subject) -> None:
    """Watch updates, and decoding steps of a decoder. Only in the first update may values be read."""
    for length in LENGTHS:
        for dtype in (torch.float32, torch.bfloat16):
            layer = _moved(subject.make(seed=3).to(dtype))
            x = torch.empty(2, length, WIDTH, dtype=dtype, device=DEVICE, requires_grad=True)
            valid = torch.ones(2, length, dtype=torch.bool, device=DEVICE)
            buffers = [*layer.buffers()]
            with _autocast(), Watch(counting=True, buffers=buffers):
                _update(subject, layer, x, valid)
            with _autocast(), Watch(buffers=buffers), Lists():
                _update(subject, layer, x, valid)
                if subject.causal:
                    _steps(layer.eval(), x, valid)


def _moved(layer: MultiHead) -> MultiHead:
    """Move the layer to the device, except buffers without dimensions, which may be counters."""
    counters = {name: x for name, x in layer.named_buffers() if not x.dim()}
    layer = layer.to(DEVICE)
    for name, counter in counters.items():
        owner, _, last = name.rpartition(".")
        layer.get_submodule(owner)._buffers[last] = counter
    return layer


def _update(subject: Subject, layer: MultiHead, x: Tensor, valid: Tensor) -> None:
    """Compute forward and backward in training mode."""
    y = subject.output(layer.train(), x, valid, queries=x[:, :QUERIES])
    y.float().sum().backward()  # type: ignore[no-untyped-call]


@torch.no_grad()
def _steps(layer: MultiHead, x: Tensor, valid: Tensor) -> None:
    """Decode a prompt and two further tokens."""
    state, start, length = None, 0, x.shape[1]
    for new in (length - 2, 1, 1):
        end = start + new
        out = layer(x[:, start:end], Mask.of(valid[:, :end], new, True, start), state=state)
        state, start = out.state, end
