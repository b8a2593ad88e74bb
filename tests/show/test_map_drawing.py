"""Maps as SVG: a cell has the colour of its weight, and what is left out is said."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.pages import HOSTILE, long
from helpers.sentences import made, translation

from attnkit.analysis.maps import AttentionMaps, Token
from attnkit.show.colour import table
from attnkit.show.map_drawing import LARGEST, LEVELS, caption, drawing

SVG = "{http://www.w3.org/2000/svg}"


def panels(maps: AttentionMaps) -> list[np.ndarray]:
    """The level of each cell of each map, read back from the drawing."""
    root = ElementTree.fromstring(drawing(maps, "name").svg(file=True))
    colours = {
        "#" + bytes(table()[round(level * 255 / (LEVELS - 1))]).hex(): level
        for level in range(LEVELS)
    }
    found = []
    for group in root.iter(f"{SVG}g"):
        runs = [
            (int(x), int(y), int(length), colours[path.attrib["stroke"]])
            for path in group
            for x, y, length in re.findall(r"M(\d+) (\d+)\.5h(\d+)", path.attrib["d"])
        ]
        rows, columns = max(y for _, y, _, _ in runs) + 1, max(x + n for x, _, n, _ in runs)
        cells = np.full((rows, columns), -1)
        for x, y, length, level in runs:
            assert (cells[y, x : x + length] == -1).all()
            cells[y, x : x + length] = level
        assert (cells >= 0).all()
        found.append(cells)
    return found


def titles(maps: AttentionMaps) -> list[str]:
    return re.findall(r"layer \d+, [^<]*", drawing(maps, "name").svg())


def test_cells_have_the_colours_of_their_weights() -> None:
    maps = translation().maps["cross"]
    shown = panels(maps)
    means, heads = maps.weights.mean(1), maps.weights[-1]
    top = max(means.max(), heads.max())
    for cells, weights in zip(shown, [*means, *heads], strict=True):
        assert np.abs(cells - weights / top * (LEVELS - 1)).max() <= 0.51
    assert titles(maps)[0] == "layer 0, mean of 3 heads"
    assert titles(maps)[-1] == "layer 1, head 2"


@pytest.mark.parametrize(
    ("layers", "heads", "expected"),
    [
        (1, 1, ["layer 0, head 0"]),
        (3, 1, ["layer 0, head 0", "layer 1, head 0", "layer 2, head 0"]),
        (1, 2, ["layer 0, mean of 2 heads", "layer 0, head 0", "layer 0, head 1"]),
        (12, 1, ["layer 0, head 0", "layer 5, head 0", "layer 11, head 0"]),
    ],
)
def test_few_layers_and_heads_are_chosen(layers: int, heads: int, expected: list[str]) -> None:
    maps = long(layers, heads, 5).maps["encoder"]
    assert titles(maps) == expected
    assert len(panels(maps)) == len(expected)
    assert len(titles(long(6, 16, 5).maps["encoder"])) == 7


def test_long_texts_are_pooled_and_it_says_so() -> None:
    maps = long(2, 2, 300).maps["encoder"]
    assert all(max(cells.shape) <= LARGEST for cells in panels(maps))
    assert "each cell is the largest of 7 x 7 weights" in caption(maps)
    assert len(drawing(maps, "name").svg()) < 150_000
    assert "largest" not in caption(translation().maps["cross"])


def test_tokens_stay_texts() -> None:
    tokens = tuple(Token(text, at, at) for at, text in enumerate(HOSTILE))
    maps = made("encoder", tokens, tokens)
    svg = drawing(maps, HOSTILE[0]).svg(file=True)
    ElementTree.fromstring(svg)
    assert "<script" not in svg
    assert not re.search("[\x00\x1b\u202e]", svg)
