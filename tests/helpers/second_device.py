"""A second device without hardware: tensors that report device "meta" but compute on the CPU.

As with a GPU, operations on tensors of both devices fail, except copies, indices and tensors without dimensions. So
tests without a GPU detect tensors that were created on the wrong device.
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
"""Operations whose indices may be on the CPU."""


class SecondDeviceTensor(Tensor):
    """A tensor on the second device."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "SecondDeviceTensor":
        wrapper = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
            requires_grad=inner.requires_grad,
        )
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("a tensor of another device has no array: use Tensor.cpu() first")


class _FromLists(TorchFunctionMode):
    """Moves tensors made from lists, which a dispatch mode does not see, and converts lists used as indices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(x) if isinstance(x, list) else x for x in index)
            return func(args[0], index, *args[2:])
        if func not in (torch.tensor, torch.as_tensor):
            return func(*args, **kwargs)
        device = kwargs.pop("device", None)
        tensor = func(*args, **kwargs)
        return tensor if device is None else tensor.to(device)


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


@contextmanager
def second_device() -> Iterator[torch.device]:
    """Let device "meta" be the second device, to which modules can be moved."""
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
    """Return arguments, alone or in lists; ten times faster than torch's own function."""
    leaves = []
    for value in values:
        leaves += _leaves(value) if isinstance(value, list | tuple) else [value]
    return leaves


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(change, item) for item in value)
    return change(value)


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """Run an operation on the CPU; raise RuntimeError if it mixes tensors of both devices."""
    leaves = _leaves((*args, *kwargs.values()))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    on_second = [isinstance(x, SecondDeviceTensor) for x in tensors]
    devices = [x for x in leaves if isinstance(x, torch.device)]
    assert all(x.device != DEVICE or isinstance(x, SecondDeviceTensor) for x in tensors), func
    packet = func.overloadpacket
    mixable = packet in COPIES or (packet in INDEXING and on_second[0])
    if not mixable and any(on_second) and any(x.dim() and not isinstance(x, SecondDeviceTensor) for x in tensors):
        raise RuntimeError(f"{func}: tensors on two devices")
    in_place_copy = func is torch.ops.aten.copy_.default
    result = func(*_mapped(_on_cpu, args), **{name: _mapped(_on_cpu, value) for name, value in kwargs.items()})
    if not (on_second[0] if in_place_copy else devices[0] == DEVICE if devices else any(on_second)):
        return result
    with torch.inference_mode(False):  # otherwise PyTorch keeps no version counter of views of weights
        result = _mapped(lambda x: SecondDeviceTensor(x) if isinstance(x, Tensor) else x, result)
    moved = packet in COPIES and not in_place_copy
    return result if moved else return_and_correct_aliasing(func, args, kwargs, result)
