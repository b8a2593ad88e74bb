"""Linear systems of sums of outer products, one a token, solved by conjugate gradients on a CPU.

The matrix of token t is 1 + K_t, K_t = sum_j W_tj k_j k_j^T + s_t S. It is symmetric with eigenvalues of at least 1,
so a few steps reduce the residual to rounding error. No K_t is formed: the products of all K_t with their vectors are
two matrix products a chunk. Source of the method for these systems: von Oswald et al. 2025, "MesaNet", section 4. The
plain implementation is `mechanisms.mesa.solve_ridge`.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.ops.autograd import once_differentiable

STEPS, MORE = 24, 4
"""Maximum number of steps, after which `solution` returns None; gradients have MORE times as many, after which they
are solved exactly."""
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
            part = slice(start, start + size)
            own = [None if x is None else x[part] for x in self]
            x = Systems(*own)._solve(right[part], steps)  # type: ignore[arg-type]
            if x is None:
                return None
            blocks.append(x)
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def solve_exactly(self, right: Float[Tensor, "n C D"]) -> Float[Tensor, "n C D"]:
        """Return the solutions by forming 1 + K_t, [D, D] a token; NaN if the input is not finite."""
        identity, solutions = torch.eye(right.shape[2], dtype=right.dtype), list[Tensor]()
        for number, own in enumerate(right):
            keys = self.keys[number]
            squares = (self.weights[number] @ (keys.unsqueeze(2) * keys.unsqueeze(1)).flatten(1)).view(*keys.shape, -1)
            if self.since is not None and self.sums is not None:
                squares = squares + self.since[number].unsqueeze(2) * self.sums[number]
            # unchecked, as in the plain implementation
            solutions.append(torch.linalg.solve_ex(squares + identity, own.unsqueeze(2)).result.squeeze(2))
        return torch.stack(solutions)

    def _solve(self, right: Tensor, steps: int) -> Tensor | None:
        """Run conjugate gradients for all systems; stop when each residual is below eps times its right side."""
        tiny, eps = torch.finfo(right.dtype).tiny, torch.finfo(right.dtype).eps
        x, rest, along = torch.zeros_like(right), right.clone(), right
        size = rest.square().sum(-1, keepdim=True)
        enough = size * eps**2
        for _ in range(steps):
            if bool((size <= enough).all()):
                return x
            image = self.times(along)
            far = size / (along * image).sum(-1, keepdim=True).clamp_min_(tiny)  # solved systems have 0 / 0
            x.addcmul_(far, along)
            rest.addcmul_(far, image, value=-1)
            before, size = size, rest.square().sum(-1, keepdim=True)
            along = torch.addcmul(rest, size / before.clamp_min_(tiny), along)
        return None


def solution(systems: Systems, right: Float[Tensor, "n C D"]) -> Float[Tensor, "n C D"] | None:
    """Return the solutions, differentiably, or None if any needs more than STEPS steps."""
    with torch.no_grad():
        found = systems.solve(right, STEPS)
    if found is None or not torch.is_grad_enabled():
        return found
    y: Tensor = _Solution.apply(found, right, *systems)  # type: ignore[no-untyped-call]
    return y


class _Solution(torch.autograd.Function):
    """Gradient of x = A^-1 q: dq = A^-1 dx; the parts of A have the gradient of -<dq, A x> for constant dq and x."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, right: Tensor, *parts: Tensor | None) -> Tensor:
        ctx.save_for_backward(found, *parts)
        return found.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found, *parts = ctx.saved_tensors
        systems, tiny = Systems(*parts), torch.finfo(grad.dtype).tiny
        unit = grad.abs().amax(-1, keepdim=True).clamp_min_(tiny)  # squares of small gradients underflow
        by_right = systems.solve(grad / unit, MORE * STEPS)
        by_right = systems.solve_exactly(grad) if by_right is None else by_right * unit
        leaves = [None if x is None else x.detach().requires_grad_() for x in parts]
        with torch.enable_grad():
            y = Systems(*leaves).times(found)  # type: ignore[arg-type]
        grads = iter(torch.autograd.grad(y, [x for x in leaves if x is not None], -by_right))
        return None, by_right, *(None if x is None else next(grads) for x in leaves)
