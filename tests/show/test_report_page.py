"""Tests of the page of a report in a browser: without script, on a phone, in dark mode, in print."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from helpers.scored_runs import OUTPUTS, scored_run

from attnkit.show.report import page, report_of


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a report of five systems, of which the last are folded."""
    folder = tmp_path_factory.mktemp("runs")
    runs = []
    for number in range(5):
        outputs = [f"{OUTPUTS[0]} {'x' * 90 * number}", *OUTPUTS[1 : 5 - number], *["a"] * number]
        runs.append(scored_run(folder, f"a-long-name-of-a-variant-{number}", outputs))
        for step in (10, 20, 30):
            runs[-1].log.append({"step": step, "epoch": 0, "loss": number + 9.0 / step, "seconds": 1.0 * step})
    return page(report_of(runs, {"toy": runs[0].variant}, (), "attnkit report runs", lambda _: None))


@pytest.fixture
def show(content: bytes, open_page: Callable[..., Any]) -> Callable[..., Any]:
    return partial(open_page, content)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_page_is_not_wider_than_the_screen(show: Callable[..., Any], width: int) -> None:
    report = show(viewport={"width": width, "height": 800})
    assert report.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.scroll')].some((b) => b.scrollWidth > b.clientWidth)"
    assert report.evaluate(wide) or width > 1000


def test_page_is_complete_without_script(show: Callable[..., Any]) -> None:
    report = show(java_script_enabled=False)
    assert report.locator("table").count() >= 4
    assert report.locator("main img").count() >= 2
    assert report.locator("td mark").count() > 0
    images = "[...document.images].every((image) => image.complete && image.naturalWidth > 0)"
    assert report.evaluate(images)
    for link in report.locator("nav a").all():
        assert report.locator(link.get_attribute("href")).text_content() == link.text_content()


def test_colors_follow_the_system_until_switched(show: Callable[..., Any]) -> None:
    report = show(color_scheme="dark")
    assert report.text_content("#theme") == "Light"
    report.click("#theme")
    assert report.get_attribute("html", "data-theme") == "light"
    assert report.text_content("#theme") == "Dark"


def test_print_shows_folded_parts(show: Callable[..., Any]) -> None:
    report = show()
    closed = "details:not([open])"
    before = report.locator(closed).count()
    assert before > 0
    report.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert report.locator(closed).count() == 0
    report.evaluate("dispatchEvent(new Event('afterprint'))")
    assert report.locator(closed).count() == before
    report.emulate_media(media="print", color_scheme="dark")
    colors = report.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colors in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")
