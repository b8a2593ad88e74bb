"""Contracts on states: decoding steps, cached memory, beams, fast paths, saved weights."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from attnkit.attention import Out, Scored, State, reorder
from attnkit.attention.mask import Mask
from attnkit.contract.subject import Broken, NotApplicable, Subject, close, gradients, inputs, no_padding, right_padded
from attnkit.layers import MultiHead

CALL_TOKENS = (4, 1, 1, 70, 1, 3)
"""Numbers of tokens of the successive calls in `steps`."""
CACHED_TOKENS = (1, 63, 64, 65, 200)
"""Numbers of cached tokens in `branches`; long caches grow in place."""


def steps(subject: Subject) -> Iterator[float]:
    """Compare prefill and steps with reordered rows to one pass, then the same with packed masks."""
    layer, length = subject.layer, sum(CALL_TOKENS)
    x, valid = inputs(3, length), no_padding(3, length)
    valid[1, :3] = False
    valid[2, 2:4] = False  # a short prompt, padded on the right, before further tokens
    with torch.no_grad():
        expected = layer(x, Mask.of(valid, length, causal=True)).y
        state: State = None
        outputs: list[Tensor] = []
        start = 0
        for index, tokens in enumerate(CALL_TOKENS):
            mask = Mask.of(valid[:, : start + tokens], tokens, causal=True, start=start)
            out = layer(x[:, start : start + tokens], mask, state=state)
            order = torch.tensor([2, 2, 1] if index == 4 else [2, 0, 1])
            state = reorder(out.state, order)
            outputs = [y[order] for y in (*outputs, out.y)]
            x, valid, expected = x[order], valid[order], expected[order]
            start += tokens
        x_packed = inputs(2, length)
        one_pass = layer(x_packed, Mask.of(no_padding(2, length), length, causal=True)).y
        stepped = _by_steps(layer, x_packed, CALL_TOKENS)
    yield close(torch.cat(outputs, 1)[valid], expected[valid], "steps with reordered rows")
    yield close(stepped, one_pass, "steps without padding")


def _by_steps(layer: MultiHead, x: Tensor, call_tokens: Sequence[int]) -> Tensor:
    """Return the outputs of successive calls with packed masks, as in decoding."""
    state, outputs, start = None, [], 0
    for tokens in call_tokens:
        out = _next(layer, x, start, tokens, state)
        state, start = out.state, start + tokens
        outputs.append(out.y)
    return torch.cat(outputs, 1)


def branches(subject: Subject) -> Iterator[float]:
    """Compare two continuations of one state to one pass; the first is continued after the second was computed."""
    layer = subject.layer
    for length in CACHED_TOKENS:
        rows = inputs(2, length + 2)
        rows[1, :length] = rows[0, :length]  # rows differ in the last two tokens
        mask = Mask.packed(length + 2, rows.device, causal=True)
        with torch.no_grad():
            one_pass = layer(rows, mask).y[:, length:]
            state: State = None
            for start, tokens in ((0, length - 1), (length - 1, 1)):
                if tokens:
                    state = _next(layer, rows[:1], start, tokens, state).state
            first_tokens = [_next(layer, row[None], length, 1, state) for row in rows]
            second_tokens = [
                _next(layer, row[None], length + 1, 1, first.state)
                for row, first in zip(rows, first_tokens, strict=True)
            ]
        for index, outputs in enumerate((first_tokens, second_tokens)):
            location = f"continuations of {length} cached tokens, token {index + 1}"
            yield close(torch.cat([out.y for out in outputs])[:, 0], one_pass[:, index], location)


def _next(layer: MultiHead, x: Tensor, start: int, tokens: int, state: State) -> Out:
    """Return the output for `tokens` tokens from column `start` on, with a packed mask as in decoding."""
    mask = Mask.packed(start + tokens, x.device, causal=True, start=start)
    out: Out = layer(x[:, start : start + tokens], mask, state=state)
    return out


def cached(subject: Subject) -> Iterator[float]:
    """Compare cross-attention to cached keys and values with cross-attention to the memory."""
    layer, valid = subject.layer, right_padded(13, 5)
    x, memory = inputs(2, 6), inputs(2, 13)
    with torch.no_grad():
        expected = layer(x, Mask.cross(valid, 6), memory=memory).y
        state = layer(x[:, :1], Mask.cross(valid, 1), memory=memory).state
        order = torch.tensor([1, 0])
        first = layer(x[:, 1:3], Mask.cross(valid, 2), state=state)
        state = reorder(first.state, order)
        last = layer(x[order, 3:], Mask.cross(valid[order], 3), state=state).y
    yield close(first.y, expected[:, 1:3], "cached keys")
    yield close(last, expected[order, 3:], "cached keys of sentences that moved")


def beams(subject: Subject) -> Iterator[float]:
    """Compare three beams per sentence, folded into the queries, to keys repeated three times."""
    layer, valid = subject.layer, right_padded(13, 5)
    x, memory = inputs(6, 4), inputs(2, 13)
    again = Mask.cross(valid.repeat_interleave(3, 0), 4)
    with torch.no_grad():
        repeated = layer(x, again, memory=memory.repeat_interleave(3, 0)).y
        folded = layer(x, Mask.cross(valid, 4), memory=memory).y
    yield close(folded, repeated, "3 beams")


def fast(subject: Subject) -> Iterator[float]:
    """Compare the fused path to the plain path, or one pass to single steps, with gradients."""
    if isinstance(subject.layer.mechanism, Scored):
        yield from _fused(subject)
        return
    if not subject.causal:
        raise NotApplicable("the mechanism has one path in this role")
    x, valid = inputs(1, 70), no_padding(1, 70)
    one_pass = _with_gradients(subject.layer, subject.layer(x, Mask.of(valid, 70, causal=True)).y)
    stepped = _with_gradients(subject.layer, _by_steps(subject.layer, x, (1,) * 70))
    names = ("forward", *(f"gradient of {name}" for name, _ in subject.layer.named_parameters()))
    yield from (close(actual, expected, name) for actual, expected, name in zip(one_pass, stepped, names, strict=True))


def _fused(subject: Subject) -> Iterator[float]:
    layer, plain = subject.copy(), subject.copy()
    mechanism: Any = layer.mechanism
    if type(mechanism).fused is Scored.fused:
        raise NotApplicable("the mechanism has no fast path")
    plain_mechanism: Any = plain.mechanism
    fused, calls = mechanism.fused, list[bool]()

    def counted(*arguments: Any) -> Tensor | None:
        y: Tensor | None = fused(*arguments)
        calls.append(y is not None)
        return y

    mechanism.fused, plain_mechanism.fused = counted, lambda *arguments: None
    for length in (40, 300):
        x, valid = inputs(2, length), right_padded(length, length - 7)
        masks = [subject.mask(valid, length)]  # and all layouts that are valid for such rows
        if subject.role != "cross":
            masks += [] if subject.causal else [Mask.right(valid)]
            masks.append(Mask.packed(length, valid.device, causal=subject.causal))
        for mask in masks:
            both = (_with_gradients(each, subject.real_outputs(each, x, valid, mask)) for each in (layer, plain))
            for index, (actual, expected) in enumerate(zip(*both, strict=True)):
                part = "gradients" if index else "forward"
                location = f"length {length}, layout {mask.layout}, {part}"
                yield close(actual, expected, location)
    if not calls:
        raise NotApplicable("these options use the plain path")
    if not any(calls):
        raise Broken("the fast path was never used, up to length 300")


def _with_gradients(layer: MultiHead, y: Tensor) -> list[Tensor]:
    """Return y and the gradients of a random linear function of y."""
    grads = gradients(y, [*layer.parameters()])
    return [y, *(grad for grad in grads if grad is not None)]


def saved(subject: Subject) -> Iterator[float]:
    """Compare a layer to another layer that loads its saved tensors."""
    layer, other = subject.layer, subject.make(seed=4).double()
    tensors = {name: tensor.contiguous() for name, tensor in layer.state_dict().items()}
    other.load_state_dict(load(save(tensors)))
    x, valid = inputs(2, 9), right_padded(9, 4)
    actual, expected = (subject.real_outputs(each, x, valid) for each in (other, layer))
    yield close(actual, expected, "after loading", 0)


def same(subject: Subject) -> Iterator[float]:
    """Compare two layers with equal weights on the same tokens."""
    x, valid = inputs(2, 9), right_padded(9, 4)
    twin = copy.deepcopy(subject.layer)
    first, second = (subject.output(each, x, valid) for each in (subject.layer, twin))
    yield close(second, first, "a second time", 0)
