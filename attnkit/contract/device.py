"""The contract on devices, measured on tensors without values (device "meta"), so without a GPU."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnkit.attention.mask import Mask
from attnkit.contract.subject import WIDTH, Broken, Subject
from attnkit.layers import MultiHead

DEVICE = torch.device("meta")
LENGTHS = (9, 300)
"""Tokens of a row: short ones often take a path of their own."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations on tensors of two devices, and those that read values.

    Numbers, tensors of no dimension, may be on the CPU; `counting` lets them be read.
    """

    def __init__(self, counting: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counting = counting

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        reads = func is torch.ops.aten._local_scalar_dense.default
        if reads and not (self.counting and args[0].device.type == "cpu"):
            raise Broken("it reads a number from a tensor: a GPU would be waited for")
        _on_one_device(func, (args, given))
        try:
            found = func(*args, **given)
        except NotImplementedError as error:
            raise Broken(f"{func} depends on values: a GPU would be waited for") from error
        _on_one_device(func, (args, given, found))
        return found


def _on_one_device(func: Any, tree: Any) -> None:
    devices = {x.device for x in tree_leaves(tree) if isinstance(x, Tensor) and x.dim()}
    if len(devices) > 1:
        raise Broken(f"{func} of tensors on two devices: make them where the inputs are")


def device(subject: Subject) -> Iterator[float]:
    """Updates, and in a decoder steps of decoding; what is first seen may be counted once."""
    for length in LENGTHS:
        for kind in (torch.float32, torch.bfloat16):
            layer = _moved(subject.make(seed=3).to(kind))
            x, valid = _like(kind, length), torch.ones(2, length, dtype=torch.bool, device=DEVICE)
            with Watch(counting=True):
                _update(subject, layer, x, valid)
            with Watch(counting=False):
                _update(subject, layer, x, valid)
                if subject.causal:
                    _steps(layer.eval(), x, valid)
    yield 0.0


def _moved(layer: MultiHead) -> MultiHead:
    """The layer on the device, but numbers that it counts in."""
    counts = {name: x for name, x in layer.named_buffers() if not x.dim()}
    layer = layer.to(DEVICE)
    for name, number in counts.items():
        owner, _, last = name.rpartition(".")
        layer.get_submodule(owner)._buffers[last] = number
    return layer


def _like(kind: torch.dtype, length: int) -> Tensor:
    return torch.empty(2, length, WIDTH, dtype=kind, device=DEVICE, requires_grad=True)


def _update(subject: Subject, layer: MultiHead, x: Tensor, valid: Tensor) -> None:
    """Forward and backward in training."""
    layer.train()
    mask = subject.mask(valid)
    if subject.role == "cross":
        queries = x[:, : mask.q_pos.shape[1]]
        y = layer(queries, mask, memory=x).y
    else:
        y = layer(x, mask).y
    y.float().sum().backward()


@torch.no_grad()
def _steps(layer: MultiHead, x: Tensor, valid: Tensor) -> None:
    """A prompt and two tokens more."""
    state, start, length = None, 0, x.shape[1]
    for new in (length - 2, 1, 1):
        end = start + new
        mask = Mask.of(valid[:, :end], new, True, start)
        out = layer(x[:, start:end], mask, state=state)
        state, start = out.state, end
