"""Tests of charts of curves: width, axes, labels, letters, pictures."""

import re

import pytest
from helpers.screens import COLORS, TEXTS, WIDTHS, render, render_checked
from hypothesis import given
from hypothesis import strategies as st

from attnkit.runs.curves import Curves, Series
from attnkit.show.curves_chart import CurvesChart, horizontal, number, scale
from attnkit.show.curves_figure import picture

FALL = tuple((10.0 * n, 5.0 / n) for n in range(1, 30))
RISE = tuple((10.0 * n, n / 6) for n in range(1, 30))
LOSS = Curves("training loss", "updates", (Series("one", (FALL,)), Series("two", (RISE,))), True)
SCORE = Curves(
    "BLEU on test",
    "parameters",
    (Series("one", (((1e6, 80.0),), ((1e6, 90.0),))), Series("two", (((2e6, 85.0),),))),
    False,
)
NUMBERS = st.floats(-1e150, 1e150) | st.integers(-5, 5).map(float) | st.floats(0, 1e-6)
LINES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8).map(tuple)
SERIES = st.builds(Series, TEXTS, st.lists(LINES, min_size=1, max_size=3).map(tuple))
PLOTS = st.builds(Curves, TEXTS, TEXTS, st.lists(SERIES, min_size=1, max_size=9).map(tuple), st.booleans())


@given(st.lists(PLOTS, min_size=1, max_size=3), WIDTHS, st.sampled_from(COLORS))
def test_charts_fit_the_screen(plots: list[Curves], width: int, color: str | None) -> None:
    render_checked(CurvesChart(plots), width, color)


@given(st.lists(NUMBERS, min_size=1), st.integers(1, 12), st.booleans())
def test_axis_contains_its_values_and_has_ticks(values: list[float], most: int, pad: bool) -> None:
    axis = scale(values, most, pad=0.08 if pad else 0.0)
    assert axis.low <= min(values) <= max(values) <= axis.high
    assert axis.low < axis.high
    assert {axis.place(value, 10) for value in values} <= {*range(10)}
    assert 1 <= len(axis.ticks) <= max(most, 2) + 2


@pytest.mark.parametrize(
    ("values", "most", "labels"),
    [
        ((0, 650), 5, ["0", "200", "400", "600"]),
        ((0.17, 5.5), 5, ["2", "4"]),
        ((0, 0.00008), 4, ["0", "2e-5", "4e-5", "6e-5", "8e-5"]),
        ((0, 0.004), 4, ["0", "0.001", "0.002", "0.003", "0.004"]),
        ((0, 20_000_000), 4, ["0", "5M", "10M", "15M", "20M"]),
        ((0, 20_000), 4, ["0", "5000", "10k", "15k", "20k"]),
        ((3, 3), 2, ["3"]),
        ((0, 4e20), 4, ["0", "1e20", "2e20", "3e20", "4e20"]),
    ],
)
def test_labels_are_round_and_short(values: tuple[float, float], most: int, labels: list[str]) -> None:
    assert [number(tick) for tick in scale(values, most).ticks] == labels


def rows(text: str) -> list[str]:
    """Return the rows of the first chart, without their labels."""
    return [re.split("[\u2502\u2524|+]", line, maxsplit=1)[1] for line in text.split("\n")[1:15]]


def test_lines_are_drawn_with_letters() -> None:
    text = render(CurvesChart([LOSS]), 60, None)
    chart = rows(text)
    assert {*"".join(chart)} == {" ", "a", "b"}
    assert chart[0].lstrip()[0] == "a"  # falls from the top left
    assert chart[0].rstrip()[-1] == "b"  # the other rises to the top right
    assert chart[-1].rstrip()[-1] == "a"
    assert all(line.strip() for line in chart)
    assert "\na one 0.172\nb two 4.83" in text


def test_logarithmic_axis_of_lengths() -> None:
    line = tuple((float(2**n), float(n)) for n in range(6, 13))
    plot = Curves("BLEU", "length", (Series("one", (line,)),), False, log_x=True)
    lengths = [x for x, _ in line]
    axis = horizontal(plot, lengths, 7, 0.0)
    assert (axis.logarithmic, axis.high) == (True, 4096)
    assert not horizontal(plot, [64.0], 7, 0.0).logarithmic
    assert [axis.share(x) * 6 for x in lengths] == pytest.approx([*range(7)])
    assert axis.ticks == (64, 128, 256, 512, 1024, 2048, 4096)
    assert horizontal(plot, lengths, 4, 0.0).ticks == (64, 256, 1024, 4096)


def test_variant_has_one_letter_in_all_charts() -> None:
    other = Curves("validation loss", "updates", (LOSS.series[1],), True)
    text = render(CurvesChart([LOSS, other]), 60, None)
    assert text.count("b two 4.83") == 2


def test_points_have_their_mean_in_the_legend() -> None:
    text = render(CurvesChart([SCORE]), 60, None)
    assert sorted("".join(rows(text)).replace(" ", "")) == ["a", "a", "b"]
    assert "a one 85 (mean of 2 seeds)" in text


@pytest.mark.parametrize("seeds", [1, 3])
def test_variants_in_one_cell_have_a_letter_each(seeds: int) -> None:
    """A letter for each of three seeds moved the other variants across the chart."""
    series = tuple(Series(name, (((1.0, 1.0),),) * seeds) for name in ("x", "y", "z"))
    text = render(CurvesChart([Curves("s", "t", series, False)]), 60, None)
    assert sorted("".join(rows(text)).replace(" ", "")) == ["a", "b", "c"]


def test_labels_that_would_overlap_are_left_out() -> None:
    states = tuple(Series(f"n{x}", (((float(x), 1.0),),)) for x in (4352, 8960, 9216, 9472, 30688))
    text = picture([Curves("score", "state", states, log_x=True)], "svg").data.decode()
    named = [value for value in ("4352", "8960", "9216", "9472", "30.688k") if f">{value}</text>" in text]
    assert named == ["4352", "8960", "30.688k"]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_picture_is_reproducible_and_labelled(format: str) -> None:
    plots = [LOSS, SCORE, LOSS, SCORE]
    drawing = picture(plots, format)
    assert drawing == picture(plots, format)
    assert drawing.warnings == ()
    if format == "svg":
        text = drawing.data.decode()
        for words in ("training loss", "BLEU on test", "updates", "one (2 seeds)", "two"):
            assert f">{words}</text>" in text, words
