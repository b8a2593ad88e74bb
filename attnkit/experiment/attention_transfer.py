"""Attention transfer: new attention layers are trained to reproduce the outputs of the layers they replace.

Each new layer gets the input of the old layer, and the mean squared error between their outputs is minimized; all
other weights are frozen. Source: Zhang et al. 2024, "LoLCATs: On Low-Rank Linearizing of Large Language Models",
"attention transfer", which trains feature maps; here all weights of the layers are trained.
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
EVENT_INTERVAL = 1.0
"""Minimum number of seconds between two progress events."""
Place = tuple[Kind, int]
"""Kind and index of a layer."""
Layers = Mapping[Place, MultiHead]


class LayerCall(NamedTuple):
    """Input and output of an attention layer in one forward pass."""

    place: Place
    arguments: dict[str, Any]
    """Arguments of `MultiHead.forward` by name."""
    y: Float[Tensor, "B T W"]
    real: Bool[Tensor, "B T"]  # False for pads


def stages(transfer: int, tune: int) -> list[str]:
    """Return the stages of a conversion with these numbers of updates of transfer and fine-tuning."""
    return ["swapped", *["transferred"] * (transfer > 0), *["tuned"] * (tune > 0)]


def layers_of(model: nn.Module, kinds: Sequence[str]) -> dict[Place, MultiHead]:
    """Return the attention layers of these kinds, in order."""
    layers = attention_layers(model)
    return {(kind, i): layer for kind in layers if kind in kinds for i, layer in enumerate(layers[kind])}


@torch.no_grad()
def layer_calls(model: Model, layers: Layers, batch: Batch) -> list[LayerCall]:
    """Run the model on a batch and return the inputs and outputs of these layers."""
    calls: list[LayerCall] = []
    source, ids = (
        None if side is None else side.to(model.output.weight.device) for side in (batch.source, batch.input)
    )
    assert ids is not None

    def record(place: Place, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Out) -> None:
        arguments = dict(signature(layer.forward).bind(*args, **kwargs).arguments)
        queries = source if place[0] == "encoder" and source is not None else ids
        if queries.shape[1] != out.y.shape[1] and source is not None:  # a decoder-only model reads source and target
            queries = torch.cat((source, ids), 1)
        calls.append(LayerCall(place, arguments, out.y, queries != PAD))

    with ExitStack() as hooks:
        for place, layer in layers.items():
            hooks.callback(layer.register_forward_hook(partial(record, place), with_kwargs=True).remove)
        model.hidden(source, ids)
    return calls


def matching_loss(layers: Layers, calls: Iterable[LayerCall]) -> Float[Tensor, ""]:
    """Return the mean squared error between the outputs of layers and the recorded ones, averaged over layers.

    Scores that a mechanism carries from layer to layer are those of the new layers.
    """
    carried: dict[Kind, Tensor | None] = {}
    losses = []
    for call in calls:
        kind = call.place[0]
        out = layers[call.place](**{**call.arguments, "prior": carried.get(kind)})
        carried[kind] = None if out.scores is None else out.scores.detach()
        output, target = out.y[call.real], call.y[call.real]
        error = (output - target).square().mean()
        # otherwise Adam would amplify rounding errors and change layers whose outputs already agree
        same = torch.allclose(output, target, rtol=1e-4, atol=1e-6)
        losses.append(error * 0 if same else error)
    return torch.stack(losses).mean()


def make_updates(
    loss_name: str,
    weights: Iterable[Tensor],
    updates: int,
    rate: Callable[[int], float],
    backward: Callable[[], tuple[float, int]],
    emit: Emit,
    *,
    fused: bool | None = None,
) -> list[float]:
    """Make updates with Adam, report progress, and return the loss before each update.

    Args:
        loss_name: Name of the loss in events.
        weights: Weights to train.
        updates: Number of updates.
        rate: Returns the learning rate of an update (1-based).
        backward: Computes the gradients of the next batch and returns its loss and number of tokens.
        emit: Receives `ProgressEvent`s.
        fused: Whether to use the fused implementation of Adam; None: PyTorch's default.
    """
    optimizer = torch.optim.Adam([*dict.fromkeys(weights)], fused=fused)
    losses, tokens, start, last_event = list[float](), 0, time.perf_counter(), 0.0
    for update in range(1, updates + 1):
        optimizer.param_groups[0]["lr"] = lr = rate(update)
        optimizer.zero_grad()
        loss, batch_tokens = backward()
        optimizer.step()
        losses.append(loss)
        tokens += batch_tokens
        seconds = time.perf_counter() - start
        if seconds - last_event > EVENT_INTERVAL or update == updates:
            last_event, remaining = seconds, seconds / update * (updates - update)
            emit(ProgressEvent(update, updates, loss, lr, tokens / seconds, None, remaining, loss_name))
    return losses


@torch.no_grad()
def averaged_maps(
    model: Model, layers: Layers, batches: Iterable[Batch], positions: int
) -> dict[Place, Float[Tensor, "H N N"]]:
    """Return each layer's attention between absolute positions, averaged over the texts that have both positions.

    Weights are multiples of the uniform weight, so that long texts, with less weight per key, count as much as short
    ones; 0 if no text has both positions.
    """
    sums: dict[Place, tuple[Tensor, Tensor]] = {}
    for batch in batches:
        for place, arguments, _, real in layer_calls(model, layers, batch):
            options = {name: arguments.get(name) for name in ("memory", "prior", "bias")}
            mask: Mask = arguments["mask"]
            maps = layers[place].weights(arguments["x"], mask, **options).transpose(0, 1)  # [H, B, T, S]
            visible = mask.dense()[:, 0]  # [b, T, S]
            maps = maps * visible.sum(-1, keepdim=True)
            counted = visible & real[:, :, None]  # [B, T, S]
            pairs = mask.q_pos[:, :, None] * positions + mask.k_pos[:, None, :]  # flat index of (query, key) positions
            index = pairs.expand_as(counted)[counted]
            if place not in sums:
                zeros = maps.new_zeros(maps.shape[0], positions**2)
                sums[place] = zeros, zeros[0].clone()
            total, count = sums[place]
            total.index_add_(1, index, maps[:, counted])
            count.index_add_(0, index, torch.ones_like(index, dtype=count.dtype))
    return {
        place: torch.unflatten(total / count.clamp_min(1), 1, (positions, positions))
        for place, (total, count) in sums.items()
    }
