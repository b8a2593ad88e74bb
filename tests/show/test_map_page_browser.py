"""Tests of the page of attention maps in a browser: weights, views, choices, keys, colors."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.pages import HOSTILE_TEXTS, long_capture
from helpers.sentences import SOURCE, random_maps, tokens, translation

from attnkit.analysis.map_statistics import statistics
from attnkit.analysis.maps import AttentionMaps, Capture, MapLayer, Token
from attnkit.show.map_page import page as html

DESK, PHONE = {"width": 1200, "height": 900}, {"width": 360, "height": 740}
STEP = 1 / 510 + 1e-4
"""Half a step, and the rounding to four decimals."""
CAPTURE = translation()
Open = Callable[..., Any]


@pytest.fixture
def show(open_page: Open) -> Open:
    """Return a function that opens captures as a page."""

    def open_captures(*captures: Capture, view: str = "matrix", options: Any = None, **more: Any) -> Any:
        content = html(captures, view=view, **(options or {}))
        return settle(open_page(content, **{"viewport": DESK, **more}))

    return open_captures


def settle(page: Any) -> Any:
    """Wait until the page is drawn, and return it; it decodes maps asynchronously, also after a choice."""
    page.wait_for_selector("body[data-state=ready]")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page


def choose(page: Any, **choices: str) -> None:
    for name, value in choices.items():
        page.select_option(f"#{name}", value)
    settle(page)


def check(page: Any, box: str) -> None:
    page.check(f"#{box}")
    settle(page)


def click(page: Any, selector: str, **options: Any) -> None:
    page.click(selector, **options)
    settle(page)


def place(page: Any, row: int, column: int, pane: int = 0) -> tuple[float, float]:
    """Return the center of a cell, relative to the scrolled box of the matrix."""
    scroll = page.locator(".scroll").nth(pane)
    left, top, cell = json.loads(scroll.get_attribute("data-geometry"))
    return left + (column + 0.5) * cell, top + (row + 0.5) * cell


def hover(page: Any, row: int, column: int, pane: int = 0) -> str:
    x, y = place(page, row, column, pane)
    page.locator(".scroll").nth(pane).hover(position={"x": x, "y": y})
    settle(page)
    return str(page.text_content("#readout"))


def number(readout: str) -> float:
    found = re.search(r": (-?[\d.e-]+) \(within ", readout)
    assert found, readout
    return float(found[1])


def table(page: Any) -> dict[str, float]:
    """Return the rows of the table beside a map, with its total."""
    rows = page.locator("#row tbody tr").all_text_contents()
    heads = page.locator("#row tbody th").all_text_contents()
    return {head: float(row[len(head) :]) for head, row in zip(heads, rows, strict=True)}


@pytest.mark.sampled(3)
def test_readout_has_the_weight_of_the_cell(show: Open) -> None:
    page = show(CAPTURE)
    for kind, layer, head in (("cross", 0, 0), ("encoder", 1, 2), ("decoder", 1, 0)):
        choose(page, kind=kind, layer=str(layer), head=str(head))
        maps = CAPTURE.maps[kind]  # type: ignore[index]
        for row, column in ((0, 0), (3, 2), (7, 7), (5, 1)):
            readout = hover(page, row, column)
            assert f"\u201c{maps.queries[row].text}\u201d to \u201c{maps.keys[column].text}" in readout
            assert number(readout) == pytest.approx(maps.weights[layer, head, row, column], abs=STEP)


def test_page_opens_with_the_mean_over_heads(show: Open) -> None:
    page = show(CAPTURE)
    expected = CAPTURE.maps["cross"].weights[0].mean(0)
    for row, column in ((1, 1), (6, 3)):
        assert number(hover(page, row, column)) == pytest.approx(expected[row, column], abs=STEP)


def palette(page: Any, name: str) -> np.ndarray:
    colors = json.loads(page.text_content("#data"))["colors"][name]
    return np.array(list(bytes.fromhex(colors))).reshape(256, 3)


COLOR = """([x, y]) => {
  const canvas = document.querySelector(".scroll canvas");
  return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3);
}"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scale", ["linear", "log", "row"])
def test_cells_have_the_colors_of_their_weights(show: Open, scale: str) -> None:
    page = show(CAPTURE, options={"scale": scale})
    choose(page, layer="1", head="1")
    weights = CAPTURE.maps["cross"].weights[1, 1].astype(np.float64)
    values = {
        "linear": weights / weights.max(),
        "log": np.log(weights.clip(1e-3) / 1e-3) / np.log(weights.max() / 1e-3),
        "row": weights / weights.max(1, keepdims=True),
    }[scale]
    colors = palette(page, "sequential")
    for row, column in np.ndindex(8, 8):
        shown = page.evaluate(COLOR, place(page, row, column))
        step = int(values[row, column] * 255)
        assert (np.abs(colors[max(step - 3, 0) : step + 5] - shown).max(1) <= 1).any(), (row, column)


