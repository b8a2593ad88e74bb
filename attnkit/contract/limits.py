"""The contract on declarations: what a mechanism says that it cannot do, it refuses."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from attnkit.attention.mask import Mask
from attnkit.contract.subject import Broken, NotApplicable, Subject, everything, inputs
from attnkit.errors import UsageError


def limits(subject: Subject) -> Iterator[float]:
    """Roles and lengths beyond what is declared."""
    facts = subject.facts
    if not possible(subject):
        _refuses(
            lambda: subject.build(subject.role == "cross", subject.causal),
            f"the role {subject.role}",
            facts.why,
        )
        if subject.causal:
            layer = subject.build(False, False).double()
            mask = Mask.of(everything(1, 3), 3, causal=True)
            _refuses(lambda: layer(inputs(1, 3), mask), "a causal mask", facts.why)
        yield 0.0
        return
    limit = subject.layer.mechanism.limit
    if facts.limit is None and limit is None:
        raise NotApplicable("it declares no limit in this role")
    if not isinstance(limit, int):
        raise Broken(f"the limit of a built layer must be a number, got {limit!r}")
    with torch.no_grad():
        x, mask = inputs(1, limit), subject.mask(everything(1, limit))
        subject.answer(subject.layer, x, mask.valid, mask)
        longer, beyond = inputs(1, limit + 1), subject.mask(everything(1, limit + 1))
        _refuses(
            lambda: subject.answer(subject.layer, longer, beyond.valid, beyond),
            f"{limit + 1} tokens",
            str(limit),
        )
    yield 0.0


def possible(subject: Subject) -> bool:
    """Whether the mechanism declares that it can serve in the role."""
    facts = subject.facts
    return (facts.causal or not subject.causal) and (facts.cross or subject.role != "cross")


def _refuses(action: Callable[[], Any], what: str, reason: str) -> None:
    """Raises Broken unless the action raises an error for users that gives the reason."""
    if not reason:
        raise Broken(f"`why` must say why {what} is refused, and is empty")
    try:
        action()
    except (UsageError, ValueError) as error:
        if reason not in str(error):
            raise Broken(f"{what} is refused without the reason {reason!r}: {error}") from error
        return
    raise Broken(f"{what} is declared impossible and yet accepted")
