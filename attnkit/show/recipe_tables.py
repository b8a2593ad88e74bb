"""The tables of `attnkit recipe`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attnkit.mechanisms import MechanismSpec, resolve_capabilities
from attnkit.mechanisms import parts as parts_of
from attnkit.recipe import Recipe, RecipeFile, export_rules, flat, library
from attnkit.recipe.data_rules import split_notes
from attnkit.recipe.settings import ONLY_WITH, ROLES, all_keys
from attnkit.show.table import NONE, Cell, Column, Table, Value
from attnkit.show.training_board import duration

if TYPE_CHECKING:
    from attnkit.experiment.cost import MemoryEstimate, Pace, Padding, Parameters
    from attnkit.experiment.scale import ScaledCost
    from attnkit.recipe.corpus_cards import Card


DEFAULT = "default"
"""The origin of a value that nobody set."""
HOW = "a wider terminal or --format markdown shows them"
"""How to see the columns that explain leaves out."""


def recipes(files: Iterable[tuple[RecipeFile, str]]) -> Table:
    """The shipped recipes, each with the number of its variants and the time that it takes."""
    columns = (
        Column("recipe", "left"),
        Column("time", "left", wrap=True),
        Column("variants", priority=1),
        Column("corpus", "left", priority=2),
    )
    rows = []
    for file, time in files:
        corpus, count = next(iter(file.variants.values())).data.corpus, len(file.variants)
        fields: dict[str, Value] = {
            "recipe": file.name,
            "time": time,
            "variants": count,
            "corpus": corpus,
        }
        texts = (file.name, time, str(count), corpus or "files")
        rows.append(_row(texts, fields))
    note = (
        "`attnkit recipe show NAME` prints one; `attnkit recipe explain NAME` says what it means "
        "and costs; `attnkit recipe list --corpora` says what the corpora are"
    )
    return Table("", columns, tuple(rows), (note,))


def _row(texts: Iterable[str], fields: Mapping[str, Value]) -> tuple[Cell, ...]:
    """A row of texts, each with its value for programs."""
    each = zip(texts, fields.items(), strict=True)
    return tuple(Cell(text, {name: value}) for text, (name, value) in each)


def corpora(cards: Iterable["Card"]) -> Table:
    """The corpus cards."""
    columns = (
        Column("corpus", "left"),
        Column("title", "left", wrap=True),
        Column("origin", "left"),
        Column("languages", "left", priority=1),
        Column("task", "left", priority=2),
    )
    rows = []
    for card in cards:
        by_hand = "downloads" if card.downloads else "manual"
        origin = "generated" if card.format == "generated" else by_hand
        texts = (card.name, card.title, origin, " ".join(card.languages), card.task)
        rows.append(tuple(map(Cell, texts)))
    note = "manual: place the files yourself; attnkit says where to get what is missing"
    return Table("", columns, tuple(rows), (note,))


def values(file: RecipeFile, variants: Sequence[str], *, defaults: bool = False) -> Table:
    """The values that a model reads, with their origin, one row where the variants agree.

    Values that no variant sets are left out unless `defaults`.
    """
    known = {name: read_values(file.variants[name]) for name in variants}
    order = {".".join(key): number for number, key in enumerate(all_keys())}
    keys = {key for values in known.values() for key in values}
    here = {
        path
        for name in variants
        for origin in file.origins[name].values()
        for path, colon, _ in (origin.partition(":"),)
        if colon
    }
    rows, left_out = [], 0
    for key in sorted(keys, key=lambda k: (order[".".join(k.split(".")[:3])], k)):
        groups: dict[tuple[str, str], list[str]] = {}
        for name in variants:
            if key in known[name]:
                origin = _origin(file.origins[name][key], file.path)
                groups.setdefault((known[name][key], origin), []).append(name)
        if not defaults and {origin for _, origin in groups} == {DEFAULT}:
            left_out += 1
            continue
        for (value, origin), names in groups.items():
            path, colon, position = origin.partition(":")
            place = position if len(here) == 1 else origin
            who = "" if len(names) == len(variants) else " ".join(names)
            fields = {"key": key, "value": value, "from": origin, "variants": ", ".join(names)}
            rows.append(
                (Cell(key, fields), Cell(value), Cell(place if colon else origin), Cell(who))
            )
    several = len(variants) > 1
    columns = (
        Column("key", "left"),
        Column("value", "left", wrap=True),
        Column("from", "left"),
        *((Column("variants", "left", wrap=True),) if several else ()),
    )
    notes = [f"from: line and column of {Path(path).name}" for path in here if len(here) == 1]
    notes += dict.fromkeys(note for name in variants for note in split_notes(file.variants[name]))
    if left_out:
        notes.append(f"{left_out} more keys have their default values: --all shows them")
    return Table("values", columns, tuple(row[: len(columns)] for row in rows), tuple(notes))


def _origin(origin: str, recipe: Path) -> str:
    """Where a value is from, a file as seen from the recipe, or from the folder of shipped ones."""
    path, colon, position = origin.partition(":")
    if not colon:
        return origin
    ships = Path(path).is_relative_to(library()) and not recipe.is_relative_to(library())
    return f"{os.path.relpath(path, library() if ships else recipe.parent)}:{position}"


def read_values(recipe: Recipe) -> dict[str, str]:
    """The values of a recipe without those of the parts that its model does not have."""
    model = recipe.model
    absent = {
        key
        for key, tags in ONLY_WITH.items()
        if any(tag.key == "model.type" and model.type not in tag.values for tag in tags)
    }
    absent |= {f"model.attention.{role}" for role in ROLES if role not in model.places}
    if model.counted:
        unread = ["heads", "dropout", "tie", "bias", "layers.decoder"]
        unread += ["width"] * (model.naive_bayes.estimate == "counts")
        absent |= {f"model.{name}" for name in unread}
    keys = ((key, ".".join(key.split(".")[:3]), value) for key, value in flat(recipe).items())
    return {key: value for key, part, value in keys if part not in absent}


def mechanisms(file: RecipeFile, variants: Sequence[str]) -> Table:
    """What the attention mechanisms of the variants cost and can do."""
    uses: dict[str, list[str]] = {}
    facts: dict[str, MechanismSpec] = {}
    for name in variants:
        model = file.variants[name].model
        inside: dict[str, list[str]] = {}
        for place in model.places:
            chosen = getattr(model.attention, place)
            known = resolve_capabilities(chosen.name, chosen.options())
            label = known.word
            if known.composite:
                parts = parts_of(known, chosen.options()[known.composite])
                label += f" of {', '.join(part.word for part in parts)}"
            facts[label] = known
            inside.setdefault(label, []).append(place)
        for label, used_in in inside.items():
            text = ", ".join(used_in)
            uses.setdefault(label, []).append(f"{name}: {text}" if len(variants) > 1 else text)
    rows = [
        {
            "mechanism": word,
            "time": facts[word].cost,
            "causal": "yes" if facts[word].causal else "no",
            "cross": "yes" if facts[word].cross else "no",
            "used in": "; ".join(where),
            "decoding": facts[word].state if facts[word].causal else NONE,
            "map": facts[word].map,
            "limit": limit_text(facts[word]),
            "positions": ", ".join(facts[word].positions) or "none",
        }
        for word, where in uses.items()
    ]
    columns = tuple(
        Column(name, "left", priority=max(0, at - 4), wrap=name in ("mechanism", "used in"))
        for at, name in enumerate(rows[0] if rows else ())
    )
    note = (
        "time of one head: T queries, S keys, D and E widths, M features; decoding: state that "
        "grows with the text, or has a constant size; map: exact = the matrix is formed, "
        "effective = what the mechanism amounts to"
    )
    exports = export_rules.notes([(name, file.variants[name]) for name in variants])
    cells = tuple(_row(row.values(), row) for row in rows)
    return Table("attention", columns, cells, (note, *exports), HOW)


def limit_text(facts: MechanismSpec) -> str:
    """The longest text that a mechanism reads."""
    return "data.max_length" if facts.limit == "max_length" else str(facts.limit or "none")


class Cost(NamedTuple):
    """What is known of one variant's cost; None where it could not be measured."""

    parameters: "Parameters"
    memory: "MemoryEstimate"
    padding: "Padding | None" = None
    pace: "Pace | None" = None
    scales: "tuple[ScaledCost, ...]" = ()
    """The same on several ranks."""


