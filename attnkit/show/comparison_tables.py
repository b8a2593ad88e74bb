"""Comparisons of variants as tables: side by side, or by number of contexts or length."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import mean, stdev
from typing import Any

from attnkit.recipe import corpus_cards
from attnkit.recipe.metrics import metric_facts
from attnkit.show.comparison_notes import (
    MEMORY,
    changes_of,
    comparison_notes,
    condition_notes,
    joined,
    metrics_of,
    published_score,
    run_notes,
    search_of,
    signature_notes,
    system_of,
    trained,
    tuning_notes,
)
from attnkit.show.differences import difference_text, scope_note, signed, stars
from attnkit.show.recipe_tables import amount
from attnkit.show.table import NONE, PLUS_MINUS, Cell, Column, Table, Value

FACTS = (
    ("parameters", "parameters", 2),
    ("train tokens/s", "train_tokens_per_second", 3),
    ("decode sentences/s", "decode_sentences_per_second", 3),
    ("peak memory", MEMORY, 4),
)
"""Titles, names and priorities of the columns after the scores."""
SYSTEM = ("split", "recipe", "variant", "method")
AXES = ("contexts", "length")
"""What tables can have a column for each value of: questions for `contexts`; windows of running
text, or generated rows, for `length`."""
MORE_KEYS = ("method", *AXES)
"""What tells rows of one split and system apart, where they have it."""

Object = Mapping[str, Any]
Key = tuple[Any, ...]
"""What tells rows apart but for the seed: SYSTEM, a variant by the name of its system, and where it
stands on the axis; the last two may be None."""


class _Scores:
    """The rows of a comparison by their keys, one a seed."""

    def __init__(self, comparison: Object) -> None:
        self.groups: dict[Key, list[Object]] = {}
        for row in comparison["rows"]:
            self.groups.setdefault(_key(row), []).append(row)
        self.tests = {(_key(test), test["metric"]): test for test in comparison["comparisons"]}
        self.inseparable: set[tuple[Key, str]] = set()
        for best in comparison.get("best", ()):
            for one in (best, *(other for other in best["others"] if not other["separable"])):
                self.inseparable.add((_key({**one, "split": best["split"]}), best["metric"]))
        self.apart = {key for key, test in self.tests.items() if test.get("not_comparable")}
        self.published = comparison.get("published", ())

    def means(self, key: Key, metric: str) -> float | None:
        """The mean over seeds, where there is a score."""
        values = self.values(key, metric)
        return mean(values) if values else None

    def values(self, key: Key, metric: str) -> list[float]:
        """One score a seed."""
        scores = [row["metrics"].get(metric, {}).get("score") for row in self.groups.get(key, ())]
        return [score for score in scores if score is not None]

    def figure(self, key: Key, metric: str) -> tuple[float, bool] | None:
        """The published score that stands beside one, and whether they are comparable."""
        split, recipe, *_ = key
        variant = self.groups[key][0]["variant"]
        for figures in self.published:
            score = published_score(figures, split, recipe, variant, metric)
            if score is not None:
                return score, figures["comparable"]
        return None

    def best(self, key: Key, metric: str, digits: int) -> bool:
        """Whether none on the split at the same place of the axis is better, unless all are equal.

        Those that cannot be compared with the baseline do not take part.
        """
        group = [
            other for other in self.groups
            if (other[0], other[-1]) == (key[0], key[-1]) and (other, metric) not in self.apart
        ]  # fmt: skip
        means = {other: self.means(other, metric) for other in group}
        shown = {k: round(value, digits) for k, value in means.items() if value is not None}
        better = metric_facts(metric).better
        if better == "neither":
            return False
        choose = min if better == "lower" else max
        return len({*shown.values()}) > 1 and shown.get(key) == choose(shown.values())


def _key(row: Object) -> Key:
    names = [system_of(row) if name == "variant" else row.get(name) for name in SYSTEM]
    return (*names, next((row[axis] for axis in AXES if row.get(axis)), None))


def tables(comparison: Object) -> list[Table]:
    """Any comparison as a screen shows it: along an axis a table for each split, else one.

    The notes are below the last.
    """
    if not axis_of(comparison):
        return [comparison_table(comparison)]
    rows, scores = comparison["rows"], _Scores(comparison)
    splits = dict.fromkeys(row["split"] for row in rows)
    of_splits = [_axis_rows([row for row in rows if row["split"] == s], scores) for s in splits]
    return [*of_splits[:-1], replace(of_splits[-1], notes=tuple(_axis_notes(comparison)))]


def axis_of(comparison: Object) -> str:
    """Along what a comparison goes: a word of AXES, or ""."""
    return next((name for name in AXES if any(name in row for row in comparison["rows"])), "")


def warning_lines(comparison: Object) -> list[str]:
    """What looks wrong about the outputs, a line each with the runs or files that it is about."""
    about: dict[str, list[str]] = {}
    for row in comparison["rows"]:
        for text in row.get("warnings", ()):
            about.setdefault(text, []).append(row["run"] or row["hypotheses"])
    out = []
    for text, names in about.items():
        first, *others = dict.fromkeys(names)
        more = f" and {len(others)} more" if len(others) > 1 else "".join(f", {o}" for o in others)
        out.append(f"{first}{more}: {text}")
    return out


def comparison_table(comparison: Object) -> Table:
    """Variants side by side, from the object that `attnkit.scoring.side_by_side` makes.

    One row a variant and split: each score as its mean (and sample standard deviation) over seeds,
    the difference to the baseline with its interval and p-value, what others published, the number
    of seeds, size, speed and memory.  Questions have a row for each method and number of contexts,
    windows one for each length.
    """
    rows, scores = comparison["rows"], _Scores(comparison)
    metrics, keys = metrics_of(rows), list(scores.groups)
    shown = [name for name in ("split", "recipe") if len({row[name] for row in rows}) > 1]
    shown += ["variant", *(n for n in MORE_KEYS if any(row.get(n) for row in rows))]
    columns = [Column(name, "left", key=True) for name in shown]
    cells = [[_name_cell(name, key, scores) for key in keys] for name in shown]
    for metric in metrics:
        columns.append(Column(metric_facts(metric).title))
        cells.append([_score_cell(key, metric, scores) for key in keys])
        if any(test["metric"] == metric for test in comparison["comparisons"]):
            columns.append(Column("difference", under=True, priority=1))
            cells.append([_difference_cell(metric, scores.tests.get((k, metric))) for k in keys])
        if any(scores.figure(key, metric) for key in keys):
            columns.append(Column(f"published {metric_facts(metric).title}", priority=1))
            cells.append([_published_cell(key, metric, scores) for key in keys])
    if any(row["seed"] is not None for row in rows):
        columns.append(Column("seeds"))
        cells.append([Cell(str(len(scores.groups[key]))) for key in keys])
    for title, name, priority in FACTS:
        facts = [_fact_cell(name, scores.groups[key]) for key in keys]
        if any(cell.text != NONE for cell in facts):
            columns.append(Column(title, priority=priority))
            cells.append(facts)
    title = ": ".join(filter(None, (joined(row[n] for row in rows) for n in ("recipe", "split"))))
    body = tuple(zip(*cells, strict=True))
    notes = comparison_notes(comparison, metrics)
    return Table(title, tuple(columns), body, tuple(notes), about=notes)


def _name_cell(name: str, key: Key, scores: _Scores) -> Cell:
    names = dict(zip(SYSTEM, key, strict=False))
    names |= {axis: scores.groups[key][0].get(axis) for axis in AXES}
    text = str(names[name] or NONE)
    if name != "variant":
        return Cell(text)
    runs = scores.groups[key]
    first = runs[0]
    budget, digests = first.get("budget") or {}, first.get("digests") or {}
    reasons = (scores.tests[k].get("not_comparable") or () for k in scores.apart if k[0] == key)
    fields: dict[str, Value] = {
        **{name: first[name] for name in ("recipe", "variant", "split")},
        "system": text,
        **{name: names[name] for name in MORE_KEYS if names[name]},
        "seeds": joined(row["seed"] for row in runs),
        "sentences": first.get("sentences"),
        "corpus": first.get("corpus"),
        "source_sha256": digests.get("source"),
        "references_sha256": digests.get("references"),
        "search": search_of(first),
        "search_from": first.get("search_from"),
        **{f"train_{name}": value for name, value in budget.items()},
        "train_updates": joined(row.get("train_updates") for row in runs),
        "train_changes": joined(changes_of(row) for row in runs),
        "not_comparable": joined(reason for some in reasons for reason in some),
        "runs": joined(row["run"] for row in runs),
        "run_ids": joined(row.get("run_id") for row in runs),
    }
    return Cell(text, fields)


def _score_cell(key: Key, metric: str, scores: _Scores) -> Cell:
    values = scores.values(key, metric)
    sd = stdev(values) if len(values) > 1 else None
    signatures = {row["metrics"][metric]["signature"] for row in scores.groups[key]
                  if metric in row["metrics"]}  # fmt: skip
    score = scores.means(key, metric)
    inseparable = (key, metric) in scores.inseparable
    fields: dict[str, Value] = {
        metric: score, f"{metric}_sd": sd, f"{metric}_signature": " ".join(sorted(signatures))
    }  # fmt: skip
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


def _difference_cell(metric: str, test: Object | None) -> Cell:
    test = test or {}
    low, high = test.get("interval") or (None, None)
    named = {"difference": test.get("difference"), "low": low, "high": high}
    if percent := test.get("percent"):
        named |= dict(zip(("percent", "percent_low", "percent_high"), percent, strict=True))
    named |= {name: test.get(name) for name in ("p", "p_corrected", "verdict", "provisional")}
    fields = {f"{metric}_{name}": value for name, value in named.items()}
    difference = test.get("difference")
    if difference is None:
        return Cell(NONE, fields)
    if test.get("not_comparable"):
        return Cell(f"({signed(difference)})", fields, dim=True)
    return Cell(difference_text(test), fields)


def _fact_cell(name: str, runs: Sequence[Object]) -> Cell:
    values = [row[name] for row in runs if row.get(name) is not None]
    if not values:
        return Cell(NONE, {name: None})
    value = mean(values)
    if name == MEMORY:
        return Cell(amount(max(values)), {name: max(values)})
    return Cell(f"{value:,.1f}" if value < 100 and value % 1 else f"{value:,.0f}", {name: value})


def axis_table(comparison: Object) -> Table:
    """One row a split, a metric and a system, one column a number of contexts, or a length.

    Args:
        comparison: the object of `attnkit eval --format json`, whose rows have a word of AXES.

    Scores are means over seeds.  A star marks a difference to the baseline at the same place.  The
    numbers for programs are those of `comparison_table`.
    """
    table = _axis_rows(comparison["rows"], _Scores(comparison))
    return replace(table, notes=tuple(_axis_notes(comparison)))


def _axis_rows(rows: Sequence[Object], scores: _Scores) -> Table:
    """The table of some rows, without notes."""
    axis = axis_of({"rows": rows})
    places = sorted({row[axis] for row in rows})
    untrained = all(row["seed"] is None for row in rows)  # models and not variants of a recipe
    always = {"method"} if axis == "contexts" else {"variant"}
    always |= {"variant"} if untrained else set()
    shown = [
        place for place, name in enumerate(SYSTEM)
        if name in always or len({_key(row)[place] for row in rows}) > 1
    ]  # fmt: skip
    titles = ["model" if SYSTEM[at] == "variant" and untrained else SYSTEM[at] for at in shown]
    place = titles.index("split") + 1 if "split" in titles else 0
    titles.insert(place, "metric")
    columns = [Column(title, "left", key=True) for title in titles]
    columns += [Column(str(at)) for at in places]
    keys = [_key(row)[:-1] for row in rows]
    seen = [list(dict.fromkeys(names)) for names in zip(*keys, strict=True)]
    systems = [one for one in product(*seen) if any((*one, at) in scores.groups for at in places)]
    digits = 1 if axis == "contexts" else 2  # numbers of contexts are many
    body = []
    for split, metric in product(seen[0], metrics_of(rows)):
        for system in (one for one in systems if one[0] == split):
            cells = [_axis_cell((*system, at), metric, scores, digits) for at in places]
            if any(cell.text != NONE for cell in cells):
                names = [str(system[at]) for at in shown]
                names.insert(place, metric_facts(metric).title)
                body.append((*map(Cell, names), *cells))
    recipes, splits = (joined(row[name] for row in rows) for name in ("recipe", "split"))
    return Table(f"{recipes}: {splits}, by {_along(axis, rows)}", tuple(columns), tuple(body))


def _along(axis: str, rows: Sequence[Object]) -> str:
    """What the columns of a table are numbers of."""
    if axis == "contexts":
        return "number of contexts"
    made = corpus_cards.row_length(rows[0].get("corpus"))
    return f"length in {made.unit}" if made else "length of the text in tokens"


def _axis_cell(key: Key, metric: str, scores: _Scores, digits: int) -> Cell:
    value = scores.means(key, metric)
    if value is None:
        return Cell(NONE)
    p = scores.tests.get((key, metric), {}).get("p_corrected")
    # no space before the stars: columns are many
    return Cell(f"{value:.{digits}f}{stars(p).strip()}", {}, scores.best(key, metric, digits))


def _axis_notes(comparison: Object) -> list[str]:
    rows, asked = comparison["rows"], axis_of(comparison) == "contexts"
    first = [row for row in rows if asked or row["length"] == rows[0]["length"]]
    notes = signature_notes(first, metrics_of(rows))
    if asked:
        notes += [_questions(split, rows) for split in dict.fromkeys(row["split"] for row in rows)]
        if any(row["contexts"] == 1 for row in rows):
            notes.append("1 context: what the question needs, alone")
        notes += _truncations(rows)
    else:
        notes.append(_length_note(rows))
    notes += condition_notes(comparison)
    if seeds := joined(row["seed"] for row in rows):
        notes.append(f"seeds: {seeds}{' (means over seeds)' if ', ' in seeds else ''}")
    return notes + tuning_notes(first) + _axis_significance(comparison, asked) + run_notes(rows)


def _length_note(rows: Sequence[Object]) -> str:
    if made := corpus_cards.row_length(rows[0].get("corpus")):
        low, high = made.trained
        return f"each length: rows of so many {made.unit}; trained on {low} to {high}"
    return "each length: the whole text, cut in windows of so many tokens (blocks)"


def _questions(split: str, rows: Sequence[Object]) -> str:
    """How many questions were asked: those that need more contexts are left out of fewer."""
    counts: dict[int, dict[int, None]] = {}
    for row in rows:
        if row["split"] == split:
            counts.setdefault(row["sentences"], {})[row["contexts"]] = None
    if len(counts) == 1:
        return f"questions: {next(iter(counts)):,} of {split}"
    parts = [f"{questions:,} with {_contexts(some)}" for questions, some in counts.items()]
    return f"questions of {split}: {', '.join(parts)}"


def _truncations(rows: Sequence[Object]) -> list[str]:
    """Where all contexts in one row were longer than it may be."""
    shares: dict[str, dict[int, list[str]]] = {}
    for row in rows:
        if row.get("cut"):
            by_count = shares.setdefault(row["method"], {}).setdefault(row["contexts"], [])
            by_count.append(f"{row['cut']:,} of {row['sentences']:,}")
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


def _axis_significance(comparison: Object, asked: bool) -> list[str]:
    """What the stars mean; `asked`: they are of questions."""
    tests = [test for test in comparison["comparisons"] if test["p"] is not None]
    if not tests:
        return []
    several = len({(row["recipe"], row["variant"]) for row in comparison["rows"]}) > 1
    names = [tests[0]["baseline"] if several else "", tests[0].get("baseline_method") or ""]
    columns = [_key(test)[-1:] + (test["split"], test["metric"]) for test in tests]
    most = max(columns.count(column) for column in columns)
    corrected = f", Holm-corrected for {most} comparisons of a column" if most > 1 else ""
    made = corpus_cards.row_length(comparison["rows"][0].get("corpus"))
    what = "questions" if asked else "rows" if made else "windows"
    return [
        f"* and **: differs from {' '.join(filter(None, names))} "
        f"{'with as many contexts' if asked else 'at the same length'}, two-sided p below 0.05 and "
        f"0.01: paired bootstrap over {what}, {comparison['resamples']} resamples{corrected}",
        scope_note(tests, what, trained(comparison["rows"])),
    ]
