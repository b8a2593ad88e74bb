"""Fixtures for pages in a browser."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Provide a headless browser, or skip with the reason."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: install one of {', '.join(BROWSERS)}")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that opens the bytes of a page; a request, an error or a dialog fails the test."""
    faults: list[str] = []
    contexts = []
    file = tmp_path / "page.html"

    def refuse_requests(route: Any) -> None:
        if route.request.url == file.as_uri():
            route.continue_()
            return
        faults.append(route.request.url)
        route.abort()

    def open_content(content: bytes, **options: Any) -> Any:
        file.write_bytes(content)
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type == "error" and faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        context.route("**/*", refuse_requests)
        page.goto(file.as_uri())
        return page

    yield open_content
    for context in contexts:
        context.close()
    assert faults == []
