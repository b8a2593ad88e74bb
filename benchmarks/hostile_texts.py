"""Hostile texts in corpora, outputs and questions: does anything pass through to who reads results?

    python benchmarks/hostile_texts.py [--count 500]

Texts are drawn from escape sequences, controls, bidirectional marks, markup of HTML, XML, Markdown,
LaTeX and rich, formulas of spreadsheets and plain words.  They are sources, references and outputs
of tiny runs (those of tests/helpers), whose results every command shows in every form.  Looked at:
controls and marks in text, JSON that parses, elements of pages and drawings, cells of CSV.  Writes
the first part of results/hostile-texts.md; text_sweep.py writes the others.
"""

import argparse
import csv
import io
import json
import os
import random
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import patch
from xml.etree import ElementTree

from common import ROOT, command, load_before, publish_part, say, table, versions

sys.path.insert(0, str(ROOT / "tests"))

from helpers import trained  # noqa: E402 (made importable above)
from helpers.scored_runs import scored_run  # noqa: E402

from attnkit.cli import main as attnkit  # noqa: E402
from attnkit.data.rows import Row  # noqa: E402

FRAGMENTS = (
    "a red dog",
    "zwei katzen",
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x\x1b\\",
    "\x9b2J",
    "\x07",
    "\x08\x08",
    "\x00",
    "\x7f",
    "\r",
    "\x0b",
    "\x0c",
    "\x85",
    "\u2028",
    "\u202e",
    "\u2066",
    "\u200f",
    "\ufeff",
    "\u0301" * 9,
    "</script><script>alert(1)</script>",
    "<img src=x onerror=a>",
    '" onmouseover="a',
    "<!--",
    "]]>",
    "<svg/onload=a>",
    "&lt;b&gt;",
    "{{data}}",
    "${x}",
    "[red]",
    "[/red]",
    "[link=http://x]x[/link]",
    "| a | b |",
    "![x](http://x)",
    "[x](javascript:a)",
    "`",
    "\\input{x}",
    "\\write18{x}",
    "$x^2$",
    "%",
    "#",
    "_{",
    "=1+1",
    "=HYPERLINK(1)",
    "+1",
    "-1",
    "@x",
    "\t=1",
    ",",
    '"',
    ";",
    "\u4f60\u597d",
    "\u05d7\u05ea\u05d5\u05dc",
    "\U0001f600",
    "x" * 40,
)
ORDER = ("What is shown", "Every character", "Exports")
"""Parts of the page."""
BATCH = 5
RUNS = ("runs/toy/good", "runs/toy/hostile")
HREF = "{http://www.w3.org/1999/xlink}href"
OWN = ("span class",)  # what a page says of a text: (empty)
FORMULA = ("=", "+", "-", "@", "\t", "\r")
Check = Callable[[str], str]
"""What is wrong with a result; "" where nothing is."""


def hostile(draw: random.Random) -> str:
    """One line of text, which is more than spaces."""
    return " ".join(draw.choices(FRAGMENTS, k=draw.randint(1, 4))) + draw.choice(("", " x"))


def plain(text: str) -> str:
    """No control but the end of a line, no mark that reorders, no half of a character."""
    for sign in text:
        if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") and sign not in "\n":
            return f"holds U+{ord(sign):04X}"
    return ""


def lines_of_json(text: str) -> str:
    """Plain, and each line an object."""
    for line in text.splitlines():
        json.loads(line)
    return plain(text)


def whole_json(text: str) -> str:
    """Plain, and one document."""
    json.loads(text)
    return plain(text)


def cells(text: str) -> str:
    """Plain, of equally many cells a row, none of which a spreadsheet computes."""
    rows = list(csv.reader(io.StringIO(text)))
    if len({len(row) for row in rows}) > 1:
        return "rows of different length"
    for cell in (cell for row in rows for cell in row):
        if cell.startswith(FORMULA) and not cell.lstrip("+-").replace(".", "", 1).isdecimal():
            return f"a cell begins with {cell[:3]!r}"
    return plain(text)


