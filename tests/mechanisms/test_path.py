"""Path attention against its product of matrices, token by token."""

import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Mask
from attnkit.layers import MultiHead


def plain(q: Tensor, k: Tensor, gates: Tensor) -> Tensor:
    """The map [B, H, T, T] by a walk from each query back to each key."""
    w, strength = F.normalize(gates[..., :-1], dim=-1), 2 * gates[..., -1:].sigmoid()
    rows = torch.full((*q.shape[:3], q.shape[2]), -torch.inf, dtype=q.dtype)
    for i in range(q.shape[2]):
        seen = q[:, :, i] * q.shape[-1] ** -0.5
        for j in range(i, -1, -1):
            rows[:, :, i, j] = (seen * k[:, :, j]).sum(-1)
            along = (seen * w[:, :, j]).sum(-1, keepdim=True)
            seen = seen - strength[:, :, j] * along * w[:, :, j]
    return rows.softmax(-1)


def test_chunks_are_the_product_from_key_to_query() -> None:
    torch.manual_seed(0)
    layer = MultiHead.build("path", 24, 2, 200, causal=True).double()
    x = torch.randn(2, 150, 24).double()
    mask = Mask.packed(150, x.device, causal=True)
    q, k, _, gates, _ = layer.project(x, mask)
    assert q is not None
    assert k is not None
    assert gates is not None
    torch.testing.assert_close(layer.weights(x, mask), plain(q, k, gates))


def test_without_reflections_it_is_scaled_dot() -> None:
    torch.manual_seed(0)
    layer, other = (MultiHead.build(word, 8, 2, 99, causal=True) for word in ("path", "scaled-dot"))
    other.load_state_dict(layer.state_dict(), strict=False)
    assert layer.g is not None
    torch.nn.init.zeros_(layer.g.weight)
    torch.nn.init.constant_(layer.g.bias, -99.0)
    x = torch.randn(2, 70, 8)
    mask = Mask.packed(70, x.device, causal=True)
    torch.testing.assert_close(layer(x, mask).y, other(x, mask).y)
