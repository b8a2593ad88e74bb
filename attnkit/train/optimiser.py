"""The optimiser and the learning-rate schedules of a recipe."""

import math
from collections.abc import Iterable

from torch import nn
from torch.optim import AdamW

from attnkit.recipe import schema


def optimizer(parameters: Iterable[tuple[str, nn.Parameter]], train: schema.TrainConfig) -> AdamW:
    """Fused AdamW with weight decay on matrices only, not on biases and normalisation."""
    named = [(name, p) for name, p in parameters if p.requires_grad]
    groups = [
        {"params": [p for _, p in named if p.dim() > 1], "weight_decay": train.weight_decay},
        {"params": [p for _, p in named if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


def learning_rate(step: int, train: schema.TrainConfig, width: int) -> float:
    """The rate of update `step` (1-based): linear warm-up, then the shape that the recipe names.

    inverse-sqrt: lr sqrt(warmup / step).  noam (Vaswani et al. 2017, equation 3): lr is a factor of
    width^-0.5 min(step^-0.5, step warmup^-1.5).  cosine and linear fall to min_lr at the last step.
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
