"""Tiny models of many architectures, for tests of what they are exported to."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnkit import models
from attnkit.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from attnkit.models import Model
from attnkit.recipe import Recipe
from attnkit.recipe.schema import AttentionConfig, DataConfig, Layers, ModelConfig, Roles, SearchConfig, TrainConfig
from attnkit.recipe.schema import TokenizerConfig as Pieces
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
"""Architectures of plain transformers."""


@cache
def tokenizer(shared: bool = True) -> Tokenizer:
    """One vocabulary for both sides, or two of different sizes."""
    return Tokenizer.train(Pieces(size=55, shared=shared), ROWS)


def recipe(shape: str = "encoder-decoder", attention: Any = "scaled-dot", **model: Any) -> Recipe:
    """A recipe of a tiny model; `attention` is a word for all places, or a mapping of places."""
    if isinstance(attention, str):
        attention = dict.fromkeys(("encoder", "decoder", "cross"), attention)
    chosen = {place: {"name": one} if isinstance(one, str) else one for place, one in attention.items()}
    roles = Roles(**{place: AttentionConfig(**one) for place, one in chosen.items()})
    causal = shape == "decoder"
    return Recipe(
        task="language-modeling" if causal else "translation",
        data=DataConfig(test="lines.jsonl", max_length=LENGTH),
        tokenizer=Pieces(shared=model.pop("shared", True)),
        model=ModelConfig(
            shape=shape, width=16, heads=2, ff=24, attention=roles, **{"layers": Layers(encoder=2, decoder=1), **model}
        ),
        train=TrainConfig(objective="causal" if causal else "seq2seq"),
        search=SearchConfig(beam=3, max_length=8),
    )


def build(chosen: Recipe, seed: int = 3) -> Model:
    """Random weights, biases and norms too."""
    pieces = tokenizer(chosen.tokenizer.shared)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = models.build(chosen.model, (len(pieces.source), len(pieces.target)), chosen.data.max_length)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() == 1:
                    weight += 0.1 * torch.randn_like(weight)
    return model.eval()


def make_decisive(model: Model) -> Model:
    """The same with learned positions and an output of its own, made to end what it writes.

    It never thinks of what a search bans, over which libraries normalise differently.
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
    """Sources and targets with ends, padded on the right."""
    pieces, draw = tokenizer(chosen.tokenizer.shared), torch.Generator().manual_seed(longest)

    def side(size: int, first: int | None) -> Tensor:
        ids = torch.randint(EOS + 1, size, (rows, longest), generator=draw)
        for row in range(rows):
            end = max(1, longest - 1 - 3 * row)
            ids[row, end:] = PAD
            ids[row, end - (end == longest) :][:1] = EOS
        if first is not None:
            ids = torch.cat((torch.full((rows, 1), first), ids), 1)
        return ids

    return side(len(pieces.source), None), side(len(pieces.target), BOS)
