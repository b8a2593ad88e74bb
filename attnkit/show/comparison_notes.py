"""The notes below a comparison of variants: what a reader needs to reproduce and to trust it."""

from collections.abc import Iterable, Sequence
from typing import Any

from attnkit.recipe import corpus_cards
from attnkit.recipe.metrics import base_metric, direction_note, metric_facts, metrics_that_read
from attnkit.recipe.search_text import search_text
from attnkit.scoring.results import Comparison, ScoreRow, System, SystemDifference
from attnkit.scoring.significance import MOST_SEEDS
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


def metrics_of(rows: Sequence[ScoreRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.scores))


def joined(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def comparison_notes(
    comparison: Comparison, metrics: Sequence[str]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """The notes below a comparison, and those of them that are about differences, seeds, marks."""
    rows = comparison.rows
    seeds = [_seeds(rows)] if trained(rows) else []
    significance = _significance(comparison)
    few = few_items_note(min((row.sentences for row in rows), default=0), "sentences")
    if significance and comparison.resamples and few:
        significance.append(few)
    notes = [*signature_notes(rows, metrics), _sentences(rows), *seeds, *_training(rows)]
    notes += tuning_notes(rows) + condition_notes(comparison)
    notes += significance + _published(comparison) + run_notes(rows)
    return tuple(notes), frozenset([*seeds, *significance])


def _sentences(rows: Sequence[ScoreRow]) -> str:
    """How many sentences each split has, and how many of them nothing to be compared with."""
    empty: dict[tuple[str | None, int], int] = {}
    for row in rows:
        split = (row.split, row.sentences)
        empty[split] = max(empty.get(split, 0), row.empty_references)
    return "sentences: " + joined(
        f"{sentences}{f' of {split}' if split else ''}"
        + (f" ({lacking} with an empty reference)" if lacking else "")
        for (split, sentences), lacking in empty.items()
    )


def signature_notes(rows: Sequence[ScoreRow], metrics: Sequence[str]) -> list[str]:
    """How each metric was measured."""
    notes = []
    for metric in metrics:
        signatures = joined(row.scores[metric].signature for row in rows if metric in row.scores)
        notes.append(f"{metric_facts(metric).title}{direction_note(metric)}: {signatures}")
    return notes


def run_notes(rows: Sequence[ScoreRow]) -> list[str]:
    """Runs by their folders, as a shell would expand them; [] without runs."""
    folders: dict[str, list[str]] = {}
    for run in dict.fromkeys(row.run for row in rows if row.run is not None):
        folder, seed, name = run.rpartition("/seed-")
        folders.setdefault(folder + seed or run, []).append(name if seed else "")
    out = [
        f"{folder}{{{','.join(names)}}}" if names[1:] else folder + names[0]
        for folder, names in folders.items()
    ]
    return [f"runs: {' '.join(out)}"] if out else []


def _names(rows: Sequence[ScoreRow]) -> list[str]:
    """The systems of rows, each with its recipe where there are several."""
    several = len({row.recipe for row in rows}) > 1
    return [_name(row, several) for row in rows]


def _name(row: ScoreRow, several: bool) -> str:
    return f"{row.name} of {row.recipe}" if several else row.name


def search_of(row: ScoreRow) -> str:
    """How a row's outputs were decoded; nothing where none were."""
    unsearched = {*metrics_that_read("probabilities"), *metrics_that_read("labels")}
    decoded = {base_metric(name) for name in row.scores} - unsearched
    return search_text(row.search) if row.search and decoded else ""


def changes_of(system: System) -> str:
    """What was changed in a run's recipe while it was trained."""
    return ", ".join(
        f"{change.key} {change.old} -> {change.new} after step {change.step}"
        for change in system.changes
    )


def _by_system(rows: Sequence[ScoreRow], texts: Sequence[str]) -> str:
    """The texts of rows, each once, with its systems where not all have it; "" is left out."""
    systems: dict[str, dict[str, None]] = {}
    names = _names(rows)
    for name, text in zip(names, texts, strict=True):
        if text:
            systems.setdefault(text, {})[name] = None
    return "; ".join(
        text if {*some} == {*names} and all(texts) else f"{text} ({', '.join(some)})"
        for text, some in systems.items()
    )


FROM = {
    "run": "the recipe of each run",
    "recipe": "the recipe named here",
    "command line": "the command line",
}
"""Who decided on the search."""


def condition_notes(comparison: Comparison) -> list[str]:
    """What must be equal for a fair comparison: search, data, changes; and where it is not."""
    rows = comparison.rows
    notes = []
    if searches := _by_system(rows, [search_of(row) for row in rows]):
        chosen = joined(FROM[row.search_from] for row in rows if search_of(row))
        notes.append(f"search: {searches}; set by {chosen}")
    if data := _by_system(rows, [_data(row) for row in rows]):
        notes.append(f"data: {data}")
    budgets = [_budget(row.system) for row in rows]
    if len({*budgets}) > 1:
        notes.append(f"training budget: {_by_system(rows, budgets)}")
    if changes := _by_system(rows, [changes_of(row.system) for row in rows]):
        notes.append(f"changed after training began: {changes}")
    several = len({row.recipe for row in rows}) > 1
    return notes + not_comparable_note(
        (_name(one.row, several), _name(one.baseline, several), one.not_comparable)
        for one in comparison.differences
    )


def _data(row: ScoreRow) -> str:
    """What was decoded and compared with."""
    if row.source is None:
        return ""
    name = " ".join(filter(None, [row.system.corpus, row.split]))
    if corpus_cards.row_length(row.system.corpus):
        return f"{name}, generated"  # with other digests at every length
    return f"{name} (SHA-256: source {row.source[:8]}, references {row.references[:8]})"


def _budget(system: System) -> str:
    """How much a system may learn from."""
    if system.budget is None:
        return ""
    steps, tokens, accumulate = system.budget
    return f"{steps:,} steps of {tokens * accumulate:,} tokens"


def not_comparable_note(found: Iterable[tuple[str, str, Sequence[str]]]) -> list[str]:
    """A note on systems, each with its baseline and why they cannot be compared; [] without any."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for system, base, why in found:
        for reason in why:
            reasons.setdefault((system, base), {})[WORDS.get(reason, reason)] = None
    if not reasons:
        return []
    listed = "; ".join(
        f"{name} to {base} (other {', '.join(words)})" for (name, base), words in reasons.items()
    )
    return [f"not comparable, so not tested, differences in parentheses: {listed}"]


WORDS = {"metric": "metric settings", "budget": "training budget"}
"""Reasons that are told by longer words."""


def _seeds(rows: Sequence[ScoreRow]) -> str:
    """The seeds of most variants, and those of the others by name."""
    by_system: dict[str, list[int | None]] = {}
    for row, name in zip(rows, _names(rows), strict=True):
        by_system.setdefault(name, []).append(row.seed)
    systems: dict[str, list[str]] = {}
    for name, seeds in by_system.items():
        systems.setdefault(joined(seeds), []).append(name)
    first, *others = sorted(systems, key=lambda seeds: -len(systems[seeds]))
    listed = "; ".join([first, *(f"{', '.join(systems[seeds])}: {seeds}" for seeds in others)])
    spread = (
        f" (mean {PLUS_MINUS} standard deviation over seeds)" if ", " in "".join(systems) else ""
    )
    return f"seeds: {listed}{spread}"


def trained(rows: Sequence[ScoreRow]) -> bool:
    """Whether any of the systems was trained here, so that its seed is known."""
    return any(row.seed is not None for row in rows)


def _training(rows: Sequence[ScoreRow]) -> list[str]:
    """How long and how the shown models were trained."""
    costs = [row.system.cost for row in rows]
    updates = [cost.updates for cost in costs if cost.updates]
    if not updates:
        return []
    span = f"{min(updates):,}" + (f" to {max(updates):,}" if min(updates) < max(updates) else "")
    ways = [
        f"{cost.precision} on {cost.device} with {cost.threads} thread"
        f"{'' if cost.threads == 1 else 's'}"
        + (f" in each of {n} processes" if (n := cost.processes or 1) > 1 else "")
        for cost in costs
        if cost.precision
    ]
    where = f" in {joined(ways)}" if ways else ""
    peak = "; peak memory: of the process, Python and its libraries included"
    if not any(cost.peak_memory_bytes for cost in costs):
        peak = ""
    elif not any(cost.device == "cpu" for cost in costs):
        peak = "; peak memory: of tensors on the device"
    notes = [f"training: {span} updates{where}{peak}"]
    machines = {cost.machine for cost in costs if cost.machine}
    if len(machines) > 1:
        notes.append(
            f"trained on {len(machines)} kinds of machines: speeds and memory are not comparable"
        )
    return notes


LEARNING_RATE = "train.lr"


def tuning_notes(rows: Sequence[ScoreRow]) -> list[str]:
    """Which values were chosen for each system by trials; else that learning rates were not."""
    systems: dict[str, System] = {}
    for row, name in zip(rows, _names(rows), strict=True):
        if row.system.lr:
            systems.setdefault(name, row.system)
    chosen: dict[str, list[str]] = {}
    rates: dict[str, list[str]] = {}
    for name, system in systems.items():
        if tuned := system.tuned:
            key, count = tuned.key.rpartition(".")[2], len(tuned.trials)
            steps = f" (trials of {tuned.steps:,} updates)" if tuned.steps else ""
            what = f"{key} chosen per row from {count} values on validation{steps}"
            chosen.setdefault(what, []).append(f"{name} {short_number(tuned.value)}")
        if not tuned or tuned.key != LEARNING_RATE:
            rates.setdefault(short_number(str(system.lr)), []).append(name)
    notes = [f"{what}: {', '.join(values)}" for what, values in chosen.items()]
    if len(systems) < 2 or not rates:
        return notes
    if len(rates) == 1 and len(*rates.values()) == len(systems):
        return [*notes, f"lr not tuned: one learning rate serves all rows, {next(iter(rates))}"]
    listed = "; ".join(f"{', '.join(names)} {rate}" for rate, names in rates.items())
    return [*notes, f"lr not tuned, but set by the recipe: {listed}"]


def _published(comparison: Comparison) -> list[str]:
    """Where the published figures are from that stand beside a score."""
    notes = []
    several = len({row.recipe for row in comparison.rows}) > 1
    cells = [(row, metric) for row in comparison.rows for metric in row.scores]
    for published in comparison.published:
        if all(published.score(*cell) is None for cell in cells):
            continue
        figures = published.figures
        of = f" ({published.recipe})" if several else ""
        kind = "comparable" if figures.comparable else f"not comparable: {figures.why}"
        notes.append(f"published{of}: {figures.source}; {kind}")
    return notes


def _baseline(base: ScoreRow, rows: Sequence[ScoreRow]) -> str:
    """What a variant was compared with: its name, and its runs where there are several recipes."""
    if len({row.recipe for row in rows}) == 1:
        return base.name
    key = (base.recipe, base.name, base.split)
    runs = run_notes([row for row in rows if (row.recipe, row.name, row.split) == key])
    return f"{base.name} of {base.recipe} ({runs[0].removeprefix('runs: ') if runs else ''})"


def _significance(comparison: Comparison) -> list[str]:
    """How the differences were tested."""
    differences, resamples = comparison.differences, comparison.resamples
    marks = [SEPARABLE_NOTE] if comparison.best else []
    if not differences:
        return marks
    bases = joined(_baseline(one.baseline, comparison.rows) for one in differences)
    notes = [f"difference: to {bases}"]
    if tested := [one for one in differences if one.tested]:
        columns = [(d.row.split, d.metric, d.baseline.recipe, d.baseline.name) for d in tested]
        variants = max(map(columns.count, columns))
        seeds = any(one.tested.seed_degrees for one in tested if one.tested)
        how = significance_note("sentences", resamples, variants, "variants", seeds=seeds)
        notes[0] += f"; {how}"
        notes += [interval_note(one.tested for one in tested if one.tested), *_unequal(tested)]
        notes += _needed(tested)
        notes.append(scope_note(tests_of(tested), "sentences", trained(comparison.rows)))
    return [*notes, *marks] if resamples else [*notes, NO_TESTS]


def tests_of(differences: Iterable[SystemDifference]) -> list[tuple[str, Any]]:
    """The tests among differences, with the names of their systems."""
    return [(one.row.name, one.tested) for one in differences if one.tested]


def _needed(tested: Sequence[SystemDifference]) -> list[str]:
    """Seeds with which undecided differences by the first metric would be told, if any."""
    counts = {
        one.row.name: one.tested.seeds_needed or f"more than {MOST_SEEDS}"
        for one in tested
        if one.tested and one.metric == tested[0].metric
        if one.tested.seed_degrees and one.tested.verdict == "undecided"
    }
    if not counts:
        return []
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    title = metric_facts(tested[0].metric).title
    return [f"seeds that would show such a difference in {title} in 4 of 5 comparisons: {listed}"]


def _unequal(tested: Sequence[SystemDifference]) -> list[str]:
    """The systems that have another number of seeds than their baseline."""
    counts = {one.row.name: one.seeds for one in tested}
    unequal = [f"{name} {own} to {base}" for name, (own, base) in counts.items() if own != base]
    if not unequal:
        return []
    return [f"unequal numbers of seeds, whose spreads are taken as equal: {', '.join(unequal)}"]
