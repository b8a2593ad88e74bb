"""The page of a report in a browser: whole without script, on a phone, in the dark, on paper."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers.scored_runs import scored_run

from attnkit.show.report import page, report_of

OUTPUTS = ["ein roter hund", "zwei katzen", "ein hund und eine katze", "katzen", "eine katze"]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A report of five systems, the last of which are folded."""
    folder = tmp_path_factory.mktemp("runs")
    runs = []
    for number in range(5):
        outputs = [f"{OUTPUTS[0]} {'x' * 90 * number}", *OUTPUTS[1 : 5 - number], *["a"] * number]
        runs.append(scored_run(folder, f"a-long-name-of-a-variant-{number}", outputs))
        for step in (10, 20, 30):
            record = {"step": step, "epoch": 0, "loss": number + 9.0 / step, "seconds": 1.0 * step}
            runs[-1].log.append(record)
    return page(report_of(runs, {"toy": runs[0].variant}, (), "attnkit report runs", lambda _: None))


@pytest.fixture
def show(content: bytes, open_page: Callable[..., Any]) -> Callable[..., Any]:
    def opened(**options: Any) -> Any:
        return open_page(content, **options)

    return opened


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_screen(show: Callable[..., Any], width: int) -> None:
    found = show(viewport={"width": width, "height": 800})
    assert found.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.scroll')].some((b) => b.scrollWidth > b.clientWidth)"
    assert found.evaluate(wide) or width > 1000


def test_without_its_script_it_is_whole(show: Callable[..., Any]) -> None:
    found = show(java_script_enabled=False)
    assert found.locator("table").count() >= 4
    assert found.locator("main img").count() >= 2
    assert found.locator("td mark").count() > 0
    images = "[...document.images].every((image) => image.complete && image.naturalWidth > 0)"
    assert found.evaluate(images)
    for link in found.locator("nav a").all():
        assert found.locator(link.get_attribute("href")).text_content() == link.text_content()


def test_colours_follow_the_reader(show: Callable[..., Any]) -> None:
    found = show(color_scheme="dark")
    assert found.text_content("#theme") == "Light"
    found.click("#theme")
    assert found.get_attribute("html", "data-theme") == "light"
    assert found.text_content("#theme") == "Dark"


def test_paper_shows_what_is_folded(show: Callable[..., Any]) -> None:
    found = show()
    closed = "details:not([open])"
    before = found.locator(closed).count()
    assert before > 0
    found.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert found.locator(closed).count() == 0
    found.evaluate("dispatchEvent(new Event('afterprint'))")
    assert found.locator(closed).count() == before
    found.emulate_media(media="print", color_scheme="dark")
    colours = found.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colours in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")
