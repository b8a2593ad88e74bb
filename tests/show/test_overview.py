"""Tests of the picture and table of the overview, and of the forest plot."""

from xml.etree import ElementTree

import pytest
from helpers.screens import render

from attnkit.scoring.overview import Overview, OverviewCell, OverviewColumn
from attnkit.show.overview import forest_picture, forest_table, overview_picture, overview_table

CELLS = {"good": OverviewCell(5.0, 4.0, 6.0, (3, 3)), "<b>": OverviewCell(-0.5, -1.5, 0.5, (1, 3))}
FOUND = Overview(
    ("base", "good", "<b>"),
    (
        OverviewColumn("translation", "BLEU", "base", 20.0, "higher", CELLS, 1.0),
        OverviewColumn("memory", "%", "base", None, "lower", {"good": OverviewCell(12.0)}),
    ),
    ("other: not scored; skipped",),
)


def texts(picture: bytes) -> list[str]:
    root = ElementTree.fromstring(picture)
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_cells_have_differences_and_the_baseline_has_its_score() -> None:
    pytest.importorskip("matplotlib")
    picture = overview_picture(FOUND, "svg")
    found = texts(picture.data)
    for word in ("20.0", "+5.00", "\u22120.50\u00b9", "+12", "translation", "<b>"):
        assert word in found
    assert picture.data == overview_picture(FOUND, "svg").data
    assert picture.warnings == FOUND.notes


def test_only_undecided_cells_are_hatched() -> None:
    pytest.importorskip("matplotlib")
    decided = Overview(FOUND.systems, FOUND.columns[1:], ())
    assert b"<pattern" in overview_picture(FOUND, "svg").data
    assert b"<pattern" not in overview_picture(decided, "svg").data


def test_forest_plot_names_seeds_margin_and_baseline() -> None:
    pytest.importorskip("matplotlib")
    found = texts(forest_picture(FOUND, "svg").data)
    assert "<b> (1 vs 3)" in found
    assert "difference in BLEU to base (20.00); band: within 1" in found
    assert "memory" not in " ".join(found)


def test_tables_have_the_same_values() -> None:
    lines = render(overview_table(FOUND), 100).splitlines()
    assert "-: nothing to compare" in " ".join(" ".join(lines).split())
    assert [line.split() for line in lines[3:6]] == [
        ["base", "20.00", "-"],
        ["good", "+5.00", "+12"],
        ["<b>", "-0.50\u00b9", "~", "-"],
    ]
    rows = forest_table(FOUND).records()
    assert [(row["system"], row["difference"], row["interval"]) for row in rows] == [
        ("good", 5.0, "+4.00 to +6.00"),
        ("<b>", -0.5, "-1.50 to +0.50"),
    ]
