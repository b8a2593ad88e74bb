"""Small models as readers of contexts, and their logits without merging."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from attnkit import mechanisms, models
from attnkit.models import Model
from attnkit.nbce.reader import ContextReader, PromptRow
from attnkit.nbce.run_reader import EncoderDecoderReader, LanguageModelReader
from attnkit.recipe import schema
from helpers.model_types import BASELINES
from helpers.trained import tokenizer

SIZE = len(tokenizer().target)


def _variants() -> dict[str, dict[str, object]]:
    """Return model options: each kind of positions, and each causal mechanism in all roles that it supports."""
    positions = ("sinusoidal", "learned", "rope", "alibi", "relative", "none")
    variants: dict[str, dict[str, object]] = {name: {"positions": name} for name in positions}
    for word in mechanisms.names():
        facts = mechanisms.facts(word)
        if facts.causal and not (facts.cross and facts.composite):
            roles = ("encoder", "decoder", "cross") if facts.cross else ("decoder",)
            variants[word] = {"attention": {role: {"name": word} for role in roles}}
    return variants


VARIANTS = _variants()


@cache
def model(shape: str, variant: str) -> Model:
    torch.manual_seed(3)
    sizes = {"width": 16, "ff": 24, "heads": 4, "layers": {"encoder": 2, "decoder": 2}}
    options = (VARIANTS | BASELINES)[variant]
    spec = schema.ModelConfig.model_validate(sizes | {"shape": shape} | options)
    return models.build(spec, (SIZE, SIZE), 120).double().eval()


def reader(shape: str = "decoder", variant: str = "rope") -> ContextReader:
    if shape == "decoder":
        return LanguageModelReader(model(shape, variant), tokenizer(), "toy")
    return EncoderDecoderReader(model(shape, variant), tokenizer(), "toy", 120)


def unmerged_logits(chosen: ContextReader, row: PromptRow, output: Sequence[int]) -> Tensor:
    """Return the logits [V] after a row and some output, from one pass over that row alone."""
    inner = chosen.model  # type: ignore[attr-defined]
    with torch.no_grad():
        if inner.shape == "decoder":
            return inner(None, torch.tensor([[*row.head, *row.tail, *output]]))[0, -1]
        return inner(torch.tensor([row.head]), torch.tensor([[*row.tail, *output]]))[0, -1]
