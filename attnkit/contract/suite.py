"""The list of all contracts, and the function that runs a contract."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch

from attnkit.contract import caching, identities, masking
from attnkit.contract.subject import ROLES, Broken, NotApplicable, Role, Subject

SELF: tuple[Role, ...] = ("encoder", "decoder")
DECODER: tuple[Role, ...] = ("decoder",)
CROSS: tuple[Role, ...] = ("cross",)


class Contract(NamedTuple):
    """A property that mechanisms must have in some roles.

    `statement` describes it, `measure` yields the errors, and `advice` tells how to fix a mechanism.
    """

    name: str
    statement: str
    measure: Callable[[Subject], Iterator[float]]
    advice: str
    roles: tuple[Role, ...] = ROLES


CONTRACTS = (
    Contract(
        "finite",
        "outputs and gradients are finite in 16 and 32 bits",
        identities.finite,
        "compute exponentials and long sums in float32 and cast the result back; let every "
        "parameter change the output",
    ),
    Contract(
        "precise",
        "float32 agrees with float64",
        identities.precise,
        "subtract the largest exponent before exp, and do not subtract large sums that nearly cancel",
    ),
    Contract(
        "gradients",
        "gradients agree with finite differences",
        identities.gradient_check,
        "check backward passes written by hand; no detach(), .data or rounding on the way from input to output",
    ),
    Contract(
        "map",
        "the map times the values equals the output",
        identities.multiplies,
        "the output must be linear in v: `weights` is `forward` with the identity as values, so v "
        "may have another width than q",
    ),
    Contract(
        "rows",
        "each row of the map sums to 1, unless declared otherwise",
        identities.rows,
        "set `normalized = False` in the class if rows need not sum to 1",
    ),
    Contract(
        "future",
        "later tokens change no output and get no gradient",
        masking.future,
        "give a key the weight 0 where `self.allowed(mask)` (or `mask.dense()`) is False; a "
        "mechanism that must see all tokens sets `causal = False` and `why`",
        DECODER,
    ),
    Contract(
        "padding",
        "padding changes no output, whatever its content",
        masking.padding,
        "give a key the weight 0 where `self.allowed(mask)` (or `mask.valid`) is False; count "
        "positions by `mask.q_pos` and `mask.k_pos`, not by columns",
    ),
    Contract(
        "batch",
        "a batch gives the outputs of its rows one by one",
        masking.batch,
        "take no sum, mean or maximum over the rows of a batch; an axis of size 1 in the mask stands for all rows",
    ),
    Contract(
        "layouts",
        "a promised mask layout changes no output",
        masking.layouts,
        "a path selected by `mask.layout` must return the same output as the path of layout any",
        SELF,
    ),
    Contract(
        "steps",
        "prefill and steps give the outputs of one pass",
        caching.steps,
        "in a step, q has only the last queries: take positions from the mask, and keep in the state "
        "all that later queries need; `scores` gets keys on which `cached_keys` was called once",
        DECODER,
    ),
    Contract(
        "branches",
        "two continuations of a state are independent",
        caching.branches,
        "return a new state instead of changing the given state in place; otherwise see steps",
        DECODER,
    ),
    Contract(
        "cached",
        "cached keys and values give the same outputs",
        caching.cached,
        "if k and v are None, compute the output from the state, and return the state again",
        CROSS,
    ),
    Contract(
        "beams",
        "beams folded into queries equal repeated keys",
        caching.beams,
        "compute each query independently of the other queries",
        CROSS,
    ),
    Contract(
        "lengths",
        "queries may be more or fewer than keys",
        identities.lengths,
        "read T from q and S from k; a mechanism that needs T = S sets `cross = False` and `why`",
        CROSS,
    ),
    Contract(
        "empty",
        "a query that sees no key outputs exactly zero",
        identities.empty,
        "use `visible_softmax`, or fill with 0 after dividing (clamp a sum that may be 0)",
    ),
    Contract(
        "bias",
        "a bias is added to the scores, or refused",
        identities.bias,
        "let `normalize` read `scores`, which hold bias and earlier scores, not `raw_scores`; a "
        "mechanism without scores derives from `Unscored`, which refuses both",
    ),
    Contract(
        "limits",
        "unsupported roles and lengths are refused with the reason",
        identities.limits,
        "declare `limit` as a number in __init__, and raise UsageError with this number (for a role, "
        "with `why`) before any computation",
    ),
    Contract(
        "fast",
        "the fast path equals the plain path, gradients included",
        caching.fast,
        "`fused` gets keys as `cached_keys` made them, and must do what `scores` and `normalize` "
        "do; a class that overrides `scores`, `allowed` or `normalize` of another mechanism sets "
        "`fused = Scored.fused` or writes its own",
    ),
    Contract(
        "saved",
        "a layer that is saved and loaded gives the same outputs",
        caching.saved,
        "register tensors by nn.Parameter or register_buffer",
    ),
    Contract(
        "same",
        "the same tokens give the same outputs twice",
        caching.same,
        "draw random numbers in __init__, into a buffer, or only if self.training",
    ),
    Contract(
        "worked",
        "reproduces the worked number of its file",
        identities.worked,
        "the code or the hand calculation is wrong; `worked_number` returns both; the docstring describes the example",
    ),
)
"""Contracts in the order of display."""


class Result(NamedTuple):
    """Result of a contract for a subject."""

    contract: Contract
    state: Literal["kept", "broken", "not applicable"]
    measured: float | None
    """Maximum measured error; None: not measured."""
    text: str
    """Description of the error, or the reason why the contract does not apply."""


def run(contract: Contract, subject: Subject) -> Result:
    """Run a contract; if the mechanism raises an exception, the contract is broken."""
    with torch.random.fork_rng(devices=[]):
        try:
            if subject.role not in contract.roles:
                raise NotApplicable(f"the contract does not apply to the role {subject.role}")
            if contract.name != "limits" and not identities.supports_role(subject):
                raise NotApplicable(f"the mechanism declares that it cannot be {subject.role}")
            return Result(contract, "kept", max(contract.measure(subject)), "")
        except NotApplicable as reason:
            return Result(contract, "not applicable", None, str(reason))
        except Broken as fault:
            return Result(contract, "broken", fault.measured, str(fault))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return Result(contract, "broken", None, text)
