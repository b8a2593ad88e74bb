"""Attention transfer: new layers of attention learn to answer as those that they replace.

A layer of the new model reads what that of the old one reads, and the mean squared error between
their outputs is minimised, layer by layer; all other weights stay as they are.  Source: Zhang et
al. 2024, "LoLCATs: On Low-Rank Linearizing of Large Language Models", "attention transfer", which
trains feature maps; here all weights of the layers are trained.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnkit.analysis.maps import Kind
from attnkit.analysis.recorder import attention_layers
from attnkit.attention import Mask, Out
from attnkit.data.batch import Batch
from attnkit.data.tokenizer import PAD
from attnkit.layers import MultiHead
from attnkit.models import Model
from attnkit.train.events import Emit, ProgressEvent

MATCHING = "mean squared error"
"""The loss of attention transfer."""
EVERY = 1.0
"""Seconds between two events."""
Place = tuple[Kind, int]
"""Kind and number of a layer."""
Layers = Mapping[Place, MultiHead]


class LayerCall(NamedTuple):
    """What a layer of attention read and answered in one pass."""

    place: Place
    given: dict[str, Any]
    """Arguments of `MultiHead.forward` by name."""
    y: Float[Tensor, "B T W"]
    real: Bool[Tensor, "B T"]
    """False on pads."""


def stages(transfer: int, tune: int) -> list[str]:
    """What a conversion goes through, with so many updates of transfer and fine-tuning."""
    return ["swapped", *["transferred"] * (transfer > 0), *["tuned"] * (tune > 0)]


def layers_of(model: nn.Module, kinds: Sequence[str]) -> dict[Place, MultiHead]:
    """The layers of some kinds of attention, in order."""
    found = attention_layers(model)
    return {(kind, at): part for kind in found if kind in kinds for at, part in enumerate(found[kind])}


@torch.no_grad()
def layer_calls(model: Model, layers: Layers, batch: Batch) -> list[LayerCall]:
    """What these layers of a model do while it reads a batch."""
    calls: list[LayerCall] = []
    source, ids = (
        None if side is None else side.to(model.output.weight.device) for side in (batch.source, batch.input)
    )
    assert ids is not None

    def note(place: Place, part: nn.Module, args: tuple[Any, ...], named: dict[str, Any], out: Out) -> None:
        given = dict(signature(part.forward).bind(*args, **named).arguments)
        side = source if place[0] == "encoder" and source is not None else ids
        if side.shape[1] != out.y.shape[1] and source is not None:  # a decoder reads both
            side = torch.cat((source, ids), 1)
        calls.append(LayerCall(place, given, out.y, side != PAD))

    with ExitStack() as hooks:
        for place, part in layers.items():
            hooks.callback(part.register_forward_hook(partial(note, place), with_kwargs=True).remove)
        model.hidden(source, ids)
    return calls


def matching_loss(layers: Layers, calls: Iterable[LayerCall]) -> Float[Tensor, ""]:
    """Mean squared error between what layers answer and what was answered, mean over the layers.

    Scores that a mechanism carries from layer to layer are its own.
    """
    carried: dict[Kind, Tensor | None] = {}
    losses = []
    for call in calls:
        kind = call.place[0]
        out = layers[call.place](**{**call.given, "prior": carried.get(kind)})
        carried[kind] = None if out.scores is None else out.scores.detach()
        found, wanted = out.y[call.real], call.y[call.real]
        error = (found - wanted).square().mean()
        # Adam would take rounding for a gradient, and change layers that answer alike
        same = torch.allclose(found, wanted, rtol=1e-4, atol=1e-6)
        losses.append(error * 0 if same else error)
    return torch.stack(losses).mean()


def make_updates(
    loss_name: str,
    weights: Iterable[Tensor],
    updates: int,
    rate: Callable[[int], float],
    learn: Callable[[], tuple[float, int]],
    emit: Emit,
    *,
    fused: bool | None = None,
) -> list[float]:
    """Make updates by Adam and tell how far they are; the loss before each.

    Args:
        loss_name: what the loss is.
        weights: what is trained.
        updates: how many there are.
        rate: the learning rate of an update, counted from 1.
        learn: computes the gradients of the next batch; its loss and tokens.
        emit: called with `ProgressEvent`s.
        fused: by the implementation in one pass; None leaves it to torch.
    """
    optimizer = torch.optim.Adam([*dict.fromkeys(weights)], fused=fused)
    losses, tokens, begin, told = list[float](), 0, time.perf_counter(), 0.0
    for done in range(1, updates + 1):
        optimizer.param_groups[0]["lr"] = lr = rate(done)
        optimizer.zero_grad()
        loss, learnt = learn()
        optimizer.step()
        losses.append(loss)
        tokens += learnt
        seconds = time.perf_counter() - begin
        if seconds - told > EVERY or done == updates:
            told, left = seconds, seconds / done * (updates - done)
            emit(ProgressEvent(done, updates, loss, lr, tokens / seconds, None, left, loss_name))
    return losses


@torch.no_grad()
def averaged_maps(
    model: Model, layers: Layers, batches: Iterable[Batch], positions: int
) -> dict[Place, Float[Tensor, "H N N"]]:
    """The attention of each layer from position to position, averaged over texts that have both.

    In multiples of the uniform weight, so that a long text, which has less weight for each key,
    counts as much as a short one; 0 where no text has both.
    """
    sums: dict[Place, tuple[Tensor, Tensor]] = {}
    for batch in batches:
        for place, given, _, real in layer_calls(model, layers, batch):
            known = {name: given.get(name) for name in ("memory", "prior", "bias")}
            mask: Mask = given["mask"]
            maps = layers[place].weights(given["x"], mask, **known).transpose(0, 1)  # [H, B, T, S]
            visible = mask.dense()[:, 0]  # [b, T, S]
            maps = maps * visible.sum(-1, keepdim=True)
            seen = visible & real[:, :, None]  # [B, T, S]
            pairs = mask.q_pos[:, :, None] * positions + mask.k_pos[:, None, :]
            index = pairs.expand_as(seen)[seen]
            if place not in sums:
                empty = maps.new_zeros(maps.shape[0], positions**2)
                sums[place] = empty, empty[0].clone()
            total, count = sums[place]
            total.index_add_(1, index, maps[:, seen])
            count.index_add_(0, index, torch.ones_like(index, dtype=count.dtype))
    return {
        place: torch.unflatten(total / count.clamp_min(1), 1, (positions, positions))
        for place, (total, count) in sums.items()
    }
