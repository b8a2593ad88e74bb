"""Small models and runs whose attention maps are recorded."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnkit import mechanisms, models
from attnkit.analysis.recorder import LayerMaps, record
from attnkit.attention import Attention
from attnkit.layers import MultiHead
from attnkit.models import Model
from attnkit.recipe import Recipe, schema
from attnkit.runs import Run
from helpers.trained import LENGTH, tokenizer

PARTS = {"parts": ("scaled-dot", "synthesizer-random")}
SHAPES = {"encoder": "encoder-decoder", "decoder": "decoder", "cross": "encoder-decoder"}


class MechanismCall(NamedTuple):
    """What a mechanism was given and answered."""

    v: Tensor
    y: Tensor


def cases() -> Iterator[tuple[str, str]]:
    """Every mechanism in every role that it can have: (word, role)."""
    for word in mechanisms.names():
        known = mechanisms.resolve_capabilities(word, PARTS if mechanisms.facts(word).composite else {})
        if known.encoder:
            yield word, "encoder"
        if known.causal:
            yield word, "decoder"
        if known.cross:
            yield word, "cross"


def build_layer(word: str, role: str) -> MultiHead:
    """One layer as in `build`, which takes less time to make."""
    parts = PARTS if mechanisms.facts(word).composite else {}
    return MultiHead.build(word, 16, 4, LENGTH, role == "cross", causal=role == "decoder", **parts)


def attention_config(word: str, options: Mapping[str, Any] | None = None) -> schema.AttentionConfig:
    """A mechanism as a recipe names it."""
    given = dict(PARTS if mechanisms.facts(word).composite else {}) | dict(options or {})
    return schema.AttentionConfig(name=word, **given)


def model_config(
    word: str = "scaled-dot",
    role: str = "cross",
    options: Mapping[str, Any] | None = None,
    shape: str | None = None,
    **more: Any,
) -> schema.ModelConfig:
    """The model section with a mechanism in one role and scaled dot in the others."""
    layers = schema.Layers(encoder=2, decoder=2)
    roles = schema.Roles(**{role: attention_config(word, options)})
    sizes: dict[str, Any] = {"width": 16, "heads": 4, "ff": 16, "layers": layers}
    return schema.ModelConfig(shape=shape or SHAPES[role], attention=roles, **sizes | more)


def build(section: schema.ModelConfig, seed: int = 1, length: int = LENGTH) -> Model:
    """A model with weights that are not symmetric, in evaluation mode."""
    sizes = (len(tokenizer().source), len(tokenizer().target))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = models.build(section, sizes, length)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def save_run(
    folder: Path, section: schema.ModelConfig, task: str = "translation", special: tuple[str, ...] = ()
) -> Run:
    """A finished run of such a model, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    causal = task == "language-modeling"
    recipe = Recipe(
        task=task,
        data=schema.DataConfig(test="none.jsonl", max_length=LENGTH),
        tokenizer=schema.TokenizerConfig(special=special),
        model=section,
        train=schema.TrainConfig(objective="causal" if causal else "seq2seq"),
        search=schema.SearchConfig(beam=3, max_length=8),
    )
    run = Run.create(folder / "run", recipe, name="toy", variant="base", seed=1)
    run.write_tokenizer(tokenizer())
    run.finish(build(section).state_dict(), step=7, seconds=1.0, reason="steps")
    return run


@contextmanager
def record_maps(model: nn.Module, **chosen: Any) -> Iterator[dict[str, list[LayerMaps]]]:
    """The maps of each layer in a pass inside, by kind."""
    found: dict[str, list[LayerMaps]] = defaultdict(list)
    with record(model, lambda maps: found[maps.kind].append(maps), **chosen):
        yield found


def stack_weights(layers: list[LayerMaps]) -> Tensor:
    """The maps of layers [L, B, H, T, S]."""
    return torch.stack([one.weights for one in layers])


def record_mechanisms(model: nn.Module) -> dict[str, list[MechanismCall]]:
    """Listens to every mechanism from now on; values and answers by the name of the layer."""
    found: dict[str, list[MechanismCall]] = {}

    def listen(name: str, mechanism: Attention) -> None:
        plain = mechanism.forward

        def forward(q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> Any:
            out = plain(q, k, v, *rest, **named)
            found.setdefault(name, []).append(MechanismCall(v, out.y))
            return out

        mechanism.forward = forward  # type: ignore[method-assign]

    for name, part in model.named_modules():
        if isinstance(part, MultiHead):
            listen(name, part.mechanism)
    return found
