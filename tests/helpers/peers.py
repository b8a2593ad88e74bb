"""Attention layers of other packages, with the weights of ours."""

import warnings
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from attnkit.attention import Mask
from attnkit.layers import MultiHead

WIDTH, HEADS = 24, 4


def peer(module: str) -> ModuleType:
    """Import a module of another package, or skip the test with the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from its own imports
        return pytest.importorskip(module, reason=f"{module} is absent: install attnkit[test]")


def our_layer(word: str, heads: int = HEADS, bias: bool = False, **options: object) -> MultiHead:
    """Return a layer for at most 64 tokens in float64, in evaluation mode, with the same weights in every call."""
    torch.manual_seed(7)
    layer = MultiHead.build(word, WIDTH, heads, 64, biases=bias, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return layer.double().eval()


def share(layer: MultiHead, **theirs: nn.Linear) -> None:
    """Copy the projections q, k, v, o of our layer into those of a peer."""
    with torch.no_grad():
        for name, linear in theirs.items():
            own = getattr(layer, name)
            linear.weight.copy_(own.weight)
            if linear.bias is not None:
                linear.bias.copy_(own.bias if own.bias is not None else 0)


def tokens(rows: int, length: int) -> Tensor:
    """Return random inputs in float64, the same in every call."""
    generator = torch.Generator().manual_seed(length)
    return torch.randn(rows, length, WIDTH, generator=generator, dtype=torch.float64)


def no_padding(rows: int, length: int, causal: bool = False) -> Mask:
    """Return the mask of rows without padding."""
    return Mask.of(torch.ones(rows, length, dtype=torch.bool), length, causal=causal)


def project_heads(layer: MultiHead, x: Tensor) -> tuple[Tensor, ...]:
    """Return queries, keys and values of each head: [B, H, T, D]."""
    return tuple(linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in (layer.q, layer.k, layer.v))
