"""Systems of sums of outer products, one for each token, by conjugate gradients and on a CPU.

The system of token t is 1 + K_t, K_t = sum_j W_tj k_j k_j^T + s_t S, symmetric with eigenvalues of
at least 1, so a few steps bring the residual to rounding, and no K_t is formed: products of all
tokens are two matrix products a chunk.  Source of the method for these systems: von Oswald et al.
2025, "MesaNet", section 4.  The plain form is `mechanisms.mesa.fitted`.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.ops.autograd import once_differentiable

STEPS, MORE = 24, 4
"""Steps within which systems are solved or left to another method; times more for gradients,
which are solved exactly where these do not suffice either."""
BLOCK = 2**17
"""Weights of a block of chunks, which goes through all steps while it is in the cache."""


class Systems(NamedTuple):
    """Those of the tokens of chunks."""

    keys: Float[Tensor, "n C D"]
    weights: Float[Tensor, "n C C"]
    since: Float[Tensor, "n C 1"] | None = None
    sums: Float[Tensor, "n D D"] | None = None

    def times(self, x: Float[Tensor, "n C D"]) -> Float[Tensor, "n C D"]:
        """Each system times the vector of its token."""
        y = torch.baddbmm(x, torch.bmm(x, self.keys.mT) * self.weights, self.keys)
        return y if self.since is None or self.sums is None else torch.baddbmm(y, x * self.since, self.sums)

    def solve(self, right: Float[Tensor, "n C D"], steps: int) -> Float[Tensor, "n C D"] | None:
        """The solutions, None where they need more steps than these."""
        blocks, size = list[Tensor](), max(1, BLOCK // self.weights[0].numel())
        for start in range(0, len(right), size):
            part = slice(start, start + size)
            own = [None if x is None else x[part] for x in self]
            x = Systems(*own)._solve(right[part], steps)  # type: ignore[arg-type]
            if x is None:
                return None
            blocks.append(x)
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def solve_exactly(self, right: Float[Tensor, "n C D"]) -> Float[Tensor, "n C D"]:
        """The solutions by a system of D equations for each token; NaN where numbers are not finite."""
        identity, solutions = torch.eye(right.shape[2], dtype=right.dtype), list[Tensor]()
        for number, own in enumerate(right):
            keys = self.keys[number]
            squares = (self.weights[number] @ (keys.unsqueeze(2) * keys.unsqueeze(1)).flatten(1)).view(*keys.shape, -1)
            if self.since is not None and self.sums is not None:
                squares = squares + self.since[number].unsqueeze(2) * self.sums[number]
            # unchecked, as the plain form
            solutions.append(torch.linalg.solve_ex(squares + identity, own.unsqueeze(2)).result.squeeze(2))
        return torch.stack(solutions)

    def _solve(self, right: Tensor, steps: int) -> Tensor | None:
        tiny, eps = torch.finfo(right.dtype).tiny, torch.finfo(right.dtype).eps
        x, rest, along = torch.zeros_like(right), right.clone(), right
        size = rest.square().sum(-1, keepdim=True)
        enough = size * eps**2
        for _ in range(steps):
            if bool((size <= enough).all()):
                return x
            image = self.times(along)
            far = size / (along * image).sum(-1, keepdim=True).clamp_min_(tiny)
            x.addcmul_(far, along)
            rest.addcmul_(far, image, value=-1)
            before, size = size, rest.square().sum(-1, keepdim=True)
            along = torch.addcmul(rest, size / before.clamp_min_(tiny), along)
        return None


def solution(systems: Systems, right: Float[Tensor, "n C D"]) -> Float[Tensor, "n C D"] | None:
    """The solutions with their gradients, or None where they need another method."""
    with torch.no_grad():
        found = systems.solve(right, STEPS)
    if found is None or not torch.is_grad_enabled():
        return found
    y: Tensor = _Solution.apply(found, right, *systems)  # type: ignore[no-untyped-call]
    return y


class _Solution(torch.autograd.Function):
    """The gradient of A^-1 q is g = A^-1 dx for q, and that of -g A x for what A is made of."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, right: Tensor, *parts: Tensor | None) -> Tensor:
        ctx.save_for_backward(found, *parts)
        return found.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found, *parts = ctx.saved_tensors
        systems, tiny = Systems(*parts), torch.finfo(grad.dtype).tiny
        unit = grad.abs().amax(-1, keepdim=True).clamp_min_(tiny)  # squares of small numbers would be 0
        by_right = systems.solve(grad / unit, MORE * STEPS)
        by_right = systems.solve_exactly(grad) if by_right is None else by_right * unit
        leaves = [None if x is None else x.detach().requires_grad_() for x in parts]
        with torch.enable_grad():
            y = Systems(*leaves).times(found)  # type: ignore[arg-type]
        grads = iter(torch.autograd.grad(y, [x for x in leaves if x is not None], -by_right))
        return None, by_right, *(None if x is None else next(grads) for x in leaves)