class _Elements(HTMLParser):
    """Names of elements with the names of their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[" ".join([tag, *sorted(name for name, _ in attrs)])] += 1


class Pages:
    """Pages may have the kinds of elements that the page of harmless texts has."""

    def __init__(self) -> None:
        self.known: dict[str, set[str]] = {}

    def check(self, name: str) -> Check:
        """The first page of a name is the harmless one."""

        def look(text: str) -> str:
            found = _Elements(text).found
            if name not in self.known:
                self.known[name] = {*found, *OWN}
            if new := set(found) - self.known[name]:
                return f"new elements: {sorted(new)[:3]}"
            scripts = sum(many for one, many in found.items() if one.split()[0] == "script")
            return "" if scripts <= 2 else f"{scripts} scripts"

        return look


def drawing(text: str) -> str:
    """XML that parses, with nothing that runs or loads."""
    for element in ElementTree.fromstring(text).iter():
        kind = element.tag.rpartition("}")[2]
        if kind in ("script", "foreignObject", "a"):
            return f"an element {kind}"
        if kind == "image" and not element.get(HREF, "").startswith("data:image/png;"):
            return "an image from elsewhere"
        if any(name.lower().startswith("on") for name in element.attrib):
            return "an attribute that runs"
    return plain(text.replace("\t", " "))


def results(texts: Sequence[str], pages: Pages) -> Iterator[tuple[str, list[str], Check]]:
    """Commands; what stands behind --save or -o is read instead of standard output."""
    run = "runs/toy/hostile/seed-1"
    for style, check in (
        ("table", plain),
        ("markdown", plain),
        ("latex", plain),
        ("csv", cells),
        ("json", whole_json),
        ("jsonl", lines_of_json),
    ):
        yield f"compare {style}", ["compare", *RUNS, "--format", style], check
        if style != "jsonl":
            yield f"eval {style}", ["eval", *RUNS, "--format", style], check
    yield "compare page", ["compare", *RUNS, "--save", "c.html"], pages.check("compare")
    yield "report page", ["report", *RUNS, "-o", "r.html"], pages.check("report")
    yield "report Markdown", ["report", *RUNS, "-o", "r.md"], plain
    for text in texts[:2]:
        maps, given = ["visualize-attn", run], ["--target", texts[-1], "--", text]
        yield "maps in the terminal", [*maps, *given], plain
        yield "maps page", [*maps, "--save", "m.html", *given], pages.check("maps")
        yield "maps SVG", [*maps, "--save", "m.svg", *given], drawing
        yield "maps CSV", [*maps, "--save", "m.csv", *given], cells
    yield "generate", ["generate", run, "input.txt"], plain
    yield "generate --json", ["generate", run, "input.txt", "--json"], lines_of_json


def look(words: Sequence[str], check: Check) -> str:
    """Run one command and look at its result and its messages; a text may be refused (2)."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = attnkit(words)
    if code not in (0, 2) or "Traceback" in errors.getvalue():
        return f"exit code {code}: {errors.getvalue().strip()[-200:]}"
    if wrong := plain(errors.getvalue()):
        return f"messages: {wrong}"
    if code == 2:
        return "" if "text is empty" in errors.getvalue() else errors.getvalue()[-200:]
    saved = [words[at + 1] for at, word in enumerate(words) if word in ("--save", "-o")]
    text = Path(saved[0]).read_text(encoding="utf-8") if saved else out.getvalue()
    return check(text)


def batch(texts: Sequence[str], pages: Pages, faults: list[str], looked: Counter[str]) -> None:
    """Runs with these texts in a new folder, and all results of them."""
    sources = [text.replace("\n", " ") for text in texts]
    rows = [Row(source, target) for source, target in zip(sources, reversed(sources), strict=True)]
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        folder = Path(name)
        with patch.object(trained, "ROWS", rows):
            scored_run(folder, "good", sources)
            scored_run(folder, "hostile", ["", *reversed(sources[1:])])
        content = "".join(f"{source}\n" for source in sources)
        Path("input.txt").write_text(content, encoding="utf-8", newline="")
        for title, words, check in results(sources, pages):
            looked[title] += 1
            if wrong := look(words, check):
                faults.append(f"{title}: {wrong} ({texts!r:.200})")
        os.chdir("/")


def main() -> None:
    """Look at all, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    options = parser.parse_args()
    before, faults, looked, pages = load_before(), list[str](), Counter[str](), Pages()
    os.environ["COLUMNS"] = "100"
    trained.tokenizer()  # of the harmless rows
    batch([row.source for row in trained.ROWS], pages, faults, looked)
    draw = random.Random(1)
    for number in range(options.count // BATCH):
        batch([hostile(draw) for _ in range(BATCH)], pages, faults, looked)
        if number % 10 == 9:
            say(f"{(number + 1) * BATCH} texts, {len(faults)} faults")
    facts = {
        "command": command(options),
        "versions": versions("attnkit", "torch"),
        "load": before,
        "result": f"**{len(faults)} faults in {sum(looked.values()):,} results of {options.count:,} texts**",
    }
    rows = [[title, f"{many:,}"] for title, many in looked.items()]
    body = [*table(["result", "times"], rows), "", *(f"- {fault!a}" for fault in faults[:40])]
    publish_part("hostile-texts", "Hostile texts", ORDER[0], ORDER, facts, body)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
