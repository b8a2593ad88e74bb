"""What every attention mechanism promises, each promise as a function that measures it.

A contract is a name, a statement and a function of a `Subject`: a mechanism with its options in one
role.  The function yields the errors that it measures, or raises `Broken`.  Tests run all contracts
over all mechanisms, `attnkit check WORD` runs them over one.

Start with `suite.CONTRACTS` (all of them), `subject.Subject` (what is tested) and `identities`
(what must be equal). Imports `mechanisms`, `layers` and what is below them.
"""

from attnkit.contract.subject import ROLES, Broken, NotApplicable, Role, Subject
from attnkit.contract.suite import CONTRACTS, Contract, Result, run

__all__ = ["CONTRACTS", "ROLES", "Broken", "Contract", "NotApplicable", "Result", "Role"]
__all__ += ["Subject", "run"]
