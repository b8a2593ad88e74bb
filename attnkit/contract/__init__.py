"""Properties that all attention mechanisms must have, with the functions that test them.

A contract is a name, a statement and a function of a `Subject`: a mechanism with options in one role. The function
yields the errors that it measures, or raises `Broken`. The tests run all contracts on all mechanisms, and
`attnkit check WORD` on one mechanism.

Start with `suite.CONTRACTS` (all contracts), `subject.Subject` (a mechanism under test) and `identities` (quantities
that must be equal). Imports `mechanisms`, `layers` and the packages below them.
"""

from attnkit.contract.subject import ROLES, Broken, NotApplicable, Role, Subject
from attnkit.contract.suite import CONTRACTS, Contract, Result, run

__all__ = ["CONTRACTS", "ROLES", "Broken", "Contract", "NotApplicable", "Result", "Role"]
__all__ += ["Subject", "run"]