def costs(measured: Mapping[str, Cost], recipes: Mapping[str, Recipe]) -> Table:
    """Parameters, memory, padding and time, a row for each variant."""
    rows = {name: _cost(cost) for name, cost in measured.items()}
    heads = [head for head in _PRIORITIES if any(head in row for row in rows.values())]
    columns = [Column(head, priority=_PRIORITIES[head]) for head in heads]
    notes = [
        "memory: live tensors at the largest batch in float32, beside about 0.3 GB of Python and "
        "PyTorch; the allocator of Linux may hold up to 1.7 times as much"
    ]
    trainings = {name: len(recipes[name].train.seeds) for name in measured}
    if not all(cost.padding for cost in measured.values()):
        notes.append("without the data: vocabularies of the size in the recipe, rows of 32 tokens")
    paces = [(cost.pace, trainings[name]) for name, cost in measured.items() if cost.pace]
    counted = [name for name in measured if recipes[name].model.counted]
    if counted:
        notes.append(f"counted in one pass, not timed: {', '.join(counted)}")
        trainings = {name: seeds for name, seeds in trainings.items() if name not in counted}
    if paces and len(paces) + len(counted) == len(measured):
        whole = duration(sum(pace.training * seeds for pace, seeds in paces))
        count, threads = sum(trainings.values()), paces[0][0].threads
        notes.append(
            f"training: {count} run{'s' * (count != 1)}, about {whole} on this machine with "
            f"{threads} thread{'s' * (threads != 1)}, without validation and decoding"
        )
    return Table(
        "cost",
        (Column("variant", "left"), *columns),
        tuple(
            (Cell(name, {"variant": name}), *(row.get(head, Cell(NONE)) for head in heads))
            for name, row in rows.items()
        ),
        tuple(notes),
        HOW,
    )


