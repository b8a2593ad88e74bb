"""Texts and captures for HTML pages, and a parser of pages."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np

from attnkit.analysis.maps import Capture, Token
from helpers.sentences import random_maps, softmax, translation

HOSTILE_TEXTS = (
    *("</script><script>alert(1)</script>", '"onmouseover="alert(1)', "<!--<script>", "]]>", "{{script}}"),
    *("&lt;b&gt;", "\u2028\u2029", "\u202eabc\u2066", "\x00\x1b[31m\x9b", "\ud800", "", "\n\t"),
)


class Document(HTMLParser):
    """Elements with their attributes, and the text of script and style elements."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[dict[str, str | None], str]] = []
        self.feed(content.decode("utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, text: str) -> None:
        if self.elements and self.elements[-1][0] in ("script", "style") and text.strip():
            self.raw.append((self.elements[-1][1], text))

    @property
    def data(self) -> dict[str, Any]:
        """Return the JSON data of the page."""
        return json.loads(next(text for attributes, text in self.raw if "type" in attributes))


def long_capture(layers: int, heads: int, length: int) -> Capture:
    """Return maps between `length` tokens; weights are nearly even in the first head, concentrated in the last."""
    axis = tuple(Token(f"\u2581t{i}", i, i) for i in range(length))
    scores = np.random.default_rng(3).standard_normal((heads, length, length), np.float32)
    distance = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    scores -= distance.astype(np.float32) / 4
    scores *= np.linspace(0.2, 3, heads, dtype=np.float32)[:, None, None]
    layered = np.linspace(1, 1.5, layers, dtype=np.float32)[:, None, None, None] * scores
    maps = random_maps("encoder", axis[:1], axis[:1], layers=layers, heads=heads)
    maps = replace(maps, weights=softmax(layered), queries=axis, keys=axis)
    return replace(translation(), maps={"encoder": maps})
