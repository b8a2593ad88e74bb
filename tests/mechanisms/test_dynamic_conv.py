"""Test of dynamic and lightweight convolution."""

from typing import Any

import pytest
import torch
from helpers.tensors import packed

from attnkit.layers import MultiHead


def kernel_logits(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the logits [B, H, T, window] of each token."""
    kernel = layer.mechanism.kernel
    if layer.q is None:
        return kernel[None, :, None].expand(x.shape[0], -1, x.shape[1], -1)
    return layer.q(x).unflatten(-1, (layer.heads, -1)).transpose(1, 2) @ kernel


@pytest.mark.sampled(7)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 5, 90])
@pytest.mark.parametrize("length", [1, 4, 70, 150])
def test_map_is_the_softmax_over_offsets_within_the_sequence(
    length: int, window: int, causal: bool, shared: bool
) -> None:
    torch.manual_seed(length)
    layer = MultiHead.build("dynamic-conv", 8, 2, 200, window=window, shared=shared).double()
    x = torch.randn(2, length, 8).double()
    logits, before = kernel_logits(layer, x), window - 1 if causal else window // 2
    scores = torch.full((2, 2, length, length), -torch.inf).double()
    for i in range(length):
        for offset in range(window):
            j = i + offset - before
            if 0 <= j < length:
                scores[:, :, i, j] = logits[:, :, i, offset]
    torch.testing.assert_close(layer.weights(x, packed(length, causal)), scores.softmax(-1))
