"""Verdicts on published statements (claims.yaml), computed from stored runs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import yaml
from common import ROOT, table
from pydantic import BaseModel, ConfigDict

from attnkit.recipe import load, shipped
from attnkit.recipe.metrics import metric_facts
from attnkit.runs import Run
from attnkit.scoring.comparison import first_baselines, side_by_side
from attnkit.scoring.results import SystemDifference
from attnkit.scoring.saved_scores import saved_rows
from attnkit.scoring.significance import Difference

FILE = ROOT / "benchmarks/claims.yaml"
RULES = """\
Each line is one statement about one row and one test set. The difference is the difference of the
mean scores over seeds. Its 95 % interval covers test sentences and seeds and is not corrected; p
is corrected for the number of rows in the recipe (Holm). [Reading a
comparison](../../../docs/comparing.md) explains both.

- *above*, *below*: confirmed if p < 0.05 and the difference has the stated sign, refuted if it
  has the other sign.
- *level*: confirmed if the interval lies within the margin of the recipe (1 point, 3 % of
  perplexity), refuted if it lies outside the margin. *level or above*: confirmed if level or
  significantly above, refuted if significantly below and not level.
- Otherwise a statement is not confirmed here, or unfinished if no runs are kept. *Provisional*:
  one of the two rows has a single seed. *Exploratory*: the statement was written after its numbers
  were known.

The corpora and models are smaller than the published ones. A verdict says whether a statement
holds here, not whether its source is wrong."""


class Strict(BaseModel):
    """A mapping that allows no other keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Statement(Strict):
    """A statement of a source about rows of a recipe."""

    text: str
    source: str
    rows: tuple[str, ...]
    say: Literal["above", "below", "level", "level-or-above"]
    to: str
    worded: Literal["before", "after"] = "before"


class Group(Strict):
    """Statements about one recipe."""

    title: str
    recipe: str
    metrics: tuple[str, ...]
    splits: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    """For rows that are scored by length."""
    note: str
    statements: tuple[Statement, ...]


class Line(NamedTuple):
    """A verdict, and the comparison behind it."""

    statement: Statement
    row: str
    place: str
    found: Difference | None

    @property
    def verdict(self) -> str:
        if self.found is None:
            return "unfinished"
        provisional = "provisional" if self.found.provisional else ""
        exploratory = "exploratory" if self.statement.worded == "after" else ""
        marks = ", ".join(filter(None, (provisional, exploratory)))
        return judge(self.statement.say, self.found) + (f" ({marks})" if marks else "")


def judge(say: str, found: Difference) -> str:
    """Return the verdict on a statement by the rules above."""
    sign = found.significant and (1 if found.value > 0 else -1)
    if say in ("above", "below"):
        stated = 1 if say == "above" else -1
        return {stated: "confirmed", -stated: "refuted"}.get(sign, "not confirmed here")
    if found.within_margin or (say == "level-or-above" and sign == 1):
        return "confirmed"
    if say == "level-or-above":
        return "refuted" if sign == -1 else "not confirmed here"
    low, high = (found.percent or (0, found.low, found.high))[1:]
    return "refuted" if low > found.margin or high < -found.margin else "not confirmed here"


def groups() -> list[Group]:
    """Return the statements, checked against the recipes that they name."""
    found = [Group(**entry) for entry in yaml.safe_load(FILE.read_text("utf-8"))]
    for group in found:
        variants = load(shipped()[group.recipe]).variants
        for statement in group.statements:
            if missing := {*statement.rows, statement.to} - {*variants}:
                raise SystemExit(f"{FILE}: {group.recipe} has no row {', '.join(sorted(missing))}")
    return found


def lines_of(group: Group, runs: Sequence[Run]) -> Iterator[Line]:
    """Yield the verdicts of a recipe, one for each statement, row and test set."""
    settings = next(iter(load(shipped()[group.recipe]).variants.values())).eval
    trained = {run.variant for run in runs}
    rows = [row.only(group.metrics) for run in runs for row in saved_rows(run)]
    differences = {
        to: side_by_side(rows, first_baselines(rows, to), settings).differences
        for to in {statement.to for statement in group.statements} & trained
    }
    for statement in group.statements:
        for row in statement.rows:
            for split in group.splits:
                for length in group.lengths or (None,):
                    for metric in group.metrics:
                        parts = [split, f"length {length}" if length else "", metric_facts(metric).title]
                        found = find(differences.get(statement.to, ()), row, split, length, metric)
                        yield Line(statement, row, ", ".join(filter(None, parts)), found)


def find(
    differences: Iterable[SystemDifference], row: str, split: str, length: int | None, metric: str
) -> Difference | None:
    """Return the difference of a row and test set, if there is one."""
    for one in differences:
        if (one.row.variant, one.row.split, one.row.length, one.metric) == (row, split, length, metric):
            return one.tested
    return None


def page(kept: dict[str, list[Run]]) -> str:
    """Return the page of all statements, with the counts first."""
    judged = [(group, list(lines_of(group, kept.get(group.recipe, [])))) for group in groups()]
    kinds = ["confirmed", "refuted", "not confirmed here", "unfinished"]
    counts = []
    for group, lines in judged:
        counter = Counter(line.verdict.partition(" (")[0] for line in lines)
        provisional = sum(line.found is not None and line.found.provisional for line in lines)
        counts.append([group.title, *(counter[kind] for kind in kinds), provisional])
    out = ["# Statements of others, and what was found here", "", RULES, ""]
    out += [table(["", *kinds, "of these provisional"], counts), ""]
    for group, lines in judged:
        out += [f"## {group.title}: `{group.recipe}`", "", group.note, ""]
        if not any(line.found for line in lines):
            statements = "; ".join(statement.text for statement in group.statements)
            out += [f"Not enough rows are trained with outputs kept. To be tested: {statements}.", ""]
            continue
        body = []
        for line in lines:
            said = line.statement
            test = f"{line.row} {said.say.replace('-', ' ')} {said.to}"
            body.append([said.text, said.source, test, line.place, *numbers(line.found), line.verdict])
        out += [table("statement | source | test | set | difference | p | seeds | verdict", body), ""]
    return "\n".join(out).rstrip() + "\n"


def numbers(found: Difference | None) -> tuple[str, str, str]:
    """Return the difference with its interval, p and seeds, as cells."""
    if found is None:
        return "", "", ""
    seeds = " and ".join(map(str, found.seeds))
    ends = f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
    return ends, "<0.001" if found.p_holm < 0.001 else f"{found.p_holm:.3f}", seeds
