"""Untrained models small enough for any test."""

from typing import Any

import torch

from attnkit.models import build
from attnkit.recipe.schema import ModelConfig


def tiny_model(*sizes: int, max_length: int = 40, seed: int = 5, **options: Any) -> Any:
    """Return a model of width 16 with two layers; options are fields of `ModelConfig`.

    `sizes` are those of the vocabularies of source and target; one size is for both.
    """
    torch.manual_seed(seed)
    defaults = {"width": 16, "ff": 24, "heads": 4, "layers": {"encoder": 2, "decoder": 2}}
    return build(ModelConfig.model_validate(defaults | options), (sizes[0], sizes[-1]), max_length)