def test_table_of_a_row_sums_to_1(show: Open) -> None:
    page = show(CAPTURE)
    choose(page, head="2")
    hover(page, 4, 0)
    found = table(page)
    maps = CAPTURE.maps["cross"]
    assert page.text_content("#row caption") == "Attention of \u201ct\u201d"
    assert found.pop("total") == pytest.approx(1, abs=1e-3)
    values = list(found.values())
    assert values == sorted(values, reverse=True)
    for key, weight in zip(maps.keys, maps.weights[0, 2, 4], strict=True):
        if [token.text for token in maps.keys].count(key.text) == 1:
            assert found[key.text] == pytest.approx(weight, abs=STEP)


def test_whole_words_add_keys_and_average_queries(show: Open) -> None:
    page = show(CAPTURE)
    choose(page, head="1")
    check(page, "words")
    expected = CAPTURE.maps["cross"].by_word()
    for row in range(len(expected.queries)):
        readout = hover(page, row, 2)
        assert number(readout) == pytest.approx(expected.weights[0, 1, row, 2], abs=2 * STEP)
        assert table(page)["total"] == pytest.approx(1, abs=1e-3)
    assert "\u201ccleaning\u201d" in readout


def test_special_tokens_can_be_hidden(show: Open) -> None:
    page = show(CAPTURE)
    choose(page, head="1")
    check(page, "plain")
    expected = CAPTURE.maps["cross"].without(special=True)
    last = len(expected.keys) - 1
    readout = hover(page, 0, last)
    assert "\u201c\u2581Ein\u201d to \u201c.\u201d" in readout
    assert number(readout) == pytest.approx(expected.weights[0, 1, 0, last], abs=STEP)
    assert "</s>" not in table(page)
    assert table(page)["total"] == pytest.approx(expected.weights[0, 1, 0].sum(), abs=STEP)


def test_first_column_can_be_hidden_and_colors_are_scaled_to_the_others(show: Open) -> None:
    page = show(CAPTURE)
    choose(page, head="1")
    check(page, "first")
    expected = CAPTURE.maps["cross"].without(first=True)
    weights = expected.weights[0, 1]
    readout = hover(page, 1, 0)
    assert number(readout) == pytest.approx(weights[1, 0], abs=STEP)
    assert f"to \u201c{expected.keys[0].text}\u201d" in readout
    assert float(page.text_content("#high") or 0) == pytest.approx(weights.max(), abs=STEP)
    assert f"first column hidden: {expected.hidden[0].text}" in page.text_content(".pane p")
    click(page, "text=Numbers")
    assert "computed from the whole maps" in page.text_content("#numbers caption")


def test_thumbnail_opens_its_head(show: Open) -> None:
    page = show(translation(), view="grid")
    assert page.locator("#grid canvas").count() == 2 * (3 + 1)
    assert not page.is_visible("#panes")
    click(page, "#grid .layer:nth-child(2) button:has-text('head 1')")
    assert page.text_content(".pane h2") == "cross attention, layer 1, head 1"
    assert page.input_value("#layer") == "1"
    assert page.input_value("#head") == "1"


