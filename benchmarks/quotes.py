"""Numbers in recipes and pages, written from stored runs.

In Markdown they stand between `<!-- kept RECIPE -->` and `<!-- end -->` (one phrase about all rows), or between
`<!-- kept RECIPE: ROWS -->` and `<!-- end -->` (one number, see `number`); in a recipe after `# expected:` up to the
next line that starts with a word and a colon, or is no comment.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from common import ROOT

from attnkit.recipe import load, shipped
from attnkit.recipe.metrics import metric_facts
from attnkit.runs import Run
from attnkit.scoring.results import ScoreRow
from attnkit.scoring.saved_scores import saved_rows

MAX_ROWS, FIRST, LAST = 9, 4, 2
"""Rows that a sentence lists; if there are more, it lists the first, the baseline and the last."""
UNMEASURED = "not measured with outputs kept"
"""Text for recipes without stored runs."""
WIDTH = 110
"""Width of the comment lines of recipes."""
IN_MARKDOWN = re.compile(r"(<!-- kept (\S+) -->).*?(<!-- end -->)", re.DOTALL)
NUMBER_IN_MARKDOWN = re.compile(r"(<!-- kept (\S+): (.+?) -->).*?(<!-- end -->)", re.DOTALL)
ROWS = re.compile(
    r"(?P<row>\S+)(?: (?P<relation>minus|above|below|% above|% below) (?P<other>\S+))?"
    r"(?: in (?P<metric>\S+))?(?: at (?P<length>\d+))?"
)
IN_RECIPE = re.compile(r"^# expected: .*?\n(?=# \w+:|[^#])", re.DOTALL | re.MULTILINE)


class Quoted(NamedTuple):
    """The scores of a variant on one split, means over seeds."""

    variant: str
    scores: tuple[float, ...]


def sentence(name: str, runs: Sequence[Run]) -> str:
    """Return the scores of the stored runs of a recipe as a sentence."""
    rows = [row for run in runs for row in saved_rows(run)]
    baseline = load(shipped()[name]).baseline
    parts = [
        part
        for split in _distinct(row.split for row in rows)
        for part in _of_split([row for row in rows if row.split == split], baseline)
    ]
    seeds = {len({row.seed for row in rows if row.variant == one}) for one in {row.variant for row in rows}}
    counted = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
    return f"{'; '.join(parts)} ({'one seed' if counted == '1' else f'means over {counted} seeds'})"


def _of_split(rows: Sequence[ScoreRow], baseline: str | None) -> Iterator[str]:
    """Yield one phrase; for rows that are scored by length, with the shortest and the longest."""
    lengths = _distinct(row.length for row in rows)
    ends = [lengths[0], lengths[-1]] if len(lengths) > 1 else lengths
    metrics = _first_family(list(rows[0].scores))
    cells = [(length, metric) for length in ends for metric in metrics]
    found = [
        Quoted(
            variant,
            tuple(
                mean(row.scores[metric].value for row in rows if row.variant == variant and row.length == length)
                for length, metric in cells
            ),
        )
        for variant in _distinct(row.variant for row in rows)
    ]
    lower = metric_facts(metrics[0]).better == "lower"
    found.sort(key=lambda one: one.scores[-1] if len(ends) > 1 else one.scores[0], reverse=not lower)
    title = "/".join(metric_facts(metric).title for metric in metrics)
    where = [str(rows[0].split)] if rows[0].split != "test" else []
    where += [f"lengths {ends[0]} and {ends[-1]}"] if len(ends) > 1 else []
    yield f"{title}{', ' + ', '.join(where) if where else ''}: {_listed(found, baseline)}"


def number(words: str, runs: Sequence[Run]) -> str:
    """Return one number from the kept runs of a recipe, by means over seeds on the first split.

    `ROW` is its score, `ROW minus OTHER` the signed difference, `ROW above OTHER` and `ROW below OTHER`
    the difference, `% above` and `% below` that in percent of OTHER. `in METRIC` names another metric than
    the first, `at LENGTH` a length (otherwise the first). Raises SystemExit if there is no such row, or if
    it is on the other side of OTHER.
    """
    asked = ROWS.fullmatch(words)
    if not asked:
        raise SystemExit(f"<!-- kept ...: {words} -->: not of the form that quotes.number describes")
    score = _score(asked["row"], asked["metric"], asked["length"], runs)
    if not (relation := asked["relation"]):
        return f"{score:.1f}"
    other = _score(asked["other"], asked["metric"], asked["length"], runs)
    if relation == "minus":
        return f"{score - other:+.1f}"
    if (score > other) != relation.endswith("above"):
        raise SystemExit(f"<!-- kept ...: {words} -->: the kept runs say {score:.2f} and {other:.2f}")
    return f"{100 * abs(score / other - 1):.0f}" if relation.startswith("%") else f"{abs(score - other):.1f}"


def _score(variant: str, metric: str | None, length: str | None, runs: Sequence[Run]) -> float:
    rows = [row for run in runs if run.variant == variant for row in saved_rows(run)]
    if length is not None:
        rows = [row for row in rows if row.length == int(length)]
    if not rows:
        raise SystemExit(f"no kept runs of {variant}" + (f" at length {length}" if length else ""))
    first = rows[0]
    metric = metric or next(iter(first.scores))
    if metric not in first.scores:
        raise SystemExit(f"the kept runs of {variant} have no {metric}, but {', '.join(first.scores)}")
    rows = [row for row in rows if (row.split, row.length) == (first.split, first.length)]
    return mean(row.scores[metric].value for row in rows)


def _first_family(metrics: Sequence[str]) -> list[str]:
    """Return the first metric, with those of the same family: all of ROUGE, all of BLEU."""
    family = re.sub(r"[\dL].*", "", metrics[0])
    return [one for one in metrics if re.sub(r"[\dL].*", "", one) == family]


def _listed(found: Sequence[Quoted], baseline: str | None) -> str:
    parts = [f"{'/'.join(f'{score:.1f}' for score in row.scores)} {row.variant}" for row in found]
    if len(found) <= MAX_ROWS:
        return ", ".join(parts)
    chosen = {*range(FIRST), *range(len(found) - LAST, len(found))}
    chosen |= {at for at, row in enumerate(found) if row.variant == baseline}
    out, before = list[str](), -1
    for at in sorted(chosen):
        out += ["..."] if at > before + 1 else []
        out.append(parts[at])
        before = at
    return ", ".join(out)


def _distinct(items: Iterable[Any]) -> list[Any]:
    """Return each item once, in the order of its first occurrence."""
    return list(dict.fromkeys(items))


def quoted(kept: dict[str, list[Run]]) -> Iterator[tuple[Path, str]]:
    """Yield every file that quotes stored runs, with its correct text."""
    sentences = {name: sentence(name, runs) for name, runs in kept.items()}
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text("utf-8")
        named = {found[1] for pattern in (IN_MARKDOWN, NUMBER_IN_MARKDOWN) for found in pattern.findall(text)}
        if missing := named - {*sentences}:
            raise SystemExit(f"{path}: no kept runs of {', '.join(sorted(missing))}")
        text = IN_MARKDOWN.sub(lambda one: f"{one[1]}{sentences[one[2]]}{one[3]}", text)
        yield path, NUMBER_IN_MARKDOWN.sub(lambda one: f"{one[1]}{number(one[3], kept[one[2]])}{one[4]}", text)
    for name, path in shipped().items():
        words = f"expected: {sentences.get(name, UNMEASURED)}"
        lines = textwrap.wrap(words, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        header = "".join(f"# {line}\n" for line in lines)
        text, found = IN_RECIPE.subn(header.replace("\\", r"\\"), path.read_text("utf-8"), count=1)
        if not found:
            raise SystemExit(f"{path}: its head has no line '# expected: ...'")
        yield path, text
