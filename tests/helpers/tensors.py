"""Random tensors, masks and gradients for tests of attention."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from attnkit.attention import Mask


def sequences(length: int, *widths: int, rows: int = 2, heads: int = 3) -> list[Tensor]:
    """Return a random tensor [rows, heads, length, width] for each width, in float64, seeded by the length."""
    generator = torch.Generator().manual_seed(length)
    shapes = ((rows, heads, length, width) for width in widths)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def trainable(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors as leaves that require gradients."""
    return [tensor.detach().requires_grad_() for tensor in tensors]


def packed(length: int, causal: bool = True, start: int = 0) -> Mask:
    """Return the mask of rows without padding."""
    return Mask.packed(length, torch.device("cpu"), causal=causal, start=start)


def valid_tokens(length: int, *pads: slice) -> Tensor:
    """Return which tokens are not padding, [rows, length]; each slice is the padding of a row."""
    valid = torch.ones(len(pads), length, dtype=torch.bool)
    for row, positions in zip(valid, pads, strict=True):
        row[positions] = False
    return valid


def with_gradients(outputs: Tensor | Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs, and the gradients of the sum of their sines."""
    outputs = [outputs] if isinstance(outputs, Tensor) else outputs
    total = torch.stack([output.sin().sum() for output in outputs]).sum()
    return [*outputs, *torch.autograd.grad(total, inputs)]


def assert_same_for_each(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    values: tuple[Any, Any],
    compute: Callable[[], Sequence[Tensor]],
    **tolerance: float,
) -> None:
    """Check that a function returns the same tensors for both values of a module's constant."""
    results = []
    for value in values:
        monkeypatch.setattr(module, name, value)
        results.append(compute())
    torch.testing.assert_close(*results, **tolerance)