def test_lines_show_the_attention_of_and_to_a_token(show: Open) -> None:
    page = show(CAPTURE, view="lines")
    choose(page, head="0")
    box = page.locator(".scroll canvas").first.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 24 * 3.5)
    settle(page)
    assert page.text_content("#readout") == "Attention of \u201c\u2581Mann\u201d"
    best = int(CAPTURE.maps["cross"].weights[0, 0, 2].argmax())
    assert next(iter(table(page))) == CAPTURE.maps["cross"].keys[best].text
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 24 * 1.5)
    settle(page)
    assert page.text_content("#readout") == "Attention to \u201c\u2581A\u201d"
    total = CAPTURE.maps["cross"].weights[0, 0, :, 0].sum()
    assert table(page)["total"] == pytest.approx(total, abs=8 * STEP)


def test_keyboard_moves_over_cells_heads_and_views(show: Open) -> None:
    page = show(CAPTURE)
    page.focus(".scroll")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown", "]", "}"):
        page.keyboard.press(key)
        settle(page)
    assert page.text_content(".pane h2") == "cross attention, layer 1, head 0"
    for key in ("ArrowUp", "ArrowDown", "End"):
        page.keyboard.press(key)
    settle(page)
    readout = page.text_content("#readout")
    assert readout.startswith("\u201c\u2581Ein\u201d to \u201c</s>\u201d")
    assert number(readout) == pytest.approx(CAPTURE.maps["cross"].weights[1, 0, 1, 7], abs=STEP)
    for key, view in (("l", "lines"), ("g", "grid"), ("m", "matrix")):
        page.keyboard.press(key)
        settle(page)
        assert page.get_attribute(f"#views [value={view}]", "aria-pressed") == "true"
    page.keyboard.press("w")
    page.keyboard.press("s")
    assert page.is_checked("#words")
    assert page.is_checked("#plain")


@pytest.mark.parametrize("system", ["dark", "light"])
def test_colors_follow_the_system_until_switched(show: Open, system: str) -> None:
    page = show(translation(), color_scheme=system)

    def lightness() -> float:
        found = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", found)[:3])) / 3

    assert (lightness() < 100) == (system == "dark")
    page.click("#theme")
    assert (lightness() < 100) == (system == "light")


