"""Notes below a comparison of variants: signatures, data, seeds, search, training and tests."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from attnkit.recipe import corpus_cards
from attnkit.recipe.metrics import base_metric, direction_note, metric_facts, metrics_that_read
from attnkit.recipe.search_settings import search_text
from attnkit.runs.demo import named
from attnkit.scoring.comparison import full_names
from attnkit.scoring.results import Comparison, ScoreRow, System, SystemDifference
from attnkit.scoring.significance import MAX_SEEDS
from attnkit.show.differences import (
    NO_TESTS,
    SEPARABLE_NOTE,
    few_items_note,
    interval_note,
    scope_note,
    significance_note,
)
from attnkit.show.table import PLUS_MINUS
from attnkit.text import short_number

Axis = Literal["contexts", "length", ""]
"""Quantity whose values are columns: `contexts` for questions; `length` for windows of running text or generated rows;
empty: a table without such columns."""
FROM = {"run": "the recipe of each run", "recipe": "the given recipe", "command line": "the command line"}
"""Sources of the search settings."""
LEARNING_RATE = "train.lr"
RUN_OF_A_SEED = re.compile(r"(.*/)?([^/]+)/seed-(\d+)(.*)")


def scored_metrics(rows: Sequence[ScoreRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.scores))


def joined(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


class Notes(NamedTuple):
    """All notes of a table, and those that are necessary to understand its cells."""

    every: tuple[str, ...]
    brief: frozenset[str]


def comparison_notes(comparison: Comparison, axis: Axis = "") -> Notes:
    """Return the notes below a table of a comparison along an axis."""
    rows = comparison.rows
    first_length_rows = [row for row in rows if axis != "length" or row.length == rows[0].length]
    signatures = []
    for metric in scored_metrics(rows):
        signature = joined(row.scores[metric].signature for row in first_length_rows if metric in row.scores)
        signatures.append(f"{metric_facts(metric).title}{direction_note(metric)}: {signature}")
    axis_notes = {"contexts": _questions, "length": _lengths}[axis](rows) if axis else []
    seeds, significance = _seeds(rows, axis), _significance(comparison, axis)
    notes = [*signatures, *(axis_notes if axis else [_sentences(rows)]), *seeds]
    notes += ([] if axis else _training(rows)) + _tuning(first_length_rows) + _conditions(comparison)
    notes += significance + ([] if axis else _published(comparison)) + run_notes(rows)
    return Notes(tuple(notes), frozenset([*axis_notes, *seeds, *significance]))


def trained(rows: Sequence[ScoreRow]) -> bool:
    """Return whether any system was trained here, so that its seed is known."""
    return any(row.seed is not None for row in rows)


def search_of(row: ScoreRow) -> str:
    """Return the search that decoded a row's outputs; empty if there was none."""
    unsearched = {*metrics_that_read("probabilities"), *metrics_that_read("labels")}
    decoded = {base_metric(name) for name in row.scores} - unsearched
    return search_text(row.search) if row.search and decoded else ""


def changes_of(system: System) -> str:
    """Return the changes to a run's recipe during training."""
    return ", ".join(
        f"{change.key} {change.old} -> {change.new} after step {change.step}" for change in system.changes
    )


def run_notes(rows: Sequence[ScoreRow]) -> list[str]:
    """Return a note that lists the folders of runs, with braces that a shell expands; none without runs."""
    seeds: dict[tuple[str, str, str], list[str]] = {}  # by folder, variant and rest of the path
    for run in dict.fromkeys(named(row.run) for row in rows if row.run is not None):
        parts = RUN_OF_A_SEED.fullmatch(run)
        folder, variant, seed, end = parts.groups() if parts else (run, "", "", "")
        seeds.setdefault((folder or "", variant, end), []).append(seed)
    variants: dict[tuple[str, str], list[str]] = {}
    for (folder, variant, end), numbers in seeds.items():
        suffix = f"/seed-{_braced(numbers)}{end}" if variant else ""
        if "," in variant:  # braces would split it
            variants[folder + variant, suffix] = [""]
        else:
            variants.setdefault((folder, suffix), []).append(variant)
    paths = [folder + _braced(names) + suffix for (folder, suffix), names in variants.items()]
    return [f"runs: {' '.join(paths)}"] if paths else []


def _braced(names: Sequence[str]) -> str:
    return f"{{{','.join(names)}}}" if names[1:] else names[0]


def _grouped(names: Sequence[object], texts: Sequence[str], *, always: bool = False) -> str:
    """Return the distinct non-empty texts with their names; a text that all share has no names, unless `always`."""
    groups: dict[str, dict[str, None]] = {}
    for name, text in zip(names, texts, strict=True):
        groups.setdefault(text, {})[str(name)] = None
    if len(groups) == 1 and not always:
        return next(iter(groups))
    return "; ".join(f"{text} ({', '.join(names_of_text)})" for text, names_of_text in groups.items() if text)


