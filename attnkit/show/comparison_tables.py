"""Comparisons of variants as tables: scores side by side, or by number of contexts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import mean, stdev
from typing import Any

from attnkit.recipe.metrics import direction_note, metric_facts
from attnkit.show.table import NONE, PLUS_MINUS, Cell, Column, Table, Value

FACTS = (
    ("parameters", "parameters", 2),
    ("train tokens/s", "train_tokens_per_second", 3),
    ("decode sentences/s", "decode_sentences_per_second", 3),
)
"""Titles, names and priorities of the columns after the scores."""
SYSTEM = ("split", "recipe", "variant", "method")
QUESTION_KEYS = ("method", "contexts")
KEY = (*SYSTEM, "contexts")
"""What tells rows apart but for the seed; the last two are None where no questions were asked."""

Object = Mapping[str, Any]
Key = tuple[Any, ...]


class _Scores:
    """The rows of a comparison by KEY, one a seed."""

    def __init__(self, comparison: Object) -> None:
        self.groups: dict[Key, list[Object]] = {}
        for row in comparison["rows"]:
            self.groups.setdefault(_key(row), []).append(row)
        self.tests = {(_key(test), test["metric"]): test for test in comparison["comparisons"]}

    def means(self, key: Key, metric: str) -> float | None:
        """The mean over seeds, where there is a score."""
        values = self.values(key, metric)
        return mean(values) if values else None

    def values(self, key: Key, metric: str) -> list[float]:
        """One score a seed."""
        scores = [row["metrics"].get(metric, {}).get("score") for row in self.groups.get(key, ())]
        return [score for score in scores if score is not None]

    def best(self, key: Key, metric: str, digits: int) -> bool:
        """Whether none on the split with as many contexts is better, unless all are equal."""
        group = [other for other in self.groups if (other[0], other[-1]) == (key[0], key[-1])]
        means = {other: self.means(other, metric) for other in group}
        shown = {k: round(value, digits) for k, value in means.items() if value is not None}
        better = metric_facts(metric).better
        if better == "neither":
            return False
        choose = min if better == "lower" else max
        return len({*shown.values()}) > 1 and shown.get(key) == choose(shown.values())


def _key(row: Object) -> Key:
    return tuple(row.get(name) for name in KEY)


def _metrics(rows: Sequence[Object]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["metrics"]))


def tables(comparison: Object) -> list[Table]:
    """Any comparison as a screen shows it: of questions a table for each split, else one.

    The notes are below the last.
    """
    if not by_contexts(comparison):
        return [comparison_table(comparison)]
    rows, scores = comparison["rows"], _Scores(comparison)
    splits = dict.fromkeys(row["split"] for row in rows)
    of_splits = [_contexts_rows([row for row in rows if row["split"] == s], scores) for s in splits]
    return [*of_splits[:-1], replace(of_splits[-1], notes=tuple(_contexts_notes(comparison)))]


def by_contexts(comparison: Object) -> bool:
    """Whether a comparison is one by number of contexts."""
    return any("contexts" in row for row in comparison["rows"])


def warning_lines(comparison: Object) -> list[str]:
    """What looks wrong about the outputs, a line each with the run or file that it is about."""
    return [
        f"{row['run'] or row['hypotheses']}: {text}"
        for row in comparison["rows"]
        for text in row.get("warnings", ())
    ]


def comparison_table(comparison: Object) -> Table:
    """Variants side by side, from the object that `attnkit.scoring.side_by_side` makes.

    One row a variant and split: each score as its mean (and sample standard deviation) over
    seeds, the difference to the baseline with its p-value, size and speed.  Questions have a row
    for each method and number of contexts.
    """
    rows, scores = comparison["rows"], _Scores(comparison)
    metrics, keys = _metrics(rows), list(scores.groups)
    shown = [name for name in ("split", "recipe") if len({row[name] for row in rows}) > 1]
    shown += ["variant", *(n for n in QUESTION_KEYS if any(row.get(n) for row in rows))]
    columns = [Column(name, "left") for name in shown]
    cells = [[_name_cell(name, key, scores) for key in keys] for name in shown]
    for metric in metrics:
        columns.append(Column(metric_facts(metric).title))
        cells.append([_score_cell(key, metric, scores) for key in keys])
        if any(test["metric"] == metric for test in comparison["comparisons"]):
            columns.append(Column("difference", under=True, priority=1))
            cells.append([_difference_cell(metric, scores.tests.get((k, metric))) for k in keys])
    for title, name, priority in FACTS:
        facts = [_fact_cell(name, scores.groups[key]) for key in keys]
        if any(cell.text != NONE for cell in facts):
            columns.append(Column(title, priority=priority))
            cells.append(facts)
    title = ": ".join(filter(None, (_join(row[n] for row in rows) for n in ("recipe", "split"))))
    body = tuple(zip(*cells, strict=True))
    return Table(title, tuple(columns), body, tuple(_notes(comparison, metrics)))


def _name_cell(name: str, key: Key, scores: _Scores) -> Cell:
    names = dict(zip(KEY, key, strict=True))
    text = str(names[name] or NONE)
    if name != "variant":
        return Cell(text)
    runs = scores.groups[key]
    fields: dict[str, Value] = {
        **{name: names[name] for name in ("recipe", "variant", "split")},
        **{name: names[name] for name in QUESTION_KEYS if names[name]},
        "seeds": _join(row["seed"] for row in runs),
        "sentences": runs[0].get("sentences"),
        "runs": _join(row["run"] for row in runs),
    }
    return Cell(text, fields)


def _score_cell(key: Key, metric: str, scores: _Scores) -> Cell:
    values = scores.values(key, metric)
    sd = stdev(values) if len(values) > 1 else None
    signatures = {row["metrics"][metric]["signature"] for row in scores.groups[key]
                  if metric in row["metrics"]}  # fmt: skip
    score = scores.means(key, metric)
    fields: dict[str, Value] = {
        metric: score, f"{metric}_sd": sd, f"{metric}_signature": " ".join(sorted(signatures))
    }  # fmt: skip
    if score is None:
        return Cell(NONE, fields)
    spread = "" if sd is None else f" {PLUS_MINUS} {sd:.2f}"
    return Cell(f"{score:.2f}{spread}", fields, scores.best(key, metric, 2))


def _difference_cell(metric: str, test: Object | None) -> Cell:
    test = test or {}
    difference, p, corrected = (test.get(name) for name in ("difference", "p", "p_corrected"))
    low, high = test.get("interval") or (None, None)
    named = {"difference": difference, "low": low, "high": high, "p": p, "p_corrected": corrected}
    fields = {f"{metric}_{name}": value for name, value in named.items()}
    if difference is None:
        return Cell(NONE, fields)
    return Cell(signed(difference) + significance(p, corrected), fields)


def _fact_cell(name: str, runs: Sequence[Object]) -> Cell:
    values = [row[name] for row in runs if row.get(name) is not None]
    if not values:
        return Cell(NONE, {name: None})
    value = mean(values)
    return Cell(f"{value:,.1f}" if value < 100 and value % 1 else f"{value:,.0f}", {name: value})


def signed(value: float) -> str:
    """A difference with its sign and two digits; what rounds to none has no sign."""
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text


def significance(p: float | None, corrected: float | None) -> str:
    """A p-value with its stars, a space before; nothing without one."""
    if p is None:
        return ""
    return (" p<0.001" if p < 0.001 else f" p={p:.3f}") + stars(corrected)


def significance_note(over: str, resamples: int, comparisons: str) -> str:
    """What p-values and stars in a table are."""
    return (
        f"p: paired bootstrap over {over}, {resamples} resamples, one-sided as in sacrebleu; * and "
        f"**: two-sided p (2p) below 0.05 and 0.01, Holm-corrected for {comparisons}"
    )


def stars(p: float | None) -> str:
    """* below 0.05, ** below 0.01, with a space before."""
    if p is None or p >= 0.05:
        return ""
    return " **" if p < 0.01 else " *"


def contexts_table(comparison: Object) -> Table:
    """One row a split, a metric and a method, one column a number of contexts.

    Args:
        comparison: the object of `attnkit eval --format json`, whose rows have `contexts`.

    Scores are means over seeds.  A star marks a difference to the baseline on the same questions.
    The numbers for programs are those of `comparison_table`.
    """
    table = _contexts_rows(comparison["rows"], _Scores(comparison))
    return replace(table, notes=tuple(_contexts_notes(comparison)))


def _contexts_rows(rows: Sequence[Object], scores: _Scores) -> Table:
    """The table of some rows, without notes."""
    counts = sorted({row["contexts"] for row in rows})
    untrained = all(row["seed"] is None for row in rows)  # models and not variants of a recipe
    shown = [
        place for place, name in enumerate(SYSTEM)
        if name == "method" or (name == "variant" and untrained)
        or len({row[name] for row in rows}) > 1
    ]  # fmt: skip
    titles = ["model" if SYSTEM[at] == "variant" and untrained else SYSTEM[at] for at in shown]
    place = titles.index("split") + 1 if "split" in titles else 0
    titles.insert(place, "metric")
    columns = [Column(title, "left") for title in titles]
    columns += [Column(str(count)) for count in counts]
    seen = [list(dict.fromkeys(row[name] for row in rows)) for name in SYSTEM]
    systems = [one for one in product(*seen) if any((*one, count) in scores.groups
                                                    for count in counts)]  # fmt: skip
    body = []
    for split, metric in product(seen[0], _metrics(rows)):
        for system in (one for one in systems if one[0] == split):
            cells = [_contexts_cell((*system, count), metric, scores) for count in counts]
            if any(cell.text != NONE for cell in cells):
                names = [str(system[at]) for at in shown]
                names.insert(place, metric_facts(metric).title)
                body.append((*map(Cell, names), *cells))
    recipes, splits = (_join(row[name] for row in rows) for name in ("recipe", "split"))
    title = f"{recipes}: {splits}, by number of contexts"
    return Table(title, tuple(columns), tuple(body))


def _contexts_cell(key: Key, metric: str, scores: _Scores) -> Cell:
    value = scores.means(key, metric)
    if value is None:
        return Cell(NONE)
    p = scores.tests.get((key, metric), {}).get("p_corrected")
    # no space before the stars: columns are many
    return Cell(f"{value:.1f}{stars(p).strip()}", {}, scores.best(key, metric, 1))


def _join(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _notes(comparison: Object, metrics: Sequence[str]) -> list[str]:
    """What a reader needs to reproduce and to trust the numbers."""
    rows = comparison["rows"]
    notes = _signatures(rows, metrics)
    counts = {(row["split"], row.get("sentences")): None for row in rows if row.get("sentences")}
    if counts:
        notes.append(
            "sentences: " + _join(f"{n} of {split}" if split else n for split, n in counts)
        )
    if any(row["seed"] is not None for row in rows):
        notes.append(_seeds(rows))
    return notes + _significance(comparison) + _runs(rows)


def _signatures(rows: Sequence[Object], metrics: Sequence[str]) -> list[str]:
    """How each metric was measured."""
    notes = []
    for metric in metrics:
        signatures = _join(row["metrics"].get(metric, {}).get("signature") for row in rows)
        notes.append(f"{metric_facts(metric).title}{direction_note(metric)}: {signatures}")
    return notes


def _runs(rows: Sequence[Object]) -> list[str]:
    """Run folders, seeds of one variant together, as a shell would expand them; [] without runs."""
    seeds: dict[str, list[str]] = {}
    for run in dict.fromkeys(row["run"] for row in rows if row["run"] is not None):
        folder, _, seed = run.rpartition("/seed-")
        seeds.setdefault(folder or run, []).extend([seed] if folder else [])
    out = []
    for folder, numbers in seeds.items():
        listed = f"{{{','.join(numbers)}}}" if len(numbers) > 1 else "".join(numbers)
        out.append(f"{folder}/seed-{listed}" if numbers else folder)
    return [f"runs: {' '.join(out)}"] if out else []


def _seeds(rows: Sequence[Object]) -> str:
    by_variant: dict[tuple[str, str], list[Object]] = {}
    for row in rows:
        by_variant.setdefault((row["recipe"], row["variant"]), []).append(row["seed"])
    listed = [(variant, _join(seeds)) for (_, variant), seeds in by_variant.items()]
    if len({seeds for _, seeds in listed}) == 1:
        seeds = listed[0][1]
    else:
        seeds = "; ".join(f"{variant} {seeds}" for variant, seeds in listed)
    spread = f" (mean {PLUS_MINUS} standard deviation over seeds)" if ", " in seeds else ""
    return f"seeds: {seeds}{spread}"


def _baseline(test: Object, rows: Sequence[Object]) -> str:
    """What a variant was compared with: its name, and its runs where there are several recipes."""
    name, recipe = str(test["baseline"]), test["baseline_recipe"]
    if len({row["recipe"] for row in rows}) == 1:
        return name
    key = (recipe, name, test["split"])
    runs = _runs([row for row in rows if (row["recipe"], row["variant"], row["split"]) == key])
    return f"{name} of {recipe} ({runs[0].removeprefix('runs: ') if runs else ''})"


def _significance(comparison: Object) -> list[str]:
    """How the differences were tested."""
    tests = comparison["comparisons"]
    if not tests:
        return []
    notes = [f"difference: to {_join(_baseline(test, comparison['rows']) for test in tests)}"]
    if any(test["p"] is not None for test in tests):
        variants = len({(test["recipe"], test["variant"]) for test in tests})
        many = f"{variants} variant{'s' if variants > 1 else ''}"
        notes[0] += f"; {significance_note('sentences', comparison['resamples'], many)}"
    if any(test["difference"] is None for test in tests):
        notes.append("not compared: scores with different signatures")
    return notes


def _contexts_notes(comparison: Object) -> list[str]:
    rows = comparison["rows"]
    notes = _signatures(rows, _metrics(rows))
    notes += [_questions(split, rows) for split in dict.fromkeys(row["split"] for row in rows)]
    if any(row["contexts"] == 1 for row in rows):
        notes.append("1 context: what the question needs, alone")
    notes += _truncations(rows)
    if seeds := _join(row["seed"] for row in rows):
        notes.append(f"seeds: {seeds}{' (means over seeds)' if ', ' in seeds else ''}")
    return notes + _contexts_significance(comparison) + _runs(rows)


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


def _contexts_significance(comparison: Object) -> list[str]:
    """What the stars mean."""
    tests = [test for test in comparison["comparisons"] if test["p"] is not None]
    if not tests:
        return []
    several = len({(row["recipe"], row["variant"]) for row in comparison["rows"]}) > 1
    baseline = f"{tests[0]['baseline']} " if several else ""
    columns = [(test["split"], test["contexts"], test["metric"]) for test in tests]
    most = max(columns.count(column) for column in columns)
    corrected = f", Holm-corrected for {most} comparisons of a column" if most > 1 else ""
    return [
        f"* and **: differs from {baseline}{tests[0]['baseline_method']} with as many contexts, "
        f"p below 0.05 and 0.01: paired bootstrap over questions, {comparison['resamples']} "
        f"resamples, sacrebleu's one-sided p doubled{corrected}"
    ]
