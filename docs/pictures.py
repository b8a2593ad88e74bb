"""Make the pictures of the documentation: every one is what a command shows.

    python docs/pictures.py runs/quickstart [RUN]

The first argument is the folder of the quickstart; RUN, a translation/multi30k run, is for the
worked example of seeing-attention.md.  Terminals are real ones (of a pseudo-terminal); they and the
pages are photographed in headless Chromium.
"""

import argparse
import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent / "pictures"
LETTERS = "The poor woman stole the letters."
IT = "The animal didn't cross the street because it was too {}."
SCREEN = """<style>
body {{ margin: 0; background: #101418; display: inline-flex; gap: 40px; padding: 12px 16px }}
pre {{ margin: 0; color: #e6e6e6; font: 13px/1.23 "DejaVu Sans Mono", monospace }}
</style>{screens}"""


def on_terminal(words: list[str], columns: int) -> str:
    """What a command writes to a terminal of so many columns, with its colors."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    variables = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "attnkit", *words]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=os.environ | variables)
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        written += part
    if process.wait():
        raise SystemExit(f"failed: attnkit {' '.join(words)}")
    return written.decode().replace("\r\n", "\n")


def photograph(browser: Browser, name: str, screens: list[str], columns: int) -> None:
    """The texts of terminals, side by side, as a PNG."""
    page = browser.new_page(viewport={"width": 1600, "height": 900})
    page.set_content(SCREEN.format(screens="".join(html(screen, columns) for screen in screens)))
    page.locator("body").screenshot(path=HERE / f"{name}.png")
    page.close()


def html(screen: str, columns: int) -> str:
    """A terminal's text as an element."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, file=nowhere, width=columns, color_system="truecolor", force_terminal=True)
        console.print(Text.from_ansi(screen), end="")
        return console.export_html(code_format="<pre>{code}</pre>", inline_styles=True)


def pages(browser: Browser, file: Path) -> None:
    """The views of a page, dark and light, and on a phone."""
    page = opened(browser, file, {"width": 1000, "height": 760})
    page.screenshot(path=HERE / "page-grid.png")
    page.get_by_role("button", name="Matrix").click()
    page.screenshot(path=HERE / "page-matrix.png")
    page.get_by_role("button", name="Lines").click()
    page.screenshot(path=HERE / "page-lines.png")
    page.close()
    small = opened(browser, file, {"width": 390, "height": 760}, color_scheme="dark")
    small.screenshot(path=HERE / "page-phone.png")
    small.close()


def opened(browser: Browser, file: Path, size: Any, **options: Any) -> Page:
    """A page of a file."""
    page = browser.new_page(viewport=size, **options)
    page.goto(file.as_uri())
    return page


def main() -> None:
    """Make them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("quickstart", type=Path)
    parser.add_argument("run", nargs="?")
    arguments = parser.parse_args()
    base, other = (str(arguments.quickstart / v / "seed-1") for v in ("scaled-dot", "linear"))
    show = ["visualize-attn", base, LETTERS]
    terminals = {
        "quickstart": ([["eval", str(arguments.quickstart)], show], 80),
        "comparison": ([[*show, "--with", other, "--kind", "encoder", "--view", "full"]], 120),
        "terminal": ([show], 100),
    }
    if arguments.run:
        run = ["visualize-attn", arguments.run]
        terminals |= {
            word: (
                [
                    [
                        *run,
                        IT.format(word),
                        "--kind",
                        "encoder",
                        "--layer",
                        "1",
                        "--head",
                        "2",
                        "--words",
                        "--scale",
                        "row",
                    ]
                ],
                80,
            )
            for word in ("tired", "narrow")
        }
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, (commands, columns) in terminals.items():
            screens = [on_terminal(words, columns) for words in commands]
            photograph(browser, name, screens, columns)
        maps = Path(folder, "maps.html")
        on_terminal([*show, "--save", str(maps)], 80)
        pages(browser, maps)
        browser.close()
    on_terminal([*show, "--layer", "0", "--save", str(HERE / "picture.png")], 80)


if __name__ == "__main__":
    main()