def _sentences(rows: Sequence[ScoreRow]) -> str:
    """Return the number of sentences of each split, and the number of empty references."""
    return "sentences: " + joined(
        f"{row.sentences}{f' of {row.split}' if row.split else ''}"
        + (f" ({n} with an empty reference)" if (n := row.empty_references) else "")
        for row in rows
    )


def _questions(rows: Sequence[ScoreRow]) -> list[str]:
    """Return the numbers of questions by number of contexts, and of questions whose contexts were cut."""
    notes = []
    for split in dict.fromkeys(row.split for row in rows):
        split_rows = [row for row in rows if row.split == split]
        counts = [f"{row.sentences:,} of {split}" for row in split_rows]
        by_contexts = " (contexts)" * (len({*counts}) > 1)
        notes.append(f"questions{by_contexts}: {_grouped([row.contexts for row in split_rows], counts)}")
    if any(row.contexts == 1 for row in rows):
        notes.append("1 context: only the passages that the question needs")
    for method in dict.fromkeys(row.method for row in rows if row.cut):
        split_rows = [row for row in rows if row.cut and row.method == method]
        shares = [f"{row.cut:,} of {row.sentences:,} questions" for row in split_rows]
        cut = _grouped([row.contexts for row in split_rows], shares, always=True)
        notes.append(f"{method} truncated contexts that did not fit one row (contexts): {cut}")
    return notes


def _lengths(rows: Sequence[ScoreRow]) -> list[str]:
    """Return a note that explains lengths."""
    if generated := corpus_cards.row_length(rows[0].system.corpus):
        low, high = generated.trained
        return [f"each length: rows with this number of {generated.unit}; trained on {low} to {high}"]
    return ["each length: the whole text, split into windows of this number of tokens (blocks)"]


def _seeds(rows: Sequence[ScoreRow], axis: Axis) -> list[str]:
    """Return a note on the seeds of each system."""
    if not trained(rows):
        return []
    names = full_names(rows)
    seeds = {name: joined(r.seed for r, n in zip(rows, names, strict=True) if n == name) for name in names}
    mean = "means" if axis else f"mean {PLUS_MINUS} standard deviation"
    spread = f" ({mean} over seeds)" if any(", " in text for text in seeds.values()) else ""
    return [f"seeds: {_grouped([*seeds], [*seeds.values()])}{spread}"]


def _training(rows: Sequence[ScoreRow]) -> list[str]:
    """Return the numbers of updates, devices and machines of the trainings."""
    costs = [row.system.cost for row in rows if row.system.cost.updates]
    if not costs:
        return []
    updates = [cost.updates or 0 for cost in costs]
    span = f"{min(updates):,}" + (f" to {max(updates):,}" if min(updates) < max(updates) else "")
    hardware = joined(
        f"{cost.precision} on {cost.device} with {cost.threads} thread{'s' * (cost.threads != 1)}"
        + (f" in each of {n} processes" if (n := cost.processes or 1) > 1 else "")
        for cost in costs
        if cost.precision
    )
    notes = [f"training: {span} updates{f' in {hardware}' if hardware else ''}"]
    if any(cost.peak_memory_bytes for cost in costs):
        notes[0] += "; peak memory: of the process on a CPU, of tensors on another device"
    machines = {cost.machine for cost in costs if cost.machine}
    if len(machines) > 1:
        notes.append(f"trained on {len(machines)} kinds of machines: speeds and memory are not comparable")
    return notes


def _tuning(rows: Sequence[ScoreRow]) -> list[str]:
    """Return the tuned values of each system, and the learning rates that were not tuned."""
    systems = {name: row.system for name, row in zip(full_names(rows), rows, strict=True) if row.system.lr}
    chosen: dict[str, list[str]] = {}
    for name, system in systems.items():
        if tuned := system.tuned:
            key, count = tuned.key.rpartition(".")[2], len(tuned.trials)
            steps = f" (trials of {tuned.steps:,} updates)" if tuned.steps else ""
            label = f"{key} chosen per row from {count} values on validation{steps}"
            chosen.setdefault(label, []).append(f"{name} {short_number(tuned.value)}")
    notes = [f"{label}: {', '.join(values)}" for label, values in chosen.items()]
    rates = {
        name: short_number(str(system.lr))
        for name, system in systems.items()
        if not system.tuned or system.tuned.key != LEARNING_RATE
    }
    if len(systems) < 2 or not rates:
        return notes
    if len(rates) == len(systems) and len({*rates.values()}) == 1:
        return [*notes, f"lr not tuned: {[*rates.values()][0]} in all rows"]
    listed = _grouped([*rates], [*rates.values()], always=True)
    return [*notes, f"lr not tuned, but set by the recipe: {listed}"]


