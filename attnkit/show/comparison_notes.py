"""The notes below a comparison of variants: what a reader needs to reproduce and to trust it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnkit.recipe import corpus_cards
from attnkit.recipe.metrics import base_metric, direction_note, metric_facts, metrics_that_read
from attnkit.recipe.search_text import search_text
from attnkit.show.differences import (
    NO_TESTS,
    SEPARABLE_NOTE,
    interval_note,
    scope_note,
    significance_note,
)
from attnkit.show.table import PLUS_MINUS
from attnkit.text import short_number

MEMORY = "train_peak_memory_bytes"

Object = Mapping[str, Any]


def metrics_of(rows: Sequence[Object]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["metrics"]))


def joined(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def published_score(
    figures: Object, split: str, recipe: str, variant: str, metric: str
) -> float | None:
    """What these published figures say of one score of a comparison."""
    if figures["recipe"] != recipe or figures["split"] not in (None, split):
        return None
    score: float | None = figures["scores"].get(variant, {}).get(metric)
    return score


def comparison_notes(comparison: Object, metrics: Sequence[str]) -> dict[str, list[str]]:
    """What a reader needs to reproduce and to trust the numbers.

    Each note with the titles of the columns that it is about; without any it is about the table.
    """
    rows = comparison["rows"]
    titles = [metric_facts(metric).title for metric in metrics]
    about = {
        note: [title] for metric, title in zip(metrics, titles, strict=True)
        for note in signature_notes(rows, [metric])
    }  # fmt: skip
    about |= dict.fromkeys(_significance(comparison), ["difference"]) | {SEPARABLE_NOTE: titles}
    notes = signature_notes(rows, metrics)
    if any(row.get("sentences") for row in rows):
        notes.append(_sentences(rows))
    if trained(rows):
        notes.append(_seeds(rows))
    notes += (
        _training(rows)
        + tuning_notes(rows)
        + condition_notes(comparison)
        + _significance(comparison)
    )
    notes += _published(comparison) + run_notes(rows)
    return {note: about.get(note, []) for note in notes}


def _sentences(rows: Sequence[Object]) -> str:
    """How many sentences each split has, and how many of them nothing to be compared with."""
    empty: dict[tuple[str | None, int], int] = {}
    for row in rows:
        if row.get("sentences"):
            split = (row["split"], row["sentences"])
            empty[split] = max(empty.get(split, 0), row.get("empty_references") or 0)
    return "sentences: " + joined(
        f"{sentences}{f' of {split}' if split else ''}"
        + (f" ({lacking} with an empty reference)" if lacking else "")
        for (split, sentences), lacking in empty.items()
    )


def signature_notes(rows: Sequence[Object], metrics: Sequence[str]) -> list[str]:
    """How each metric was measured."""
    notes = []
    for metric in metrics:
        signatures = joined(row["metrics"].get(metric, {}).get("signature") for row in rows)
        notes.append(f"{metric_facts(metric).title}{direction_note(metric)}: {signatures}")
    return notes


def run_notes(rows: Sequence[Object]) -> list[str]:
    """Run folders, variants and seeds together, as a shell would expand them; [] without runs."""
    seeds: dict[str, list[str]] = {}
    for run in dict.fromkeys(row["run"] for row in rows if row["run"] is not None):
        folder, _, seed = run.rpartition("/seed-")
        seeds.setdefault(folder or run, []).extend([f"/seed-{seed}"] if folder else [])
    variants: dict[tuple[str, str], list[str]] = {}
    for path, ends in seeds.items():
        root, slash, variant = path.rpartition("/")
        variants.setdefault((root + slash, _braces(ends)), []).append(variant)
    out = [f"{root}{_braces(names)}{ends}" for (root, ends), names in variants.items()]
    return [f"runs: {' '.join(out)}"] if out else []


def _braces(texts: Sequence[str]) -> str:
    """Texts behind the beginning that they share, /seed-{1,2}; commas within one are escaped."""
    if len(texts) < 2:
        return "".join(texts)
    start = "/seed-" if all(text.startswith("/seed-") for text in texts) else ""
    ends = (text.removeprefix(start).replace(",", "\\,") for text in texts)
    return f"{start}{{{','.join(ends)}}}"


def system_of(row: Object) -> str:
    """The name that tells a row from others of its variant."""
    return str(row.get("system") or row["variant"])


def _named(rows: Sequence[Object], recipe: str, system: str) -> str:
    """A system of a comparison, with its recipe where the comparison has several."""
    return f"{system} of {recipe}" if len({row["recipe"] for row in rows}) > 1 else system


def baseline_of(test: Object) -> str:
    """The name of what a system was compared with."""
    return str(test.get("baseline_system") or test["baseline"])


def search_of(row: Object) -> str:
    """How a row's outputs were decoded; nothing where none were."""
    unsearched = {*metrics_that_read("probabilities"), *metrics_that_read("labels")}
    decoded = {base_metric(name) for name in row["metrics"]} - unsearched
    return search_text(row["search"]) if row.get("search") and decoded else ""


