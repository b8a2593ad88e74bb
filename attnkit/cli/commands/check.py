"""`attnkit check`: whether an attention mechanism keeps its contracts."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnkit.cli import completion, console, output, plugin
from attnkit.cli.options import Format

if TYPE_CHECKING:
    from attnkit.contract import Result, Role
    from attnkit.show.table import Cell, Table

NOTE = (
    "the number is the largest error measured, in float64 where two ways must agree; - where a "
    "promise says nothing of the mechanism in that role"
)


def check(
    word: Annotated[
        str,
        typer.Argument(
            metavar="WORD", help="An attention mechanism.", autocompletion=completion.mechanisms
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
    output.check(format)
    from attnkit.mechanisms import facts
    from attnkit.recipe.mechanism_options import from_words

    given = from_words(facts(word), options or ())
    from attnkit.contract import ROLES
    from attnkit.mechanisms import in_turn

    layers = range(len(in_turn(word, given)))
    found = {role: _worst([_results(word, role, given, at) for at in layers]) for role in ROLES}
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


def _results(word: str, role: "Role", given: Mapping[str, Any], depth: int) -> "list[Result]":
    """What each contract says of a layer; options with which none can be built are the user's."""
    from attnkit.contract import CONTRACTS, Subject, run
    from attnkit.contract.limits import possible

    subject = Subject.of(word, role, given, depth=depth)
    if possible(subject):
        subject.try_options()
    return [run(contract, subject) for contract in CONTRACTS]


def _worst(layers: "Sequence[list[Result]]") -> "list[Result]":
    """Of layers that differ what each contract says of the worst; a broken one is named."""
    if len(layers) == 1:
        return layers[0]
    found = []
    for results in zip(*layers, strict=True):
        number, worst = max(enumerate(results), key=_badness)
        if worst.state == "broken":
            worst = worst._replace(text=f"layer {number}: {worst.text}")
        found.append(worst)
    return found


def _badness(numbered: "tuple[int, Result]") -> tuple[bool, bool, float]:
    """Broken before kept before not applicable, then by the error."""
    _, result = numbered
    return (
        result.state == "broken",
        result.state == "kept",
        -1.0 if result.measured is None else result.measured,
    )


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
    return Table(title, heads, tuple(rows), (NOTE,), fold=True)


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
        console.stdout().print(made)
    else:
        output.write(made, format)
