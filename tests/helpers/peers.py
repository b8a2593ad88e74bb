"""Attention layers of other packages beside ours, with shared weights."""

import warnings
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from attnkit.layers import MultiHead

WIDTH, HEADS = 24, 4


def peer(module: str) -> ModuleType:
    """A module of another package, or a skip with the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own imports
        why = f"{module} is absent: install attnkit[test]"
        found: ModuleType = pytest.importorskip(module, reason=why)
        return found


def our_layer(word: str, heads: int = HEADS, bias: bool = False, **options: object) -> MultiHead:
    """A layer for 64 tokens in float64, in evaluation, the same one at every call."""
    torch.manual_seed(7)
    made = MultiHead.build(word, WIDTH, heads, 64, biases=bias, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.double().eval()


def share(layer: MultiHead, **theirs: nn.Linear) -> None:
    """Copy the projections q, k, v, o of our layer into those of a peer."""
    with torch.no_grad():
        for name, linear in theirs.items():
            own = getattr(layer, name)
            linear.weight.copy_(own.weight)
            if linear.bias is not None:
                linear.bias.copy_(own.bias if own.bias is not None else 0)


def tokens(rows: int, length: int) -> Tensor:
    """Random rows in float64, the same ones at every call."""
    generator = torch.Generator().manual_seed(length)
    return torch.randn(rows, length, WIDTH, generator=generator, dtype=torch.float64)


def no_padding(rows: int, length: int) -> Tensor:
    """No padding."""
    return torch.ones(rows, length, dtype=torch.bool)


def project_heads(x: Tensor, linear: nn.Linear | None) -> Tensor:
    """What a projection gives each head: [B, H, T, D]."""
    assert linear is not None
    return linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
