"""Each contract catches a mechanism that is wrong in just that way, and no other contract does."""

from pathlib import Path
from typing import Any

import pytest
from helpers.saboteurs import BREAKS

from attnkit.attention import Attention, Shape
from attnkit.contract import CONTRACTS, Role, Subject, run
from attnkit.contract.subject import HEADS, LONGEST, WIDTH
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.mechanisms import MechanismSpec

DECLARED = ("uses", "causal", "cross", "limit", "positions", "map", "cost", "why")


def subject(kind: type[Attention], role: Role) -> Subject:
    """A mechanism that has no recipe word, put to the test."""
    declared: dict[str, Any] = {name: getattr(kind, name) for name in DECLARED}

    def build(cross: bool, causal: bool) -> MultiHead:
        if cross and not kind.cross:
            raise UsageError("no")
        shape = Shape(HEADS, WIDTH // HEADS, LONGEST, cross, causal)
        return MultiHead(WIDTH, kind(shape))

    facts = MechanismSpec(word=kind.__name__, path=Path(__file__), doc="", **declared)
    return Subject(kind.__name__, role, facts, build)


def test_every_contract_has_a_saboteur() -> None:
    caught = [broken for _, _, broken in BREAKS]
    assert {name for names in caught for name in names} == {c.name for c in CONTRACTS}
    alone = {name for names in caught if len(names) == 1 for name in names}
    assert {c.name for c in CONTRACTS} - alone == {"beams", "same"}


CASES = [pytest.param(*one, id=f"{one[0].__name__}-{one[1]}") for one in BREAKS]
RARE = [pytest.param(*one.values, id=one.id, marks=[pytest.mark.every] * (n % 2)) for n, one in enumerate(CASES)]
"""Every second of them runs with `-m every` only."""


def found(kind: type[Attention], role: Role, names: set[str]) -> set[str]:
    """Which of these contracts say that a mechanism is broken, and how."""
    tried = [run(c, subject(kind, role)) for c in CONTRACTS if c.name in names]
    results = [result for result in tried if result.state == "broken"]
    assert all(result.text for result in results)
    return {result.contract.name for result in results}


@pytest.mark.parametrize(("kind", "role", "broken"), CASES)
def test_the_contract_that_is_broken_says_so(kind: type[Attention], role: Role, broken: set[str]) -> None:
    assert found(kind, role, broken) == broken


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "role", "broken"), RARE)
def test_no_other_contract_says_so(kind: type[Attention], role: Role, broken: set[str]) -> None:
    assert not found(kind, role, {contract.name for contract in CONTRACTS} - broken)
