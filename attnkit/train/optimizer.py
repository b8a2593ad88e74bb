"""Optimizer, learning-rate schedules and averages of weights."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from attnkit.recipe import schema

Weights = dict[str, Tensor]


def optimizer(parameters: Iterable[tuple[str, nn.Parameter]], train: schema.TrainConfig) -> AdamW:
    """Return fused AdamW with weight decay on matrices only, not on biases and normalization."""
    named = [(name, p) for name, p in parameters if p.requires_grad]
    groups = [
        {"params": [p for _, p in named if p.dim() > 1], "weight_decay": train.weight_decay},
        {"params": [p for _, p in named if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


def learning_rate(step: int, train: schema.TrainConfig, width: int) -> float:
    """Return the learning rate of update `step` (1-based): linear warm-up, then `train.schedule`.

    inverse-sqrt: lr sqrt(warmup / step). noam (Vaswani et al. 2017, equation 3): lr width^-0.5 min(step^-0.5,
    step warmup^-1.5), warm-up included. cosine and linear fall to min_lr at the last step.
    """
    warmup = max(1, train.warmup)
    if train.schedule == "noam":
        shape = min(1 / math.sqrt(step), step / warmup / math.sqrt(warmup))
        return train.lr / math.sqrt(width) * shape
    if step < train.warmup:
        return train.lr * step / warmup
    if train.schedule == "inverse-sqrt":
        return train.lr * math.sqrt(warmup / max(step, warmup))
    if train.schedule == "constant":
        return train.lr
    done = min(1.0, (step - train.warmup) / max(1, train.steps - train.warmup))
    left = (1 + math.cos(math.pi * done)) / 2 if train.schedule == "cosine" else 1 - done
    return train.min_lr + (train.lr - train.min_lr) * left


def weights_of(model: nn.Module) -> Weights:
    """Return the state dict of a model, with tied weights once, under their first name."""
    state = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(state.items())}  # the first name wins
    return {name: tensor.detach() for name, tensor in state.items() if first[id(tensor)] == name}


def snapshot(weights: Weights) -> Weights:
    """Return copies of the weights in CPU memory; sharded tensors are copied on their device."""
    return {n: (t if hasattr(t, "device_mesh") else t.cpu()).detach().clone() for n, t in weights.items()}


class Averaging:
    """The candidate weights of a training, which are validated and stored at the end.

    With `average: N`, the mean of the weights at the last N validations (Vaswani et al. 2017, section 6.1); with
    `ema`, the exponential moving average, whose decay is at most (1 + step) / (10 + step) to remove its bias at the
    start; otherwise the current weights. Buffers (random directions, counts), whose mean is meaningless, are copied.
    """

    def __init__(self, train: schema.TrainConfig, model: nn.Module) -> None:
        self.count = max(1, train.average)
        self.decay = train.ema
        self._live = weights_of(model)
        self._parameter_names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self.recent: dict[int, Weights] = {}
        """Weights at the last `average` validations by step; empty if `average` is 1."""
        self.moving: Weights | None = None
        if self.decay:
            self.moving = {name: tensor.clone() for name, tensor in self._live.items()}

    def update(self, step: int) -> None:
        """Update the moving average after update `step`."""
        if self.moving is None:
            return
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        for name, tensor in self._live.items():
            if name in self._parameter_names:
                self.moving[name].lerp_(tensor, weight)
            else:
                self.moving[name].copy_(tensor)

    @torch.no_grad()
    def candidate(self) -> Weights:
        """Return the weights to validate or store; the caller must not change them."""
        if self.moving is not None:
            return self.moving
        if not self.recent:
            return self._live
        *earlier, newest = (self.recent[step] for step in sorted(self.recent))
        mean = {name: tensor.clone() for name, tensor in newest.items()}
        for name in mean.keys() & self._parameter_names:
            for weights in earlier:
                mean[name] += weights[name]
            mean[name] /= len(self.recent)
        return mean

    def remember(self, step: int) -> None:
        """Add the current weights, after `step` updates, to the average over validations."""
        if self.count == 1:
            return
        self.recent[step] = snapshot(self._live)
        while len(self.recent) > self.count:
            del self.recent[min(self.recent)]
