"""Tests that each contract detects the mechanisms that break it, and no others."""

from pathlib import Path
from typing import Any

import pytest
from helpers.broken_mechanisms import BROKEN

from attnkit.attention import Attention, Shape
from attnkit.contract import CONTRACTS, Role, Subject, run
from attnkit.contract.subject import HEADS, LONGEST, WIDTH
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.mechanisms import MechanismSpec

DECLARED = ("uses", "causal", "cross", "limit", "positions", "map", "cost", "why")
NAMES = {contract.name for contract in CONTRACTS}


def make_subject(kind: type[Attention], role: Role) -> Subject:
    """Return a subject for a mechanism that recipes do not know."""
    declared: dict[str, Any] = {name: getattr(kind, name) for name in DECLARED}

    def build(cross: bool, causal: bool) -> MultiHead:
        if cross and not kind.cross:
            raise UsageError("no")
        return MultiHead(WIDTH, kind(Shape(HEADS, WIDTH // HEADS, LONGEST, cross, causal)))

    facts = MechanismSpec(word=kind.__name__, path=Path(__file__), doc="", **declared)
    return Subject(kind.__name__, role, facts, build)


def test_every_contract_has_a_broken_mechanism() -> None:
    broken = [names for _, _, names in BROKEN]
    assert set().union(*broken) == NAMES
    assert NAMES - set().union(*(names for names in broken if len(names) == 1)) == {"beams", "same"}


CASES = [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in BROKEN]
SLOW_CASES = [
    pytest.param(*case.values, id=case.id, marks=[pytest.mark.every] * (number % 2))
    for number, case in enumerate(CASES)
]


def broken_contracts(kind: type[Attention], role: Role, names: set[str]) -> set[str]:
    """Return which of these contracts report a mechanism as broken; each must give a reason."""
    results = [run(contract, make_subject(kind, role)) for contract in CONTRACTS if contract.name in names]
    broken = [result for result in results if result.state == "broken"]
    assert all(result.text for result in broken)
    return {result.contract.name for result in broken}


@pytest.mark.parametrize(("kind", "role", "broken"), CASES)
def test_broken_contracts_are_reported(kind: type[Attention], role: Role, broken: set[str]) -> None:
    assert broken_contracts(kind, role, broken) == broken


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "role", "broken"), SLOW_CASES)
def test_other_contracts_are_kept(kind: type[Attention], role: Role, broken: set[str]) -> None:
    assert not broken_contracts(kind, role, NAMES - broken)
