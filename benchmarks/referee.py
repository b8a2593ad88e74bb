"""Published results (published.yaml), compared with those of stored runs."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple

import yaml
from claims import Strict
from common import ROOT, table

from attnkit.recipe import load, shipped
from attnkit.runs import Run
from attnkit.scoring.results import ScoreRow
from attnkit.scoring.saved_scores import saved_rows
from attnkit.scoring.significance import PairedTest

FILE = ROOT / "benchmarks/published.yaml"
PAGE = ROOT / "benchmarks/results/published.md"
PART = "a part"
OFF_A_FIGURE = 0.5
"""Maximum error, in points, of a number that was read off a figure."""
RULES = """\
*Ours* is the mean over seeds, with its 95 % interval over test rows and seeds (with one seed: over
test rows; if all rows or none are right: 3 / rows in both directions, the rule of three). The
verdict is *agrees* if this interval contains the published number, or overlaps the range of the
papers that state one, otherwise *differs*. A number that was read off a figure (px) may be wrong
by half a point. *A part*: the published number is a mean over several settings, of which one was
trained here, so the two cannot be compared yet. *Not run*: not trained here. r: the number was
read in code, a configuration or a text; mem: it was quoted from memory. The head of each recipe
lists its deviations from the source. Learning rates are never chosen on test rows here; several of
the sources do so."""


class Row(Strict):
    """One published number, and the row of a recipe that repeats it."""

    row: str
    published: tuple[float, float]
    certainty: Literal["r", "px", "mem"]
    source: str
    explained: str = ""
    """Explanation of a difference."""


class Benchmark(Strict):
    """The published numbers of one benchmark."""

    title: str
    recipe: str
    metric: str
    note: str
    lengths: tuple[int, ...] = ()
    part: bool = False
    """Whether the published numbers are means over several settings, of which the recipe has one."""
    rows: tuple[Row, ...]


class Found(NamedTuple):
    """Our score of a row."""

    value: float
    low: float
    high: float
    seeds: int

    def verdict(self, row: Row) -> str:
        """Return whether the interval overlaps the published range."""
        width = OFF_A_FIGURE if row.certainty == "px" else 0.0
        low, high = row.published[0] - width, row.published[1] + width
        return "agrees" if self.low <= high and self.high >= low else "differs"


def benchmarks() -> list[Benchmark]:
    """Return the published numbers, checked against the recipes that they name."""
    found = [Benchmark(**entry) for entry in yaml.safe_load(FILE.read_text("utf-8"))]
    for one in found:
        variants = load(shipped()[one.recipe]).variants
        if missing := {row.row for row in one.rows} - {*variants}:
            raise SystemExit(f"{FILE}: {one.recipe} has no row {', '.join(sorted(missing))}")
    return found


def found_in(one: Benchmark, runs: Sequence[Run]) -> dict[str, Found]:
    """Return our scores of the stored rows of a benchmark."""
    rows: dict[str, list[ScoreRow]] = {}
    for score in chain.from_iterable(map(saved_rows, runs)):
        if score.split == "test" and (score.length is None or score.length in one.lengths):
            rows.setdefault(score.variant, []).append(score)
    found = {}
    for name, seeds in rows.items():
        test = PairedTest([[seed.scores[one.metric] for seed in seeds]])
        value, low, high = test.interval(0)
        if low == high:  # all test rows right, or none: the rule of three
            most = 300 / test.sentences
            low, high = max(low - most, 0), min(high + most, 100)
        found[name] = Found(value, low, high, len(seeds))
    return found


def page(kept: dict[str, list[Run]]) -> str:
    """Return the page of all benchmarks, with the counts first."""
    body, counts = list[str](), Counter[str]()
    for one in benchmarks():
        ours, lines, texts = found_in(one, kept.get(one.recipe, [])), [], list[str]()
        for row in one.rows:
            low, high = row.published
            stated = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            about = [row.row, stated, f"{row.source} ({row.certainty})"]
            result = ours.get(row.row)
            verdict = "not run" if result is None else PART if one.part else result.verdict(row)
            counts[verdict] += 1
            if result is None:
                lines.append([*about, "", "", verdict])
                continue
            score = f"{result.value:.2f} [{result.low:.2f}, {result.high:.2f}]"
            lines.append([*about, score, str(result.seeds), verdict])
            if verdict == "differs":
                texts += [f"- {row.row}: {row.explained or 'not explained yet.'}"]
        head = f"row | published | source | ours, {one.metric} | seeds | verdict"
        body += [f"## {one.title}", "", f"`{one.recipe}`. {one.note}", "", table(head, lines), ""]
        body += [*texts, ""] if texts else []
    kinds = ("agrees", "differs", PART, "not run")
    summary = table(kinds, [[counts[kind] for kind in kinds]])
    return "\n".join(["# Published results, and ours", "", RULES, "", summary, "", *body]).rstrip() + "\n"
