"""Tables of `attnkit recipe`."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attnkit.recipe import Recipe, RecipeFile, export_rules, flat, library
from attnkit.recipe.data_rules import split_notes
from attnkit.recipe.settings import ONLY_WITH, ROLES, all_keys
from attnkit.show.quantities import amount, duration
from attnkit.show.table import Cell, Column, Table, Value

if TYPE_CHECKING:
    from attnkit.experiment.cost import Cost
    from attnkit.recipe.corpus_cards import Card


DEFAULT = "default"
"""Origin of a value that is not set."""
HINT = "a wider terminal or --format markdown shows them"


def recipes(entries: Iterable[tuple[RecipeFile, str]]) -> Table:
    """Return a table of recipes, given with the time that each takes."""
    fields = (
        Column("recipe", lambda item: item[0].name, align="left"),
        Column("time", lambda item: item[1], align="left", wrap=True),
        Column("variants", lambda item: len(item[0].variants), priority=1),
        Column(
            "corpus", lambda item: [*item[0].variants.values()][0].data.corpus or "files", align="left", priority=2
        ),
    )
    note = (
        "`attnkit recipe show NAME` prints a recipe; `attnkit recipe explain NAME` describes its "
        "values and cost; `attnkit recipe list --corpora` lists the corpora"
    )
    return Table.of("", entries, fields, [note])


def corpora(cards: Iterable["Card"]) -> Table:
    """Return a table of corpora."""

    def origin(card: "Card") -> str:
        if card.format == "generated":
            return "generated"
        return "downloads" if card.downloads else "manual"

    fields = (
        Column("corpus", lambda card: card.name, align="left"),
        Column("title", lambda card: card.title, align="left", wrap=True),
        Column("origin", origin, align="left"),
        Column("languages", lambda card: " ".join(card.languages), align="left", priority=1),
        Column("task", lambda card: card.task, align="left", priority=2),
    )
    note = "manual: place the files yourself; the error for a missing file says how to obtain the file"
    return Table.of("", cards, fields, [note])


def values(file: RecipeFile, variants: Sequence[str], *, defaults: bool = False) -> Table:
    """Return the values that the variants' models read, with their origins; equal variants share a row.

    Values that no variant sets are left out unless `defaults`.
    """
    variant_values = {name: read_values(file.variants[name]) for name in variants}
    order = {".".join(key): number for number, key in enumerate(all_keys())}
    keys = {key for values in variant_values.values() for key in values}
    rows, left_out = [], 0
    for key in sorted(keys, key=lambda k: (order[".".join(k.split(".")[:3])], k)):
        groups: dict[tuple[str, str], list[str]] = {}
        for name in variants:
            if key in variant_values[name]:
                origin = _origin(file.origins[name][key], file.path)
                groups.setdefault((variant_values[name][key], origin), []).append(name)
        if not defaults and {origin for _, origin in groups} == {DEFAULT}:
            left_out += 1
            continue
        for (value, origin), names in groups.items():
            shown_variants = "" if len(names) == len(variants) else " ".join(names)
            fields = {"key": key, "value": value, "from": origin, "variants": ", ".join(names)}
            rows.append((Cell(key, fields), Cell(value), Cell(origin), Cell(shown_variants)))
    columns = (
        Column("key", align="left"),
        Column("value", align="left", wrap=True),
        Column("from", align="left"),
        *((Column("variants", align="left", wrap=True),) if len(variants) > 1 else ()),
    )
    notes = list(dict.fromkeys(n for name in variants for n in split_notes(file.variants[name])))
    notes += export_rules.notes([(name, file.variants[name]) for name in variants])
    if left_out:
        notes.append(f"{left_out} more keys have their default values: --all shows them")
    return Table("values", columns, tuple(row[: len(columns)] for row in rows), tuple(notes))


def _origin(origin: str, recipe: Path) -> str:
    """Return the origin of a value, with its file relative to the recipe or to the folder of shipped recipes."""
    path, colon, position = origin.partition(":")
    if not colon:
        return origin
    is_shipped = Path(path).is_relative_to(library()) and not recipe.is_relative_to(library())
    return f"{os.path.relpath(path, library() if is_shipped else recipe.parent)}:{position}"


def read_values(recipe: Recipe) -> dict[str, str]:
    """Return the values of a recipe that its model reads."""
    model = recipe.model
    unread = {
        key for key, tags in ONLY_WITH.items() if any(attrgetter(tag.key)(recipe) not in tag.values for tag in tags)
    }
    unread |= {f"model.attention.{role}" for role in ROLES if role not in model.places}
    if model.count_based:
        names = ["heads", "dropout", "tie", "bias", "layers.decoder"]
        names += ["width"] * (model.naive_bayes.estimate == "counts")
        unread |= {f"model.{name}" for name in names}
    keys = ((key, ".".join(key.split(".")[:3]), value) for key, value in flat(recipe).items())
    return {key: value for key, part, value in keys if part not in unread}


def costs(measured: "Mapping[str, Cost]", recipes: Mapping[str, Recipe]) -> Table:
    """Return the parameters, memory, padding and time of each variant."""
    notes = [
        "memory: live tensors at the largest batch in float32, besides about 0.3 GB for Python and "
        "PyTorch; the Linux allocator may hold up to 1.7 times this size"
    ]
    runs = {name: len(recipes[name].train.seeds) for name in measured}
    if not all(cost.padding for cost in measured.values()):
        notes.append("data not read: vocabulary sizes are those of the recipe, and rows have 32 tokens")
    paces = [(cost.pace, runs[name]) for name, cost in measured.items() if cost.pace]
    counted = [name for name in measured if recipes[name].model.count_based]
    if counted:
        notes.append(f"counted in one pass, not timed: {', '.join(counted)}")
        runs = {name: seeds for name, seeds in runs.items() if name not in counted}
    if paces and len(paces) + len(counted) == len(measured):
        total = duration(sum(pace.training * seeds for pace, seeds in paces))
        count, threads = sum(runs.values()), paces[0][0].threads
        notes.append(
            f"training: {count} run{'s' * (count != 1)}, about {total} on this machine with "
            f"{threads} thread{'s' * (threads != 1)}, without validation and decoding"
        )
    fields = [Column("variant", lambda item: item[0], align="left")]
    fields += [f for f in COST_FIELDS if any(f.value(item) is not None for item in measured.items())]
    return Table.of("cost", measured.items(), fields, notes, HINT)


def _cost(path: str) -> Callable[[Any], Value]:
    """Return a function from a variant and its cost to the value at a dotted path; None: not measured."""

    def value_of(item: Any) -> Value:
        value = item[1]
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        return cast(Value, value)

    return value_of


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


COST_FIELDS = (
    Column("parameters", _cost("parameters.total"), "{:,}"),
    Column("embeddings", _cost("parameters.embeddings"), "{:,}", priority=6),
    Column("attention", _cost("parameters.attention"), "{:,}", priority=6),
    Column("memory", _cost("memory"), amount, "memory_bytes"),
    Column("updates/epoch", _cost("padding.updates"), "{:,.0f}", "updates_per_epoch", priority=5),
    Column("epochs", _cost("padding.epochs"), "{:,.1f}", priority=4),
    Column("padding source", _cost("padding.source"), _percent, "padding_source", priority=3),
    Column("padding target", _cost("padding.target"), _percent, "padding_target", priority=3),
    Column("precision", _cost("pace.precision"), priority=2),
    Column("tokens/s", _cost("pace.tokens_per_second"), "{:,.0f}", "tokens_per_second", priority=1),
    Column("update", _cost("pace.seconds"), "{:.3g} s", "update_seconds", priority=2),
    Column("training", _cost("pace.training"), duration, "training_seconds"),
)
