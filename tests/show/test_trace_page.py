"""The page of a trace: a file that asks for nothing, and what it shows when a token is chosen."""

import base64
import hashlib
from dataclasses import replace
from typing import Any

import pytest
from helpers.pages import HOSTILE, Document
from helpers.traces import context, made

from attnkit.errors import UsageError
from attnkit.nbce.merged_search import TracedToken
from attnkit.nbce.sources import Source
from attnkit.nbce.trace import Trace
from attnkit.show.trace_page import SUREST, page


def hostile() -> Trace:
    """Every hostile text as a token, a name, a passage and a prompt."""
    count = len(HOSTILE)
    tokens = tuple(
        TracedToken(text, at, tuple(0.0 if at == other else 1.0 for other in range(count)))
        for at, text in enumerate(HOSTILE)
    )
    some = tuple(context(text, text * 2) for text in HOSTILE)
    return replace(
        made(),
        model=HOSTILE[0],
        prompt="".join(HOSTILE),
        contexts=some,
        tokens=tokens,
        source=Source(1, (0, 1, *[0] * (count - 2))),
    )


def test_the_policy_allows_only_the_script_and_style_of_the_page() -> None:
    found = Document(page([made()]))
    policy = next(
        attributes["content"]
        for tag, attributes in found.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    for attributes, text in found.raw:
        if attributes.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy


def test_hostile_texts_stay_data() -> None:
    content = page([hostile(), made()])
    plain, wild = Document(page([made(), made()])), Document(content)
    assert [tag for tag, _ in wild.elements] == [tag for tag, _ in plain.elements]
    assert b"\x1b" not in content
    assert b"\x00" not in content
    assert b"http" not in content.replace(b"http-equiv", b"").replace(b"http://www.w3.org", b"")


def test_the_data_names_speakers_and_the_surest_contexts() -> None:
    (record,) = Document(page([made()])).data["traces"]
    assert record["listed"] == [2, 0, 1]
    assert {at: mark["letter"] for at, mark in record["marks"].items()} == {"2": "A", "0": "B"}
    assert record["tokens"][0]["surest"] == [[2, 0.2], [0, 0.6], [1, 1.1]]
    assert record["contexts"][1]["text"] == "Berlin lies on the Spree."


def test_the_speaker_is_first_even_where_another_was_surer() -> None:
    token = TracedToken("x", 0, (0.5, 0.45, 0.7))
    (record,) = Document(page([replace(made(), tokens=(token,))])).data["traces"]
    assert record["tokens"][0]["surest"] == [[0, 0.5], [1, 0.45], [2, 0.7]]


def test_many_contexts_make_no_huge_page() -> None:
    count = 1000
    some = tuple(context(f"{at}.txt", f"text {at}") for at in range(count))
    tokens = tuple(TracedToken("w", None, (1.0,) * count) for _ in range(50))
    source = Source(None, (1 / count,) * count)
    trace = replace(made("mean"), contexts=some, tokens=tokens, source=source)
    (record,) = Document(content := page([trace])).data["traces"]
    assert len(record["tokens"][0]["surest"]) == len(record["tokens"][0]["weights"]) == SUREST
    assert len(content) < 200_000


def test_no_trace_is_refused_and_the_same_trace_gives_the_same_bytes() -> None:
    with pytest.raises(UsageError, match="no trace to show"):
        page([])
    assert page([made()]) == page([made()])


@pytest.fixture
def show(open_page: Any) -> Any:
    """Open traces as a page."""
    return lambda *traces, **options: open_page(page(traces), **options)


def test_choosing_a_token_shows_the_passage_that_it_came_from(show: Any) -> None:
    window = show(made())
    assert window.text_content("#prompt") == "Where?"
    assert window.text_content("#name") == "Context 3: paris.txt"  # the source
    window.click("#t4")
    assert window.text_content("#name") == "Context 3: paris.txt"
    assert window.text_content("#passage mark") == "Seine"
    assert "selected: A: context 3 (paris.txt), entropy 0.400 nats" in window.text_content("#readout")
    window.press("#answer", "ArrowLeft")
    assert window.text_content("#name") == "Context 1: rome.txt"
    assert window.get_attribute("#t3", "aria-selected") == "true"
    window.click("#c1")
    assert window.text_content("#passage") == "Berlin lies on the Spree."
    window.click("#t0")
    assert window.get_attribute("#answer", "aria-activedescendant") == "t0"


def test_hostile_traces_are_shown_as_text_and_nothing_runs(show: Any) -> None:
    window = show(hostile(), made("weighted"))
    for number in range(len(HOSTILE)):
        window.click(f"#t{number}")
    assert window.evaluate("document.querySelectorAll('#answer script, #answer b').length") == 0
    window.select_option("#which", "1")
    window.click("#t1")
    assert "weights" in window.text_content("#readout")


def test_a_page_on_a_phone_is_not_wider_than_the_phone(show: Any) -> None:
    window = show(made(), viewport={"width": 360, "height": 740})
    assert window.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("system", ["light", "dark"])
def test_colours_follow_the_system_until_switched(show: Any, system: str) -> None:
    papers = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
    other = "dark" if system == "light" else "light"
    window = show(made(), color_scheme=system)
    for theme, word in ((system, other), (other, system), (system, other)):
        assert window.text_content("#theme") == word.title()
        paper = window.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == papers[theme]
        window.click("#theme")
