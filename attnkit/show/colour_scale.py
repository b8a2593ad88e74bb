"""From weights to shares of a colour map, with the limits that its bar shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Scale = Literal["linear", "log", "row"]
SCALES: tuple[Scale, ...] = ("linear", "log", "row")
FLOOR = 1e-3  # the logarithmic scale starts here: smaller weights, 0 and negative ones look like it

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Scaled:
    """Weights as shares of a colour map, and what its two ends stand for."""

    values: Float[Array, "... T S"]  # from 0 to 1; of signed weights 0.5 is none
    low: float
    high: float
    scale: Scale
    signed: bool = False
    notes: tuple[str, ...] = ()
    """What a reader must know about values that lie outside or were changed."""

    @property
    def middle(self) -> float:
        """The share that is no weight at all."""
        return 0.5 if self.signed else 0.0


def limits(weights: Sequence[NDArray[np.floating]], signed: bool = False) -> tuple[float, float]:
    """One range for several maps: from 0, or the lowest where it is negative, to the highest.

    Signed weights get a range with 0 in its middle.  A range is never empty: (0, 1) for no
    weights or zeros alone.
    """
    low = high = 0.0
    for part in map(np.asarray, weights):
        finite = np.isfinite(part)
        low = min(low, float(part.min(initial=0, where=finite)))
        high = max(high, float(part.max(initial=0, where=finite)))
    if signed:
        reach = max(-low, high) or 1.0
        return -reach, reach
    return low, high if high > low else low + 1.0


def scaled(
    weights: Float[Array, "... T S"],
    scale: Scale = "linear",
    *,
    signed: bool = False,
    bounds: tuple[float, float] | None = None,
) -> Scaled:
    """Weights on a scale.

    Args:
        weights: any numbers; effective maps have negative ones and ones above 1.
        scale: "linear"; "log", from FLOOR up; "row", each row from 0 to its own maximum.
        signed: differences: 0 is in the middle, and each side is drawn by its magnitude.
        bounds: the range of values, for several maps with one colour bar; default: `limits`.
    """
    finite = np.isfinite(weights)
    clean = np.where(finite, weights, 0).astype(np.float64)
    notes = [] if finite.all() else [f"{np.sum(~finite):,} values are not finite: drawn as 0"]
    low, high = bounds or limits([clean], signed)
    if scale == "linear":
        values = (clean - low) / (high - low)
        return Scaled(_unit(values), low, high, scale, signed, tuple(notes))
    if not signed and clean.size and clean.min() < 0:
        lowest = f"{FLOOR:g}" if scale == "log" else "0"
        notes.append(f"negative weights (lowest {clean.min():.2g}) are drawn as {lowest}")
    size = np.abs(clean) if signed else np.maximum(clean, 0)
    if scale == "log":
        high = max(high, 10 * FLOOR)
        share = np.log(np.maximum(size, FLOOR) / FLOOR) / np.log(high / FLOOR)
        notes.insert(0, f"{'magnitudes' if signed else 'weights'} below {FLOOR:g} look like it")
        low = -high if signed else FLOOR
    else:
        top = size.max(-1, keepdims=True, initial=0)
        share = np.divide(size, top, out=np.zeros_like(size), where=top > 0)
        low, high = (-1.0 if signed else 0.0), 1.0
    values = 0.5 + np.sign(clean) * share / 2 if signed else share
    return Scaled(_unit(values), low, high, scale, signed, tuple(notes))


def pooled(
    values: Float[Array, "*maps T S"], rows: int, columns: int, middle: float = 0.0
) -> Float[Array, "*maps _ _"]:
    """Blocks of `rows` x `columns` values as one each: the value farthest from `middle`."""
    if not values.size:
        return values

    def blocks(function: np.ufunc) -> Array:
        found = values
        for axis, size in ((-2, rows), (-1, columns)):
            if size > 1:
                found = function.reduceat(found, np.arange(0, found.shape[axis], size), axis)
        return found

    high = blocks(np.maximum)
    if values.min() >= middle:
        return high
    low = blocks(np.minimum)
    return np.where(middle - low > high - middle, low, high)


def _unit(values: NDArray[np.float64]) -> Array:
    return np.clip(values, 0, 1).astype(np.float32)
