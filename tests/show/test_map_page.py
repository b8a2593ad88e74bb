"""Tests of the page of attention maps as a file: content, precision, size, escaping."""

import base64
import hashlib
import re
import zlib
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.pages import HOSTILE_TEXTS, Document, long_capture
from helpers.sentences import SOURCE, random_maps, tokens, translation
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from attnkit.analysis.maps import MapLayer, Token
from attnkit.errors import UsageError
from attnkit.show.color import pooled
from attnkit.show.map_page import BUDGET, page
from attnkit.show.map_page.weights import encode


def decode(coded: dict[str, Any]) -> Any:
    """Return the values that `encode` encoded, as the script of the page computes them."""
    raw = zlib.decompress(base64.b64decode(coded["data"]), -15)
    values = np.frombuffer(raw, "<i2").astype(np.float32) * np.float32(coded["step"])
    return values.reshape(-1, coded["rows"], coded["columns"])


def test_page_has_one_script_and_one_style_and_fetches_nothing() -> None:
    document = Document(page([translation()]))
    tags = Counter(tag for tag, _ in document.elements)
    assert tags["script"] == 2
    assert tags["style"] == 1
    assert not tags.keys() & {"link", "img", "iframe", "object", "embed", "base", "form", "a"}
    for _, attributes in document.elements:
        assert not attributes.keys() & {"src", "href", "style", "srcset", "action"}
        assert not any(name.startswith("on") for name in attributes)
    style, data, script = (text for _, text in document.raw)
    assert not re.search(r"://|url\(|@import|import\(", style + script)
    assert not re.search("innerHTML|eval", script)
    assert not re.search(r"(?m)^(\s|//)", script), "no indentation, no comments"
    assert script.startswith('"use strict";')
    assert len(script) < 30_000
    policy = next(a["content"] for tag, a in document.elements if a.get("http-equiv"))

    def hashed(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert policy == (
        f"default-src 'none'; img-src data:; script-src '{hashed(script)}'; "
        f"style-src '{hashed(style)}'; base-uri 'none'; form-action 'none'"
    )


def test_decoded_weights_are_within_one_step() -> None:
    capture = translation()
    (record,) = Document(page([capture])).data["captures"]
    assert [maps["kind"] for maps in record["maps"]] == ["encoder", "decoder", "cross"]
    for maps in record["maps"]:
        weights = capture.maps[maps["kind"]].weights
        values = decode(maps["weights"]).reshape(weights.shape)
        assert np.abs(values - weights).max() <= 1 / 65_534 + 1e-7
        np.testing.assert_allclose(values.sum(-1), 1, atol=1e-4)


@given(arrays.arrays(np.float32, (1, 3, 6), elements=st.floats(-8, 8, width=32)))
def test_signed_weights_decode_within_half_a_step(weights: Any) -> None:
    coded = encode(weights)
    values = decode(coded)
    assert np.abs(values - weights).max() <= coded["step"] * 0.5001 + 5e-7  # float32 rounds at 8
    assert coded["step"] <= 8 / 32767 or not weights.any()
    assert not values[weights == 0].any()


def test_values_that_are_not_finite_are_counted() -> None:
    plain = translation()
    weights = plain.maps["cross"].weights.copy()
    weights[0, 1, 2, 3:5] = np.nan, np.inf
    layer = MapLayer(0, "linear", exact=False, distance=(float("nan"), 0.5, 0.25))
    broken = replace(plain.maps["cross"], weights=weights, layers=(layer,) * 2)
    (record,) = Document(page([replace(plain, maps={"cross": broken})])).data["captures"]
    (maps,) = record["maps"]
    assert maps["lost"] == 2
    values = decode(maps["weights"])[1, 2]
    assert np.abs(values - np.where(np.isfinite(weights[0, 1, 2]), weights[0, 1, 2], 0)).max() < 0.1
    assert not values[3:5].any()
    assert maps["layers"][0]["distance"] == [None, 0.5, 0.25]
    assert maps["numbers"][0][1][0] is None
    assert maps["numbers"][0][0][0] is not None


def test_equal_captures_give_equal_bytes() -> None:
    assert page([translation()]) == page([translation()])


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_hostile_text_adds_no_element(text: str) -> None:
    plain = translation()
    queries = (Token(text, 5, 0), *tokens(SOURCE)[1:])
    capture = replace(
        plain,
        source=text,
        output=text,
        how=text,
        model=text,
        facts={text: text},
        maps={"encoder": random_maps("encoder", queries, queries, layer=MapLayer(0, text))},
    )
    content = page([capture], command=text)
    document = Document(content)
    expected = Document(page([replace(plain, maps={"encoder": plain.maps["encoder"]})]))
    assert document.elements == expected.elements
    assert document.data["axes"][0]["text"][0].isprintable()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", content.decode())


def test_equal_axes_are_written_once() -> None:
    data = Document(page([translation("a"), translation("b", seed=9)])).data
    assert len(data["axes"]) == 2
    first, second = ([(m["queries"], m["keys"]) for m in c["maps"]] for c in data["captures"])
    assert first == second == [(0, 0), (1, 1), (1, 0)]


def test_reference_of_a_capture_is_compared() -> None:
    exact = translation("toy, exact softmax")
    data = Document(page([replace(translation("toy"), reference=exact)])).data
    assert [record["model"] for record in data["captures"]] == ["toy", "toy, exact softmax"]
    assert data["start"]["other"] == 1


def test_shared_texts_are_written_once() -> None:
    first, second = translation("a"), replace(translation("b"), output="Ein Hund.", how="given")
    noted = replace(second, facts={"note": "cut after 8 tokens"})
    assert Document(page([first, noted])).data["texts"] == [
        ["read", "A man cleaning a window."],
        ["a wrote", "Ein Mann putzt ein Fenster. (beam 5)"],
        ["b given", "Ein Hund."],
        ["note", "b: cut after 8 tokens"],
    ]


def test_no_maps_raise() -> None:
    with pytest.raises(UsageError, match="no attention maps to show"):
        page([replace(translation(), maps={})])


@pytest.mark.slow
def test_144_heads_of_512_tokens_are_pooled_within_the_budget() -> None:
    capture = long_capture(12, 12, 512)
    content = page([capture])
    assert len(content) <= BUDGET
    (maps,) = Document(content).data["captures"][0]["maps"]
    coded = maps["weights"]
    rows, columns = coded["pool"]
    assert (coded["rows"], coded["columns"], rows) == (-(-512 // rows), -(-512 // columns), columns)
    assert rows > 1
    expected = pooled(capture.maps["encoder"].weights[3, 7], rows, columns)
    assert np.abs(decode(coded)[3 * 12 + 7] - expected).max() <= 1 / 510


@pytest.mark.parametrize("budget", [60_000, 80_000, 120_000, 400_000])
def test_page_is_within_its_budget(budget: int) -> None:
    assert len(page([long_capture(3, 4, 100)], budget=budget)) <= budget
