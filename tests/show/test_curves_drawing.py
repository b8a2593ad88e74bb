"""Curves as SVG: every run is a line in its place, and many points stay few."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from helpers.pages import HOSTILE
from hypothesis import given
from hypothesis import strategies as st

from attnkit.runs.curves import Plot, Point, Series
from attnkit.show.curves_drawing import COLOURS, WIDTH, drawing, thinned

NUMBER = st.floats(-1e6, 1e6, allow_nan=False)
LINE = st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=9)


def plot(*lines: list[Point], name: str = "one", from_zero: bool = False) -> Plot:
    return Plot("loss", "updates", (Series(name, tuple(map(tuple, lines))),), from_zero)


def elements(of: Plot, tag: str) -> list[ElementTree.Element]:
    svg = drawing(of, [one.name for one in of.series]).svg(file=True)
    return ElementTree.fromstring(svg).findall(f".//{{http://www.w3.org/2000/svg}}{tag}")


def points(of: Plot) -> list[list[list[float]]]:
    return [
        [list(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        for line in elements(of, "polyline")
    ]


def test_values_stand_where_the_axes_say() -> None:
    of = plot([(0.0, 0.0), (50.0, 4.0), (100.0, 8.0)], from_zero=True)
    ((first, middle, last),) = points(of)
    assert middle == pytest.approx([(first[0] + last[0]) / 2, (first[1] + last[1]) / 2], abs=0.2)
    ticks = {
        one.text: float(one.attrib["y"]) - 4
        for one in elements(of, "text") if one.attrib["text-anchor"] == "end"
    }  # fmt: skip
    assert ticks["4"] == pytest.approx(middle[1], abs=0.2)


def test_doubled_lengths_are_evenly_apart() -> None:
    line = tuple((float(2**n), 1.0 * n) for n in range(5, 9))
    of = Plot("BLEU", "length", (Series("one", (line,)),), False, logarithmic=True)
    ((first, *others),) = points(of)
    steps = [after[0] - before[0] for before, after in pairwise([first, *others])]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)


@given(st.lists(LINE, min_size=1, max_size=4))
def test_nothing_lies_outside(lines: list[list[Point]]) -> None:
    for line in points(plot(*lines, from_zero=False)):
        for x, y in line:
            assert 0 <= x <= WIDTH
            assert 0 <= y <= 260


@pytest.mark.parametrize("count", [1, 2, 9])
def test_every_seed_is_a_line_of_one_colour(count: int) -> None:
    lines = [[(0.0, 1.0), (9.0, float(n))] for n in range(count)]
    found = elements(plot(*lines), "polyline")
    assert len(found) == count
    assert {one.attrib["stroke"] for one in found} == {COLOURS[0]}


def test_more_series_than_colours_differ_by_dashes() -> None:
    series = tuple(Series(f"s{n}", (((0.0, 1.0), (1.0, float(n))),)) for n in range(27))
    found = elements(Plot("loss", "updates", series, True), "polyline")
    looks = {(one.attrib["stroke"], one.attrib.get("stroke-dasharray")) for one in found}
    assert len(looks) == 27


def test_a_long_line_keeps_its_extremes_and_few_points() -> None:
    line = [(n / 1000, math.sin(n)) for n in range(100_000)]
    line[4321] = (4.321, 99.0)
    kept = list(thinned(iter(line)))
    assert len(kept) <= 4 * 101
    assert line[4321] in kept
    assert (kept[0], kept[-1]) == (line[0], line[-1])
    assert kept == sorted(kept)


@pytest.mark.parametrize("text", HOSTILE)
def test_names_stay_texts(text: str) -> None:
    of = Plot(text, text, (Series(text, (((0.0, 1.0), (1.0, 2.0)),)),), True)
    assert not elements(of, "script")
    assert not re.search("[\x00\x1b\u202e\ud800]", drawing(of, [text]).svg())


@given(st.lists(NUMBER, min_size=2, max_size=6, unique=True))
def test_letters_of_higher_lines_stand_higher(ends: list[float]) -> None:
    lines = tuple(Series(str(end), (((0.0, 0.0), (1.0, end)),)) for end in sorted(ends))
    places = [
        float(one.attrib["y"])
        for one in elements(Plot("loss", "updates", lines, False), "text")
        if one.text in {*"abcdef"} and "stroke" in one.attrib
    ]
    assert places == sorted(places, reverse=True)
