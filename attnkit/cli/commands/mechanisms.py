"""`attnkit mechanisms`: the attention mechanisms, and what one of them can do."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from attnkit.cli import completion, console, options, output
from attnkit.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnkit.mechanisms import MechanismSpec
    from attnkit.show.table import Table

NOTE = (
    "time per head: T queries, S keys, D and E widths of keys and values, M features or landmarks, "
    "w window, r rate; decoding: state that grows with"
    " the text or stays constant in size; map: exact = the attention matrix itself, effective = the"
    " matrix that the computation amounts to"
)
HINT = "`attnkit mechanisms WORD` explains one"
PRIORITIES = {"title": 1, "source": 2, "map": 3, "decoding": 4, "formula": 5}
"""Columns that a narrow screen can do without, the highest numbers first."""


def mechanisms(
    word: Annotated[
        str | None,
        Argument(
            metavar="WORD", help="Explain this mechanism.", autocompletion=completion.mechanisms
        ),
    ] = None,
    *,
    format: options.Format = "table",
    columns: options.Columns = None,
    plugins: options.Plugins = None,
) -> None:
    """List the attention mechanisms with formula, cost, roles and source, or explain one.

    Everything is read from the source files of the mechanisms; none is imported.

      attnkit mechanisms
      attnkit mechanisms performer
      attnkit mechanisms my-own --plugin my_own.py
    """
    from attnkit import mechanisms as known

    for text in known.faults().values():
        console.warn(text)
    if word is None:
        notes = (NOTE, HINT) if format == "table" else (NOTE,)
        listed = table([known.facts(name) for name in known.names()], notes)
        output.write_tables(output.choose([listed], columns), format)
    elif columns is not None:
        raise UsageError("--columns is for the list; leave it out, or WORD")
    elif format == "json":
        output.write_json(record(known.facts(word)))
    elif format == "table":
        output.show(explained(known.facts(word)))
    else:
        raise UsageError(f"--format {format} is for the list; one mechanism has table and json")


def record(facts: "MechanismSpec") -> dict[str, Any]:
    """All that is known of a mechanism, for programs."""
    return {
        "mechanism": facts.word,
        "title": facts.title,
        "formula": facts.formula,
        "source": facts.source,
        "worked_number": facts.worked,
        "time": facts.cost,
        "encoder": facts.encoder,
        "decoder": facts.causal,
        "cross": facts.cross,
        "decoding_state": facts.state if facts.causal else None,
        "limit": facts.limit,
        "positions": list(facts.positions),
        "map": facts.map,
        "projections": facts.uses,
        "why": facts.why or None,
        "options": {
            name: {"type": option.annotation, "default": option.default}
            for name, option in facts.options.items()
        },
        "from": facts.origin,
        "text": facts.doc,
    }


def table(known: Sequence["MechanismSpec"], notes: tuple[str, ...]) -> "Table":
    """A row per mechanism."""
    from attnkit.show.table import Cell, Column, Table

    rows = []
    for facts in known:
        short = facts.source.partition(', "')[0].partition(";")[0]
        texts = {
            "mechanism": facts.word,
            "title": facts.title,
            "formula": facts.formula,
            "time": facts.cost,
            "encoder": "yes" if facts.encoder else "no",
            "decoder": "yes" if facts.causal else "no",
            "cross": "yes" if facts.cross else "no",
            "decoding": facts.state if facts.causal else "-",
            "map": facts.map,
        }
        cells = [Cell(text, {head: text}) for head, text in texts.items()]
        rows.append((*cells, Cell(short, {"source": facts.source, "from": facts.origin})))
    heads = tuple(
        Column(head, "left", priority=PRIORITIES.get(head, 0), wrap=head in ("time", "formula"))
        for head in (*texts, "source")
    )
    return Table("", heads, tuple(rows), notes)


def explained(facts: "MechanismSpec") -> "RenderableType":
    """Name and formula, the docstring, abilities, options and the worked number."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from attnkit.recipe.score_options import LayerOptions, ScoreOptions
    from attnkit.recipe.values import shown, wanted
    from attnkit.show.table import Table
    from attnkit.text import safe_text

    parts: list[RenderableType] = [
        Text(safe_text(f"{facts.word}: {facts.title}"), "bold"),
        Text(safe_text(facts.formula) + "\n"),
        *(
            Padding(safe_text(text), (0, 0, end, indent), expand=False)
            for text, indent, end in blocks(facts.doc)
        ),
        Table.of_texts("properties", ("property", ""), abilities(facts)),
    ]
    shared = dict.fromkeys(LayerOptions._fields, "all")
    shared |= dict.fromkeys(ScoreOptions._fields, "scored")
    rows = [
        (
            name,
            "a list of mechanisms" if name == facts.composite else wanted(option.type),
            "required" if option.required else shown(option.default),
            shared.get(name, "own"),
        )
        for name, option in facts.options.items()
    ]
    if rows:
        parts += ["", Table.of_texts("options", ("option", "values", "default", "of"), rows)]
    return Group(*parts)


def blocks(doc: str) -> Iterator[tuple[str, int, int]]:
    """A docstring below its first line as flowing texts with their indent and empty lines after.

    Items of a list stay items.
    """
    _, _, body = doc.partition("\n")
    for paragraph in body.strip().split("\n\n"):
        items = re.split(r"\n(?=- )", paragraph)
        for number, item in enumerate(items, 1):
            last = number == len(items)
            yield " ".join(item.split()), 2 if item.startswith("- ") else 0, int(last)


def abilities(facts: "MechanismSpec") -> list[tuple[str, str]]:
    """What a mechanism can do, in two columns."""
    why = f": {facts.why}" if facts.why else ""
    from attnkit.recipe.common_names import also_known_as
    from attnkit.show.recipe_tables import limit_text

    maps = {
        "exact": "the attention matrix itself",
        "effective": "the matrix that the computation amounts to",
    }
    others = also_known_as(facts.word)
    names = {"q": "queries", "k": "keys", "v": "values", "g": "gates", "x": "slices of the input"}
    return [
        ("time per head", facts.cost),
        ("encoder", "yes" if facts.encoder else f"no{why}"),
        ("decoder", "yes" if facts.causal else f"no{why}"),
        ("cross-attention", "yes" if facts.cross else f"no{why}"),
        ("decoding", f"{facts.state} state" if facts.causal else "-"),
        ("maximum length", limit_text(facts)),
        ("positions", ", ".join(("sinusoidal", "learned", "none", *facts.positions))),
        ("map", f"{facts.map} ({maps.get(facts.map, '')})"),
        ("projections", ", ".join(names.get(letter, letter) for letter in facts.uses)),
        ("from", facts.origin),
        *([("also known as", ", ".join(others))] if others else []),
    ]
