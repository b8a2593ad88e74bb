"""Recording the attention maps of a model while it reads, by hooks before every mechanism."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from attnkit import mechanisms
from attnkit.analysis.maps import KINDS, Kind, MapLayer, places
from attnkit.analysis.softmax_distance import distance, reference
from attnkit.attention import Attention
from attnkit.attention.mask import Mask
from attnkit.errors import UsageError
from attnkit.layers import MultiHead


@dataclass
class RecordedLayers:
    """The layers of one kind, and what they made of the batch that was read."""

    kind: Kind
    layers: tuple[MapLayer, ...]
    heads: tuple[int, ...]
    maps: Float[NDArray[np.float32], "L B H T S"] | None = None
    """None before the pass."""
    distances: dict[int, Float[NDArray[np.float32], "B H T"]] = field(default_factory=dict)
    """By the number of the layer, where its map is effective: how far each row is from exact."""
    reference: "RecordedLayers | None" = None
    """Where asked for: exact softmax on the queries and keys of the layers that have both."""

    def put(self, number: int, maps: Float[Tensor, "B H T S"]) -> None:
        """Keep the maps of one layer; room for all comes with the first."""
        if maps.shape[1] != len(self.heads):
            maps = maps[:, list(self.heads)]
        if self.maps is None or self.maps.shape[1:] != maps.shape:
            self.maps = np.empty((len(self.layers), *maps.shape), np.float32)
        place = [layer.number for layer in self.layers].index(number)
        self.maps[place] = array(maps)


class Call(NamedTuple):
    """The arguments of `Attention.forward`."""

    q: Float[Tensor, "B H T D"] | None
    k: Float[Tensor, "B H S D"] | None
    v: Float[Tensor, "B H S E"] | None
    mask: Mask
    state: Any = None
    prior: Float[Tensor, "B H T S"] | None = None
    bias: Float[Tensor, "b H T S"] | None = None
    gates: Float[Tensor, "B H T n"] | None = None


REFERENCE = "scaled-dot"
"""What the layers of a reference are."""

Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]


def stacks(model: nn.Module) -> dict[Kind, list[MultiHead]]:
    """The layers of attention of each kind that the model has, in order.

    Self-attention of a part whose name begins with `encoder` is the encoder's, all other
    self-attention the decoder's.
    """
    found: dict[Kind, list[MultiHead]] = {kind: [] for kind in KINDS}
    for name, part in model.named_modules():
        if isinstance(part, MultiHead):
            own: Kind = "encoder" if name.startswith("encoder") else "decoder"
            found["cross" if part.cross else own].append(part)
    return {kind: layers for kind, layers in found.items() if layers}


@contextmanager
def record(
    model: nn.Module,
    *,
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    references: bool = False,
) -> Iterator[dict[Kind, RecordedLayers]]:
    """Record what each layer of attention does in the one pass that is made inside.

    The pass must read whole rows (`model(source, ids)`).  What the model answers, its mode and the
    random state stay as they are; the maps are those of evaluation, in float32, without dropout.

    Args:
        model: any model made of `MultiHead` layers.
        kinds: which to record; all that the model has when None.
        layers, heads: numbers from 0; all when empty.  Only these are kept.
        references: also keep what exact softmax makes of the same queries and keys.

    Raises:
        UsageError: the model has no such kind, layer or head.
        ValueError: a pass inside goes on from a state.
    """
    there = stacks(model)
    recorded = {
        kind: _stack(kind, there[kind], layers, heads, references) for kind in _kinds(there, kinds)
    }
    handles = []
    try:
        for kind, stack in recorded.items():
            for layer in stack.layers:
                hook = _hook(stack, layer)
                mechanism = there[kind][layer.number].mechanism
                handles.append(mechanism.register_forward_pre_hook(hook, with_kwargs=True))
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def _kinds(there: dict[Kind, list[MultiHead]], wanted: Sequence[Kind] | None) -> list[Kind]:
    """The kinds to record, in the order of KINDS."""
    for kind in wanted or ():
        if kind not in there:
            known = " and ".join(there) or "no"
            raise UsageError(f"--kind {kind}: this model has {known} attention only")
    return [kind for kind in there if wanted is None or kind in wanted]


def _stack(
    kind: Kind,
    parts: Sequence[MultiHead],
    layers: Sequence[int],
    heads: Sequence[int],
    references: bool,
) -> RecordedLayers:
    """Room for the maps of the chosen layers and heads."""
    where = f"{kind} attention"
    rows = sorted(places("layer", range(len(parts)), layers, where))
    columns = tuple(sorted(places("head", range(parts[0].heads), heads, where)))
    stack = RecordedLayers(kind, tuple(_described(row, parts[row]) for row in rows), columns)
    if references:
        both = [row for row in rows if {"q", "k"} <= set(parts[row].mechanism.uses)]
        stack.reference = RecordedLayers(
            kind, tuple(MapLayer(row, REFERENCE) for row in both), columns
        )
    return stack


def _described(number: int, part: MultiHead) -> MapLayer:
    """What is known of a layer before it runs."""
    mechanism = part.mechanism
    return MapLayer(
        number,
        mechanisms.word_of(type(mechanism)),
        exact=mechanism.map == "exact",
        static=set("qxkg").isdisjoint(mechanism.uses),
    )


def _hook(stack: RecordedLayers, layer: MapLayer) -> Hook:
    """What runs before a mechanism does."""

    @torch.no_grad()
    def hear(mechanism: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert isinstance(mechanism, Attention)
        call = Call(*args, **named)
        if call.state is not None or call.v is None:
            raise ValueError("maps are recorded while whole rows are read, not step by step")
        q, k = call.q, call.k
        maps = mechanism.weights(q, k, call.v, call.mask, call.prior, call.bias, call.gates)
        stack.put(layer.number, maps)
        if q is None or k is None or (layer.exact and stack.reference is None):
            return
        exact = reference(q, k, call.mask, call.bias)
        if not layer.exact:
            far = distance(maps, exact)[:, list(stack.heads)]
            stack.distances[layer.number] = array(far)
        if stack.reference is not None:
            stack.reference.put(layer.number, exact)

    return hear


def array(x: Tensor) -> NDArray[np.float32]:
    """A tensor as float32 in main memory."""
    values: NDArray[np.float32] = x.detach().float().cpu().numpy()
    return values
