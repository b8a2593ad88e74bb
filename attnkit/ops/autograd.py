"""Decorator for hand-written gradients that cannot be differentiated a second time."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make the `backward` of an autograd function raise RuntimeError under `create_graph=True`.

    torch's decorator of the same name raises only if the second derivative passes through this function alone: with
    another path to the same input, `torch.autograd.grad` silently omits the contribution of this function.
    """

    @wraps(backward)
    def first_only(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():  # in a backward pass: only under create_graph=True
            raise RuntimeError(
                "attnkit's fast paths have no second derivatives: call backward without create_graph=True"
            )
        return backward(ctx, *grads)

    return first_only
