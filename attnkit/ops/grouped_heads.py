"""Neighbouring query heads that share a head of keys and values: products without copies, and copies."""

import torch
from jaxtyping import Float
from torch import Tensor


def repeat_heads(x: Float[Tensor, "B G S D"], heads: int) -> Float[Tensor, "B H S D"]:
    """Keys or values once for each of so many query heads; as they are where each head has its own."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def dot_scores(q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G S D"]) -> Float[Tensor, "B H T S"]:
    """q k^T, where H / G neighbouring query heads share each head of keys; keys are not copied."""
    if k.shape[1] == q.shape[1]:
        return q @ k.transpose(-1, -2)
    scores = torch.unflatten(q, 1, (k.shape[1], -1)).flatten(2, 3) @ k.transpose(-1, -2)
    return torch.unflatten(scores, 2, (-1, q.shape[2])).flatten(1, 2)  # from [B, G, H/G T, S]


def mix(weights: Float[Tensor, "b H T S"], v: Float[Tensor, "B G S E"]) -> Float[Tensor, "B H T E"]:
    """Weights times values, where H / G neighbouring heads share each head of values."""
    if v.shape[1] == weights.shape[1]:
        return weights @ v
    y = torch.unflatten(weights, 1, (v.shape[1], -1)).flatten(2, 3) @ v
    return torch.unflatten(y, 2, (-1, weights.shape[2])).flatten(1, 2)  # from [B, G, H/G T, E]


def value_gradient(
    weights: Float[Tensor, "b H T S"], grad: Float[Tensor, "B H T E"], heads: int
) -> Float[Tensor, "B G S E"]:
    """The gradient of the values in `mix`, which have so many heads."""
    if heads != weights.shape[1]:
        weights, grad = (torch.unflatten(x, 1, (heads, -1)).flatten(2, 3) for x in (weights, grad))
    return weights.transpose(-1, -2) @ grad
