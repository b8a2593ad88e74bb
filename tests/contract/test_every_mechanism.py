"""Every mechanism keeps every contract, with its options, in every role."""

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
EXCUSES = {
    "map": ("each token has several values",),
    "rows": ("the mechanism declares that rows do not sum to 1",),
    "limits": ("the mechanism declares no limit in this role",),
    "fast": (
        "the mechanism has no fast path",
        "the mechanism has one path in this role",
        "these options use the plain path",
    ),
}
"""The only reasons for which a contract may say nothing of a mechanism that ships."""


def test_each_contract_is_named_as_it_is() -> None:
    named = OPTION_INDEPENDENT.union(OF_ROTARY, *CONTRACTS_OF_OPTION.values())
    assert named <= {contract.name for contract in CONTRACTS}


@pytest.mark.parametrize(("subject", "contracts"), CASES)
def test_the_contracts_are_kept(subject: Subject, contracts: list[Contract]) -> None:
    for contract in contracts:
        result = run(contract, subject)
        broken = f"{subject.name}: {contract.name}: {result.text}; to mend it, {contract.advice}"
        assert result.state != "broken", broken
        if result.state == "not applicable":
            assert result.text in EXCUSES.get(contract.name, ()), contract.name


def of_last_roles() -> Iterator[Any]:
    """Every mechanism with its defaults in each role; but for the last that it has, with `-m every`."""
    for word in mechanisms.names():
        able = [one for role in ROLES if supports_role(one := named_subject(word, role, next(options(word))))]
        for one in able:
            yield pytest.param(one, id=one.name, marks=[pytest.mark.every] * (one is not able[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("subject", [*of_last_roles()])
def test_it_stays_on_its_device_and_never_waits_for_it(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entmax, "NEWTON", 2)  # without values no search ends early; steps are alike
    monkeypatch.setattr(entmax, "BISECTIONS", 2)
    watch_updates_and_steps(subject)