def changes_of(row: Object) -> str:
    """What was changed in a run's recipe while it was trained."""
    changes = row.get("changes") or ()
    return ", ".join(
        f"{change['key']} {change['old']} -> {change['new']} after step {change['step']}"
        for change in changes
    )


def _by_system(rows: Sequence[Object], texts: Sequence[str]) -> str:
    """The texts of rows, each once, with its systems where not all have it; "" is left out."""
    systems: dict[str, dict[str, None]] = {}
    for row, text in zip(rows, texts, strict=True):
        if text:
            systems.setdefault(text, {})[_named(rows, row["recipe"], system_of(row))] = None
    everyone = {_named(rows, row["recipe"], system_of(row)) for row in rows}
    return "; ".join(
        text if {*names} == everyone and all(texts) else f"{text} ({', '.join(names)})"
        for text, names in systems.items()
    )


FROM = {
    "run": "the recipe of each run",
    "recipe": "the recipe named here",
    "command line": "the command line",
}
"""Who decided on the search."""


def condition_notes(comparison: Object) -> list[str]:
    """What must be equal for a fair comparison: search, data, changes; and where it is not."""
    rows = comparison["rows"]
    notes = []
    if searches := _by_system(rows, [search_of(row) for row in rows]):
        chosen = joined(FROM.get(row.get("search_from", "")) for row in rows if search_of(row))
        notes.append(f"search: {searches}" + (f"; set by {chosen}" if chosen else ""))
    if data := _by_system(rows, [_data(row) for row in rows]):
        notes.append(f"data: {data}")
    budgets = [_budget(row) for row in rows]
    if len({*budgets}) > 1:
        notes.append(f"training budget: {_by_system(rows, budgets)}")
    if changes := _by_system(rows, [changes_of(row) for row in rows]):
        notes.append(f"changed after training began: {changes}")
    return notes + _not_comparable(comparison)


def _data(row: Object) -> str:
    """What was decoded and compared with."""
    digests = row.get("digests") or {}
    if not digests:
        return ""
    name = " ".join(filter(None, [row.get("corpus"), row["split"]]))
    if corpus_cards.row_length(row.get("corpus")):
        return f"{name}, generated"  # with other digests at every length
    parts = [f"{what} {digest[:8]}" for what, digest in digests.items()]
    return f"{name} (SHA-256: {', '.join(parts)})"


def _budget(row: Object) -> str:
    """How much a system may learn from."""
    budget = row.get("budget")
    if not budget:
        return ""
    return f"{budget['steps']:,} steps of {budget['batch_tokens'] * budget['accumulate']:,} tokens"


def _not_comparable(comparison: Object) -> list[str]:
    """The systems that differ from their baseline in more than the system."""
    rows = comparison["rows"]
    return not_comparable_note(
        (
            _named(rows, test["recipe"], system_of(test)),
            _named(rows, test["baseline_recipe"], baseline_of(test)),
            test.get("not_comparable") or (),
        )
        for test in comparison["comparisons"]
    )


