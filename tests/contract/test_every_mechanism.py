"""Tests of every contract for every mechanism, with its options, in every role."""

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.contract_cases import CONTRACTS_OF_OPTION, OF_ROTARY, OPTION_INDEPENDENT, cases, named_subject, options
from helpers.watched_device import watch_updates_and_steps

from attnkit import mechanisms
from attnkit.contract import CONTRACTS, ROLES, Contract, Subject, run
from attnkit.contract.identities import supports_role
from attnkit.mechanisms import entmax

CASES = [pytest.param(*case[:2], id=case.subject.name, marks=case.marks) for case in cases()]
NOT_APPLICABLE = {
    "map": ("each token has several values",),
    "rows": ("the mechanism declares that rows do not sum to 1",),
    "limits": ("the mechanism declares no limit in this role",),
    "fast": (
        "the mechanism has no fast path",
        "the mechanism has one path in this role",
        "these options use the plain path",
    ),
}
"""The only reasons for which a contract may not apply to a mechanism of attnkit."""


def test_contract_names_of_options_exist() -> None:
    names = OPTION_INDEPENDENT.union(OF_ROTARY, *CONTRACTS_OF_OPTION.values())
    assert names <= {contract.name for contract in CONTRACTS}


@pytest.mark.parametrize(("subject", "contracts"), CASES)
def test_contracts_are_kept(subject: Subject, contracts: list[Contract]) -> None:
    for contract in contracts:
        result = run(contract, subject)
        broken = f"{subject.name}: {contract.name}: {result.text}; to fix it, {contract.advice}"
        assert result.state != "broken", broken
        if result.state == "not applicable":
            assert result.text in NOT_APPLICABLE.get(contract.name, ()), contract.name


def subjects() -> Iterator[Any]:
    """Yield every mechanism with its defaults in each role; all but the last role run with `-m every` only."""
    for word in mechanisms.names():
        able = [x for role in ROLES if supports_role(x := named_subject(word, role, next(options(word))))]
        for subject in able:
            yield pytest.param(subject, id=subject.name, marks=[pytest.mark.every] * (subject is not able[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("subject", [*subjects()])
def test_a_mechanism_uses_one_device_and_never_waits_for_it(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entmax, "NEWTON", 2)  # tensors without values never end an iteration early
    monkeypatch.setattr(entmax, "BISECTIONS", 2)
    watch_updates_and_steps(subject)
