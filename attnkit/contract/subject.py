"""Subject of a contract, a mechanism with options in one role, and helpers of the contracts."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import mix
from attnkit.attention.mask import Mask
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.mechanisms import MechanismSpec

Role: TypeAlias = Literal["encoder", "decoder", "cross"]
ROLES: tuple[Role, ...] = ("encoder", "decoder", "cross")

WIDTH, HEADS, LONGEST = 24, 4, 600
"""Sizes of the layer; with head width 6 no two dimensions are equal by chance."""
QUERIES = 4
"""Default number of queries of cross-attention."""
EXACT = 1e-9
"""Maximum error in float64, relative to the largest value."""


class Broken(Exception):
    """A contract does not hold; `measured` is the error."""

    def __init__(self, text: str, measured: float = float("inf")) -> None:
        super().__init__(text)
        self.measured = measured


class NotApplicable(Exception):
    """A contract does not apply to this mechanism in this role."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A mechanism with options in one role.

    `build(cross, causal)` returns a layer of WIDTH, HEADS and LONGEST, or raises UsageError.
    """

    name: str
    role: Role
    facts: MechanismSpec
    build: Callable[[bool, bool], MultiHead]

    @classmethod
    def of(
        cls, mechanism: str, role: Role, options: Mapping[str, Any] | None = None, name: str = "", depth: int = 0
    ) -> Self:
        """Return the subject of a mechanism in layer `depth`. Raises UsageError if the name is unknown."""
        mechanism_options = dict(options or {})

        def build(cross: bool, causal: bool) -> MultiHead:
            return MultiHead.build(mechanism, WIDTH, HEADS, LONGEST, cross, depth, causal=causal, **mechanism_options)

        return cls(name or mechanism, role, mechanisms.resolve_capabilities(mechanism, mechanism_options), build)

    @property
    def causal(self) -> bool:
        """Whether the role masks later tokens."""
        return self.role == "decoder"

    def try_options(self) -> None:
        """Build the layer and discard it. Raises UsageError if options are invalid; other exceptions are ignored."""
        try:
            self.build(self.role == "cross", self.causal)
        except UsageError:
            raise
        except Exception:
            return

    @cached_property
    def layer(self) -> MultiHead:
        """The layer in float64 and evaluation mode; contracts must not modify it."""
        return self.make(seed=3).double()

    def make(self, seed: int) -> MultiHead:
        """Return a layer whose random parameters reveal errors: no zeros, scores of large variance."""
        torch.manual_seed(seed)
        layer = self.build(self.role == "cross", self.causal)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(1.5).add_(torch.randn_like(parameter) * 0.3)
        return layer.eval()

    def copy(self, dtype: torch.dtype = torch.float64) -> MultiHead:
        """Return a copy of the layer, which may be modified."""
        return copy.deepcopy(self.layer).to(dtype)

    def mask(self, valid: Bool[Tensor, "B S"], queries: int = QUERIES) -> Mask:
        """Return the general mask of the role; `queries` is used in cross-attention only."""
        if self.role == "cross":
            return Mask.cross(valid, queries)
        return Mask.of(valid, valid.shape[1], self.causal)

    def output(
        self,
        layer: MultiHead,
        x: Float[Tensor, "B S W"],
        valid: Bool[Tensor, "B S"],
        mask: Mask | None = None,
        queries: Float[Tensor, "B T W"] | None = None,
    ) -> Float[Tensor, "B T W"]:
        """Return the output for x; in cross-attention x is the memory of `queries`, which are random by default."""
        mask = self.mask(valid) if mask is None else mask
        if self.role != "cross":
            return layer(x, mask).y  # type: ignore[no-any-return]
        if queries is None:
            queries = inputs(x.shape[0], mask.q_pos.shape[1]).to(x.dtype)
        return layer(queries, mask, memory=x).y  # type: ignore[no-any-return]

    def real_outputs(
        self, layer: MultiHead, x: Tensor, valid: Tensor, mask: Mask | None = None
    ) -> Float[Tensor, "n W"]:
        """Return the result of `output` without padding, see `real_rows`."""
        return self.real_rows(self.output(layer, x, valid, mask), valid)

    def weights(self, x: Float[Tensor, "B S W"], mask: Mask, **options: Tensor) -> Tensor:
        """Return the attention maps [B, H, T, S] of `output`."""
        if self.role != "cross":
            return self.layer.weights(x, mask, **options)
        queries = inputs(x.shape[0], mask.q_pos.shape[1])
        return self.layer.weights(queries, mask, memory=x, **options)

    def apply_maps(self, maps: Float[Tensor, "B H T S"], x: Float[Tensor, "B S W"], mask: Mask) -> Tensor:
        """Return the output of the layer if its values are multiplied by these maps."""
        cross = self.role == "cross"
        queries = inputs(x.shape[0], maps.shape[2]) if cross else x
        values = self.layer.project(queries, mask, x if cross else None).v
        assert values is not None
        return self.layer.merged(mix(maps, values), queries, values)

    def real_rows(self, y: Tensor, valid: Tensor) -> Float[Tensor, "n W"]:
        """Return the outputs without padding; all of them in cross-attention."""
        return y.flatten(0, 1) if self.role == "cross" else y[valid]


def inputs(rows: int, length: int) -> Float[Tensor, "B T W"]:
    """Return random rows in float64, the same at each call."""
    generator = torch.Generator().manual_seed(1000 * rows + length)
    return torch.randn(rows, length, WIDTH, generator=generator, dtype=torch.float64)


def no_padding(rows: int, length: int) -> Bool[Tensor, "B T"]:
    """Return a mask without padding."""
    return torch.ones(rows, length, dtype=torch.bool)


def right_padded(*lengths: int) -> Bool[Tensor, "B S"]:
    """Return the mask of rows of these lengths, padded on the right."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def random_like(x: Tensor) -> Tensor:
    """Return random numbers of the shape of x, the same for each number of elements and dtype."""
    generator = torch.Generator().manual_seed(x.numel())
    return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)


def gradients(y: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients of a random linear function of y; None for leaves on which y does not depend."""
    return torch.autograd.grad((y * random_like(y)).sum(), leaves, allow_unused=True)


def close(actual: Tensor, expected: Tensor, location: str, tolerance: float = EXACT) -> float:
    """Return the maximum difference, divided by the maximum expected value if that is above 1.

    Raises Broken, with `location` in the message, if it exceeds `tolerance` or is NaN, or if shapes differ.
    """
    if actual.shape != expected.shape:
        raise Broken(f"{location}: the shape is {[*actual.shape]}, but must be {[*expected.shape]}")
    if actual.numel() == 0:
        return 0.0
    scale = max(1.0, expected.abs().max().item())
    error = (actual - expected).abs().max().item() / scale
    if not error <= tolerance:
        raise Broken(f"{location}: off by {error:.2g}, but at most {tolerance:.0e} is allowed", error)
    return error
