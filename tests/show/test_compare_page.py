"""The page of a comparison: texts stay texts, in a browser everything can be found and sorted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import HOSTILE, Document
from helpers.scored import scored_run

from attnkit.scoring.evaluated_lines import CorpusLine, read_lines
from attnkit.scoring.output_comparison import (
    Bucket,
    ComparedLine,
    OutputComparison,
    SystemFacts,
    compare_outputs,
)
from attnkit.show import compare_page
from attnkit.show.compare_page import page

TEXTS = [text or "x" for text in HOSTILE]


def comparison(texts: list[str], contexts: int | None = None) -> OutputComparison:
    """One line a text, which is its source, reference, outputs, contexts and the systems' names."""
    lines = tuple(
        ComparedLine(
            CorpusLine(number, text, (text,), (text, "b") if contexts else ()),
            1, (text, f"{text} c"), (float(number), 50.0), (0, None),
        )
        for number, text in enumerate(texts, 1)
    )  # fmt: skip
    systems = tuple(
        SystemFacts(f"{texts[0]}{n}", texts[0], 50.0, 1, 1, 100.0, 0.0, 0) for n in "ab"
    )
    buckets = (Bucket("1", 1, (1.0, 2.0)), Bucket("2", 1, (1.0, 2.0)))
    names = tuple(one.name for one in systems)
    return OutputComparison(
        "translation", "test", contexts, "chrf", lines, names, (), len(lines), {}, systems,
        buckets, buckets, "x",
    )  # fmt: skip


def lines_of(content: bytes) -> list[str | None]:
    """The numbers of the lines that a page has."""
    return [had["data-line"] for tag, had in Document(content).elements if tag == "article"]


@pytest.mark.parametrize("contexts", [None, 2])
def test_hostile_texts_stay_data(contexts: int | None) -> None:
    content, left_out = page(comparison(TEXTS, contexts), "reference", command=TEXTS[0])
    plain = Document(page(comparison(["a"] * len(TEXTS), contexts), "reference").content)
    tags, expected = (
        [tag for tag, _ in one.elements if tag not in ("wbr", "mark", "span")]
        for one in (Document(content), plain)
    )  # names may be broken behind signs, words marked
    assert tags == expected
    assert left_out == 0
    assert b"\x1b" not in content
    assert b"\x00" not in content
    assert b"http" not in content.replace(b"http-equiv", b"")


def test_what_differs_least_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    some = comparison([f"word {n}" for n in range(60)])
    content, left_out = page(some, "first", most=3)
    assert left_out == 57
    assert lines_of(content) == ["1", "2", "3"]
    monkeypatch.setattr(compare_page, "LARGEST", 2000)
    content, left_out = page(some, "first")
    assert 0 < left_out < 60
    assert len(lines_of(content)) == 60 - left_out
    assert f"{left_out} that differ less are left out".encode() in content


@pytest.fixture
def show(open_page: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """The page of two scored runs, opened."""
    outputs = ["ein roter hund", "zwei katzen", "ein hund und eine katze", "katzen", "eine katze"]
    others = ["ein hund", "zwei katzen", "", "\u05d7\u05ea\u05d5\u05dc <b>", "eine sehr rote katze"]
    runs = [scored_run(tmp_path, "one", outputs), scored_run(tmp_path, "two", others)]
    content = page(compare_outputs(read_lines(runs)), "reference").content

    def opened(**options: Any) -> Any:
        found = open_page(content, **options)
        found.wait_for_selector("body[data-state=ready]")
        return found

    return opened


def numbers(found: Any) -> list[str]:
    texts = found.locator("article h4").all_text_contents()
    return [" ".join(text.split()[:2]) for text in texts]


@pytest.mark.sampled(3)
def test_sentences_are_sorted_and_searched(show: Callable[..., Any]) -> None:
    found = show()
    assert numbers(found)[0] == "line 5"
    found.select_option("#sort", index=4)
    assert numbers(found) == [f"line {n}" for n in range(1, 6)]
    found.check("#unlike")
    assert numbers(found) == [f"line {n}" for n in (1, 3, 4, 5)]
    found.fill("#find", "<B>")
    assert numbers(found) == ["line 4"]
    assert found.text_content("#count") == "1 of 5"
    found.fill("#find", "eine katze")
    assert found.locator("article .dim").all_text_contents() == ["(empty)"]
    assert "sehr rote" not in found.locator("mark").all_text_contents()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", [320, 360, 1200])
def test_nothing_is_wider_than_the_screen(show: Callable[..., Any], width: int) -> None:
    found = show(viewport={"width": width, "height": 700})
    assert found.evaluate("document.documentElement.scrollWidth") <= width


def test_colours_follow_the_reader(show: Callable[..., Any]) -> None:
    found = show(color_scheme="dark")
    assert found.text_content("#theme") == "Light"
    found.click("#theme")
    assert found.get_attribute("html", "data-theme") == "light"
