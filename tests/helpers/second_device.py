"""A second device without hardware: tensors that say they are on "meta" but compute on the CPU.

Operations on tensors of both devices fail, as with a GPU, but for copies, indices and tensors of no
dimension.  So code that runs here makes its tensors where they belong, and asks for values back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

DEVICE = torch.device("meta")
COPIES = (torch.ops.aten._to_copy, torch.ops.aten.to, torch.ops.aten.copy_)
INDEXING = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
"""Indices may be on the CPU."""


class SecondDeviceTensor(Tensor):
    """A tensor on the second device."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "SecondDeviceTensor":
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
            requires_grad=inner.requires_grad,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("a tensor of another device has no array: use Tensor.cpu() first")


class _FromLists(TorchFunctionMode):
    """torch.tensor and lists as indices make tensors below what a dispatch mode sees."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(x) if isinstance(x, list) else x for x in index)
            return func(args[0], index, *args[2:])
        if func not in (torch.tensor, torch.as_tensor):
            return func(*args, **given)
        device = given.pop("device", None)
        made = func(*args, **given)
        return made if device is None else made.to(device)


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


@contextmanager
def second_device() -> Iterator[torch.device]:
    """Meanwhile device "meta" is the second device; modules can be moved there."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with _Operations(), _FromLists():
            yield DEVICE
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _on_cpu(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("cpu")
    return x.inner if isinstance(x, SecondDeviceTensor) else x


def _leaves(values: Any) -> list[Any]:
    """What an operation takes, alone or in lists; torch's own function is ten times slower."""
    found = []
    for value in values:
        found += _leaves(value) if isinstance(value, list | tuple) else [value]
    return found


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(change, one) for one in value)
    return change(value)


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """An operation, on the CPU, for tensors of one device."""
    leaves = _leaves((*args, *kwargs.values()))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    there = [isinstance(x, SecondDeviceTensor) for x in tensors]
    devices = [x for x in leaves if isinstance(x, torch.device)]
    on_second = devices[0] == DEVICE if devices else any(there)
    assert all(x.device != DEVICE or isinstance(x, SecondDeviceTensor) for x in tensors), func
    packet = func.overloadpacket
    mixable = packet in COPIES or (packet in INDEXING and there[0])
    if not mixable and any(there) and any(x.dim() and not isinstance(x, SecondDeviceTensor) for x in tensors):
        raise RuntimeError(f"{func}: tensors on two devices")
    if func is torch.ops.aten.copy_.default:
        on_second = there[0]
    inner = {name: _mapped(_on_cpu, value) for name, value in kwargs.items()}
    found = func(*_mapped(_on_cpu, args), **inner)
    if not on_second:
        return found
    with torch.inference_mode(False):  # else a view of a weight could not be counted
        found = _mapped(lambda x: SecondDeviceTensor(x) if isinstance(x, Tensor) else x, found)
    moved = func.overloadpacket in COPIES and func is not torch.ops.aten.copy_.default
    return found if moved else return_and_correct_aliasing(func, args, kwargs, found)
