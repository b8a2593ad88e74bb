"""`attnkit check`: contract tests of an attention mechanism."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnkit.cli import console, options, output
from attnkit.cli.options import argument

if TYPE_CHECKING:
    from attnkit.contract import Result, Role
    from attnkit.show.table import Table

NOTE = (
    "number: maximum error, in float64 if two computations must agree; -: the contract "
    "does not apply to the mechanism in that role"
)


def check(
    word: str = argument("WORD", "Attention mechanism."),
    options: list[str] | None = argument("KEY=VALUE", "Options of the mechanism.", default=None),
    *,
    format: options.Format = "table",
) -> int:
    """Run the contract tests on an attention mechanism, in each role.

    They test that no query sees the future or padding, that decoding step by step equals one pass,
    that the attention map reproduces the output, and more. The exit code is 1 if a test fails.

      attnkit check performer
      attnkit check synthesizer-random trainable=false
      attnkit check my-own --plugin my_own.py
    """
    from attnkit.recipe.mechanism_registry import options_of_words

    values = options_of_words(word, options or ())
    from attnkit.contract import ROLES
    from attnkit.mechanisms import layer_schedule

    layers = range(len(layer_schedule(word, values)))
    results = {role: _worst([_results(word, role, values, layer) for layer in layers]) for role in ROLES}
    title = " ".join([word, *(options or ())])
    output.write_tables([table(title, results)], format)
    broken = [(role, result) for role in results for result in results[role] if result.state == "broken"]
    for role, result in broken:
        console.say(f"broken, {role}: {result.contract.name}: {result.text}")
    # if the mechanism raised an error, nothing was measured, and the error needs no advice
    measured = (result.contract for _, result in broken if result.measured is not None)
    for contract in dict.fromkeys(measured):
        console.say(f"to fix {contract.name}: {contract.advice}")
    if not broken:
        console.say(f"{title} keeps the contract")
    return 1 if broken else 0


def _results(word: str, role: "Role", values: Mapping[str, Any], depth: int) -> "list[Result]":
    """Return the result of each contract for one layer; invalid options raise an error for the user first."""
    from attnkit.contract import CONTRACTS, Subject, run
    from attnkit.contract.identities import supports_role

    subject = Subject.of(word, role, values, depth=depth)
    if supports_role(subject):
        subject.try_options()
    return [run(contract, subject) for contract in CONTRACTS]


def _worst(layers: "Sequence[list[Result]]") -> "list[Result]":
    """Return the worst result of each contract over layers that differ; the text of a broken one names the layer."""
    if len(layers) == 1:
        return layers[0]
    order, worst = ("not applicable", "kept", "broken"), []
    for results in zip(*layers, strict=True):
        states = [(order.index(result.state), result.measured or 0.0) for result in results]
        layer = states.index(max(states))
        prefix = f"layer {layer}: " if results[layer].state == "broken" else ""
        worst.append(results[layer]._replace(text=prefix + results[layer].text))
    return worst


def table(title: str, results: "dict[Role, list[Result]]") -> "Table":
    """Return a table with one row per contract and one column per role."""
    from attnkit.show.table import Cell, Column, Table

    def cell(role: "Role", row: "dict[Role, Result]") -> Cell:
        result = row[role]
        finite = result.measured is not None and math.isfinite(result.measured)
        error = result.measured if finite else None
        number = "" if error is None else f" {error:.0e}" if error else " 0"
        text = "-" if result.state == "not applicable" else f"{result.state}{number}"
        fields = {role: result.state, f"{role}_error": error, f"{role}_text": result.text or None}
        return Cell(text, fields, best=result.state == "broken")

    rows = [dict(zip(results, row, strict=True)) for row in zip(*results.values(), strict=True)]
    columns = (
        Column("contract", lambda row: next(iter(row.values())).contract.name, align="left"),
        Column("promise", lambda row: next(iter(row.values())).contract.statement, align="left", wrap=True),
        *(Column(role, partial(cell, role)) for role in results),
    )
    return Table.of(title, rows, columns, [NOTE])