@pytest.mark.parametrize("view", ["grid", "matrix", "lines"])
def test_phone_does_not_scroll_sideways(show: Open, view: str) -> None:
    page = show(CAPTURE, view=view, viewport=PHONE, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert not page.is_visible("#kind")
    page.locator("#fold").tap()
    assert page.is_visible("#kind")
    if view == "matrix":
        x, y = place(page, 2, 3)
        page.locator(".scroll").first.tap(position={"x": x, "y": y})
        settle(page)
        weight = CAPTURE.maps["cross"].weights[0, :, 2, 3].mean()
        assert number(page.text_content("#readout")) == pytest.approx(weight, abs=STEP)


def test_hostile_text_is_escaped(show: Open) -> None:
    queries = tuple(Token(text, i, i) for i, text in enumerate(HOSTILE_TEXTS))
    capture = replace(
        translation(" ".join(HOSTILE_TEXTS)),
        source=HOSTILE_TEXTS[0],
        output=HOSTILE_TEXTS[1],
        facts={HOSTILE_TEXTS[0]: HOSTILE_TEXTS[1]},
        maps={"encoder": random_maps("encoder", queries, queries, layer=MapLayer(0, HOSTILE_TEXTS[0]))},
    )
    page = show(capture)
    assert f"\u201c{HOSTILE_TEXTS[0]}\u201d to \u201c{HOSTILE_TEXTS[1]}\u201d" in hover(page, 0, 1)
    assert HOSTILE_TEXTS[0] in page.locator("#row tbody th").all_text_contents()
    assert HOSTILE_TEXTS[0] in page.text_content("#texts")
    assert page.locator("script").count() == 2
    for view in ("l", "g"):
        page.keyboard.press(view)
        settle(page)


def test_maps_of_two_models_side_by_side_and_subtracted(show: Open) -> None:
    first, second = translation("one"), translation("two", seed=8)
    page = show(first, second)
    choose(page, head="1")
    a, b = (capture.maps["cross"].weights[0, 1, 3, 2] for capture in (first, second))
    for pane in (0, 1):
        values = re.findall(r"(one|two) (-?[\d.]+) \(within", hover(page, 3, 2, pane))
        assert [name for name, _ in values] == ["one", "two"]
        assert [float(value) for _, value in values] == pytest.approx([a, b], abs=STEP)
    choose(page, mode="difference")
    assert page.text_content(".pane h2").startswith("two minus one: cross attention")
    assert page.locator(".pane:visible").count() == 1
    assert number(hover(page, 3, 2)) == pytest.approx(b - a, abs=2 * STEP)
    assert page.text_content("#unit") == "difference"


PIXELS = """([at, x, y]) => [...document.querySelectorAll("#grid canvas")].slice(0, at).map(
  (canvas) => [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3))"""


def colors_of(page: Any, name: str, shares: Any) -> np.ndarray:
    """Return the colors of shares from 0 to 1."""
    return palette(page, name)[np.rint(255 * np.asarray(shares)).astype(int)]


def test_thumbnails_of_two_models_side_by_side_and_subtracted(show: Open) -> None:
    first, second = translation("one"), translation("two", seed=8)
    page = show(first, second, view="grid")
    a, b = (capture.maps["cross"].weights for capture in (first, second))
    assert page.locator("#grid button").count() == 2 * (3 + 1)
    assert page.locator("#grid button canvas").count() == 2 * 2 * (3 + 1)
    assert page.text_content("#note") == "Left: one. Right: two."
    values = [a[0, :, 3, 2].mean(), b[0, :, 3, 2].mean(), a[0, 0, 3, 2], b[0, 0, 3, 2]]
    expected = colors_of(page, "sequential", np.array(values) / max(a.max(), b.max()))
    assert np.abs(page.evaluate(PIXELS, [4, 2, 3]) - expected).max() <= 6
    choose(page, mode="difference")
    assert page.locator("#grid button canvas").count() == 2 * (3 + 1)
    assert page.text_content("#note") == "Each map is two minus one."
    change = b - a
    values = [change[0, :, 3, 2].mean(), change[0, 0, 3, 2]]
    expected = colors_of(page, "diverging", 0.5 + np.array(values) / np.abs(change).max() / 2)
    assert np.abs(page.evaluate(PIXELS, [2, 2, 3]) - expected).max() <= 8
    choose(page, other="-1")
    assert page.text_content("#note") == ""
    assert page.locator("#grid button canvas").count() == 2 * (3 + 1)


def test_thumbnails_without_a_map_or_a_difference_have_a_note(show: Open) -> None:
    second = translation("two", heads=2)
    page = show(translation("one"), second, view="grid")
    assert page.locator("#grid button:has-text('head 2')").first.text_content() == "nothing to showhead 2"
    choose(page, mode="difference")
    assert page.locator("#grid button:has-text('head 2')").first.text_content() == "no differencehead 2"
    other = tokens(SOURCE.replace("_man", "_dog"))
    second = replace(translation("two"), maps={"encoder": random_maps("encoder", other, other)})
    page = show(translation("one"), second, view="grid")
    choose(page, kind="encoder", mode="difference")
    assert "do not have the same tokens" in page.text_content("#note")
    assert page.locator("#grid button canvas").count() == 2 * 2 * (3 + 1)


def test_maps_of_different_tokens_are_not_subtracted(show: Open) -> None:
    other = tokens(SOURCE.replace("_man", "_dog"))
    second = replace(translation("two"), maps={"encoder": random_maps("encoder", other, other)})
    page = show(translation("one"), second)
    choose(page, kind="encoder", mode="difference")
    assert "do not have the same tokens" in page.text_content("#note")
    assert page.locator(".pane:visible").count() == 2
    choose(page, kind="cross")
    assert "This model has no such map" in page.locator(".pane p").nth(1).text_content()


def test_notes_of_static_and_effective_maps(show: Open) -> None:
    plain = translation()
    layer = MapLayer(0, "performer", exact=False, distance=(0.1, 0.2, 0.6))
    effective = random_maps("encoder", *[plain.maps["encoder"].keys] * 2, layer=layer)
    layer = MapLayer(0, "synthesizer-random", static=True)
    static = random_maps("cross", plain.maps["cross"].queries, plain.maps["cross"].keys, layer=layer)
    shifted = replace(effective, weights=effective.weights - np.float32(0.02))
    page = show(replace(plain, maps={"encoder": shifted, "cross": static}))
    assert "static: the same for every text" in page.text_content(".pane p")
    choose(page, kind="encoder")
    note = page.text_content(".pane p")
    assert [text in note for text in ("performer", "effective map", "0.30 from exact softmax")] == [True] * 3
    choose(page, head="2")
    assert "0.60 from exact softmax" in page.text_content(".pane p")
    assert number(hover(page, 1, 1)) == pytest.approx(shifted.weights[0, 2, 1, 1], abs=2 * STEP)
    assert float(page.text_content("#low")) == pytest.approx(shifted.weights[0, 2].min(), abs=2 * STEP)


def pooled_page(show: Open) -> tuple[Any, AttentionMaps]:
    """Return a page of reduced resolution and its map."""
    capture = long_capture(2, 4, 150)
    options = {"budget": 100_000, "command": "attnkit visualize-attn RUN"}
    return show(capture, options=options), capture.maps["encoder"]


def test_reduced_resolution_names_the_command_of_the_full_one(show: Open) -> None:
    page, maps = pooled_page(show)
    choose(page, layer="1", head="3")
    note = page.text_content(".pane p")
    assert "reduced resolution" in note
    assert note.endswith("Full resolution: attnkit visualize-attn RUN --layer 1 --head 3")
    rows, columns = json.loads(page.text_content("#data"))["captures"][0]["maps"][0]["weights"]["pool"]
    block = maps.weights[1, 3][2 * rows : 3 * rows, columns : 2 * columns].max()
    assert number(hover(page, 2, 1)) == pytest.approx(block, abs=STEP)
    assert "--layer L --head H" in page.text_content("#omitted")


def test_only_the_visible_part_of_a_long_map_is_drawn(show: Open) -> None:
    page, _ = pooled_page(show)
    click(page, "#larger", click_count=6)
    whole = page.locator(".scroll > div").first.bounding_box()
    drawn = page.locator(".scroll canvas").first.bounding_box()
    assert whole["height"] > 1200
    assert drawn["height"] <= 0.85 * DESK["height"]


def test_statistics_of_heads_open_their_maps(show: Open) -> None:
    page = show(CAPTURE, view="numbers")
    rows = page.locator("#numbers tbody tr")
    numbers = statistics(CAPTURE.maps["cross"])
    for number in range(rows.count()):
        layer, head, entropy, _, _, first, *_ = rows.nth(number).locator("td").all_text_contents()
        expected = numbers[int(layer)][int(head)]
        assert float(entropy) == pytest.approx(expected.entropy, abs=6e-4)
        assert float(first) == pytest.approx(expected.first, abs=6e-4)
    rows.nth(4).click()
    settle(page)
    assert page.text_content(".pane h2") == "cross attention, layer 1, head 1"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("view", ["matrix", "lines", "grid"])
def test_axes_without_visible_tokens_have_a_note(show: Open, view: str) -> None:
    special = tokens("<s> </s>")
    capture = replace(translation(), maps={"encoder": random_maps("encoder", special, special)})
    page = show(capture, view=view)
    check(page, "plain")
    if view == "grid":
        assert "nothing to show" in page.text_content("#grid")
    else:
        assert "all its tokens are hidden" in page.text_content(".pane p")
    page.uncheck("#plain")
    settle(page)
    assert page.locator("#grid canvas, .scroll:visible canvas").count() > 0
