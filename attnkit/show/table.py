"""A table as a pure value, and the comparison of variants as such a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any, Literal

from attnkit.recipe.schema import LOWER_IS_BETTER

TITLES = {
    "bleu": "BLEU", "bleu1": "BLEU-1", "bleu4": "BLEU-4", "chrf": "chrF", "ter": "TER",
    "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum",
    "exact-match": "exact match", "accuracy": "token accuracy",
    "word-perplexity": "word perplexity", "answer-match": "exact match", "answer-f1": "F1",
    "context-found": "context found",
}  # fmt: skip
PLUS_MINUS = "\u00b1"
Value = str | int | float | None
Object = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column."""

    title: str
    align: Literal["left", "right"] = "right"
    under: bool = False
    """On a narrow screen the cell goes below that of the column before it."""
    priority: int = 0
    """0 is always shown; on a narrow screen the columns with the highest number go first."""


@dataclass(frozen=True)
class Cell:
    """One cell: what people read, and what programs read."""

    text: str
    fields: Mapping[str, Value] = field(default_factory=dict)
    """Named values for CSV and JSON."""
    best: bool = False
    """Shown in bold."""


@dataclass(frozen=True)
class Table:
    """A title, columns, rows of as many cells, and notes below."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def records(self) -> list[dict[str, Value]]:
        """Rows as named values."""
        return [{k: v for cell in row for k, v in cell.fields.items()} for row in self.rows]


def comparison_table(comparison: Object) -> Table:
    """Variants side by side, from the object that `attnkit.scoring.side_by_side` makes.

    One row a variant and split: each score as its mean (and sample standard deviation) over
    seeds, the difference to the baseline with its p-value, size and speed.  Questions have a row
    for each method and number of contexts.
    """
    groups = _groups(comparison["rows"])
    rows = [_Row(key, runs, groups, comparison) for key, runs in groups.items()]
    metrics = list(dict.fromkeys(m for row in comparison["rows"] for m in row["metrics"]))
    names = [name for name in ("split", "recipe") if len({r.names[name] for r in rows}) > 1]
    names += ["variant", *(name for name in ASKED if any(row.names[name] for row in rows))]
    columns = [Column(name, "left") for name in names]
    table = [[row.name_cell(name) for name in names] for row in rows]
    for metric in metrics:
        columns.append(Column(TITLES.get(metric, metric)))
        _append(table, [row.score(metric) for row in rows])
        if any(c["metric"] == metric for c in comparison["comparisons"]):
            columns.append(Column("difference", under=True, priority=1))
            _append(table, [row.difference(metric) for row in rows])
    for title, key, priority in _FACTS:
        cells = [row.fact(key) for row in rows]
        if any(cell.text != "-" for cell in cells):
            columns.append(Column(title, priority=priority))
            _append(table, cells)
    return Table(
        _title(comparison["rows"]),
        tuple(columns),
        tuple(map(tuple, table)),
        tuple(notes_of(comparison, metrics)),
    )


def warning_lines(comparison: Object) -> list[str]:
    """What looks wrong about the outputs, a line each with the run or file that it is about."""
    return [
        f"{row['run'] or row['hypotheses']}: {text}"
        for row in comparison["rows"]
        for text in row.get("warnings", ())
    ]


_FACTS = (
    ("parameters", "parameters", 2),
    ("train tokens/s", "train_tokens_per_second", 3),
    ("decode sentences/s", "decode_sentences_per_second", 3),
)
ASKED = ("method", "contexts")
KEY = ("split", "recipe", "variant", *ASKED)
Key = tuple[str | int | None, ...]
"""What a row has of KEY."""
Groups = dict[Key, list[Object]]


def _groups(rows: Sequence[Object]) -> Groups:
    groups: Groups = {}
    for row in rows:
        groups.setdefault(_key(row), []).append(row)
    return groups


def _key(row: Object) -> Key:
    return tuple(row.get(name) for name in KEY)


def _append(table: list[list[Cell]], cells: Sequence[Cell]) -> None:
    for row, cell in zip(table, cells, strict=True):
        row.append(cell)


class _Row:
    """One variant on one split: its runs, one a seed, and their cells."""

    def __init__(self, key: Key, runs: list[Object], groups: Groups, comparison: Object) -> None:
        self.names = dict(zip(KEY, key, strict=True))
        self.runs = runs
        field = (key[0], key[-1])  # a split, with as many contexts
        self.rivals = [rows for other, rows in groups.items() if (other[0], other[-1]) == field]
        self.comparisons = [c for c in comparison["comparisons"] if _key(c) == key]

    def name_cell(self, name: str) -> Cell:
        text = str(self.names[name] or "-")
        if name != "variant":
            return Cell(text)
        fields: dict[str, Value] = {
            **{name: self.names[name] for name in ("recipe", "variant", "split")},
            **{name: self.names[name] for name in ASKED if self.names[name]},
            "seeds": _join(row["seed"] for row in self.runs),
            "sentences": self.runs[0].get("sentences"),
            "runs": _join(row["run"] for row in self.runs),
        }
        return Cell(text, fields)

    def score(self, metric: str) -> Cell:
        values = _values(self.runs, metric)
        sd = stdev(values) if len(values) > 1 else None
        signatures = {row["metrics"][metric]["signature"] for row in self.runs
                      if metric in row["metrics"]}  # fmt: skip
        fields: dict[str, Value] = {
            metric: mean(values) if values else None,
            f"{metric}_sd": sd,
            f"{metric}_signature": " ".join(sorted(signatures)),
        }
        if not values:
            return Cell("-", fields)
        means = [f"{mean(v):.2f}" for rows in self.rivals if (v := _values(rows, metric))]
        best = (min if metric in LOWER_IS_BETTER else max)(means, key=float)
        text = f"{mean(values):.2f}"
        spread = "" if sd is None else f" {PLUS_MINUS} {sd:.2f}"
        return Cell(text + spread, fields, text == best and len(means) > 1)

    def difference(self, metric: str) -> Cell:
        record: Object = next((c for c in self.comparisons if c["metric"] == metric), {})
        low, high = record.get("interval") or (None, None)
        fields: dict[str, Value] = {
            f"{metric}_difference": record.get("difference"),
            f"{metric}_low": low,
            f"{metric}_high": high,
            f"{metric}_p": record.get("p"),
            f"{metric}_p_corrected": record.get("p_corrected"),
        }
        if record.get("difference") is None:
            return Cell("-", fields)
        text = f"{record['difference']:+.2f}".replace("-0.00", "0.00").replace("+0.00", "0.00")
        if record["p"] is not None:
            text += " " + p_text(record["p"]) + stars(record["p_corrected"])
        return Cell(text, fields)

    def fact(self, key: str) -> Cell:
        values = [row[key] for row in self.runs if row.get(key) is not None]
        if not values:
            return Cell("-", {key: None})
        value = mean(values)
        return Cell(f"{value:,.1f}" if value < 100 and value % 1 else f"{value:,.0f}", {key: value})


def _values(rows: Sequence[Object], metric: str) -> list[float]:
    scores = (row["metrics"].get(metric, {}).get("score") for row in rows)
    return [score for score in scores if score is not None]


def p_text(p: float) -> str:
    """A p-value to be read."""
    return "p<0.001" if p < 0.001 else f"p={p:.3f}"


def stars(p: float | None) -> str:
    """* below 0.05, ** below 0.01, with a space before."""
    if p is None or p >= 0.05:
        return ""
    return " **" if p < 0.01 else " *"


def _join(values: Any) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _title(rows: Sequence[Object]) -> str:
    recipes = _join(row["recipe"] for row in rows)
    splits = _join(row["split"] for row in rows)
    return ": ".join(part for part in (recipes, splits) if part)


def notes_of(comparison: Object, metrics: Sequence[str]) -> list[str]:
    """What a reader needs to reproduce and to trust the numbers."""
    rows = comparison["rows"]
    notes = signature_notes(rows, metrics)
    counts = {(row["split"], row.get("sentences")): None for row in rows if row.get("sentences")}
    if counts:
        notes.append(
            "sentences: " + _join(f"{n} of {split}" if split else n for split, n in counts)
        )
    if any(row["seed"] is not None for row in rows):
        notes.append(_seeds(rows))
    return notes + _significance(comparison) + run_notes(rows)


def signature_notes(rows: Sequence[Object], metrics: Sequence[str]) -> list[str]:
    """How each metric was measured."""
    notes = []
    for metric in metrics:
        signatures = _join(row["metrics"].get(metric, {}).get("signature") for row in rows)
        lower = " (lower is better)" if metric in LOWER_IS_BETTER else ""
        notes.append(f"{TITLES.get(metric, metric)}{lower}: {signatures}")
    return notes


def run_notes(rows: Sequence[Object]) -> list[str]:
    """Where outputs and scores are kept."""
    runs = _runs([row["run"] for row in rows if row["run"] is not None])
    return [f"runs: {runs}"] if runs else []


def _runs(runs: Sequence[str]) -> str:
    """Run folders, seeds of one variant together, as a shell would expand them."""
    seeds: dict[str, list[str]] = {}
    for run in dict.fromkeys(runs):
        folder, _, seed = run.rpartition("/seed-")
        seeds.setdefault(folder or run, []).extend([seed] if folder else [])
    out = []
    for folder, numbers in seeds.items():
        listed = f"{{{','.join(numbers)}}}" if len(numbers) > 1 else "".join(numbers)
        out.append(f"{folder}/seed-{listed}" if numbers else folder)
    return " ".join(out)


def _seeds(rows: Sequence[Object]) -> str:
    by_variant = {(row["recipe"], row["variant"]): _join(
        r["seed"] for r in rows if (r["recipe"], r["variant"]) == (row["recipe"], row["variant"])
    ) for row in rows}  # fmt: skip
    if len(set(by_variant.values())) == 1:
        seeds = next(iter(by_variant.values()))
    else:
        seeds = "; ".join(f"{variant} {seeds}" for (_, variant), seeds in by_variant.items())
    spread = f" (mean {PLUS_MINUS} standard deviation over seeds)" if ", " in seeds else ""
    return f"seeds: {seeds}{spread}"


def _base(record: Object, rows: Sequence[Object]) -> str:
    """What a variant was compared with: its name, and its runs where there are several recipes."""
    name = str(record["baseline"])
    if len({row["recipe"] for row in rows}) == 1:
        return name
    recipe = record["baseline_recipe"]
    key = (recipe, name, record["split"])
    runs = [r["run"] for r in rows if (r["recipe"], r["variant"], r["split"]) == key]
    return f"{name} of {recipe} ({_runs(runs)})"


def _significance(comparison: Object) -> list[str]:
    """How the differences were tested."""
    comparisons = comparison["comparisons"]
    if not comparisons:
        return []
    notes = [f"difference: to {_join(_base(c, comparison['rows']) for c in comparisons)}"]
    if any(c["p"] is not None for c in comparisons):
        variants = len({(c["recipe"], c["variant"]) for c in comparisons})
        notes[0] += (
            f"; p: paired bootstrap over sentences, {comparison['resamples']} resamples, "
            f"as sacrebleu's; * and **: below 0.05 and 0.01 after doubling (that p counts one tail "
            f"of a clear difference) and Holm's correction over {variants} "
            f"variant{'s' if variants > 1 else ''}"
        )
    if any(c["difference"] is None for c in comparisons):
        notes.append("not compared: scores with different signatures")
    return notes