def not_comparable_note(found: Iterable[tuple[str, str, Sequence[str]]]) -> list[str]:
    """A note on systems, each with its baseline and why they cannot be compared; [] without any."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for system, base, why in found:
        for reason in why:
            reasons.setdefault((system, base), {})[WORDS[reason]] = None
    if not reasons:
        return []
    listed = "; ".join(
        f"{name} to {base} (other {', '.join(words)})" for (name, base), words in reasons.items()
    )
    return [f"not comparable, so not tested, differences in parentheses: {listed}"]


WORDS = {
    "data": "data",
    "search": "search",
    "metric": "metric settings",
    "training data": "training data",
    "budget": "training budget",
}
"""Why systems are not comparable."""


def _seeds(rows: Sequence[Object]) -> str:
    """The seeds of most variants, and those of the others by name."""
    by_variant: dict[tuple[str, str], list[Object]] = {}
    for row in rows:
        by_variant.setdefault((row["recipe"], system_of(row)), []).append(row["seed"])
    variants: dict[str, list[str]] = {}
    for system, seeds in by_variant.items():
        variants.setdefault(joined(seeds), []).append(_named(rows, *system))
    first, *others = sorted(variants, key=lambda seeds: -len(variants[seeds]))
    listed = "; ".join([first, *(f"{', '.join(variants[seeds])}: {seeds}" for seeds in others)])
    spread = (
        f" (mean {PLUS_MINUS} standard deviation over seeds)" if ", " in "".join(variants) else ""
    )
    return f"seeds: {listed}{spread}"


def trained(rows: Sequence[Object]) -> bool:
    """Whether any of the systems was trained here, so that its seed is known."""
    return any(row["seed"] is not None for row in rows)


def _training(rows: Sequence[Object]) -> list[str]:
    """How long and how the shown models were trained."""
    updates = [row["train_updates"] for row in rows if row.get("train_updates")]
    if not updates:
        return []
    span = f"{min(updates):,}" + (f" to {max(updates):,}" if min(updates) < max(updates) else "")
    ways = [
        f"{row['train_precision']} on {row['train_device']} with {row['train_threads']} thread"
        f"{'' if row['train_threads'] == 1 else 's'}"
        + (f" in each of {n} processes" if (n := row.get("train_processes") or 1) > 1 else "")
        for row in rows if row.get("train_precision")
    ]  # fmt: skip
    where = f" in {joined(ways)}" if ways else ""
    peak = "; peak memory: of the process, Python and its libraries included"
    if not any(row.get(MEMORY) for row in rows):
        peak = ""
    elif not any(row["train_device"] == "cpu" for row in rows):
        peak = "; peak memory: of tensors on the device"
    return [f"training: {span} updates{where}{peak}"]


LEARNING_RATE = "train.lr"


def tuning_notes(rows: Sequence[Object]) -> list[str]:
    """Which values were chosen for each system by trials; else that learning rates were not."""
    systems: dict[str, Object] = {}
    for row in rows:
        if row.get("train_lr"):
            systems.setdefault(_named(rows, row["recipe"], system_of(row)), row)
    chosen: dict[str, list[str]] = {}
    for name, row in systems.items():
        if entry := row.get("tuned"):
            key, count = entry["key"].rpartition(".")[2], len(entry["trials"])
            steps = f" (trials of {entry['steps']:,} updates)" if entry.get("steps") else ""
            what = f"{key} chosen per row from {count} values on validation{steps}"
            chosen.setdefault(what, []).append(f"{name} {short_number(entry['value'])}")
    notes = [f"{what}: {', '.join(values)}" for what, values in chosen.items()]
    rates: dict[str, list[str]] = {}
    for name, row in systems.items():
        if (row.get("tuned") or {}).get("key") != LEARNING_RATE:
            rates.setdefault(short_number(str(row["train_lr"])), []).append(name)
    if len(systems) < 2 or not rates:
        return notes
    if len(rates) == 1 and len(*rates.values()) == len(systems):
        return [*notes, f"lr not tuned: one learning rate serves all rows, {next(iter(rates))}"]
    listed = "; ".join(f"{', '.join(names)} {rate}" for rate, names in rates.items())
    return [*notes, f"lr not tuned, but set by the recipe: {listed}"]


def _published(comparison: Object) -> list[str]:
    """Where the published figures are from that stand beside a score."""
    notes = []
    several = len({row["recipe"] for row in comparison["rows"]}) > 1
    cells = [
        (row["split"], row["recipe"], row["variant"], metric)
        for row in comparison["rows"] for metric in row["metrics"]
    ]  # fmt: skip
    for figures in comparison.get("published", ()):
        if all(published_score(figures, *cell) is None for cell in cells):
            continue
        of = f" ({figures['recipe']})" if several else ""
        kind = "comparable" if figures["comparable"] else f"not comparable: {figures['why']}"
        notes.append(f"published{of}: {figures['source']}; {kind}")
    return notes


def _baseline(test: Object, rows: Sequence[Object]) -> str:
    """What a variant was compared with: its name, and its runs where there are several recipes."""
    name, recipe = baseline_of(test), test["baseline_recipe"]
    if len({row["recipe"] for row in rows}) == 1:
        return name
    key = (recipe, name, test["split"])
    runs = run_notes([row for row in rows if (row["recipe"], system_of(row), row["split"]) == key])
    return f"{name} of {recipe} ({runs[0].removeprefix('runs: ') if runs else ''})"


def _significance(comparison: Object) -> list[str]:
    """How the differences were tested."""
    tests = comparison["comparisons"]
    marks = [SEPARABLE_NOTE] if comparison.get("best") else []
    if not tests:
        return marks
    notes = [f"difference: to {joined(_baseline(test, comparison['rows']) for test in tests)}"]
    if any(test["p"] is not None for test in tests):
        corrected = [
            (test["split"], test["metric"], test["baseline_recipe"], test.get("baseline_system"))
            for test in tests if test["p"] is not None
        ]  # fmt: skip
        variants = max(map(corrected.count, corrected))  # those of one column and baseline
        resamples = comparison["resamples"]
        notes[0] += f"; {significance_note('sentences', resamples, variants, 'variants')}"
        notes += [interval_note(tests), *_unequal_seeds(tests)]
        notes.append(scope_note(tests, "sentences", trained(comparison["rows"])))
    return [*notes, *marks] if comparison["resamples"] else [*notes, NO_TESTS]


def _unequal_seeds(tests: Sequence[Object]) -> list[str]:
    """The systems that have another number of seeds than their baseline."""
    counts = {
        system_of(test): tuple(test["seeds"])
        for test in tests if test["p"] is not None and test.get("seeds")
    }  # fmt: skip
    unequal = [f"{name} {own} to {base}" for name, (own, base) in counts.items() if own != base]
    if not unequal:
        return []
    return [f"unequal numbers of seeds, whose spreads are taken as equal: {', '.join(unequal)}"]
