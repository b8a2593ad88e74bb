"""Attention with feature maps by its formula: all similarities at once, in float64."""

import torch
from torch import Tensor
from torch.nn import functional as F


def similarities(name: str, q: Tensor, k: Tensor, projection: Tensor | None = None) -> Tensor:
    """Return phi(q) phi(k) for every pair, [B, H, T, S], up to a factor for each query."""
    if name == "elu":
        return (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)
    if name == "taylor":
        return 1 + F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)
    if name == "exp":
        return q.exp() @ k.exp().transpose(-1, -2)
    if name == "softmax":
        return q.softmax(-1) @ k.exp().transpose(-1, -2)
    q, k = (x * x.shape[-1] ** -0.25 for x in (q, k))
    along_q, along_k = q @ projection.T, k @ projection.T
    if name == "relu":
        return (along_q.relu() + 1e-3) @ (along_k.relu() + 1e-3).transpose(-1, -2)
    norms = (q.square().sum(-1)[..., None] + k.square().sum(-1)[..., None, :]) / 2
    pairs = along_q.exp() @ along_k.exp().transpose(-1, -2)
    if name == "hyperbolic":
        pairs = pairs + (-along_q).exp() @ (-along_k).exp().transpose(-1, -2)
    return pairs * (-norms).exp()


def attend(pairs: Tensor, v: Tensor, valid: Tensor, *, causal: bool) -> Tensor:
    """Return values weighted by normalized similarities; 0 for a query that sees no key."""
    visible = valid[:, None, None, :]
    if causal:
        visible = visible & torch.ones(pairs.shape[-2:], dtype=torch.bool).tril()
    pairs = pairs.masked_fill(~visible, 0)
    total = pairs.sum(-1, keepdim=True)
    return pairs / total.masked_fill(total == 0, 1) @ v
