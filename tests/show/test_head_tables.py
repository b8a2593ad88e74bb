"""The table of each head's numbers."""

import numpy as np
import pytest
from helpers.screens import drawn, made
from rich.cells import cell_len

from attnkit.analysis.maps import AttentionMaps, MapLayer, Token
from attnkit.show.head_tables import statistics_table
from attnkit.show.table_formats import csv_text


def test_numbers_of_heads_stand_in_rows() -> None:
    lines = drawn(statistics_table(made("ein Hund .", "a dog !", 1, 2)), 80).splitlines()
    assert lines[0] == "cross attention, each head: scaled-dot (exact)"
    assert [line.split() for line in lines[3:5]] == [
        ["0", "0", "0.00", "0.00", "0.00", "0.33", "0.33", "-", "0.00"],
        ["0", "1", "0.00", "0.00", "0.44", "0.33", "0.33", "-", "0.00"],
    ]


def test_effective_maps_have_a_distance_and_no_entropy() -> None:
    axis = tuple(Token(text, at, at) for at, text in enumerate("ab"))
    weights = np.array([[[[1.5, -0.5], [0.5, 0.5]]]], np.float32)
    layer = MapLayer(4, "nystrom", exact=False, distance=(0.125,))
    table = statistics_table(AttentionMaps("encoder", weights, (layer,), (3,), axis, axis))
    assert [column.title for column in table.columns][-1] == "from softmax"
    assert [cell.text for cell in table.rows[0]][:4] == ["4", "3", "-", "-"]
    assert table.rows[0][-1].text == "0.12"
    assert "4,3,," in csv_text(table)


def test_mechanisms_are_named_where_layers_differ() -> None:
    maps = made("a b", "a b")
    other = (maps.layers[0], MapLayer(1, "dense"))
    table = statistics_table(AttentionMaps("cross", maps.weights, other, maps.heads, maps.queries, maps.keys))
    assert [row[2].text for row in table.rows] == ["scaled-dot"] * 4 + ["dense"] * 4


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_the_screen(width: int, ascii_only: bool) -> None:
    lines = drawn(statistics_table(made("ein Hund .", "a dog !")), width, None, ascii_only).split("\n")
    assert max(map(cell_len, lines)) <= width
    assert any("entropy" in line for line in lines)
