"""Every mechanism keeps every contract, with its options, in every role."""

import pytest
from helpers.contract_cases import CONTRACTS_OF_OPTION, OF_ROTARY, OPTION_INDEPENDENT, cases

from attnkit.contract import CONTRACTS, Contract, Subject, run
from attnkit.mechanisms import entmax

CASES = [pytest.param(*case[:2], id=case.subject.name, marks=case.marks) for case in cases()]
EXCUSES = {
    "map": ("its tokens have several values each",),
    "rows": ("it declares that its rows do not sum to 1",),
    "limits": ("it declares no limit in this role",),
    "fast": ("it has no fast path", "it has one path in this role", "its options take the plain path"),
}
"""The only reasons for which a contract may say nothing of a mechanism that ships."""


def test_each_contract_is_named_as_it_is() -> None:
    named = OPTION_INDEPENDENT.union(OF_ROTARY, *CONTRACTS_OF_OPTION.values())
    assert named <= {contract.name for contract in CONTRACTS}


@pytest.mark.parametrize(("subject", "contracts"), CASES)
def test_the_contracts_are_kept(subject: Subject, contracts: list[Contract], monkeypatch: pytest.MonkeyPatch) -> None:
    for contract in contracts:
        with monkeypatch.context() as patch:
            if contract.name == "device":  # without values no search ends early; steps are alike
                patch.setattr(entmax, "NEWTON", 2)
                patch.setattr(entmax, "HALVINGS", 2)
            result = run(contract, subject)
        broken = f"{subject.name}: {contract.name}: {result.text}; to mend it, {contract.advice}"
        assert result.state != "broken", broken
        if result.state == "not applicable":
            assert result.text in EXCUSES.get(contract.name, ()), contract.name
