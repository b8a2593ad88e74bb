"""Whether code mixes devices or waits for one, seen on tensors without values (device "meta"), so without a GPU."""

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
"""Tokens of a row: short ones often take a path of their own."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations on tensors of two devices, and those that read values.

    Tensors of no dimension may be on the CPU; `counting` lets them be read.  `buffers` may be
    filled from the CPU.
    """

    def __init__(self, *, counting: bool = False, buffers: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counting, self.buffers = counting, {id(x) for x in buffers}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        reads = func is aten._local_scalar_dense.default
        if reads and not (self.counting and args[0].device.type == "cpu"):
            raise AssertionError("it reads a number from a tensor")
        filled = func is aten.copy_.default and id(args[0]) in self.buffers
        tensors = _tensors((*args, *given.values()))
        if not filled:
            _on_one_device(func, tensors)
        try:
            found = func(*args, **given)
        except NotImplementedError as error:
            raise AssertionError(f"{func} depends on values") from error
        if not filled:
            _on_one_device(func, tensors + _tensors((found,)))
        return found


class Lists(TorchFunctionMode):
    """Refuses tensors on the device that are made of Python's numbers, as indices are of lists."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        found = func(*args, **given)
        if func in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
            data = given.get("data", args[-1] if args else None)
            if found.device == DEVICE and not isinstance(data, Tensor):
                raise AssertionError("it makes a tensor of numbers at every call")
        if func in (Tensor.__getitem__, Tensor.__setitem__) and args[0].device == DEVICE:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(one, list) for one in index):
                raise AssertionError("it takes a list as an index")
        return found


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Those of an operation, which takes and gives them alone and in lists."""
    found = list[Tensor]()
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _on_one_device(func: Any, tensors: Iterable[Tensor]) -> None:
    devices = {x.device for x in tensors if x.dim()}
    assert len(devices) < 2, f"{func} mixes tensors of two devices"


@contextmanager
def _autocast() -> Iterator[None]:
    """Lets torch.autocast be called for the device, which has none."""
    real: Any = torch.autocast

    def either(device_type: str, *given: Any, **named: Any) -> Any:
        return nullcontext() if device_type == DEVICE.type else real(device_type, *given, **named)

    try:
        torch.autocast = either  # type: ignore[misc, assignment]
        yield
    finally:
        torch.autocast = real  # type: ignore[misc]


def watch_updates_and_steps(subject: Subject) -> None:
    """Updates, and in a decoder steps of decoding; what is first seen may be counted once."""
    for length in LENGTHS:
        for kind in (torch.float32, torch.bfloat16):
            layer = _moved(subject.make(seed=3).to(kind))
            x = torch.empty(2, length, WIDTH, dtype=kind, device=DEVICE, requires_grad=True)
            valid = torch.ones(2, length, dtype=torch.bool, device=DEVICE)
            buffers = [*layer.buffers()]
            with _autocast(), Watch(counting=True, buffers=buffers):
                _update(subject, layer, x, valid)
            with _autocast(), Watch(buffers=buffers), Lists():
                _update(subject, layer, x, valid)
                if subject.causal:
                    _steps(layer.eval(), x, valid)


def _moved(layer: MultiHead) -> MultiHead:
    """The layer on the device, except scalar buffers, which may be counters."""
    counts = {name: x for name, x in layer.named_buffers() if not x.dim()}
    layer = layer.to(DEVICE)
    for name, number in counts.items():
        owner, _, last = name.rpartition(".")
        layer.get_submodule(owner)._buffers[last] = number
    return layer


def _update(subject: Subject, layer: MultiHead, x: Tensor, valid: Tensor) -> None:
    """Forward and backward in training."""
    y = subject.output(layer.train(), x, valid, queries=x[:, :QUERIES])
    y.float().sum().backward()  # type: ignore[no-untyped-call]


@torch.no_grad()
def _steps(layer: MultiHead, x: Tensor, valid: Tensor) -> None:
    """A prompt and two tokens more."""
    state, start, length = None, 0, x.shape[1]
    for new in (length - 2, 1, 1):
        end = start + new
        mask = Mask.of(valid[:, :end], new, True, start)
        out = layer(x[:, start:end], mask, state=state)
        state, start = out.state, end
