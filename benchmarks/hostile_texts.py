"""Hostile texts in corpora, outputs and questions: whether anything reaches the reader of results unescaped.

    python benchmarks/hostile_texts.py [--count 500]

Texts are drawn from escape sequences, control characters, bidirectional marks, markup of HTML, XML, Markdown, LaTeX
and rich, formulas of spreadsheets and plain words. They are sources, references and outputs of tiny runs (those of
tests/helpers), whose results every command shows in every form. Checked are control characters and marks in text,
whether JSON parses, elements of pages and drawings, and cells of CSV. Writes the first section of
results/hostile-texts.md; text_sweep.py writes the others.
"""

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

from common import arguments, facts, publish, say, table
from helpers import trained
from helpers.scored_runs import scored_run

from attnkit.cli import main as attnkit
from attnkit.data.rows import Row

FRAGMENTS = (
    *("a red dog", "zwei katzen"),
    *("\x1b[31m", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x9b2J", "\x07", "\x08\x08", "\x00", "\x7f", "\r"),
    *("\x0b", "\x0c", "\x85", "\u2028", "\u202e", "\u2066", "\u200f", "\ufeff", "\u0301" * 9),
    *("</script><script>alert(1)</script>", "<img src=x onerror=a>", '" onmouseover="a', "<!--", "]]>"),
    *("<svg/onload=a>", "&lt;b&gt;", "{{data}}", "${x}", "[red]", "[/red]", "[link=http://x]x[/link]", "| a | b |"),
    *("![x](http://x)", "[x](javascript:a)", "`", "\\input{x}", "\\write18{x}", "$x^2$", "%", "#", "_{"),
    *("=1+1", "=HYPERLINK(1)", "+1", "-1", "@x", "\t=1", ",", '"', ";"),
    *("\u4f60\u597d", "\u05d7\u05ea\u05d5\u05dc", "\U0001f600", "x" * 40),
)
ORDER = ("What is shown", "Every character", "Exports")
"""Sections of the page."""
BATCH = 5
RUNS = ("runs/toy/good", "runs/toy/hostile")
HREF = "{http://www.w3.org/1999/xlink}href"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
Check = Callable[[str], str]
"""Returns what is wrong with a result, or an empty text."""


def hostile(draw: random.Random) -> str:
    """Draw one line of text, which is more than spaces."""
    return " ".join(draw.choices(FRAGMENTS, k=draw.randint(1, 4))) + draw.choice(("", " x"))


def plain(text: str) -> str:
    """Check for control characters but the end of a line, marks that reorder, and surrogates."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character != "\n":
            return f"holds U+{ord(character):04X}"
    return ""


def json_lines(text: str) -> str:
    """Check that the text is plain, and each line an object."""
    for line in text.splitlines():
        json.loads(line)
    return plain(text)


def json_document(text: str) -> str:
    """Check that the text is plain, and one document."""
    json.loads(text)
    return plain(text)


def cells(text: str) -> str:
    """Check that the text is plain, with equally many cells in each row, none of which a spreadsheet computes."""
    rows = list(csv.reader(io.StringIO(text)))
    if len({len(row) for row in rows}) > 1:
        return "rows of different length"
    for cell in (cell for row in rows for cell in row):
        if cell.startswith(FORMULA) and not cell.lstrip("+-").replace(".", "", 1).isdecimal():
            return f"a cell begins with {cell[:3]!r}"
    return plain(text)


class _Elements(HTMLParser):
    """Counts elements by their name with the names of their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[" ".join([tag, *sorted(name for name, _ in attrs)])] += 1


class Pages:
    """Checks that pages have only elements that the page of harmless texts has."""

    def __init__(self) -> None:
        self.known: dict[str, set[str]] = {}

    def check(self, name: str) -> Check:
        """Return the check of pages of this name; the first page is the harmless one."""

        def check(text: str) -> str:
            found = _Elements(text).found
            known = self.known.setdefault(name, {*found, "span class"})  # span: how a page shows an empty text
            if new := set(found) - known:
                return f"new elements: {sorted(new)[:3]}"
            scripts = sum(count for element, count in found.items() if element.split()[0] == "script")
            return "" if scripts <= 2 else f"{scripts} scripts"

        return check


def drawing(text: str) -> str:
    """Check that the text is XML that parses, without anything that runs or loads."""
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
    """Yield commands and checks of what they print, or of the file behind --save or -o."""
    run = "runs/toy/hostile/seed-1"
    checks = dict.fromkeys(("table", "markdown", "latex"), plain)
    checks |= {"csv": cells, "json": json_document, "jsonl": json_lines}
    for style, check in checks.items():
        yield f"compare {style}", ["compare", *RUNS, "--format", style], check
        if style != "jsonl":
            yield f"eval {style}", ["eval", *RUNS, "--format", style], check
    yield "report page", ["report", *RUNS, "-o", "r.html"], pages.check("report")
    yield "report Markdown", ["report", *RUNS, "-o", "r.md"], plain
    for text in texts[:2]:
        maps, given = ["visualize-attn", run], ["--target", texts[-1], "--", text]
        yield "maps in the terminal", [*maps, *given], plain
        yield "maps page", [*maps, "--save", "m.html", *given], pages.check("maps")
        yield "maps SVG", [*maps, "--save", "m.svg", *given], drawing
        yield "maps CSV", [*maps, "--save", "m.csv", *given], cells
    yield "generate", ["generate", run, "input.txt"], plain
    yield "generate --json", ["generate", run, "input.txt", "--json"], json_lines


def fault_of(words: Sequence[str], check: Check) -> str:
    """Run one command, and check its result and its messages; a text may be refused (2)."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = attnkit(words)
    message = errors.getvalue()
    if code not in (0, 2) or "Traceback" in message:
        return f"exit code {code}: {message.strip()[-200:]}"
    if wrong := plain(message):
        return f"messages: {wrong}"
    if code == 2:
        return "" if "text is empty" in message else message[-200:]
    saved = [words[at + 1] for at, word in enumerate(words) if word in ("--save", "-o")]
    return check(Path(saved[0]).read_text(encoding="utf-8") if saved else out.getvalue())


def batch(texts: Sequence[str], pages: Pages, faults: list[str], counts: Counter[str]) -> None:
    """Make runs with these texts in a new folder, and check all results of them."""
    sources = [text.replace("\n", " ") for text in texts]
    rows = [Row(source, target) for source, target in zip(sources, reversed(sources), strict=True)]
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        with patch.object(trained, "ROWS", rows):
            scored_run(Path(name), "good", sources)
            scored_run(Path(name), "hostile", ["", *reversed(sources[1:])])
        content = "".join(f"{source}\n" for source in sources)
        Path("input.txt").write_text(content, encoding="utf-8", newline="")
        for title, words, check in results(sources, pages):
            counts[title] += 1
            if wrong := fault_of(words, check):
                faults.append(f"{title}: {wrong} ({texts!r:.200})")
        os.chdir("/")


def main() -> None:
    options = arguments(__doc__, count=500)
    about, faults, counts, pages = facts(options), list[str](), Counter[str](), Pages()
    os.environ["COLUMNS"] = "100"
    trained.tokenizer()  # of the harmless rows
    batch([row.source for row in trained.ROWS], pages, faults, counts)
    draw = random.Random(1)
    for number in range(options.count // BATCH):
        batch([hostile(draw) for _ in range(BATCH)], pages, faults, counts)
        if number % 10 == 9:
            say(f"{(number + 1) * BATCH} texts, {len(faults)} faults")
    about["result"] = f"**{len(faults)} faults in {sum(counts.values()):,} results of {options.count:,} texts**"
    body = [table("result | times", [[title, f"{count:,}"] for title, count in counts.items()])]
    body.append("\n".join(f"- {fault!a}" for fault in faults[:40]))
    publish("hostile-texts", "Hostile texts", about, body, ORDER[0], ORDER)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
