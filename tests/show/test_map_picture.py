"""Tests of attention maps as PNG, SVG and PDF."""

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attnkit.analysis.maps import AttentionMaps, Capture, Kind, MapLayer, Token
from attnkit.errors import UnavailableError, UsageError
from attnkit.show import color
from attnkit.show import figure as figures
from attnkit.show.figure import FORMATS, RESOLUTION
from attnkit.show.map_picture import Picture, picture

matplotlib = pytest.importorskip("matplotlib")

SVG = "{http://www.w3.org/2000/svg}"
WORDS = ("The", "cat", "is", "tired")
HOSTILE = ("$x^2$", "$\\frac{", "</text><script>alert(1)</script>", "]]>", "-->", "&amp;", '"x=')
HOSTILE += ("\x1b[31m", "\x9b31m", "\u202eevil", "a\nb\tc", "\ud800", "\u2028", "", "x" * 99)


def tokens(texts: Sequence[str]) -> tuple[Token, ...]:
    return tuple(Token(text, number, number) for number, text in enumerate(texts))


def maps(layers: int = 1, heads: int = 1, texts: Sequence[str] = WORDS, kind: Kind = "cross") -> AttentionMaps:
    """Return maps of random rows that sum to 1."""
    axis = tokens(texts)
    weights = np.random.default_rng(0).dirichlet(np.ones(len(axis)), size=(layers, heads, len(axis)))
    facts = tuple(MapLayer(number, "scaled-dot") for number in range(layers))
    return AttentionMaps(kind, weights.astype(np.float32), facts, tuple(range(heads)), axis, axis)


def captured(shown: AttentionMaps, model: str = "toy base seed 1") -> Capture:
    return Capture("", "", "given", model, {shown.kind: shown})


def draw(shown: AttentionMaps, format: str = "svg", **options: Any) -> Picture:
    return picture(captured(shown), shown.kind, format, **options)


def pixels(data: bytes) -> np.ndarray:
    from matplotlib.image import imread

    return np.asarray(imread(io.BytesIO(data), format="png"))[..., :3]


def texts_of(svg: bytes) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def images_of(svg: bytes) -> int:
    return len(list(ET.fromstring(svg).iter(f"{SVG}image")))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("format", FORMATS)
