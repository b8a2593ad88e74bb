"""Comparisons of variants as tables: side by side, or by number of contexts or length."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from statistics import mean, stdev
from typing import NamedTuple

from attnkit.recipe import corpus_cards
from attnkit.recipe.metrics import metric_facts
from attnkit.scoring.results import Comparison, ScoreRow, SystemDifference
from attnkit.scoring.significance import UNTESTED, Difference
from attnkit.show.comparison_notes import (
    changes_of,
    comparison_notes,
    condition_notes,
    joined,
    metrics_of,
    run_notes,
    search_of,
    signature_notes,
    tests_of,
    trained,
    tuning_notes,
)
from attnkit.show.differences import difference_text, scope_note, signed, stars
from attnkit.show.recipe_tables import amount
from attnkit.show.table import NONE, PLUS_MINUS, Cell, Column, Table, Value

Fact = Callable[[ScoreRow], float | None]
MEMORY = "train_peak_memory_bytes"
FACTS: tuple[tuple[str, str, int, Fact], ...] = (
    ("parameters", "parameters", 2, lambda row: row.system.parameters),
    ("train tokens/s", "train_tokens_per_second", 3, lambda row: row.system.cost.tokens_per_second),
    ("decode sentences/s", "decode_sentences_per_second", 3, lambda row: row.sentences_per_second),
    ("peak memory", MEMORY, 4, lambda row: row.system.cost.peak_memory_bytes),
)
"""Titles, names and priorities of the columns after the scores, and what they show."""
AXES = ("contexts", "length")
"""What tables can have a column for each value of: questions for `contexts`; windows of running
text, or generated rows, for `length`."""


class Key(NamedTuple):
    """What tells rows apart but for the seed."""

    split: str | None
    recipe: str | None
    variant: str
    """The name of the system."""
    method: str | None
    place: int | None
    """On the axis."""

    @classmethod
    def of(cls, row: ScoreRow) -> "Key":
        return cls(row.split, row.recipe, row.name, row.method, row.contexts or row.length)


class _Scores:
    """The rows of a comparison by their keys, one a seed."""

    def __init__(self, comparison: Comparison) -> None:
        self.groups: dict[Key, list[ScoreRow]] = {}
        for row in comparison.rows:
            self.groups.setdefault(Key.of(row), []).append(row)
        self.differences = {(Key.of(d.row), d.metric): d for d in comparison.differences}
        self.inseparable = {
            (Key.of(row), best.metric) for best in comparison.best for row in best.inseparable
        }
        self.published = comparison.published

    def mean(self, key: Key, metric: str) -> float | None:
        """The mean over seeds, where there is a score."""
        values = self.values(key, metric)
        return mean(values) if values else None

    def values(self, key: Key, metric: str) -> list[float]:
        """One score a seed."""
        scores = (row.scores.get(metric) for row in self.groups.get(key, ()))
        return [score.value for score in scores if score is not None and score.finite]

    def figure(self, key: Key, metric: str) -> tuple[float, bool] | None:
        """The published score that stands beside one, and whether they are comparable."""
        for published in self.published:
            if (score := published.score(self.groups[key][0], metric)) is not None:
                return score, published.figures.comparable
        return None

    def best(self, key: Key, metric: str, digits: int) -> bool:
        """Whether none on the split at the same place of the axis is better, unless all are equal.

        Those that cannot be compared with the baseline do not take part.
        """
        apart = {at for at, one in self.differences.items() if one.not_comparable}
        means = {
            other: self.mean(other, metric)
            for other in self.groups
            if (other.split, other.place) == (key.split, key.place) and (other, metric) not in apart
        }
        shown = {k: round(value, digits) for k, value in means.items() if value is not None}
        better = metric_facts(metric).better
        if better == "neither":
            return False
        choose = min if better == "lower" else max
        return len({*shown.values()}) > 1 and shown.get(key) == choose(shown.values())


def tables(comparison: Comparison) -> list[Table]:
    """Any comparison as a screen shows it: along an axis a table for each split, else one.

    The notes are below the last.
    """
    if not axis_of(comparison.rows):
        return [comparison_table(comparison)]
    rows, scores = comparison.rows, _Scores(comparison)
    splits = dict.fromkeys(row.split for row in rows)
    of_splits = [_axis_rows([row for row in rows if row.split == s], scores) for s in splits]
    return [*of_splits[:-1], replace(of_splits[-1], notes=tuple(_axis_notes(comparison)))]


def axis_of(rows: Iterable[ScoreRow]) -> str:
    """Along what a comparison goes: a word of AXES, or ""."""
    return next((name for name in AXES if any(getattr(row, name) is not None for row in rows)), "")


def warning_lines(comparison: Comparison) -> list[str]:
    """What looks wrong about the outputs, a line each with the runs or files that it is about."""
    about: dict[str, list[str | None]] = {}
    for row in comparison.rows:
        for text in row.warnings:
            about.setdefault(text, []).append(row.files.hypotheses if row.files else row.run)
    out = []
    for text, names in about.items():
        first, *others = dict.fromkeys(names)
        more = f" and {len(others)} more" if len(others) > 1 else "".join(f", {o}" for o in others)
        out.append(f"{first}{more}: {text}")
    return out


def comparison_table(comparison: Comparison) -> Table:
    """Variants side by side.

    One row a variant and split: each score as its mean (and sample standard deviation) over seeds,
    the difference to the baseline with its interval and p-value, what others published, the number
    of seeds, size, speed and memory.  Questions have a row for each method and number of contexts,
    windows one for each length.
    """
    rows, scores = comparison.rows, _Scores(comparison)
    metrics, keys = metrics_of(rows), list(scores.groups)
    several = [name for name in ("split", "recipe") if len({getattr(r, name) for r in rows}) > 1]
    known = [name for name in ("method", *AXES) if any(getattr(row, name) for row in rows)]
    names = [*several, "variant", *known]
    columns = [Column(name, "left", key=True) for name in names]
    cells = [[_name_cell(name, key, scores) for key in keys] for name in names]
    for metric in metrics:
        title = metric_facts(metric).title
        columns.append(Column(title))
        cells.append([_score_cell(key, metric, scores) for key in keys])
        if any(one.metric == metric for one in comparison.differences):
            columns.append(Column("difference", under=True, priority=1))
            found = [scores.differences.get((key, metric)) for key in keys]
            cells.append([_difference_cell(metric, one) for one in found])
        if any(scores.figure(key, metric) for key in keys):
            columns.append(Column(f"published {title}", priority=1))
            cells.append([_published_cell(key, metric, scores) for key in keys])
    if trained(rows):
        columns.append(Column("seeds"))
        cells.append([Cell(str(len(scores.groups[key]))) for key in keys])
    for title, name, priority, fact in FACTS:
        facts = [_fact_cell(name, map(fact, scores.groups[key])) for key in keys]
        if any(cell.text != NONE for cell in facts):
            columns.append(Column(title, priority=priority))
            cells.append(facts)
    title = ": ".join(filter(None, (joined(getattr(r, n) for r in rows) for n in IN_TITLE)))
    body = tuple(zip(*cells, strict=True))
    notes = comparison_notes(comparison, metrics)
    return Table(title, tuple(columns), body, tuple(notes), about=notes)


IN_TITLE = ("recipe", "split")


def _name_cell(name: str, key: Key, scores: _Scores) -> Cell:
    runs = scores.groups[key]
    first, system = runs[0], runs[0].system
    if name != "variant":
        return Cell(str(getattr(first, name) or NONE))
    reasons = (d.not_comparable for (at, _), d in scores.differences.items() if at == key)
    more = {"method": first.method, "contexts": first.contexts, "length": first.length}
    budget = system.budget._asdict() if system.budget else {}
    fields: dict[str, Value] = {
        "recipe": first.recipe,
        "variant": first.variant,
        "split": first.split,
        "system": first.name,
        **{name: value for name, value in more.items() if value},
        "seeds": joined(row.seed for row in runs),
        "sentences": first.sentences,
        "corpus": system.corpus,
        "source_sha256": first.source,
        "references_sha256": first.references if first.source else None,
        "search": search_of(first),
        "search_from": None if first.files else first.search_from,
        **{f"train_{name}": value for name, value in budget.items()},
        "train_updates": joined(row.system.cost.updates for row in runs),
        "train_changes": joined(changes_of(row.system) for row in runs),
        "not_comparable": joined(reason for some in reasons for reason in some),
        "runs": joined(row.run for row in runs),
        "run_ids": joined(row.run_id for row in runs),
    }
    return Cell(first.name, fields)


def _score_cell(key: Key, metric: str, scores: _Scores) -> Cell:
    values, score = scores.values(key, metric), scores.mean(key, metric)
    sd = stdev(values) if len(values) > 1 else None
    found = (row.scores.get(metric) for row in scores.groups[key])
    inseparable = (key, metric) in scores.inseparable
    fields: dict[str, Value] = {
        metric: score,
        f"{metric}_sd": sd,
        f"{metric}_signature": " ".join(sorted({one.signature for one in found if one})),
    }
    if any(tested == metric for _, tested in scores.inseparable):
        fields[f"{metric}_not_separable_from_best"] = inseparable
    if score is None:
        return Cell(NONE, fields)
    spread = "" if sd is None else f" {PLUS_MINUS} {sd:.2f}"
    return Cell(f"{score:.2f}{spread}", fields, scores.best(key, metric, 2), inseparable)


def _published_cell(key: Key, metric: str, scores: _Scores) -> Cell:
    """In parentheses where it is not comparable."""
    figure, comparable = scores.figure(key, metric) or (None, False)
    fields: dict[str, Value] = {f"{metric}_published": figure}
    if figure is None:
        return Cell(NONE, fields)
    return Cell(f"{figure:.2f}" if comparable else f"({figure:.2f})", fields, dim=not comparable)


def _difference_cell(metric: str, found: SystemDifference | None) -> Cell:
    if found is None:
        return Cell(NONE, difference_fields(None, None, f"{metric}_"))
    fields = difference_fields(found.value, found.tested, f"{metric}_")
    return difference_cell(found.value, found.tested, found.not_comparable, fields)


def difference_fields(
    value: float | None, tested: Difference | None, prefix: str = ""
) -> dict[str, Value]:
    """A difference for programs; what was not tested is None."""
    named: dict[str, Value] = {"difference": value, "low": None, "high": None}
    if tested and tested.interval:
        named["low"], named["high"] = tested.interval
    if tested and tested.percent:
        named |= dict(zip(("percent", "percent_low", "percent_high"), tested.percent, strict=True))
    told = tested.json() if tested else UNTESTED
    named |= {name: told[name] for name in ("p", "p_corrected", "verdict", "provisional")}
    return {f"{prefix}{name}": value for name, value in named.items()}


def difference_cell(
    value: float | None,
    tested: Difference | None,
    not_comparable: Sequence[str],
    fields: dict[str, Value],
) -> Cell:
    """A difference for people, in parentheses where it is not that of the systems alone."""
    if value is None:
        return Cell(NONE, fields)
    if not_comparable:
        return Cell(f"({signed(value)})", fields, dim=True)
    return Cell(difference_text(value, tested), fields)


def _fact_cell(name: str, facts: Iterable[float | None]) -> Cell:
    values = [value for value in facts if value is not None]
    if not values:
        return Cell(NONE, {name: None})
    value = mean(values)
    if name == MEMORY:
        return Cell(amount(int(max(values))), {name: max(values)})
    return Cell(f"{value:,.1f}" if value < 100 and value % 1 else f"{value:,.0f}", {name: value})


def axis_table(comparison: Comparison) -> Table:
    """One row a split, a metric and a system, one column a number of contexts, or a length.

    Args:
        comparison: one whose rows have contexts or lengths.

    Scores are means over seeds.  A star marks a difference to the baseline at the same place.  The
    numbers for programs are those of `comparison_table`.
    """
    table = _axis_rows(comparison.rows, _Scores(comparison))
    return replace(table, notes=tuple(_axis_notes(comparison)))


def _axis_rows(rows: Sequence[ScoreRow], scores: _Scores) -> Table:
    """The table of some rows, without notes."""
    axis, keys = axis_of(rows), [Key.of(row) for row in rows]
    places = sorted({key.place or 0 for key in keys})
    untrained = not trained(rows)  # models and not variants of a recipe
    always = {"method"} if axis == "contexts" else {"variant"}
    always |= {"variant"} if untrained else set()
    seen = [list(dict.fromkeys(names)) for names in zip(*keys, strict=True)][:-1]
    shown = [
        at for at, names in enumerate(seen) if Key._fields[at] in always or len(names) > 1
    ]  # fmt: skip
    titles = [Key._fields[at] for at in shown]
    titles = ["model" if title == "variant" and untrained else title for title in titles]
    column = titles.index("split") + 1 if "split" in titles else 0
    titles.insert(column, "metric")
    columns = [Column(title, "left", key=True) for title in titles]
    columns += [Column(str(at)) for at in places]
    systems = [
        one
        for one in product(*seen)
        if any(Key._make([*one, at]) in scores.groups for at in places)
    ]
    digits = 1 if axis == "contexts" else 2  # numbers of contexts are many
    body = []
    for split, metric in product(seen[0], metrics_of(rows)):
        for system in (one for one in systems if one[0] == split):
            cells = [_axis_cell(Key._make([*system, at]), metric, scores, digits) for at in places]
            if any(cell.text != NONE for cell in cells):
                names = [str(system[at]) for at in shown]
                names.insert(column, metric_facts(metric).title)
                body.append((*map(Cell, names), *cells))
    recipes, splits = (joined(getattr(row, name) for row in rows) for name in IN_TITLE)
    return Table(f"{recipes}: {splits}, by {_along(axis, rows)}", tuple(columns), tuple(body))


def _along(axis: str, rows: Sequence[ScoreRow]) -> str:
    """What the columns of a table are numbers of."""
    if axis == "contexts":
        return "number of contexts"
    made = corpus_cards.row_length(rows[0].system.corpus)
    return f"length in {made.unit}" if made else "length of the text in tokens"


def _axis_cell(key: Key, metric: str, scores: _Scores, digits: int) -> Cell:
    value = scores.mean(key, metric)
    if value is None:
        return Cell(NONE)
    found = scores.differences.get((key, metric))
    mark = stars(found.tested.p_holm) if found and found.tested else ""
    # no space before the stars: columns are many
    return Cell(f"{value:.{digits}f}{mark.strip()}", {}, scores.best(key, metric, digits))


def _axis_notes(comparison: Comparison) -> list[str]:
    rows, asked = comparison.rows, axis_of(comparison.rows) == "contexts"
    first = [row for row in rows if asked or row.length == rows[0].length]
    notes = signature_notes(first, metrics_of(rows))
    if asked:
        notes += [_questions(split, rows) for split in dict.fromkeys(row.split for row in rows)]
        if any(row.contexts == 1 for row in rows):
            notes.append("1 context: what the question needs, alone")
        notes += _truncations(rows)
    else:
        notes.append(_length_note(rows))
    notes += condition_notes(comparison)
    if seeds := joined(row.seed for row in rows):
        notes.append(f"seeds: {seeds}{' (means over seeds)' if ', ' in seeds else ''}")
    return notes + tuning_notes(first) + _axis_significance(comparison, asked) + run_notes(rows)


def _length_note(rows: Sequence[ScoreRow]) -> str:
    if made := corpus_cards.row_length(rows[0].system.corpus):
        low, high = made.trained
        return f"each length: rows of so many {made.unit}; trained on {low} to {high}"
    return "each length: the whole text, cut in windows of so many tokens (blocks)"


def _questions(split: str | None, rows: Sequence[ScoreRow]) -> str:
    """How many questions were asked: those that need more contexts are left out of fewer."""
    counts: dict[int, dict[int, None]] = {}
    for row in rows:
        if row.split == split:
            counts.setdefault(row.sentences, {})[row.contexts or 0] = None
    if len(counts) == 1:
        return f"questions: {next(iter(counts)):,} of {split}"
    parts = [f"{questions:,} with {_contexts(some)}" for questions, some in counts.items()]
    return f"questions of {split}: {', '.join(parts)}"


def _truncations(rows: Sequence[ScoreRow]) -> list[str]:
    """Where all contexts in one row were longer than it may be."""
    shares: dict[str | None, dict[int, list[str]]] = {}
    for row in rows:
        if row.cut:
            by_count = shares.setdefault(row.method, {}).setdefault(row.contexts or 0, [])
            by_count.append(f"{row.cut:,} of {row.sentences:,}")
    notes = []
    for method, counts in shares.items():
        by_share: dict[str, list[int]] = {}
        for count, some in counts.items():
            by_share.setdefault(" or ".join(dict.fromkeys(some)), []).append(count)
        parts = [f"{share} questions with {_contexts(some)}" for share, some in by_share.items()]
        notes.append(f"{method} lost contexts that did not fit one row: {', '.join(parts)}")
    return notes


def _contexts(counts: Iterable[int]) -> str:
    """1 context; 2, 4, 8 contexts."""
    numbers = sorted(counts)
    return f"{', '.join(map(str, numbers))} context{'' if numbers == [1] else 's'}"


def _axis_significance(comparison: Comparison, asked: bool) -> list[str]:
    """What the stars mean; `asked`: they are of questions."""
    tested = [one for one in comparison.differences if one.tested]
    if not tested:
        return []
    several = len({(row.recipe, row.variant) for row in comparison.rows}) > 1
    base = tested[0].baseline
    names = [base.variant if several else "", base.method or ""]
    columns = [(Key.of(one.row).place, one.row.split, one.metric) for one in tested]
    most = max(columns.count(column) for column in columns)
    corrected = f", Holm-corrected for {most} comparisons of a column" if most > 1 else ""
    made = corpus_cards.row_length(comparison.rows[0].system.corpus)
    what = "questions" if asked else "rows" if made else "windows"
    return [
        f"* and **: differs from {' '.join(filter(None, names))} "
        f"{'with as many contexts' if asked else 'at the same length'}, two-sided p below 0.05 and "
        f"0.01: paired bootstrap over {what}, {comparison.resamples} resamples{corrected}",
        scope_note(tests_of(tested), what, trained(comparison.rows)),
    ]
