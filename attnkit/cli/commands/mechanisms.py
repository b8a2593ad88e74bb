"""`attnkit mechanisms`: the attention mechanisms, and what one of them can do."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attnkit.cli import completion, console, options, output
from attnkit.cli.options import argument
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
    word: str | None = argument(
        "WORD", "Explain this mechanism.", default=None, autocompletion=completion.mechanisms
    ),
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
    from attnkit.show.table import Field, Table

    values: dict[str, Callable[[MechanismSpec], str]] = {
        "mechanism": lambda one: one.word,
        "title": lambda one: one.title,
        "formula": lambda one: one.formula,
        "time": lambda one: one.cost,
        "encoder": lambda one: "yes" if one.encoder else "no",
        "decoder": lambda one: "yes" if one.causal else "no",
        "cross": lambda one: "yes" if one.cross else "no",
        "decoding": lambda one: one.state if one.causal else "-",
        "map": lambda one: one.map,
        "source": lambda one: one.source,
    }

    def form(name: str) -> Callable[[str], str]:
        return lambda text: text.partition(', "')[0].partition(";")[0] if name == "source" else text

    fields = [
        Field(name, value, form(name), align="left", priority=PRIORITIES.get(name, 0),
              wrap=name in ("time", "formula"))
        for name, value in values.items()
    ]  # fmt: skip
    return Table.of("", known, fields, notes)


def explained(facts: "MechanismSpec") -> "RenderableType":
    """Name and formula, the docstring, abilities, options and the worked number."""
    from rich.console import Group
    from rich.text import Text

    from attnkit.recipe.mechanism_registry import option_type
    from attnkit.recipe.reading import schema_of
    from attnkit.recipe.score_options import LayerOptions, ScoreOptions
    from attnkit.recipe.values import phrase, shown
    from attnkit.show.table import Table
    from attnkit.text import safe_text

    parts: list[RenderableType] = [
        Text(safe_text(f"{facts.word}: {facts.title}"), "bold"),
        Text(safe_text(facts.formula) + "\n"),
        # each paragraph and each item of a list is a line, which the screen wraps
        Text(
            safe_text(re.sub(r"(?<!\n)\n(?!\n|- )", " ", facts.doc.partition("\n")[2].strip()))
            + "\n"
        ),
        Table.of_texts("properties", ("property", ""), abilities(facts)),
    ]
    shared = dict.fromkeys(LayerOptions._fields, "all")
    shared |= dict.fromkeys(ScoreOptions._fields, "scored")
    rows = [
        (
            name,
            "a list of mechanisms"
            if name == facts.composite
            else phrase(schema_of(option_type(facts.word, name))),
            "required" if option.required else shown(option.default),
            shared.get(name, "own"),
        )
        for name, option in facts.options.items()
    ]
    if rows:
        parts += ["", Table.of_texts("options", ("option", "values", "default", "of"), rows)]
    return Group(*parts)


def abilities(facts: "MechanismSpec") -> list[tuple[str, str]]:
    """What a mechanism can do, in two columns."""
    why = f": {facts.why}" if facts.why else ""
    from attnkit.recipe.common_names import also_known_as

    maps = {
        "exact": "the attention matrix itself",
        "effective": "the matrix that the computation amounts to",
    }
    others, limited = also_known_as(facts.word), facts.limit == "max_length"
    names = {"q": "queries", "k": "keys", "v": "values", "g": "gates", "x": "slices of the input"}
    return [
        ("time per head", facts.cost),
        ("encoder", "yes" if facts.encoder else f"no{why}"),
        ("decoder", "yes" if facts.causal else f"no{why}"),
        ("cross-attention", "yes" if facts.cross else f"no{why}"),
        ("decoding", f"{facts.state} state" if facts.causal else "-"),
        ("maximum length", "data.max_length" if limited else str(facts.limit or "none")),
        ("positions", ", ".join(("sinusoidal", "learned", "none", *facts.positions))),
        ("map", f"{facts.map} ({maps.get(facts.map, '')})"),
        ("projections", ", ".join(names.get(letter, letter) for letter in facts.uses)),
        ("from", facts.origin),
        *([("also known as", ", ".join(others))] if others else []),
    ]
