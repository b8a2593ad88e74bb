"""Grouped-query attention: products of H query heads with G heads of keys and values, without copies of the latter.

H / G consecutive query heads share a head of keys and values; they become further queries of it, [B, G, H/G T, D].
"""

import torch
from jaxtyping import Float
from torch import Tensor


def repeat_heads(x: Float[Tensor, "B G S D"], heads: int) -> Float[Tensor, "B H S D"]:
    """Return keys or values repeated for each query head; without a copy if G = H."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def dot_scores(q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G S D"]) -> Float[Tensor, "B H T S"]:
    """Return q k^T without copying keys."""
    if k.shape[1] == q.shape[1]:
        return q @ k.transpose(-1, -2)
    scores = torch.unflatten(q, 1, (k.shape[1], -1)).flatten(2, 3) @ k.transpose(-1, -2)
    return torch.unflatten(scores, 2, (-1, q.shape[2])).flatten(1, 2)  # from [B, G, H/G T, S]


def mix(weights: Float[Tensor, "b H T S"], v: Float[Tensor, "B G S E"]) -> Float[Tensor, "B H T E"]:
    """Return weights times values, without copying values."""
    if v.shape[1] == weights.shape[1]:
        return weights @ v
    y = torch.unflatten(weights, 1, (v.shape[1], -1)).flatten(2, 3) @ v
    return torch.unflatten(y, 2, (-1, weights.shape[2])).flatten(1, 2)  # from [B, G, H/G T, E]


def value_gradient(
    weights: Float[Tensor, "b H T S"], grad: Float[Tensor, "B H T E"], heads: int
) -> Float[Tensor, "B G S E"]:
    """Return the gradient of the values of `mix`, which have `heads` heads."""
    if heads != weights.shape[1]:
        weights, grad = (torch.unflatten(x, 1, (heads, -1)).flatten(2, 3) for x in (weights, grad))
    return weights.transpose(-1, -2) @ grad
