"""What every attention mechanism promises, each promise as a function that measures it.

A contract is a name, a statement and a function of a `Subject`: a mechanism with its options in one
role.  The function yields the errors that it measures, or raises `Broken`.  Tests run all contracts
over all mechanisms, `attnkit check WORD` runs them over one.
"""

from attnkit.contract.subject import ROLES as ROLES
from attnkit.contract.subject import Broken as Broken
from attnkit.contract.subject import NotApplicable as NotApplicable
from attnkit.contract.subject import Role as Role
from attnkit.contract.subject import Subject as Subject
from attnkit.contract.suite import CONTRACTS as CONTRACTS
from attnkit.contract.suite import Contract as Contract
from attnkit.contract.suite import Result as Result
from attnkit.contract.suite import run as run
