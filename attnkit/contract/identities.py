"""Contracts on one pass: finite values, the attention map, its rows, biases, limits, the worked number."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Scored
from attnkit.attention.mask import Mask
from attnkit.contract.subject import (
    HEADS,
    QUERIES,
    Broken,
    NotApplicable,
    Subject,
    close,
    gradients,
    inputs,
    no_padding,
    random_like,
    right_padded,
)
from attnkit.errors import UsageError

LENGTHS = (1, 2, 7, 64, 65, 300)
STEPS, DIFFERENCE_ERROR = (1e-6, 1e-8), 1e-5
"""Steps of finite differences, two because a kink may lie within a step, and their maximum relative error."""
FLOAT32_ERROR = 1e-3
"""Maximum error of float32, relative to the largest value; most mechanisms are within 1e-6."""
WORKED_ERROR = 5e-7
"""Maximum error of worked numbers, which have six decimals."""


def finite(subject: Subject) -> Iterator[float]:
    """Check outputs and gradients in training mode, in float32 and bfloat16, with large values in the padding."""
    for dtype in (torch.float32, torch.bfloat16):
        layer = subject.copy(dtype).train()
        valid = right_padded(33, 28)
        scale = torch.where(valid, 4.0, 50.0).unsqueeze(-1)
        x = (inputs(2, 33) * scale).to(dtype).requires_grad_()
        y = subject.real_outputs(layer, x, valid).float()
        if not y.isfinite().all():
            raise Broken(f"{dtype}: the answer is not finite")
        tensors = {"the input": x} | dict(layer.named_parameters())
        grads = torch.autograd.grad(y.square().sum(), [*tensors.values()], allow_unused=True)
        for name, grad in zip(tensors, grads, strict=True):
            if grad is None:
                raise Broken(f"{dtype}: {name} has no gradient")
            if not grad.isfinite().all():
                raise Broken(f"{dtype}: the gradient of {name} is not finite")
    yield 0.0


def precise(subject: Subject) -> Iterator[float]:
    """Compare outputs and gradients in float32 to float64 with the same weights and tokens."""
    float32_layer = subject.copy(torch.float32)
    for length in (7, 300):
        valid = right_padded(length)
        x, results = inputs(1, length).float(), []
        for layer, tokens in ((float32_layer, x), (copy.deepcopy(float32_layer).double(), x.double())):
            tokens.requires_grad_()
            y = subject.real_outputs(layer, tokens, valid)
            (grad,) = gradients(y, [tokens])
            assert grad is not None
            results.append((y.double(), grad.double()))
        for part, actual, expected in zip(("forward", "gradient"), *results, strict=True):
            yield close(actual, expected, f"length {length}, {part}", FLOAT32_ERROR)


def gradient_check(subject: Subject) -> Iterator[float]:
    """Compare the derivative along a random direction of tokens and parameters to a finite difference."""
    for length in (7, 300):
        x, valid = inputs(2, length), right_padded(length, length - 3)
        leaves = [x.requires_grad_(), *subject.layer.parameters()]
        directions = [random_like(leaf) for leaf in leaves]
        grads = gradients(subject.real_outputs(subject.layer, x, valid), leaves)
        derivative = x.new_zeros(())
        for part, direction in zip(grads, directions, strict=True):
            derivative += 0 if part is None else (part * direction).sum()
        error = math.inf
        for step in STEPS:
            difference = _difference(subject, x, directions, valid, step)
            scale = max(1.0, difference.abs().item())
            error = min(error, (derivative - difference).abs().item() / scale)
            if error <= DIFFERENCE_ERROR:
                break
        else:
            raise Broken(f"length {length}: gradients are off by {error:.2g}", error)
        yield error


@torch.no_grad()
def _difference(subject: Subject, x: Tensor, directions: Sequence[Tensor], valid: Tensor, step: float) -> Tensor:
    """Return the derivative of the random sum along `directions` by central differences."""
    sums = []
    for signed_step in (step, -step):
        shifted = subject.copy()
        for parameter, direction in zip(shifted.parameters(), directions[1:], strict=True):
            parameter.add_(signed_step * direction)
        y = subject.real_outputs(shifted, x + signed_step * directions[0], valid)
        sums.append((y * random_like(y)).sum())
    return (sums[0] - sums[1]) / (2 * step)


def multiplies(subject: Subject) -> Iterator[float]:
    """Compare the output of the layer to its map times its values."""
    if subject.layer.mechanism.value_sets > 1:
        raise NotApplicable("each token has several values")
    for length in LENGTHS:
        batch = 2 if length < 100 else 1
        x, mask = inputs(batch, length), subject.mask(no_padding(batch, length), length)
        y = subject.output(subject.layer, x, mask.valid, mask)
        maps = subject.weights(x, mask)
        yield close(subject.apply_maps(maps, x, mask), y, f"length {length}")


def rows(subject: Subject) -> Iterator[float]:
    """Compare the sums of the rows of the map to 1."""
    if not subject.layer.mechanism.normalized:
        raise NotApplicable("the mechanism declares that rows do not sum to 1")
    for length in (1, 7, 65):
        mask = subject.mask(no_padding(1, length))
        sums = subject.weights(inputs(1, length), mask).sum(-1)
        yield close(sums, torch.ones_like(sums), f"length {length}")


def lengths(subject: Subject) -> Iterator[float]:
    """Compare more and fewer queries than keys to calls with each query alone."""
    for queries, keys in ((1, 9), (3, 1), (5, 13), (20, 13), (3, 130)):
        x, memory = inputs(2, queries), inputs(2, keys)
        location = f"{queries} queries, {keys} keys"
        mask, single = Mask.cross(no_padding(2, keys), queries), Mask.cross(no_padding(2, keys), 1)
        y = subject.layer(x, mask, memory=memory).y
        alone = [subject.layer(x[:, i : i + 1], single, memory=memory).y for i in range(queries)]
        yield close(y, torch.cat(alone, 1), location)
        maps = subject.layer.weights(x, mask, memory=memory)
        yield close(subject.apply_maps(maps, memory, mask), y, location)


def empty(subject: Subject) -> Iterator[float]:
    """Check the map, the output and the gradients of a row without visible keys."""
    layer, valid = subject.layer, no_padding(2, 6)
    valid[1] = False
    x = inputs(2, 6).requires_grad_()
    maps = subject.weights(x, subject.mask(valid))[1]
    if (largest := maps.abs().max().item()) > 0:
        raise Broken(f"a query without keys has the weight {largest:.2g} instead of 0", largest)
    y = subject.output(layer, x, valid)
    zero_output = layer.o(torch.zeros_like(y[1]))
    if not torch.equal(y[1], zero_output):
        error = (y[1] - zero_output).abs().max().item()
        raise Broken(f"a query without keys outputs {error:.2g} instead of 0", error)
    grads = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()], allow_unused=True)
    if not all(grad is None or grad.isfinite().all() for grad in grads):
        raise Broken("a query without keys has gradients that are not finite")
    yield 0.0


def bias(subject: Subject) -> Iterator[float]:
    """Compare weights with a bias or with earlier scores (`prior`) to the weights times exp(bias)."""
    valid = right_padded(9, 5)
    x, mask = inputs(2, 9), subject.mask(valid)
    queries = QUERIES if subject.role == "cross" else 9
    generator = torch.Generator().manual_seed(1)
    added = torch.randn(2, HEADS, queries, 9, generator=generator, dtype=x.dtype)
    if not isinstance(subject.layer.mechanism, Scored):
        for name in ("bias", "prior"):
            try:
                subject.weights(x, mask, **{name: added})
            except (ValueError, UsageError):
                continue
            raise Broken(f"{name} is accepted silently, although the mechanism has no scores")
        yield 0.0
        return
    if type(subject.layer.mechanism).normalize is not Scored.normalize:
        yield from _other_bias(subject, x, mask, added)
        return
    plain = subject.weights(x, mask) * added.exp()
    expected = _normalized(plain)
    for name in ("bias", "prior"):
        yield close(_normalized(subject.weights(x, mask, **{name: added})), expected, name)


def _other_bias(subject: Subject, x: Tensor, mask: Mask, added: Tensor) -> Iterator[float]:
    """Compare the scores that `normalize` gets with and without a bias, if it is not a plain softmax."""
    mechanism: Any = subject.layer.mechanism
    recorded = list[Tensor]()

    def record(scores: Tensor, mask: Mask, raw_scores: Tensor) -> Tensor:
        recorded.append(scores)
        weights: Tensor = type(mechanism).normalize(mechanism, scores, mask, raw_scores)
        return weights

    mechanism.normalize = record
    try:
        for arguments in ({}, {"bias": added}, {"prior": added}):
            subject.weights(x, mask, **arguments)
    finally:
        del mechanism.normalize
    plain, *biased = recorded
    expected = added.repeat(1, plain.shape[1] // added.shape[1], 1, 1)
    for name, scores in zip(("bias", "prior"), biased, strict=True):
        yield close(scores - plain, expected, name)


def _normalized(maps: Tensor) -> Tensor:
    total = maps.sum(-1, keepdim=True)
    return maps / total.masked_fill(total == 0, 1)


def worked(subject: Subject) -> Iterator[float]:
    """Compare the worked number of the class to the hand calculation."""
    mechanism_class = type(subject.layer.mechanism)
    if (numbers := mechanism_class.worked_number()) is None:
        if mechanism_class.__module__.startswith(f"{mechanisms.__name__}."):
            raise Broken("the class defines no `worked_number`; each file in attnkit/mechanisms needs one")
        raise NotApplicable("the class has no worked number")
    yield close(*numbers, "the worked number", WORKED_ERROR)


def limits(subject: Subject) -> Iterator[float]:
    """Check that roles and lengths beyond the declared limits are refused."""
    facts = subject.facts
    if not supports_role(subject):
        _refuses(lambda: subject.build(subject.role == "cross", subject.causal), f"the role {subject.role}", facts.why)
        if subject.role != "cross":
            layer = subject.build(False, not subject.causal).double()
            mask, negation = subject.mask(no_padding(1, 3)), "" if subject.causal else "not "
            _refuses(lambda: layer(inputs(1, 3), mask), f"a mask that is {negation}causal", facts.why)
        yield 0.0
        return
    limit = subject.layer.mechanism.limit
    if facts.limit is None and limit is None:
        raise NotApplicable("the mechanism declares no limit in this role")
    if not isinstance(limit, int):
        raise Broken(f"the limit of a built layer must be a number, got {limit!r}")
    with torch.no_grad():
        x, mask = inputs(1, limit), subject.mask(no_padding(1, limit))
        subject.output(subject.layer, x, mask.valid, mask)
        longer, longer_mask = inputs(1, limit + 1), subject.mask(no_padding(1, limit + 1))
        _refuses(
            lambda: subject.output(subject.layer, longer, longer_mask.valid, longer_mask),
            f"{limit + 1} tokens",
            str(limit),
        )
    yield 0.0


def supports_role(subject: Subject) -> bool:
    """Return whether the mechanism declares support for the role."""
    facts = subject.facts
    supported = {"encoder": facts.encoder, "decoder": facts.causal, "cross": facts.cross}
    return supported[subject.role]


def _refuses(action: Callable[[], Any], case: str, reason: str) -> None:
    """Raise Broken unless the action raises UsageError or ValueError with the reason."""
    if not reason:
        raise Broken(f"`why` is empty, but must say why {case} is refused")
    try:
        action()
    except (UsageError, ValueError) as error:
        if reason not in str(error):
            raise Broken(f"{case} is refused without the reason {reason!r}: {error}") from error
        return
    raise Broken(f"{case} is declared unsupported, but accepted")
