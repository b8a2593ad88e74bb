"""Attention weights of a Hugging Face model, layer by layer, whatever its architecture.

`output_attentions` alone does not suffice: what it returns has no layer numbers (models of mixed
layers leave some out) and is all held until the pass ends, which is too much for long texts.  The
attention functions that transformers lets one register are not used by its older models.  So a
short pass finds which module returns each of these tensors first; in the real pass a hook there
takes those of the chosen layers and drops the others at once.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from attnkit.analysis.maps import Kind
from attnkit.errors import DataError
from attnkit.huggingface import Pretrained

FIELDS: dict[str, dict[Kind, str]] = {
    "encoder-decoder": {
        "encoder": "encoder_attentions",
        "decoder": "decoder_attentions",
        "cross": "cross_attentions",
    },
    "decoder": {"decoder": "attentions"},
    "encoder": {"encoder": "attentions"},
}
"""Fields of the model's output that hold the weights of each kind, by its shape."""

NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
"""The first number in a module's name is that of its layer: decoder.block.3.layer.0."""

Inputs = dict[str, Tensor]
"""Arguments of a pass: input_ids, and decoder_input_ids."""


class WeightsSource(NamedTuple):
    """Where the weights of one layer of attention are returned first."""

    kind: Kind
    place: int
    """Among the weights of its kind that the model returns."""
    number: int
    """Of the layer, counting those without attention."""
    heads: int
    module: nn.Module | None
    """None where the model makes what it returns from other tensors."""
    slot: int
    """Index in the tuple that `module` returns."""


Chosen = dict[Kind, tuple[list[WeightsSource], list[int]]]
"""Layers and heads of each kind."""


def find_sources(model: Pretrained, inputs: Inputs) -> dict[Kind, list[WeightsSource]]:
    """The source of each layer's weights, found by the identity of tensors in a pass."""
    first: dict[int, tuple[str, nn.Module, int, Tensor]] = {}

    def listener(name: str) -> Callable[..., None]:
        def note(module: nn.Module, _: Any, output: Any) -> None:
            for slot, value in enumerate(output if isinstance(output, tuple) else ()):
                if isinstance(value, Tensor) and value.ndim == 4:
                    # the tensor is held too, so that no other gets its identity
                    first.setdefault(id(value), (name, module, slot, value))

        return note

    with _hooks((module, listener(name)) for name, module in model.model.named_modules()):
        returned = _returned(model, inputs)
    sources: dict[Kind, list[WeightsSource]] = {}
    for kind, maps in returned.items():
        found = [first.get(id(each), ("", None, 0, each)) for each in maps]
        numbers = [int(number[1]) for name, *_ in found if (number := NUMBER.search(name))]
        if sorted(set(numbers)) != numbers or len(numbers) != len(found):
            numbers = list(range(len(found)))  # by order where names do not tell
        sources[kind] = [
            WeightsSource(kind, place, number, weights.shape[1], module, slot)
            for place, (number, (_, module, slot, weights)) in enumerate(
                zip(numbers, found, strict=True)
            )
        ]
    return sources


def weights(
    model: Pretrained, inputs: Inputs, every: Sequence[WeightsSource], chosen: Chosen
) -> dict[Kind, Float[NDArray[np.float32], "L H T S"]]:
    """The maps of the chosen layers and heads in one pass; those of `every` other are dropped.

    Raises:
        DataError: a layer's weights are no matrix of queries and keys.
    """
    source = inputs["input_ids"].shape[1]
    target = inputs.get("decoder_input_ids", inputs["input_ids"]).shape[1]
    sizes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    found: dict[WeightsSource, NDArray[np.float32]] = {}
    wanted = {one: columns for some, columns in chosen.values() for one in some}

    def store(origin: WeightsSource, maps: Tensor) -> None:
        queries, keys = sizes[origin.kind]
        if maps.shape[2:] != (queries, keys):
            raise DataError(
                f"{model.name}: {origin.kind} attention gives weights of shape "
                f"{list(maps.shape[1:])}, not (heads, {queries} queries, {keys} keys): "
                f"{type(model.model).__name__} is not supported"
            )
        found[origin] = maps[0, wanted[origin]].float().cpu().numpy()

    # a module may run more than once
    queues: dict[nn.Module, deque[WeightsSource]] = defaultdict(deque)
    for origin in every:
        if origin.module is not None:
            queues[origin.module].append(origin)

    def take(module: nn.Module, _: Any, output: tuple[Any, ...]) -> tuple[Any, ...]:
        origin = queues[module].popleft()
        maps = output[origin.slot]
        if origin in wanted:
            store(origin, maps)
        empty = maps.new_empty((*maps.shape[:2], 0, 0))
        return (*output[: origin.slot], empty, *output[origin.slot + 1 :])

    # before the hooks by which the model itself collects
    with _hooks(((module, take) for module in queues), prepend=True):
        returned = _returned(model, inputs)
    for origin in wanted:
        if origin.module is None:
            store(origin, returned[origin.kind][origin.place])
    return {kind: np.stack([found[one] for one in some]) for kind, (some, _) in chosen.items()}


@contextmanager
def _hooks(
    wanted: Iterable[tuple[nn.Module, Callable[..., Any]]], prepend: bool = False
) -> Iterator[None]:
    """Forward hooks while the context lasts; `prepend`: before all others."""
    with ExitStack() as handles:
        for module, hook in wanted:
            handles.callback(module.register_forward_hook(hook, prepend=prepend).remove)
        yield


def _returned(model: Pretrained, inputs: Inputs) -> dict[Kind, list[Tensor]]:
    """One pass without language modelling head; the weights of each kind as the model has them."""
    options = {} if model.shape == "encoder" else {"use_cache": False}
    output = model.model.base_model(
        **inputs,
        attention_mask=torch.ones_like(inputs["input_ids"]),
        output_attentions=True,
        return_dict=True,
        **options,
    )
    return {
        kind: [maps for maps in output.get(field) or () if maps is not None]
        for kind, field in FIELDS[model.shape].items()
    }
