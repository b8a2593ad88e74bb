"""All contracts, and how they are run."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from attnkit.contract import caching, identities, limits, masking
from attnkit.contract.subject import ROLES, Broken, NotApplicable, Role, Subject

SELF: tuple[Role, ...] = ("encoder", "decoder")
DECODER: tuple[Role, ...] = ("decoder",)
CROSS: tuple[Role, ...] = ("cross",)


class Contract(NamedTuple):
    """A promise: its name, what it says, the function that measures its error, and for whom."""

    name: str
    statement: str
    measure: Callable[[Subject], float]
    roles: tuple[Role, ...] = ROLES


CONTRACTS = (
    Contract("finite", "answers and gradients are finite in short floats too", identities.finite),
    Contract("precise", "float32 comes near float64", identities.precise),
    Contract("slopes", "gradients are the slopes of the answers", identities.slopes),
    Contract("map", "the map times the values is the answer", identities.multiplies),
    Contract("rows", "each row of the map sums to 1, unless declared otherwise", identities.rows),
    Contract("future", "later tokens change no value and get no gradient", masking.future, DECODER),
    Contract("padding", "pads change nothing, whatever they hold and wherever", masking.padding),
    Contract("batch", "a batch answers like its rows one by one", masking.batch),
    Contract(
        "layouts", "a mask of promised layout answers like the general one", masking.layouts, SELF
    ),
    Contract(
        "steps", "prefill, steps and reordered rows answer like one pass", caching.steps, DECODER
    ),
    Contract(
        "branches",
        "a state may be used twice: neither continuation changes it or the other",
        caching.branches,
        DECODER,
    ),
    Contract("cached", "cross attention from its state answers like anew", caching.cached, CROSS),
    Contract("beams", "beams folded into queries answer like repeated keys", caching.beams, CROSS),
    Contract("lengths", "queries may be more or fewer than keys", identities.lengths, CROSS),
    Contract("empty", "a query that may see no key answers exactly zero", identities.empty),
    Contract("bias", "a bias is added to the scores, or refused", identities.bias),
    Contract("limits", "what is declared impossible is refused with the reason", limits.limits),
    Contract("fast", "the fast path answers like the plain one, gradients too", caching.fast),
    Contract("saved", "a layer that is saved and loaded answers the same", caching.saved),
    Contract("same", "the same tokens get the same answer twice", caching.same),
    Contract("worked", "the worked number of the file comes out", identities.worked),
)
"""In the order in which they are shown."""


class Result(NamedTuple):
    """How a contract fared: kept or broken, with the error measured; or not applicable."""

    contract: Contract
    state: Literal["kept", "broken", "not applicable"]
    measured: float | None
    """The largest error that was measured; None where nothing was."""
    text: str
    """What is wrong, or why the contract does not apply."""


def run(contract: Contract, subject: Subject) -> Result:
    """Measure one contract; an exception of the mechanism breaks it."""
    with torch.random.fork_rng(devices=[]):
        try:
            if subject.role not in contract.roles:
                raise NotApplicable(f"it says nothing about the role {subject.role}")
            if contract.name != "limits" and not limits.possible(subject):
                raise NotApplicable(f"the mechanism declares that it cannot be {subject.role}")
            return Result(contract, "kept", contract.measure(subject), "")
        except NotApplicable as reason:
            return Result(contract, "not applicable", None, str(reason))
        except Broken as fault:
            return Result(contract, "broken", fault.measured, str(fault))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return Result(contract, "broken", None, text)
