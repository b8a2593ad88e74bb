"""Color maps, and weights scaled to positions on them, from 0 to 1; colors are 8-bit sRGB `[..., 3]`.

The colors are defined here because terminals and pages need them without matplotlib.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

Palette = Literal["sequential", "diverging"]
"""Diverging colors are for values on both sides of 0; their neutral middle is at 0.5."""

CONTEXT_COLORS = ("77aadd", "ee8866", "eedd88", "44bb99", "ffaabb", "99ddff", "bbcc33", "aaaa00")
"""Background colors of contexts under black text, distinct also for color-blind readers: the light scheme of Tol
2021, "Color schemes" (SRON/EPS/TN/09-002), without its gray."""

STEPS = 256
SHADES = " ░▒▓█"

# Steps (0 to 255) and their colors, interpolated linearly. The sequential map is within 3/255 of cividis (Nunez,
# Anderton, Renslow 2018, PLoS ONE 13(7): e0199239); its lightness increases at each of the 256 steps, also after
# rounding to 8 bits.
_ANCHORS: dict[Palette, str] = {
    "sequential": (
        "0:00234f 20:003070 23:013270 28:11356f 44:2e416d 86:585d6d 134:82807a 151:928d77 "
        "191:bbaf6e 219:d9c75d 233:e8d44f 244:f4df40 251:ffe335 255:fce838"
    ),
    # Blue to orange (distinct under every common color blindness) over a light gray; both sides have the same CIELAB
    # lightness: 94, 80, 66, 52, 38.
    "diverging": ("0:016089 32:0584bb 64:3aaae8 96:a0ccef 127.5:eeeeee 159:ebbda4 191:d98f64 223:c06228 255:973f00"),
}


@cache
def table(palette: Palette = "sequential") -> UInt8[NDArray[np.uint8], "256 3"]:
    """Return the colors of the values 0, 1/255, ..., 1 (read-only)."""
    anchors = [anchor.split(":") for anchor in _ANCHORS[palette].split()]
    places = [float(place) for place, _ in anchors]
    colors = np.array([list(bytes.fromhex(color)) for _, color in anchors], np.float64)
    channels = [np.interp(np.arange(STEPS), places, channel) for channel in colors.T]
    out: NDArray[np.uint8] = np.round(np.stack(channels, -1)).astype(np.uint8)
    out.flags.writeable = False
    return out


def steps(values: Float[NDArray[np.floating], "..."]) -> UInt8[NDArray[np.uint8], "..."]:
    """Return the indices into `table` of values from 0 to 1; other values are clipped."""
    return np.asarray(np.round(np.clip(values, 0, 1) * (STEPS - 1)), np.uint8)


def shades(values: Float[NDArray[np.floating], "..."]) -> NDArray[np.str_]:
    """Return a character for each value from 0 to 1, denser for higher values; other values are clipped."""
    ramp = np.array(list(SHADES))
    places = np.clip(np.asarray(values, np.float64), 0, 1) * len(ramp)
    return ramp[np.minimum(places.astype(np.int64), len(ramp) - 1)]


Scale = Literal["linear", "log", "row"]
FLOOR = 1e-3  # start of the logarithmic scale; smaller and negative weights are shown as this weight
NEGATIVE_SHARE = 0.05
"""Weights get diverging colors if the lowest is below minus this share of the highest.  Effective maps of the delta
rule, for example, have such weights: sequential colors would show a hidden cell, 0, as a high weight."""

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Scaled:
    """Weights as positions on a color map, and the weights at its ends."""

    values: Float[Array, "... T S"]  # from 0 to 1; 0.5 is 0 in diverging colors
    low: float
    high: float
    scale: Scale = "linear"
    notes: tuple[str, ...] = ()
    """Notes about values outside the range and replaced values."""

    @property
    def palette(self) -> Palette:
        """Diverging colors if 0 is in the middle of the range, otherwise sequential colors."""
        return "diverging" if self.low == -self.high else "sequential"


def limits(weights: Sequence[NDArray[np.floating]], signed: bool = False) -> tuple[float, float]:
    """Return one range for several maps: from 0, or the lowest if it is negative, to the highest.

    Signed weights, and weights that reach NEGATIVE_SHARE, get a range with 0 in its middle.  A range is never
    empty: it is (0, 1) for no weights or zeros alone.
    """
    low = high = 0.0
    for part in map(np.asarray, weights):
        finite = np.isfinite(part)
        low = min(low, float(part.min(initial=0, where=finite)))
        high = max(high, float(part.max(initial=0, where=finite)))
    if signed or -low > NEGATIVE_SHARE * high:
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
    """Return the weights as positions on a color map.

    Args:
        weights: any numbers; effective maps have negative weights, and weights above 1.
        scale: "linear"; "log", from FLOOR up; "row", each row from 0 to its own maximum.
        signed: whether the weights are differences, on a linear scale with 0 in the middle.
        bounds: range of the weights, for maps that share a color bar; None: `limits` of these weights.
    """
    finite = np.isfinite(weights)
    clean = np.where(finite, weights, 0).astype(np.float64)
    notes = [] if finite.all() else [f"{np.sum(~finite):,} values are not finite: drawn as 0"]
    low, high = bounds or limits([clean], signed)
    if scale == "linear":
        return Scaled(_unit((clean - low) / (high - low)), low, high, notes=tuple(notes))
    if clean.size and clean.min() < 0:
        lowest = f"{FLOOR:g}" if scale == "log" else "0"
        notes.append(f"negative weights (lowest {clean.min():.2g}) are drawn as {lowest}")
    size = np.maximum(clean, 0)
    if scale == "log":
        low, high = FLOOR, max(high, 10 * FLOOR)
        share = np.log(np.maximum(size, FLOOR) / FLOOR) / np.log(high / FLOOR)
        notes.insert(0, f"weights below {FLOOR:g} are drawn as {FLOOR:g}")
    else:
        low, high = 0.0, 1.0
        top = size.max(-1, keepdims=True, initial=0)
        share = np.divide(size, top, out=np.zeros_like(size), where=top > 0)
    return Scaled(_unit(share), low, high, scale, tuple(notes))


def pooled(
    values: Float[Array, "*maps T S"], rows: int, columns: int, middle: float = 0.0
) -> Float[Array, "*maps _ _"]:
    """Reduce each block of `rows` x `columns` values to its value farthest from `middle`."""
    if not values.size:
        return values

    def blocks(function: np.ufunc) -> Array:
        out = values
        for axis, size in ((-2, rows), (-1, columns)):
            if size > 1:
                out = function.reduceat(out, np.arange(0, out.shape[axis], size), axis)
        return out

    high = blocks(np.maximum)
    if values.min() >= middle:
        return high
    low = blocks(np.minimum)
    return np.where(middle - low > high - middle, low, high)


def _unit(values: NDArray[np.float64]) -> Array:
    return np.clip(values, 0, 1).astype(np.float32)
