"""Where a Hugging Face model makes its attention weights, and taking them from there.

What `output_attentions` returns has no layer numbers (models of mixed layers leave some out) and is
kept until the pass ends.  So a short pass finds which module hands on each of these tensors first;
in the real pass a hook there takes the wanted ones and drops the others at once.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from attnkit.analysis.maps import KINDS, Kind, indices_of
from attnkit.errors import DataError, UsageError
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
"""Where the output of each shape of model has the weights of each kind."""

NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
"""The first number in a module's name is that of its layer: decoder.block.3.layer.0."""

Inputs = dict[str, Tensor]
"""Arguments of a pass: input_ids, and decoder_input_ids."""


class Origin(NamedTuple):
    """A layer's attention, and where its weights are handed on first."""

    kind: Kind
    place: int
    """Among the weights of its kind that the model returns."""
    number: int
    """Of the layer, counting those without attention."""
    heads: int
    part: nn.Module | None = None
    """None where the model makes what it returns from other tensors."""
    slot: int = 0
    """Place in the tuple that `part` returns."""


Chosen = dict[Kind, tuple[list[Origin], tuple[int, ...]]]
"""Layers and heads of each kind."""


def origins(model: Pretrained, inputs: Inputs) -> dict[Kind, list[Origin]]:
    """The origin of each layer's weights, found by the identity of tensors in a pass."""
    seen: dict[int, tuple[str, nn.Module, int, Tensor]] = {}

    def listener(name: str) -> Callable[..., None]:
        def hear(part: nn.Module, _: Any, output: Any) -> None:
            for slot, value in enumerate(output if isinstance(output, tuple) else ()):
                if isinstance(value, Tensor) and value.ndim == 4:
                    # the tensor is kept too, so that no other gets its identity
                    seen.setdefault(id(value), (name, part, slot, value))

        return hear

    named = model.model.named_modules()
    with _hooks((part, listener(name), False) for name, part in named):
        returned = _returned(model, inputs)
    return {
        kind: _numbered(kind, maps, [seen.get(id(each)) for each in maps])
        for kind, maps in returned.items()
    }


def choose(
    model: Pretrained,
    made: dict[Kind, list[Origin]],
    kinds: Sequence[Kind] | None,
    layers: Sequence[int],
    heads: Sequence[int],
) -> Chosen:
    """The wanted layers and heads, in order.

    Raises:
        UsageError: one is not there, or the layers have different numbers of heads.
        DataError: the model gives no weights of a kind.
    """
    chosen: Chosen = {}
    for kind in KINDS:
        if kind not in made or (kinds is not None and kind not in kinds):
            continue
        there = made[kind]
        if not there:
            raise DataError(
                f"{model.name}: {type(model.model).__name__} gives no weights of {kind} attention, "
                "also with attn_implementation eager"
            )
        where = f"{kind} attention"
        rows = sorted(indices_of("layer", [origin.number for origin in there], layers, where))
        kept = [there[row] for row in rows]
        counts = sorted({origin.heads for origin in kept})
        if len(counts) > 1:
            raise UsageError(
                f"{where}: layers have {' or '.join(map(str, counts))} heads: choose layers with "
                "as many heads by --layer"
            )
        chosen[kind] = kept, tuple(sorted(indices_of("head", range(counts[0]), heads, where)))
    return chosen


def weights(
    model: Pretrained, inputs: Inputs, made: dict[Kind, list[Origin]], chosen: Chosen
) -> dict[Kind, Float[NDArray[np.float32], "L H T S"]]:
    """The maps of the chosen layers and heads in one pass.

    Raises:
        DataError: a layer's weights are no matrix of queries and keys.
    """
    rooms = {
        kind: _Room(model, kind, rows, columns, _sizes(inputs)[kind])
        for kind, (rows, columns) in chosen.items()
    }

    def keep(origin: Origin, maps: Tensor) -> None:
        if origin.kind in rooms:
            rooms[origin.kind].put(origin, maps)

    queues: dict[nn.Module, deque[Origin]] = {}
    for origin in (origin for rows in made.values() for origin in rows):
        if origin.part is not None:
            queues.setdefault(origin.part, deque()).append(origin)
    # before the hooks by which the model itself collects
    with _hooks((part, _taker(queue, keep), True) for part, queue in queues.items()):
        returned = _returned(model, inputs)
    for kind, (rows, _) in chosen.items():
        for origin in rows:
            if origin.part is None:
                keep(origin, returned[kind][origin.place])
    return {kind: room.maps for kind, room in rooms.items()}


class _Room:
    """The maps of one kind, filled layer by layer."""

    def __init__(
        self,
        model: Pretrained,
        kind: Kind,
        rows: Sequence[Origin],
        columns: tuple[int, ...],
        size: tuple[int, int],
    ) -> None:
        self.model, self.kind, self.columns, self.size = model, kind, columns, size
        self.rows = {origin.place: row for row, origin in enumerate(rows)}
        self.maps = np.empty((len(rows), len(columns), *size), np.float32)

    def put(self, origin: Origin, maps: Tensor) -> None:
        """Keep the maps of a layer if it is a wanted one."""
        row = self.rows.get(origin.place)
        if row is None:
            return
        if maps.shape[2:] != self.size:
            raise DataError(
                f"{self.model.name}: {self.kind} attention gives weights of shape "
                f"{list(maps.shape[1:])}, not (heads, {self.size[0]} queries, {self.size[1]} keys):"
                f" {type(self.model.model).__name__} is not supported"
            )
        taken = maps[0] if len(self.columns) == maps.shape[1] else maps[0, list(self.columns)]
        self.maps[row] = taken.float().cpu().numpy()


def _sizes(inputs: Inputs) -> dict[Kind, tuple[int, int]]:
    """Queries and keys of each kind."""
    source = inputs["input_ids"].shape[1]
    target = inputs["decoder_input_ids"].shape[1] if "decoder_input_ids" in inputs else source
    return {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}


def _taker(queue: deque[Origin], keep: Callable[[Origin, Tensor], None]) -> Callable[..., Any]:
    """A hook that takes the weights out of what a module returns; it may run more than once."""

    def take(_: nn.Module, __: Any, output: tuple[Any, ...]) -> tuple[Any, ...]:
        origin = queue.popleft()
        maps = output[origin.slot]
        keep(origin, maps)
        empty = maps.new_empty((*maps.shape[:2], 0, 0))
        return (*output[: origin.slot], empty, *output[origin.slot + 1 :])

    return take


@contextmanager
def _hooks(wanted: Any) -> Iterator[None]:
    """Forward hooks (module, function, whether before all others) for a while."""
    handles = []
    try:
        for part, hook, prepend in wanted:
            handles.append(part.register_forward_hook(hook, prepend=prepend))
        yield
    finally:
        for handle in handles:
            handle.remove()


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


def _numbered(
    kind: Kind,
    maps: Sequence[Tensor],
    seen: Sequence[tuple[str, nn.Module, int, Tensor] | None],
) -> list[Origin]:
    """Layers by the numbers in their modules' names, or where these do not tell by order."""
    found = [NUMBER.search(each[0]) if each is not None else None for each in seen]
    numbers = [int(number[1]) for number in found if number is not None]
    if len(numbers) < len(maps) or sorted(set(numbers)) != numbers:
        numbers = list(range(len(maps)))
    made = []
    for index, (number, each) in enumerate(zip(numbers, seen, strict=True)):
        origin = Origin(kind, index, number, maps[index].shape[1])
        if each is not None:
            origin = origin._replace(part=each[1], slot=each[2])
        made.append(origin)
    return made
