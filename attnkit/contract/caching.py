"""Contracts on states: decoding steps, cached memory, beams, fast paths, saved weights."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from attnkit.attention import Out, Scored, State, reorder
from attnkit.attention.mask import Mask
from attnkit.contract.subject import Broken, NotApplicable, Subject, close, everything, gradients, inputs, up_to
from attnkit.layers import MultiHead

PIECES = (4, 1, 1, 70, 1, 3)
"""Numbers of tokens of the successive calls in `steps`."""
BRANCHED = (1, 63, 64, 65, 200)
"""Numbers of cached tokens in `branches`; long caches grow in place."""


def steps(subject: Subject) -> Iterator[float]:
    """Compare prefill and steps with reordered rows to one pass, then the same with packed masks."""
    layer, length = subject.layer, sum(PIECES)
    x, valid = inputs(3, length), everything(3, length)
    valid[1, :3] = False
    valid[2, 2:4] = False  # a short prompt, padded on the right, before further tokens
    with torch.no_grad():
        full = layer(x, Mask.of(valid, length, causal=True)).y
        state: State = None
        seen: list[Tensor] = []
        start = 0
        for number, new in enumerate(PIECES):
            mask = Mask.of(valid[:, : start + new], new, causal=True, start=start)
            out = layer(x[:, start : start + new], mask, state=state)
            order = torch.tensor([2, 2, 1] if number == 4 else [2, 0, 1])
            state = reorder(out.state, order)
            seen = [y[order] for y in (*seen, out.y)]
            x, valid, full = x[order], valid[order], full[order]
            start += new
        plain = inputs(2, length)
        whole = layer(plain, Mask.of(everything(2, length), length, causal=True)).y
        stepped = _by_steps(layer, plain, PIECES)
    yield close(torch.cat(seen, 1)[valid], full[valid], "steps with reordered rows")
    yield close(stepped, whole, "steps without padding")


def _by_steps(layer: MultiHead, x: Tensor, pieces: Sequence[int]) -> Tensor:
    """Return the outputs of successive calls with packed masks, as in decoding."""
    state, seen, start = None, [], 0
    for new in pieces:
        out = _next(layer, x, start, new, state)
        state, start = out.state, start + new
        seen.append(out.y)
    return torch.cat(seen, 1)


def branches(subject: Subject) -> Iterator[float]:
    """Compare two continuations of one state to one pass; the first is continued after the second was computed."""
    layer = subject.layer
    for length in BRANCHED:
        texts = inputs(2, length + 2)
        texts[1, :length] = texts[0, :length]  # rows differ in the last two tokens
        mask = Mask.packed(length + 2, texts.device, causal=True)
        with torch.no_grad():
            whole = layer(texts, mask).y[:, length:]
            state: State = None
            for start, new in ((0, length - 1), (length - 1, 1)):
                if new:
                    state = _next(layer, texts[:1], start, new, state).state
            forks = [_next(layer, text[None], length, 1, state) for text in texts]
            ends = [
                _next(layer, text[None], length + 1, 1, fork.state) for text, fork in zip(texts, forks, strict=True)
            ]
        for number, pair in enumerate((forks, ends)):
            where = f"continuations of {length} cached tokens, token {number + 1}"
            yield close(torch.cat([out.y for out in pair])[:, 0], whole[:, number], where)


def _next(layer: MultiHead, x: Tensor, start: int, new: int, state: State) -> Out:
    """Return the output for `new` tokens from column `start` on, with a packed mask as in decoding."""
    mask = Mask.packed(start + new, x.device, causal=True, start=start)
    out: Out = layer(x[:, start : start + new], mask, state=state)
    return out


def cached(subject: Subject) -> Iterator[float]:
    """Compare cross-attention to cached keys and values with cross-attention to the memory."""
    layer, valid = subject.layer, up_to(13, 5)
    x, memory = inputs(2, 6), inputs(2, 13)
    with torch.no_grad():
        fresh = layer(x, Mask.cross(valid, 6), memory=memory).y
        state = layer(x[:, :1], Mask.cross(valid, 1), memory=memory).state
        swapped = torch.tensor([1, 0])
        first = layer(x[:, 1:3], Mask.cross(valid, 2), state=state)
        state = reorder(first.state, swapped)
        last = layer(x[swapped, 3:], Mask.cross(valid[swapped], 3), state=state).y
    yield close(first.y, fresh[:, 1:3], "cached keys")
    yield close(last, fresh[swapped, 3:], "cached keys of sentences that moved")


def beams(subject: Subject) -> Iterator[float]:
    """Compare three beams a sentence, folded into the queries, to keys repeated three times."""
    layer, valid = subject.layer, up_to(13, 5)
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
        raise NotApplicable("it has one path in this role")
    x, whole = inputs(1, 70), everything(1, 70)
    once = _with_gradients(subject.layer, subject.layer(x, Mask.of(whole, 70, causal=True)).y)
    slowly = _with_gradients(subject.layer, _by_steps(subject.layer, x, (1,) * 70))
    names = ("forward", *(f"gradient of {name}" for name, _ in subject.layer.named_parameters()))
    yield from (close(a, b, name) for a, b, name in zip(once, slowly, names, strict=True))


def _fused(subject: Subject) -> Iterator[float]:
    layer, plain = subject.copy(), subject.copy()
    mechanism: Any = layer.mechanism
    if type(mechanism).fused is Scored.fused:
        raise NotApplicable("it has no fast path")
    without: Any = plain.mechanism
    fused, calls = mechanism.fused, list[bool]()

    def counted(*given: Any) -> Tensor | None:
        y: Tensor | None = fused(*given)
        calls.append(y is not None)
        return y

    mechanism.fused, without.fused = counted, lambda *given: None
    for length in (40, 300):
        x, valid = inputs(2, length), up_to(length, length - 7)
        masks = [subject.mask(valid, length)]  # and all layouts that are valid for such rows
        if subject.role != "cross":
            masks += [] if subject.causal else [Mask.right(valid)]
            masks.append(Mask.packed(length, valid.device, causal=subject.causal))
        for mask in masks:
            both = (_with_gradients(made, subject.real_outputs(made, x, valid, mask)) for made in (layer, plain))
            for number, (got, expected) in enumerate(zip(*both, strict=True)):
                part = "gradients" if number else "forward"
                where = f"length {length}, layout {mask.layout}, {part}"
                yield close(got, expected, where)
    if not calls:
        raise NotApplicable("its options take the plain path")
    if not any(calls):
        raise Broken("the fast path was never taken, up to length 300")


def _with_gradients(layer: MultiHead, y: Tensor) -> list[Tensor]:
    """Return y and the gradients of a random linear function of y."""
    found = gradients(y, [*layer.parameters()])
    return [y, *(grad for grad in found if grad is not None)]


def saved(subject: Subject) -> Iterator[float]:
    """Compare a layer to another layer that loads its saved tensors."""
    layer, other = subject.layer, subject.make(seed=4).double()
    tensors = {name: tensor.contiguous() for name, tensor in layer.state_dict().items()}
    other.load_state_dict(load(save(tensors)))
    x, valid = inputs(2, 9), up_to(9, 4)
    got, expected = (subject.real_outputs(made, x, valid) for made in (other, layer))
    yield close(got, expected, "after loading", 0)


def same(subject: Subject) -> Iterator[float]:
    """Compare two layers with equal weights on the same tokens."""
    x, valid = inputs(2, 9), up_to(9, 4)
    twin = copy.deepcopy(subject.layer)
    first, second = (subject.answer(made, x, valid) for made in (subject.layer, twin))
    yield close(second, first, "a second time", 0)
