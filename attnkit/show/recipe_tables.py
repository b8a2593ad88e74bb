"""The tables of `attnkit recipe`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attnkit.mechanisms import Facts, capable
from attnkit.mechanisms import parts as parts_of
from attnkit.recipe import Recipe, RecipeFile, flat, library, places
from attnkit.recipe.check import TYPES_WITH
from attnkit.recipe.settings import ROLES, all_keys
from attnkit.show.table import NONE, Cell, Column, Table
from attnkit.show.training_board import duration

if TYPE_CHECKING:
    from attnkit.experiment.cost import MemoryEstimate, Pace, Padding, Parameters
    from attnkit.recipe.corpus_cards import Card


def recipes(files: Iterable[tuple[RecipeFile, str]]) -> Table:
    """The shipped recipes, each with the number of its variants and the time that it takes."""
    rows = []
    for file, time in files:
        corpus = next(iter(file.variants.values())).data.corpus or "files"
        rows.append((file.name, corpus, str(len(file.variants)), time))
    return Table.of_texts("", ("recipe", "corpus", "variants", "time"), rows)


def corpora(cards: Iterable["Card"]) -> Table:
    """The corpus cards."""
    rows = []
    for card in cards:
        by_hand = "downloads" if card.downloads else "manual"
        origin = "generated" if card.format == "generated" else by_hand
        rows.append((card.name, card.task, " ".join(card.languages), origin, card.title))
    heads = ("corpus", "task", "languages", "origin", "title")
    return Table.of_texts(
        "",
        heads,
        rows,
        "manual: place the files yourself; attnkit says where to get what is missing",
    )


def values(file: RecipeFile, variants: Sequence[str]) -> Table:
    """Every value that a model reads, with its origin, one row where the variants agree."""
    known = {name: read_values(file.variants[name]) for name in variants}
    order = {".".join(key): number for number, key in enumerate(all_keys())}
    keys = {key for values in known.values() for key in values}
    rows = []
    for key in sorted(keys, key=lambda k: (order[".".join(k.split(".")[:3])], k)):
        groups: dict[tuple[str, str], list[str]] = {}
        for name in variants:
            if key in known[name]:
                origin = _origin(file.origins[name][key], file.path)
                groups.setdefault((known[name][key], origin), []).append(name)
        for (value, origin), names in groups.items():
            who = "" if len(names) == len(variants) else ", ".join(names)
            rows.append((key, value, origin, who))
    size = 4 if len(variants) > 1 else 3
    heads = ("key", "value", "from", "variants")[:size]
    return Table.of_texts("values", heads, [row[:size] for row in rows])


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
    absent = {f"model.{name}" for name, types in TYPES_WITH.items() if model.type not in types}
    absent |= {f"model.attention.{role}" for role in ROLES if role not in model.places}
    keys = ((key, ".".join(key.split(".")[:3]), value) for key, value in flat(recipe).items())
    return {key: value for key, part, value in keys if part not in absent}


def mechanisms(file: RecipeFile, variants: Sequence[str]) -> Table:
    """What the attention mechanisms of the variants cost and can do."""
    uses: dict[str, list[str]] = {}
    facts: dict[str, Facts] = {}
    for name in variants:
        model = file.variants[name].model
        inside: dict[str, list[str]] = {}
        for place in places(file.variants[name]):
            chosen = getattr(model.attention, place)
            known = capable(chosen.name, chosen.options())
            label = known.word
            if known.composite:
                parts = parts_of(known, chosen.options()[known.composite])
                label += f" of {', '.join(part.word for part in parts)}"
            facts[label] = known
            inside.setdefault(label, []).append(place)
        for label, used_in in inside.items():
            text = ", ".join(used_in)
            uses.setdefault(label, []).append(f"{name}: {text}" if len(variants) > 1 else text)
    rows = []
    for word, where in uses.items():
        known = facts[word]
        limit = "data.max_length" if known.limit == "max_length" else str(known.limit or "none")
        positions = ", ".join(known.positions) or "none"
        state = known.state if known.causal else NONE
        roles = ("yes" if known.causal else "no", "yes" if known.cross else "no", state)
        rows.append((word, known.cost, *roles, limit, positions, known.map, "; ".join(where)))
    heads = ("mechanism", "time", "causal", "cross", "decoding", "limit", "positions", "map",
             "used in")  # fmt: skip
    notes = (
        "time of one head: T queries, S keys, D and E widths, M features; decoding: state that "
        "grows with the text, or has a constant size; map: exact = the matrix is formed, "
        "effective = what the mechanism amounts to"
    )
    return Table.of_texts("attention", heads, rows, notes)


class Cost(NamedTuple):
    """What is known of one variant's cost; None where it could not be measured."""

    parameters: "Parameters"
    memory: "MemoryEstimate"
    padding: "Padding | None" = None
    pace: "Pace | None" = None


def costs(measured: Mapping[str, Cost], recipes: Mapping[str, Recipe]) -> Table:
    """Parameters, memory, padding and time, a row for each variant."""
    rows = {name: _cost(cost) for name, cost in measured.items()}
    heads = [head for head in _PRIORITIES if any(row[head] != NONE for row in rows.values())]
    columns = [Column(head, priority=_PRIORITIES[head]) for head in heads]
    notes = [
        "memory: live tensors at the largest batch in float32, beside about 0.3 GB of Python and "
        "PyTorch; the allocator of Linux may hold up to 1.7 times as much"
    ]
    trainings = {name: len(recipes[name].train.seeds) for name in measured}
    if not all(cost.padding for cost in measured.values()):
        notes.append("without the data: vocabularies of the size in the recipe, rows of 32 tokens")
    paces = [(cost.pace, trainings[name]) for name, cost in measured.items() if cost.pace]
    if len(paces) == len(measured):
        whole = duration(sum(pace.training * seeds for pace, seeds in paces))
        count, threads = sum(trainings.values()), paces[0][0].threads
        notes.append(
            f"training: {count} run{'s' * (count != 1)}, about {whole} on this machine with "
            f"{threads} thread{'s' * (threads != 1)}, without validation and decoding"
        )
    return Table(
        "cost",
        (Column("variant", "left"), *columns),
        tuple((Cell(name), *(Cell(row[head]) for head in heads)) for name, row in rows.items()),
        tuple(notes),
    )


_PRIORITIES = {  # a narrow screen loses the columns with the highest numbers
    "parameters": 0, "embeddings": 6, "attention": 6, "memory": 0, "updates/epoch": 5, "epochs": 4,
    "padding source": 1, "padding target": 1, "precision": 2, "tokens/s": 3, "update": 2,
    "training": 0,
}  # fmt: skip


def _cost(cost: Cost) -> dict[str, str]:
    parameters, padding, pace = cost.parameters, cost.padding, cost.pace
    cells = {
        "parameters": f"{parameters.total:,}",
        "embeddings": f"{parameters.embeddings:,}",
        "attention": f"{parameters.attention:,}",
        "memory": amount(cost.memory.total),
    }
    if padding:
        shares = {"source": padding.source, "target": padding.target}
        cells |= {"updates/epoch": f"{padding.updates:,.0f}", "epochs": f"{padding.epochs:,.1f}"}
        cells |= {f"padding {k}": f"{100 * v:.1f} %" for k, v in shares.items() if v is not None}
    if pace:
        cells |= {
            "precision": pace.precision,
            "tokens/s": f"{pace.tokens_per_second:,.0f}",
            "update": f"{pace.seconds:.3g} s",
            "training": duration(pace.training),
        }
    return dict.fromkeys(_PRIORITIES, NONE) | cells


def amount(size: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
