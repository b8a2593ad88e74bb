"""Dynamic and lightweight convolution."""

import pytest
import torch

from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.mechanisms.dynamic_conv import DynamicConv


def kernels(layer: MultiHead, x: torch.Tensor) -> torch.Tensor:
    """The logits [B, H, T, window] of each token."""
    mechanism = layer.mechanism
    assert isinstance(mechanism, DynamicConv)
    if layer.q is None:
        return mechanism.kernel[None, :, None].expand(x.shape[0], -1, x.shape[1], -1)
    q = torch.unflatten(layer.q(x), -1, (layer.heads, -1)).transpose(1, 2)
    return q @ mechanism.kernel


@pytest.mark.sampled(7)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 5, 90])
@pytest.mark.parametrize("length", [1, 4, 70, 150])
def test_the_map_is_the_softmax_over_offsets_within_the_text(
    length: int, window: int, causal: bool, shared: bool
) -> None:
    torch.manual_seed(length)
    layer = MultiHead.build("dynamic-conv", 8, 2, 200, window=window, shared=shared).double()
    x = torch.randn(2, length, 8).double()
    logits, before = kernels(layer, x), window - 1 if causal else window // 2
    dense = torch.full((2, 2, length, length), -torch.inf).double()
    for i in range(length):
        for o in range(window):
            j = i + o - before
            if 0 <= j < length:
                dense[:, :, i, j] = logits[:, :, i, o]
    mask = Mask.packed(length, x.device, causal=causal)
    torch.testing.assert_close(layer.weights(x, mask), dense.softmax(-1))
