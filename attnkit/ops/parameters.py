"""Temporary replacement of the parameters of modules by other tensors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

from torch import Tensor, nn


class Place(NamedTuple):
    """A parameter and its location: a module and the parameter's name in it."""

    module: nn.Module
    name: str
    tensor: Tensor


def parameters_of(module: nn.Module) -> list[Place]:
    """Return the current parameters of a module and its submodules; a shared parameter appears once for each use."""
    return [
        Place(part, name, parameter)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if parameter is not None
    ]


@contextmanager
def computing_with(replacements: Sequence[Place]) -> Iterator[None]:
    """Set `replacements` as parameters of their modules inside the context; restore the original ones afterwards.

    `torch.func.functional_call` does not restore the parameters of a module that is registered under two names.
    """
    originals = [place for module in {place.module for place in replacements} for place in parameters_of(module)]
    try:
        _put(replacements)
        yield
    finally:
        _put(originals)


def _put(places: Sequence[Place]) -> None:
    for module, name, tensor in places:
        parameter = cast(nn.Parameter, tensor)
        module._parameters[name] = parameter
        if isinstance(module, nn.RNNBase):  # which also has a list of its parameters
            module._flat_weights[module._flat_weights_names.index(name)] = parameter
