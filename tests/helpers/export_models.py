"""Tiny models of many architectures, for tests of exports."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnkit import models
from attnkit.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from attnkit.models import Model
from attnkit.recipe import Recipe, schema
from helpers.trained import ROWS

LENGTH = 20
ARCHITECTURES: list[dict[str, Any]] = [
    {"norm": norm} | options
    for norm in ("pre", "post")
    for options in (
        {"positions": "sinusoidal", "tie": "all", "activation": "relu"},
        {"positions": "learned", "tie": "decoder", "activation": "gelu", "bias": False},
        {"positions": "none", "tie": "none", "activation": "silu", "attention": "dot"},
        {"positions": "learned", "tie": "none", "activation": "relu", "shared": False, "init_std": 0.3},
    )
]
"""Options of `recipe` for plain transformers."""


@cache
def tokenizer(shared: bool = True) -> Tokenizer:
    """Return one vocabulary for both sides, or two of different sizes."""
    return Tokenizer.train(schema.TokenizerConfig(size=55, shared=shared), ROWS)


def recipe(shape: str = "encoder-decoder", attention: Any = "scaled-dot", **model: Any) -> Recipe:
    """Return a recipe of a tiny model; `attention` is one word for all roles, or a mapping of roles."""
    if isinstance(attention, str):
        attention = dict.fromkeys(("encoder", "decoder", "cross"), attention)
    configs = {role: {"name": spec} if isinstance(spec, str) else spec for role, spec in attention.items()}
    model["attention"] = schema.Roles(**{role: schema.AttentionConfig(**config) for role, config in configs.items()})
    model.setdefault("layers", schema.Layers(encoder=2, decoder=1))
    causal = shape == "decoder"
    return Recipe(
        task="language-modeling" if causal else "translation",
        data=schema.DataConfig(test="lines.jsonl", max_length=LENGTH),
        tokenizer=schema.TokenizerConfig(shared=model.pop("shared", True)),
        model=schema.ModelConfig(shape=shape, width=16, heads=2, ff=24, **model),
        train=schema.TrainConfig(objective="causal" if causal else "seq2seq"),
        search=schema.SearchConfig(beam=3, max_length=8),
    )


def build(chosen: Recipe, seed: int = 3) -> Model:
    """Return a model with random weights, including biases and norms."""
    pieces = tokenizer(chosen.tokenizer.shared)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = models.build(chosen.model, (len(pieces.source), len(pieces.target)), chosen.data.max_length)
        for weight in model.parameters():
            if weight.dim() == 1:
                weight += 0.1 * torch.randn_like(weight)
    return model.eval()


def make_decisive(model: Model) -> Model:
    """Change a model with learned positions and an untied output so that its outputs end.

    Tokens that a search bans get no probability, since libraries differ in whether they normalize over these.
    """
    with torch.no_grad():
        table, norm, positions = model.output.weight, model.decoder.norm, model.embed_target.table
        norm.bias[0] = 4.0
        positions.weight[:, 1] = torch.linspace(-1, 8, len(positions.weight))
        table *= 3
        table[:, :2] = 0.0
        table[[PAD, UNK, BOS], 0] = -10.0
        table[EOS, 1] = 5.0
    return model


def batch(chosen: Recipe, rows: int = 3, longest: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Return random sources and targets of different lengths, padded on the right."""
    pieces, generator = tokenizer(chosen.tokenizer.shared), torch.Generator().manual_seed(longest)

    def side(size: int) -> Tensor:
        ids = torch.randint(EOS + 1, size, (rows, longest), generator=generator)
        for row in range(rows):
            end = max(1, longest - 1 - 3 * row)
            ids[row, end:] = PAD
            ids[row, end - (end == longest) :][:1] = EOS
        return ids

    source, target = side(len(pieces.source)), side(len(pieces.target))
    return source, torch.cat((torch.full((rows, 1), BOS), target), 1)
