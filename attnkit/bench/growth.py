"""How time and memory grow with the length, and what the next length will need."""

import math
from collections.abc import Sequence
from statistics import linear_regression
from typing import NamedTuple

LOW, HIGH = 2048, 16384
"""The exponent is fitted over these lengths: below them fixed costs count, beyond few go."""

Curve = Sequence[tuple[int, float]]
"""(length, value), lengths ascending."""


class Fit(NamedTuple):
    """value ~ length ** exponent between two lengths."""

    exponent: float
    low: int
    high: int


def fit(curve: Curve) -> Fit | None:
    """Least squares in log-log over LOW..HIGH, or over all where fewer than two lie there."""
    usable = [(length, value) for length, value in curve if value > 0]
    inside = [(length, value) for length, value in usable if LOW <= length <= HIGH]
    chosen = inside if len(inside) > 1 else usable
    if len(chosen) < 2:
        return None
    xs = [math.log(length) for length, _ in chosen]
    ys = [math.log(value) for _, value in chosen]
    return Fit(linear_regression(xs, ys).slope, chosen[0][0], chosen[-1][0])


def expected(curve: Curve, length: int) -> float | None:
    """The value at a longer length, as the last two grew: at least linear, at most quadratic."""
    usable = [(known, value) for known, value in curve if value > 0 and known < length]
    if len(usable) < 2:
        return None
    (before, low), (last, high) = usable[-2:]
    slope = math.log(high / low) / math.log(last / before)
    return high * math.pow(length / last, min(2.0, max(1.0, slope)))
