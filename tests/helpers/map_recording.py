"""Small models and runs, and the recording of their attention maps."""

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

SHAPES = {"encoder": "encoder-decoder", "decoder": "decoder", "cross": "encoder-decoder"}


class MechanismCall(NamedTuple):
    """Values and output of one call of a mechanism."""

    v: Tensor
    y: Tensor


def _parts(word: str) -> dict[str, Any]:
    """Return the required option of composite mechanisms."""
    return {"parts": ("scaled-dot", "synthesizer-random")} if mechanisms.facts(word).composite else {}


def cases() -> Iterator[tuple[str, str]]:
    """Yield every mechanism in every role that it supports: (word, role)."""
    for word in mechanisms.names():
        known = mechanisms.resolve_capabilities(word, _parts(word))
        if known.encoder:
            yield word, "encoder"
        if known.causal:
            yield word, "decoder"
        if known.cross:
            yield word, "cross"


def build_layer(word: str, role: str) -> MultiHead:
    """Return one layer as in `build`, which is faster to create."""
    return MultiHead.build(word, 16, 4, LENGTH, role == "cross", causal=role == "decoder", **_parts(word))


def attention_config(word: str, options: Mapping[str, Any] | None = None) -> schema.AttentionConfig:
    """Return a mechanism as in a recipe."""
    return schema.AttentionConfig(name=word, **_parts(word) | dict(options or {}))


def model_config(
    word: str = "scaled-dot",
    role: str = "cross",
    options: Mapping[str, Any] | None = None,
    shape: str | None = None,
    **more: Any,
) -> schema.ModelConfig:
    """Return the model section with a mechanism in one role and scaled dot in the others."""
    layers = schema.Layers(encoder=2, decoder=2)
    roles = schema.Roles(**{role: attention_config(word, options)})
    sizes: dict[str, Any] = {"width": 16, "heads": 4, "ff": 16, "layers": layers}
    return schema.ModelConfig(shape=shape or SHAPES[role], attention=roles, **sizes | more)


def build(section: schema.ModelConfig, seed: int = 1, length: int = LENGTH) -> Model:
    """Return a model in evaluation mode; random numbers are added to all weights, so that none are alike."""
    sizes = (len(tokenizer().source), len(tokenizer().target))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = models.build(section, sizes, length)
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def save_run(
    folder: Path, section: schema.ModelConfig, task: str = "translation", special: tuple[str, ...] = ()
) -> Run:
    """Create a finished run of such a model in folder/run."""
    folder.mkdir(exist_ok=True)
    recipe = Recipe(
        task=task,
        data=schema.DataConfig(test="none.jsonl", max_length=LENGTH),
        tokenizer=schema.TokenizerConfig(special=special),
        model=section,
        train=schema.TrainConfig(objective="causal" if task == "language-modeling" else "seq2seq"),
        search=schema.SearchConfig(beam=3, max_length=8),
    )
    run = Run.create(folder / "run", recipe, name="toy", variant="base", seed=1)
    run.write_tokenizer(tokenizer())
    run.finish(build(section).state_dict(), step=7, seconds=1.0, reason="steps")
    return run


@contextmanager
def record_maps(model: nn.Module, **options: Any) -> Iterator[dict[str, list[LayerMaps]]]:
    """Record the maps of each layer in passes inside the context, by kind."""
    recorded: dict[str, list[LayerMaps]] = defaultdict(list)
    with record(model, lambda maps: recorded[maps.kind].append(maps), **options):
        yield recorded


def stack_weights(layers: list[LayerMaps]) -> Tensor:
    """Stack the maps of layers: [L, B, H, T, S]."""
    return torch.stack([maps.weights for maps in layers])


def record_mechanisms(model: nn.Module) -> dict[str, list[MechanismCall]]:
    """Record all further calls of mechanisms by the name of the layer."""
    calls: dict[str, list[MechanismCall]] = defaultdict(list)

    def listen(name: str, mechanism: Attention) -> None:
        plain = mechanism.forward

        def forward(q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> Any:
            out = plain(q, k, v, *rest, **named)
            calls[name].append(MechanismCall(v, out.y))
            return out

        mechanism.forward = forward  # type: ignore[method-assign]

    for name, part in model.named_modules():
        if isinstance(part, MultiHead):
            listen(name, part.mechanism)
    return calls
