"""Tests of Student's t against printed tables, closed forms, integrals and the normal distribution."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.scoring.student_t import critical_value, degrees_of, two_sided

TABLE = {
    1: (12.706, 63.657),
    2: (4.303, 9.925),
    3: (3.182, 5.841),
    4: (2.776, 4.604),
    8: (2.306, 3.355),
    10: (2.228, 3.169),
    30: (2.042, 2.750),
    120: (1.980, 2.617),
}
"""Degrees of freedom -> two-sided limits at 5 % and 1 %, as printed in textbooks."""


@pytest.mark.parametrize(("degrees", "limits"), TABLE.items())
def test_limits_equal_the_printed_table(degrees: int, limits: tuple[float, float]) -> None:
    assert [critical_value(p, degrees) for p in (0.05, 0.01)] == pytest.approx(limits, abs=0.0005)


@given(st.floats(0, 1e6))
def test_one_and_two_degrees_have_closed_forms(t: float) -> None:
    """With one degree the distribution is Cauchy's."""
    assert two_sided(t, 1) == pytest.approx(2 / math.pi * math.atan2(1, t), rel=1e-9)
    expected = 2 / (math.sqrt(2 + t * t) * (t + math.sqrt(2 + t * t)))
    assert two_sided(t, 2) == pytest.approx(expected, rel=1e-9)


@given(st.floats(0, 6), st.floats(2, 500))
def test_p_value_is_the_integral_of_the_density(t: float, degrees: float) -> None:
    """Over x = arctan(t / sqrt(degrees)), whose density is proportional to cos(x) ** (degrees - 1)."""
    starts = (math.atan(t / math.sqrt(degrees)), 0)
    tail, whole = (
        np.trapezoid(np.cos(x) ** (degrees - 1), x) for x in (np.linspace(s, math.pi / 2, 20_001) for s in starts)
    )
    assert two_sided(t, degrees) == pytest.approx(tail / whole, rel=1e-4)


@given(st.floats(0.01, 6))
def test_many_degrees_give_the_normal_distribution(t: float) -> None:
    assert two_sided(t, 1e8) == pytest.approx(2 * NormalDist().cdf(-t), rel=1e-5)


@given(st.floats(1e-6, 0.999), st.floats(0.7, 5000))
def test_critical_value_inverts_the_p_value(p: float, degrees: float) -> None:
    assert two_sided(critical_value(p, degrees), degrees) == pytest.approx(p, rel=1e-8)


@given(st.floats(1, 500))
def test_degrees_from_a_critical_value(degrees: float) -> None:
    assert degrees_of(critical_value(0.05, degrees), 0.05, 1, 501) == pytest.approx(degrees, rel=1e-3)


def test_p_of_zero_infinite_and_negative_t() -> None:
    assert two_sided(0, 3) == 1
    assert two_sided(math.inf, 3) == 0
    assert two_sided(-2, 3) == two_sided(2, 3)