def _conditions(comparison: Comparison) -> list[str]:
    """Return the conditions of a fair comparison (search, data, budget, changes), and which differ."""
    rows, notes = comparison.rows, []
    names = full_names(rows)
    if searches := _grouped(names, [search_of(row) for row in rows]):
        chosen = joined(FROM[row.search_from] for row in rows if search_of(row))
        notes.append(f"search: {searches}; set by {chosen}")
    if data := _grouped(names, [_data(row) for row in rows]):
        notes.append(f"data: {data}")
    budgets = [
        f"{b.steps:,} steps of {b.batch_tokens * b.accumulate:,} tokens" if (b := row.system.budget) else ""
        for row in rows
    ]
    if len({*budgets}) > 1:
        notes.append(f"training budget: {_grouped(names, budgets)}")
    changes = [changes_of(row.system) for row in rows]
    if any(changes):
        notes.append(f"changed after training began: {_grouped(names, changes)}")
    several_recipes = len({row.recipe for row in rows}) > 1
    reasons: dict[str, dict[str, None]] = {}
    for difference in comparison.differences:
        pair = (difference.row, difference.baseline)
        labels = [f"{row.name} of {row.recipe}" if several_recipes else row.name for row in pair]
        for reason in difference.not_comparable:
            reasons.setdefault(" to ".join(labels), {})[reason] = None
    if reasons:
        listed = "; ".join(f"{systems} (other {', '.join(conditions)})" for systems, conditions in reasons.items())
        notes.append(f"not comparable, so not tested (differences in parentheses): {listed}")
    return notes


def _data(row: ScoreRow) -> str:
    """Return the corpus and split of a row, with the hashes of its sources and references."""
    if row.source is None:
        return ""
    name = " ".join(filter(None, [row.system.corpus, row.split]))
    if corpus_cards.row_length(row.system.corpus):
        return f"{name}, generated"  # the hashes differ at each length
    return f"{name} (SHA-256: source {row.source[:8]}, references {row.references[:8]})"


def _significance(comparison: Comparison, axis: Axis) -> list[str]:
    """Return notes on the tests of differences; along an axis, tables show stars but no intervals."""
    rows, differences, resamples = comparison.rows, comparison.differences, comparison.resamples
    marks = [SEPARABLE_NOTE] if comparison.best and not axis else []
    if not differences:
        return marks
    condition = {"contexts": " with the same number of contexts", "length": " at the same length", "": ""}[axis]
    notes = [f"difference: to {joined(_baseline(d.baseline, rows) for d in differences)}{condition}"]
    if tested := [difference for difference in differences if difference.tested]:
        generated = corpus_cards.row_length(rows[0].system.corpus)
        over = {"contexts": "questions", "length": "rows" if generated else "windows", "": "sentences"}
        families = [  # of tests that are corrected together
            (d.row.split, d.row.contexts or d.row.length, d.metric, d.baseline.recipe, d.baseline.name) for d in tested
        ]
        count = max(map(families.count, families))
        tests = [(difference.row.name, difference.tested) for difference in tested if difference.tested]
        seeds = any(test.seed_degrees for _, test in tests)
        notes[0] += "; " + significance_note(over[axis], resamples, count, "variants", seeds=seeds)
        if not axis:
            notes += [interval_note(test for _, test in tests), *_needed(tested)]
        notes.append(scope_note(tests, over[axis], trained(rows)))
        marks.append(few_items_note(min(difference.row.sentences for difference in tested), over[axis]))
    return [*notes, *filter(None, marks)] if resamples else [*notes, NO_TESTS]


def _baseline(baseline: ScoreRow, rows: Sequence[ScoreRow]) -> str:
    """Return the name of a baseline, with its recipe and runs if there are several recipes."""
    name = " ".join(filter(None, (baseline.name, baseline.method)))
    if len({row.recipe for row in rows}) == 1:
        return name
    key = (baseline.recipe, baseline.name, baseline.split)
    runs = run_notes([row for row in rows if (row.recipe, row.name, row.split) == key])
    return f"{name} of {baseline.recipe} ({runs[0].removeprefix('runs: ') if runs else ''})"


def _needed(tested: Sequence[SystemDifference]) -> list[str]:
    """Return a note on the numbers of seeds that would decide undecided differences by the first metric."""
    counts = {
        difference.row.name: difference.tested.seeds_needed or f"more than {MAX_SEEDS}"
        for difference in tested
        if difference.tested and difference.metric == tested[0].metric
        if difference.tested.seed_degrees and difference.tested.verdict == "undecided"
    }
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    title = metric_facts(tested[0].metric).title
    return [f"seeds needed to detect such a difference in {title} in 4 of 5 comparisons: {listed}"] if counts else []


def _published(comparison: Comparison) -> list[str]:
    """Return the sources of the published figures that are shown beside scores."""
    notes = []
    several = len({row.recipe for row in comparison.rows}) > 1
    cells = [(row, metric) for row in comparison.rows for metric in row.scores]
    for published in comparison.published:
        if any(published.score(*cell) is not None for cell in cells):
            figures = published.figures
            recipe = f" ({published.recipe})" if several else ""
            kind = "comparable" if figures.comparable else f"not comparable: {figures.why}"
            notes.append(f"published{recipe}: {figures.source}; {kind}")
    return notes