def test_picture_does_not_depend_on_the_users_settings(format: str) -> None:
    first = draw(maps(), format=format).data
    with matplotlib.rc_context({"font.size": 30, "image.cmap": "jet", "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        assert draw(maps(), format=format).data == first
        assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_formats() -> None:
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert {f: draw(maps(), format=f).data[: len(start)] for f, start in starts.items()} == starts


def cells(image: np.ndarray) -> np.ndarray:
    """Return the colors at the centres of the cells of a map of 2 x 2, found by its black frame."""
    dark = image.sum(2) < 0.3

    def ends(counts: np.ndarray) -> list[int]:
        lines = np.flatnonzero(counts > 0.9 * counts.max())
        return [int(lines[0]), int(lines[lines > lines[0] + 50][0])]

    left, right = ends(dark.sum(0))
    top, bottom = ends(dark[:, left:right].sum(1))
    rows, columns = ([(3 * low + high) // 4, (low + 3 * high) // 4] for low, high in ((top, bottom), (left, right)))
    return image[np.ix_(rows, columns)]


@pytest.mark.parametrize("scale", ["linear", "row"])
def test_cell_has_the_color_of_its_weight(scale: Any) -> None:
    """The frame is black and cividis begins in dark blue, so weights of zero are avoided."""
    shown = maps(texts=("a", "b"))
    shown.weights[0, 0] = [[0.25, 0.75], [0.5, 0.5]]
    found = cells(pixels(draw(shown, format="png", scale=scale).data))
    shares = {"linear": [[1 / 3, 1], [2 / 3, 2 / 3]], "row": [[1 / 3, 1], [1, 1]]}[scale]
    expected = color.table()[color.steps(np.array(shares))] / 255
    assert np.abs(found - expected).max() < 0.02


def test_svg_contains_text() -> None:
    shown = texts_of(draw(maps()).data)
    assert [shown.count(word) for word in WORDS] == [2] * len(WORDS)
    assert "cross attention: scaled-dot (exact), layer 0, head 0" in shown
    assert "attention weight" in shown


def test_hostile_tokens_are_escaped() -> None:
    plain = draw(maps(texts=[f"w{i}" for i in range(len(HOSTILE))]))
    drawn = picture(captured(maps(texts=HOSTILE), "$x$ <b> \x1b\u202e"), "cross", "svg")
    tags = [{node.tag for node in ET.fromstring(drawing.data).iter()} for drawing in (plain, drawn)]
    assert tags[0] == tags[1]
    shown = texts_of(drawn.data)
    assert shown.count("$x^2$") == shown.count("</text><script>alert(1)\u2026") == 2
    assert shown.count("\\x1b[31m") == shown.count("a\\nb\\tc") == 2
    assert "$x$ <b> \\x1b\\u202e" in shown
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", drawn.data.decode("utf-8"))


def test_heads_have_panels_and_one_color_bar() -> None:
    shown = draw(maps(2, 3)).data
    assert images_of(shown) == 2 * 3 + 1
    names = [f"layer {layer}, head {head}" for layer in (0, 1) for head in (0, 1, 2)]
    assert [texts_of(shown).count(name) for name in (*names, "attention weight")] == [1] * 7


def test_heads_of_one_layer_are_wrapped_and_named() -> None:
    shown = texts_of(draw(maps(1, 6)).data)
    assert {f"layer 0, head {number}" for number in range(6)} <= {*shown}


@pytest.mark.sampled(21)
@pytest.mark.parametrize("scale", ["linear", "log", "row"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.25, 3.0, float("nan"), float("inf"), 1e-30], ids=str)
def test_all_weights_can_be_drawn(scale: Any, value: float) -> None:
    """Effective weights are not a distribution: rows of zeros, negative and large values occur."""
    shown = maps()
    for part in (shown.weights[0, 0, 1], shown.weights):
        part[:] = value
        assert draw(shown, scale=scale).data


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 200), (90, 2)])
def test_all_shapes_can_be_drawn(queries: int, keys: int) -> None:
    weights = np.full((1, 1, queries, keys), 1 / keys, np.float32)
    shown = AttentionMaps("cross", weights, (MapLayer(0, "dot"),), (0,), tokens(["x"] * queries), tokens(["y"] * keys))
    height, width, _ = pixels(draw(shown, format="png").data).shape
    assert max(height, width) < 11 * RESOLUTION


@pytest.mark.slow
def test_long_axes_have_readable_labels() -> None:
    shown = draw(maps(texts=[f"w{i}" for i in range(512)]))
    labels = [text for text in texts_of(shown.data) if text.startswith("w")]
    assert 40 < len(labels) / 2 < 120
    assert labels[:2] == ["w0", "w6"]
    assert len(shown.data) < 2_000_000
    assert shown.warnings == ()


def test_space_marks_are_left_out_where_all_tokens_are_words() -> None:
    words = [f"\u2581{word}" for word in WORDS]
    assert texts_of(draw(maps(texts=words)).data).count("cat") == 2
    assert texts_of(draw(maps(texts=[*words, "s"])).data).count("\u2581cat") == 2


def test_glyphs_without_a_font_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "PREFERRED", ())
    (warning,) = draw(maps(texts=["\u65e5\u672c", "\ud55c", "\u0939", "a"])).warnings
    assert warning.startswith("no installed font has U+0939, U+65E5, U+672C and 1 more, drawn as")


def test_installed_font_with_the_glyphs_is_found() -> None:
    families, missing = figures.fonts(["\u65e5\u672c"])
    if missing:
        pytest.skip("no font with Chinese characters is installed")
    assert len(families) == 2
    assert draw(maps(texts=["\u65e5", "\u672c"])).warnings == ()


def test_invalid_format_kind_or_missing_package_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="'svgg': did you mean svg[?] choose from png, svg, pdf"):
        draw(maps(), format="svgg")
    with pytest.raises(UsageError, match="--kind encoder: .* it has cross"):
        picture(captured(maps()), "encoder", "png")
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"pip install 'attnkit\[plot\]'") as error:
        draw(maps())
    assert error.value.code == 69
