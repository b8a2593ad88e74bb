"""Student's t distribution: p-values and critical values."""

import math
from functools import lru_cache
from statistics import NormalDist

TINY = 1e-300
"""Replaces zero in the continued fraction."""


def two_sided(t: float, degrees: float) -> float:
    """Return the probability that |T| is at least |t|, with `degrees` > 0 degrees of freedom.

    I_x(degrees / 2, 1 / 2) with x = degrees / (degrees + t^2) (Abramowitz and Stegun 1964, 26.7.1).
    """
    square = t * t
    if square == math.inf:
        return 0.0
    a, b, x = degrees / 2, 0.5, degrees / (degrees + square)
    y = square / (degrees + square)
    if x == 0 or y == 0:
        return float(y == 0)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    log_x = math.log(x) if x < 0.5 else math.log1p(-y)  # log1p keeps the precision of x near 1
    front = math.exp(a * log_x + b * math.log(y) - log_beta)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, y) / b


@lru_cache(maxsize=4096)
def critical_value(p: float, degrees: float) -> float:
    """Return the critical value: the t > 0 with `two_sided(t, degrees) == p`.

    Newton's method starts from the normal critical value, which is smaller: the probability is convex in t.
    """
    t = -NormalDist().inv_cdf(p / 2)
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    scale -= math.log(degrees * math.pi) / 2
    for _ in range(200):
        density = math.exp(scale - (degrees + 1) / 2 * math.log1p(t * t / degrees))
        step = (two_sided(t, degrees) - p) / (2 * density)
        t += step
        if abs(step) <= 1e-12 * t:
            break
    return t


@lru_cache(maxsize=4096)
def degrees_of(t: float, p: float, low: float, high: float) -> float:
    """Return the degrees of freedom in [low, high] with `two_sided(t, degrees) == p`, by bisection of 1 / degrees."""
    start, end = 1 / low, 1 / high
    for _ in range(30):
        middle = (start + end) / 2
        start, end = (start, middle) if two_sided(t, 1 / middle) < p else (middle, end)
    return 1 / end


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method (DLMF 8.17.22)."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or TINY)
    value = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1 / (1 + step * d or TINY)
            c = 1 + step / c or TINY
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
