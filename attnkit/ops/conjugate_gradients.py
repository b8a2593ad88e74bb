"""Linear systems of sums of outer products, one per token, solved by conjugate gradients on a CPU.

The matrix of token t is 1 + K_t, K_t = sum_j W_tj k_j k_j^T + s_t S. It is symmetric with eigenvalues of at least 1,
so a few steps reduce the residual to rounding error. No K_t is formed: the products of all K_t with their vectors are
two matrix products per chunk. Source of the method for these systems: von Oswald et al. 2025, "MesaNet", section 4.
The plain implementation is `mechanisms.mesa.solve_ridge`.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.ops.autograd import once_differentiable

STEPS, GRADIENT_FACTOR = 24, 4
"""Maximum number of steps, after which `solution` returns None; for gradients GRADIENT_FACTOR times as
many, after which they are solved exactly."""
BLOCK = 2**17
"""Number of weights W of a block of chunks, which does all steps while it is in the cache."""


class Systems(NamedTuple):
    """The systems of all tokens of n chunks of C tokens: keys k, weights W, s (`since`) and S (`sums`)."""

    keys: Float[Tensor, "n C D"]
    weights: Float[Tensor, "n C C"]
    since: Float[Tensor, "n C 1"] | None = None
    sums: Float[Tensor, "n D D"] | None = None

    def times(self, x: Float[Tensor, "n C D"]) -> Float[Tensor, "n C D"]:
        """Return (1 + K_t) x_t for each token t."""
        # sum_j W_tj k_j (k_j x_t) of all t at once, without K_t
        y = torch.baddbmm(x, torch.bmm(x, self.keys.mT) * self.weights, self.keys)
        return y if self.since is None or self.sums is None else torch.baddbmm(y, x * self.since, self.sums)

    def solve(self, right: Float[Tensor, "n C D"], steps: int) -> Float[Tensor, "n C D"] | None:
        """Return the solutions, or None if any needs more than the given number of steps."""
        blocks, size = list[Tensor](), max(1, BLOCK // self.weights[0].numel())
        for start in range(0, len(right), size):
            block = slice(start, start + size)
            block_parts = [None if x is None else x[block] for x in self]
            x = Systems(*block_parts)._solve(right[block], steps)  # type: ignore[arg-type]
            if x is None:
                return None
            blocks.append(x)
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def solve_exactly(self, right: Float[Tensor, "n C D"]) -> Float[Tensor, "n C D"]:
        """Return the solutions by forming 1 + K_t, [D, D] per token; NaN if the input is not finite."""
        identity, solutions = torch.eye(right.shape[2], dtype=right.dtype), list[Tensor]()
        for index, token_right in enumerate(right):
            keys = self.keys[index]
            sums = (self.weights[index] @ (keys.unsqueeze(2) * keys.unsqueeze(1)).flatten(1)).view(*keys.shape, -1)
            if self.since is not None and self.sums is not None:
                sums = sums + self.since[index].unsqueeze(2) * self.sums[index]
            # unchecked, as in the plain implementation
            solutions.append(torch.linalg.solve_ex(sums + identity, token_right.unsqueeze(2)).result.squeeze(2))
        return torch.stack(solutions)

    def _solve(self, right: Tensor, steps: int) -> Tensor | None:
        """Run conjugate gradients until each residual is at most eps times its right side; None after `steps`."""
        tiny, eps = torch.finfo(right.dtype).tiny, torch.finfo(right.dtype).eps
        x, residual, direction = torch.zeros_like(right), right.clone(), right
        squared = residual.square().sum(-1, keepdim=True)
        tolerance = squared * eps**2
        for _ in range(steps):
            if bool((squared <= tolerance).all()):
                return x
            product = self.times(direction)
            step = squared / (direction * product).sum(-1, keepdim=True).clamp_min_(tiny)  # solved systems have 0 / 0
            x.addcmul_(step, direction)
            residual.addcmul_(step, product, value=-1)
            before, squared = squared, residual.square().sum(-1, keepdim=True)
            direction = torch.addcmul(residual, squared / before.clamp_min_(tiny), direction)
        return None


def solution(systems: Systems, right: Float[Tensor, "n C D"]) -> Float[Tensor, "n C D"] | None:
    """Return the solutions, differentiably, or None if any needs more than STEPS steps."""
    with torch.no_grad():
        x = systems.solve(right, STEPS)
    if x is None or not torch.is_grad_enabled():
        return x
    y: Tensor = _Solution.apply(x, right, *systems)  # type: ignore[no-untyped-call]
    return y


class _Solution(torch.autograd.Function):
    """Gradient of x = A^-1 q: dq = A^-1 dx; the parts of A have the gradient of -<dq, A x> for constant dq and x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, right: Tensor, *parts: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, *parts)
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *parts = ctx.saved_tensors
        systems, tiny = Systems(*parts), torch.finfo(grad.dtype).tiny
        scale = grad.abs().amax(-1, keepdim=True).clamp_min_(tiny)  # squares of small gradients underflow
        dright = systems.solve(grad / scale, GRADIENT_FACTOR * STEPS)
        dright = systems.solve_exactly(grad) if dright is None else dright * scale
        leaves = [None if part is None else part.detach().requires_grad_() for part in parts]
        with torch.enable_grad():
            y = Systems(*leaves).times(x)  # type: ignore[arg-type]
        grads = iter(torch.autograd.grad(y, [leaf for leaf in leaves if leaf is not None], -dright))
        return None, dright, *(None if leaf is None else next(grads) for leaf in leaves)