_PRIORITIES = {  # a narrow screen loses the columns with the highest numbers
    "parameters": 0, "embeddings": 6, "attention": 6, "memory": 0, "updates/epoch": 5, "epochs": 4,
    "padding source": 3, "padding target": 3, "precision": 2, "tokens/s": 1, "update": 2,
    "training": 0,
}  # fmt: skip


def _cost(cost: Cost) -> dict[str, Cell]:
    parameters, padding, pace = cost.parameters, cost.padding, cost.pace
    memory = cost.memory.total
    found: dict[str, tuple[str, str, Value]] = {
        "parameters": (f"{parameters.total:,}", "parameters", parameters.total),
        "embeddings": (f"{parameters.embeddings:,}", "embeddings", parameters.embeddings),
        "attention": (f"{parameters.attention:,}", "attention", parameters.attention),
        "memory": (amount(memory), "memory_bytes", memory),
    }
    if padding:
        updates, epochs = padding.updates, padding.epochs
        found["updates/epoch"] = (f"{updates:,.0f}", "updates_per_epoch", updates)
        found["epochs"] = (f"{epochs:,.1f}", "epochs", epochs)
        for side, share in (("source", padding.source), ("target", padding.target)):
            if share is not None:
                name = f"padding_{side}"
                found[name.replace("_", " ")] = (f"{100 * share:.1f} %", name, share)
    if pace:
        speed, training = pace.tokens_per_second, pace.training
        found["precision"] = (pace.precision, "precision", pace.precision)
        found["tokens/s"] = (f"{speed:,.0f}", "tokens_per_second", speed)
        found["update"] = (f"{pace.seconds:.3g} s", "update_seconds", pace.seconds)
        found["training"] = (duration(training), "training_seconds", training)
    return {head: Cell(text, {name: value}) for head, (text, name, value) in found.items()}


def scales(measured: Mapping[str, Cost]) -> Table:
    """Memory, traffic and time on several ranks, a row for each variant and number of ranks."""
    heads = ["rows", "ranks", "memory a rank", "sent an update", "network to hide it"]
    heads += ["updates/epoch", "operations/epoch", "hours/epoch", "data on disk"]
    rows = []
    for name, cost in measured.items():
        for one in cost.scales:
            speed, seconds = one.sent / one.update, one.updates * one.update
            fields: dict[str, Value] = {
                "variant": name,
                "rows": one.rows,
                "ranks": one.ranks,
                "memory_bytes": one.memory,
                "sent_bytes": one.sent,
                "bytes_per_second": speed,
                "updates_per_epoch": one.updates,
                "operations_per_epoch": one.operations,
                "epoch_seconds": seconds,
                "stored_bytes": one.stored,
            }
            texts = [name, f"{one.rows:,}", f"{one.ranks:,}", amount(one.memory), amount(one.sent)]
            texts += [f"{amount(speed)}/s", f"{one.updates:,.0f}", f"{one.operations:.2g}"]
            rows.append(_row([*texts, f"{seconds / 3600:,.3g}", amount(one.stored)], fields))
    notes = (
        "rows: of training data, as long as those at hand",
        "operations: of matrix products, on all ranks; divided by the ranks and the operations a "
        "second of one device, they give the seconds of an epoch",
        "hours: of updates that do not wait for the network, each rank as fast as this device was "
        "measured; network: what each rank must send per second so that this takes no longer than "
        "the update",
        "the global batch grows with the ranks, so train.steps, lr and warmup have to be chosen "
        "for it",
    )
    columns = (Column("variant", "left"), *(Column(head) for head in heads))
    return Table("scale", columns, tuple(rows), notes, HOW)


def amount(size: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
