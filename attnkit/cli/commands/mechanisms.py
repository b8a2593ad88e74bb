"""`attnkit mechanisms`: the list of attention mechanisms, and the properties of each."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attnkit.cli import console, options, output
from attnkit.cli.options import argument
from attnkit.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnkit.mechanisms import MechanismSpec
    from attnkit.show.table import Table

EFFECTIVE = "the matrix equivalent to the computation"
NOTE = (
    "time per head: T queries, S keys, D and E widths of keys and values, M features or landmarks, "
    "w window, r rate; decoding: state that grows with the text or stays constant in size; map: "
    f"exact = the attention matrix itself, effective = {EFFECTIVE}"
)
HINT = "`attnkit mechanisms WORD` explains one"


def mechanisms(
    word: str | None = argument("WORD", "Explain this mechanism.", default=None),
    *,
    format: options.Format = "table",
    columns: options.Columns = None,
) -> None:
    """List the attention mechanisms with formula, cost, roles and source, or explain one.

    The facts are read from the source files of the mechanisms, without importing them.

      attnkit mechanisms
      attnkit mechanisms performer
      attnkit mechanisms my-own --plugin my_own.py
    """
    from attnkit.mechanisms import facts, faults, names

    for fault in faults().values():
        console.warn(fault)
    if word is None:
        notes = (NOTE, HINT) if format == "table" else (NOTE,)
        listed = table([facts(name) for name in names()], notes)
        output.write_tables(output.choose_columns([listed], columns), format)
    elif columns is not None:
        raise UsageError("--columns is for the list; remove --columns or WORD")
    elif format == "table":
        output.show(explanation(facts(word)))
    else:
        raise UsageError(f"--format {format} is for the list; remove --format or WORD")


def table(specs: Sequence["MechanismSpec"], notes: tuple[str, ...]) -> "Table":
    """Return a table with one row per mechanism; on a narrow screen, columns with a priority are left out."""
    from attnkit.show.table import Column, Table

    def yes_or_no(attribute: str) -> "Callable[[MechanismSpec], str]":
        return lambda spec: "yes" if getattr(spec, attribute) else "no"

    def short(source: str) -> str:
        return source.partition(', "')[0].partition(";")[0]

    values: list[tuple[str, Callable[[MechanismSpec], str], int]] = [
        ("mechanism", lambda spec: spec.word, 0),
        ("title", lambda spec: spec.title, 1),
        ("formula", lambda spec: spec.formula, 5),
        ("time", lambda spec: spec.cost, 0),
        ("encoder", yes_or_no("encoder"), 0),
        ("decoder", yes_or_no("causal"), 0),
        ("cross", yes_or_no("cross"), 0),
        ("decoding", lambda spec: spec.state if spec.causal else "-", 4),
        ("map", lambda spec: spec.map, 3),
        ("source", lambda spec: spec.source, 2),
    ]
    columns = [
        Column(
            name,
            value,
            short if name == "source" else "{}",
            align="left",
            priority=priority,
            wrap=name in ("time", "formula"),
        )
        for name, value, priority in values
    ]
    return Table.of("", specs, columns, notes)


def explanation(facts: "MechanismSpec") -> "RenderableType":
    """Return the name, formula, docstring, properties and options of a mechanism."""
    from rich.console import Group
    from rich.text import Text

    from attnkit.recipe.mechanism_registry import option_type
    from attnkit.recipe.reading import wanted
    from attnkit.recipe.score_options import LayerOptions, ScoreOptions
    from attnkit.recipe.values import shown
    from attnkit.show.table import Table
    from attnkit.text import safe_text

    # joins the lines of each paragraph and list item, so that rich wraps them to the width of the screen
    paragraphs = re.sub(r"(?<!\n)\n(?!\n|- )", " ", facts.doc.partition("\n")[2].strip())
    parts: list[RenderableType] = [
        Text(safe_text(f"{facts.word}: {facts.title}"), "bold"),
        Text(safe_text(f"{facts.formula}\n\n{paragraphs}\n")),
        Table.of_texts("properties", ("property", ""), properties(facts)),
    ]
    shared = dict.fromkeys(LayerOptions._fields, "all") | dict.fromkeys(ScoreOptions._fields, "scored")
    rows = [
        (
            name,
            wanted(option_type(facts.word, name)),
            "required" if option.required else shown(option.default),
            shared.get(name, "own"),
        )
        for name, option in facts.options.items()
    ]
    if rows:
        parts += ["", Table.of_texts("options", ("option", "values", "default", "of"), rows)]
    return Group(*parts)


def properties(facts: "MechanismSpec") -> list[tuple[str, str]]:
    """Return the properties of a mechanism as rows of two columns."""
    from attnkit.recipe.common_names import also_known_as

    def yes_or_why(supported: bool) -> str:
        return "yes" if supported else f"no: {facts.why}" if facts.why else "no"

    maps = {"exact": "the attention matrix itself", "effective": EFFECTIVE}
    aliases = also_known_as(facts.word)
    names = {"q": "queries", "k": "keys", "v": "values", "g": "gates", "x": "slices of the input"}
    return [
        ("time per head", facts.cost),
        ("encoder", yes_or_why(facts.encoder)),
        ("decoder", yes_or_why(facts.causal)),
        ("cross-attention", yes_or_why(facts.cross)),
        ("decoding", f"{facts.state} state" if facts.causal else "-"),
        ("maximum length", "data.max_length" if facts.limit == "max_length" else str(facts.limit or "none")),
        ("positions", ", ".join(("sinusoidal", "learned", "none", *facts.positions))),
        ("map", f"{facts.map} ({maps.get(facts.map, '')})"),
        ("projections", ", ".join(names.get(letter, letter) for letter in facts.uses)),
        ("from", facts.origin),
        *([("also known as", ", ".join(aliases))] if aliases else []),
    ]
