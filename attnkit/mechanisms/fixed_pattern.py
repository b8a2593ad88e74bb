"""Fixed patterns: A is a function of positions and of the number of tokens; nothing is learned.

`patterns` names one pattern per head; heads cycle through the list. With i the position of the query, j that of a
key, and n the number of tokens visible to the query:

- previous, current, next: all weight on j = i - 1, i, i + 1
- left: (j + 1)^3 over j <= i - 2, the wider context, with more weight on nearer tokens
- right: its mirror image, (n - j)^3 over j >= i + 2
- start, end: (n - j)^3 and (j + 1)^3 over all tokens
- first, last: all weight on j = 0, n - 1

If there is no such token, the nearest visible one gets the weight: `previous` of the first token is that token. By
default the heads take previous, current, next, left, right, start, end; in a layer built as causal previous, current,
left, start. A causal layer refuses next, right and last by name, because there they could only be `current`; if the
defaults meet a causal mask in a layer that was not built as causal, they select the token itself, so nothing leaks.
Source: Raganato et al. 2020, "Fixed Encoder Self-Attention Patterns in Transformer-Based Machine Translation", section
3, whose eighth head is learned; here all are fixed.

Worked number: three tokens. The weights of `start` are 27, 8, 1 in 36, those of `end` 1, 8, 27 in 36; `left` of the
third token has all weight on the first.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnkit.attention import Mask, Scored, Shape, one_head
from attnkit.errors import UsageError

BOTH_WAYS = ("previous", "current", "next", "left", "right", "start", "end")
BACKWARD = ("previous", "current", "left", "start")
PATTERNS = (*BOTH_WAYS, "first", "last")


def support(name: str, i: Tensor, j: Tensor, n: Tensor) -> Bool[Tensor, "b T S"]:
    """Return which keys j a pattern weights, for queries i with n visible tokens."""
    match name:
        case "previous":
            return j == (i - 1).clamp_min(0)
        case "current":
            return j == i
        case "next":
            return j == torch.minimum(i + 1, n - 1)
        case "left":
            return j <= (i - 2).clamp_min(0)
        case "right":
            return j >= torch.minimum(i + 2, n - 1)
        case "first":
            return j == 0
        case "last":
            return j == n - 1
    return j < n


def base(name: str, j: Tensor, n: Tensor) -> Tensor | None:
    """Return the number whose cube is the weight of key j, or None if all weights are equal."""
    if name in ("left", "end"):
        return j + 1
    return (n - j).clamp_min(1) if name in ("right", "start") else None  # keys beyond n are masked


def places(mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
    """Return positions of queries [b, T, 1] and keys [b, 1, S], and the number of visible tokens [b, T, 1]."""
    return mask.q_pos[:, :, None], mask.k_pos[:, None, :], mask.visible()[:, 0, :, None]


class FixedPattern(Scored):
    """Weights that depend on positions alone; cost T*S*E, no queries, no keys."""

    uses = "v"
    cross = False
    positions = ()
    cost = "T*S*D"
    why = "its patterns are functions of the positions in one sequence"
    dtype_reference: Tensor
    ahead = {"patterns": ("next", "right", "last")}

    def __init__(
        self,
        shape: Shape,
        *,
        patterns: tuple[Literal["previous", "current", "next", "left", "right", "start", "end", "first", "last"], ...]
        | None = None,
    ) -> None:
        super().__init__(shape)
        defaults = BACKWARD if shape.causal else BOTH_WAYS
        cycle: tuple[str, ...] = defaults if patterns is None else tuple(patterns)
        unknown = next((name for name in cycle if name not in PATTERNS), None)
        if unknown is not None or not cycle:
            got = "none" if unknown is None else repr(unknown)
            raise UsageError(f"fixed-pattern: patterns must be among {', '.join(PATTERNS)}, got {got}")
        self.patterns = tuple(cycle[head % len(cycle)] for head in range(shape.heads))
        # has the dtype to compute in
        self.register_buffer("dtype_reference", torch.ones(()), persistent=False)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "b H T S"]:
        """Return the logarithms of the weights, up to a constant per row."""
        i, j, n = places(mask)
        dtype, by_name = torch.promote_types(self.dtype_reference.dtype, torch.float32), {}
        for name in set(self.patterns):
            root = base(name, j, n)
            logarithm = torch.zeros_like(j, dtype=dtype) if root is None else root.to(dtype).log()
            by_name[name] = (3 * logarithm).expand(n.shape[0], i.shape[1], j.shape[2])  # log of cube
        return torch.stack([by_name[name] for name in self.patterns], 1)

    def allowed(self, mask: Mask) -> Bool[Tensor, "b H T S"]:
        """Return the visible tokens to which the pattern of each head gives weight."""
        i, j, n = places(mask)
        shape = (n.shape[0], i.shape[1], j.shape[2])
        by_name = {name: support(name, i, j, n).expand(shape) for name in set(self.patterns)}
        return torch.stack([by_name[name] for name in self.patterns], 1) & mask.dense()

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        shape = Shape(heads=3, head_width=1, max_length=3)
        mechanism = cls(shape, patterns=("start", "end", "left")).double()
        v = torch.zeros(1, 3, 3, 1, dtype=torch.float64)
        maps = mechanism.weights(None, None, v, Mask.packed(3, v.device, causal=False))
        cubes = one_head((27, 8, 1), (1, 8, 27), (36, 0, 0)) / 36
        return maps[:, :, 2], cubes[0]
