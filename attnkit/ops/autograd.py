"""Hand-written gradients that cannot be differentiated again."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the `backward` of an autograd function whose result must not be differentiated again.

    Torch's own mark fails only where a second derivative passes through this function alone: with
    another path to the same input, `torch.autograd.grad` leaves this one's share out in silence.
    Raises RuntimeError under `create_graph=True`.
    """

    @wraps(backward)
    def first_only(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():  # in a backward pass, only under create_graph=True
            raise RuntimeError(
                "attnkit's fast paths are differentiable once: create_graph=True (second"
                " derivatives) does not pass through them; call backward without it"
            )
        return backward(ctx, *grads)

    return first_only
