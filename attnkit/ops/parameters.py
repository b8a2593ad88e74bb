"""Modules that compute with other tensors than their parameters for a while."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

from torch import Tensor, nn


class Place(NamedTuple):
    """A parameter where a module has it."""

    module: nn.Module
    name: str
    tensor: Tensor


def parameters_of(module: nn.Module) -> list[Place]:
    """What a module and those in it have as parameters now; one that is shared comes repeatedly."""
    return [
        Place(part, name, parameter)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if parameter is not None
    ]


@contextmanager
def computing_with(chosen: Sequence[Place]) -> Iterator[None]:
    """Inside, modules have these tensors in place of their parameters.

    torch.func.functional_call does not put back what a module under two names had.
    """
    before = [one for module in {one.module for one in chosen} for one in parameters_of(module)]
    try:
        _put(chosen)
        yield
    finally:
        _put(before)


def _put(chosen: Sequence[Place]) -> None:
    for module, name, tensor in chosen:
        parameter = cast(nn.Parameter, tensor)
        module._parameters[name] = parameter
        if isinstance(module, nn.RNNBase):  # which has a list of its own
            module._flat_weights[module._flat_weights_names.index(name)] = parameter
