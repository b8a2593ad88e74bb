"""Tests of color maps: lightness, symmetry, scales, pooling."""

from typing import get_args

import numpy as np
import pytest
from helpers.colors import COLOR_VISION, lab, simulated_lab

from attnkit.show import color
from attnkit.show.color import Palette, Scale, limits, pooled, scaled


def lightness(palette: Palette) -> np.ndarray:
    return lab(color.table(palette))[:, 0]


def test_lightness_increases_at_every_step() -> None:
    assert np.diff(lightness("sequential")).min() > 0


def test_sequential_colors_are_cividis() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    theirs = np.round(matplotlib.colormaps["cividis"](np.arange(256))[:, :3] * 255)
    assert np.abs(color.table() - theirs).max() <= 3


def test_diverging_colors_are_equally_light_on_both_sides() -> None:
    sides = lightness("diverging")
    assert np.abs(sides - sides[::-1]).max() < 1
    assert np.diff(sides[:128]).min() > 0


@pytest.mark.parametrize("sight", COLOR_VISION)
def test_diverging_sides_differ_for_color_blind_readers(sight: str) -> None:
    """At equal lightness the hues of +x and -x are 25 apart in CIELAB from x = 0.25 on."""
    found = simulated_lab(color.table("diverging"), sight)
    assert np.linalg.norm(found[:96] - found[::-1][:96], axis=1).min() > 25


def test_shades_have_equal_shares() -> None:
    ramp = " ░▒▓█"
    values = (np.arange(len(ramp)) + 0.5) / len(ramp)
    assert "".join(color.shades(values)) == ramp
    assert color.shades(np.array([1.0, 0.0])).tolist() == [ramp[-1], ramp[0]]


def matrix(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def test_linear_scale_goes_from_0_to_the_maximum() -> None:
    found = scaled(matrix([0, 0.25], [0.5, 0.1]))
    assert np.allclose(found.values, [[0, 0.5], [1, 0.2]])
    assert (found.low, found.high, found.notes) == (0, 0.5, ())


def test_linear_scale_begins_at_small_negative_weights() -> None:
    found = scaled(matrix([-0.05, 0], [1.2, 0.575]))
    assert np.allclose(found.values, [[0, 0.04], [1, 0.5]])
    assert (found.palette, found.low) == ("sequential", np.float32(-0.05))


def test_large_negative_weights_have_diverging_colors() -> None:
    found = scaled(matrix([-0.5, 0], [1.5, 0.75]))
    assert np.allclose(found.values, [[1 / 3, 0.5], [1, 0.75]])
    assert (found.palette, found.low, found.high) == ("diverging", -1.5, 1.5)
    assert limits([matrix([-2, 1]), matrix([0, 3])]) == (-3, 3)
    assert {scaled(matrix([-1, 1]), scale).palette for scale in ("log", "row")} == {"sequential"}


def test_log_scale_notes_its_minimum() -> None:
    found = scaled(matrix([1, 0.1, 0.01, 0.001, 0.0001, 0, -1]), "log")
    assert np.allclose(found.values, [[1, 2 / 3, 1 / 3, 0, 0, 0, 0]], atol=1e-6)
    assert (found.low, found.high) == (0.001, 1)
    assert found.notes == ("weights below 0.001 are drawn as 0.001", "negative weights (lowest -1) are drawn as 0.001")


def test_row_scale_is_relative_to_the_maximum_of_each_row() -> None:
    found = scaled(matrix([0.1, 0.2], [0, 0], [-1, 4]), "row")
    assert found.values.tolist() == [[0.5, 1], [0, 0], [0, 1]]
    assert found.notes == ("negative weights (lowest -1) are drawn as 0",)


def test_signed_scale_has_0_in_the_middle() -> None:
    found = scaled(matrix([-0.5, 0, 0.5, 0.25]), signed=True)
    assert np.allclose(found.values[0, :3], [0, 0.5, 1])
    assert 0.5 < found.values[0, 3] < 1
    assert found.low == -found.high


@pytest.mark.parametrize(("scale", "signed"), [*((scale, False) for scale in get_args(Scale)), ("linear", True)])
def test_zeros_have_the_color_of_zero(scale: str, signed: bool) -> None:
    found = scaled(np.zeros((2, 3), np.float32), scale, signed=signed)
    assert (found.values == (0.5 if signed else 0)).all()
    assert found.high > found.low
    assert (found.palette == "diverging") == signed


def test_values_that_are_not_finite_are_counted() -> None:
    found = scaled(matrix([np.nan, np.inf, 0.5]))
    assert found.values.tolist() == [[0, 0, 1]]
    assert found.notes == ("2 values are not finite: drawn as 0",)


def test_pooling_keeps_the_maximum_of_each_block() -> None:
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    assert pooled(values, 2, 2).tolist() == [[6, 8, 9], [11, 13, 14]]


def test_pooling_keeps_the_value_farthest_from_the_middle() -> None:
    assert np.allclose(pooled(matrix([0.1, 0.6, 0.5, 0.9, 0.5]), 1, 2, middle=0.5), [[0.1, 0.9, 0.5]])
    weights = matrix([0, 0, 0, 0, 0], [0, 0.25, 0, 0, 0], [0] * 5, [0] * 5, [-0.5, 0.25, 0, 0, 0])
    assert pooled(weights, 2, 2).tolist() == [[0.25, 0, 0], [0, 0, 0], [-0.5, 0, 0]]
