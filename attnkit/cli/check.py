"""`attnkit check`: whether an attention mechanism keeps its contracts."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from attnkit.cli import complete, console, forms, plugin
from attnkit.cli.options import Format

if TYPE_CHECKING:
    from attnkit.contract import Result, Role, Subject
    from attnkit.show.table import Cell, Table

NOTE = (
    "the number is the largest error measured, in float64 where two ways must agree; - where a "
    "promise says nothing of the mechanism in that role"
)


def check(
    word: Annotated[
        str,
        typer.Argument(
            metavar="WORD", help="An attention mechanism.", autocompletion=complete.mechanisms
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Options of the mechanism."),
    ] = None,
    *,
    format: Format = "table",
    plugins: plugin.Plugins = None,
) -> int:
    """Measure whether an attention mechanism keeps what every mechanism promises.

    No look at the future, no trace of padding, steps like one pass, a map that multiplies the
    values, and more, in each role. Ends with 1 if a promise is broken.

      attnkit check performer
      attnkit check synthesizer-random trainable=false
      attnkit check my-own --plugin my_own.py
    """
    forms.check(format)
    from attnkit.mechanisms import facts
    from attnkit.recipe.options import from_words

    given = from_words(facts(word), options or ())
    from attnkit.contract import ROLES, Subject

    subjects = [Subject.of(word, role, given) for role in ROLES]
    found = {subject.role: _results(subject) for subject in subjects}
    _print(" ".join([word, *(options or ())]), found, format)
    broken = [
        f"{role}: {result.contract.name}: {result.text}"
        for role, results in found.items()
        for result in results
        if result.state == "broken"
    ]
    for text in broken:
        console.say(f"broken, {text}")
    return 1 if broken else 0


def _results(subject: "Subject") -> "list[Result]":
    """What each contract says; options that no layer can be built with are the user's to mend."""
    from attnkit.contract import CONTRACTS, run
    from attnkit.contract.limits import possible

    if possible(subject):
        subject.try_options()
    return [run(contract, subject) for contract in CONTRACTS]


def table(title: str, found: "dict[Role, list[Result]]") -> "Table":
    """A row a contract, a column a role."""
    from attnkit.show.table import Cell, Column, Table

    rows = []
    for results in zip(*found.values(), strict=True):
        contract = results[0].contract
        cells = [Cell(contract.name, {"contract": contract.name})]
        cells.append(Cell(contract.statement, {"promise": contract.statement}))
        cells += [_cell(role, result) for role, result in zip(found, results, strict=True)]
        rows.append(tuple(cells))
    heads = (Column("contract", "left"), Column("promise", "left"), *map(Column, found))
    return Table(title, heads, tuple(rows), (NOTE,))


def _cell(role: "Role", result: "Result") -> "Cell":
    from attnkit.show.table import Cell

    known = result.measured is not None and math.isfinite(result.measured)
    error = result.measured if known else None
    number = "" if error is None else f" {error:.0e}" if error else " 0"
    text = "-" if result.state == "not applicable" else f"{result.state}{number}"
    fields = {role: result.state, f"{role}_error": error, f"{role}_text": result.text or None}
    return Cell(text, fields, best=result.state == "broken")


def _print(title: str, found: "dict[Role, list[Result]]", format: str) -> None:
    made = table(title, found)
    if format == "table":
        from attnkit.cli.recipe_tables import sheet

        heads: Sequence[str] = [column.title for column in made.columns]
        rows = [[cell.text for cell in row] for row in made.rows]
        console.stdout().print(sheet(title, heads, rows, NOTE))
        return
    forms.write(made, format)
