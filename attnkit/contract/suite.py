"""All contracts, and how they are run."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch

from attnkit.contract import caching, device, identities, masking
from attnkit.contract.subject import ROLES, Broken, NotApplicable, Role, Subject

SELF: tuple[Role, ...] = ("encoder", "decoder")
DECODER: tuple[Role, ...] = ("decoder",)
CROSS: tuple[Role, ...] = ("cross",)


class Contract(NamedTuple):
    """A promise: its name, what it says, the function that yields its errors, and for whom."""

    name: str
    statement: str
    measure: Callable[[Subject], Iterator[float]]
    roles: tuple[Role, ...] = ROLES


CONTRACTS = (
    Contract("finite", "outputs and gradients are finite in 16 and 32 bits", identities.finite),
    Contract("precise", "float32 agrees with float64", identities.precise),
    Contract("gradients", "gradients agree with finite differences", identities.gradient_check),
    Contract("map", "the map times the values is the output", identities.multiplies),
    Contract("rows", "each row of the map sums to 1, unless declared otherwise", identities.rows),
    Contract("future", "later tokens change no output, get no gradient", masking.future, DECODER),
    Contract("padding", "padding changes nothing, whatever it holds", masking.padding),
    Contract("batch", "a batch gives the outputs of its rows one by one", masking.batch),
    Contract("layouts", "a promised layout of the mask changes nothing", masking.layouts, SELF),
    Contract("steps", "prefill and steps give the outputs of one pass", caching.steps, DECODER),
    Contract("branches", "two continuations of a state are independent", caching.branches, DECODER),
    Contract("cached", "cached keys and values give the same outputs", caching.cached, CROSS),
    Contract("beams", "beams folded into queries equal repeated keys", caching.beams, CROSS),
    Contract("lengths", "queries may be more or fewer than keys", identities.lengths, CROSS),
    Contract("empty", "a query that sees no key outputs exactly zero", identities.empty),
    Contract("bias", "a bias is added to the scores, or refused", identities.bias),
    Contract("limits", "what is declared impossible is refused with the reason", identities.limits),
    Contract("fast", "the fast path equals the plain one, gradients too", caching.fast),
    Contract("saved", "a layer that is saved and loaded gives the same outputs", caching.saved),
    Contract("same", "the same tokens give the same outputs twice", caching.same),
    Contract(
        "device", "it computes on the device of its inputs and never waits for it", device.device
    ),
    Contract("worked", "reproduces the worked number of its file", identities.worked),
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
            if contract.name != "limits" and not identities.possible(subject):
                raise NotApplicable(f"the mechanism declares that it cannot be {subject.role}")
            return Result(contract, "kept", max(contract.measure(subject)), "")
        except NotApplicable as reason:
            return Result(contract, "not applicable", None, str(reason))
        except Broken as fault:
            return Result(contract, "broken", fault.measured, str(fault))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return Result(contract, "broken", None, text)
