"""Recording the attention maps of a model while it reads, by hooks before every mechanism.

Beside them, where wanted, what exact softmax attention makes of the same queries and keys.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from attnkit import mechanisms
from attnkit.analysis.maps import KINDS, Kind, MapLayer, indices_of
from attnkit.attention import Attention, dot_scores, visible_softmax
from attnkit.attention.mask import Mask
from attnkit.errors import UsageError
from attnkit.layers import MultiHead


@dataclass
class RecordedLayers:
    """The layers of one kind, and their maps of the batch that was read."""

    kind: Kind
    layers: tuple[MapLayer, ...]
    heads: tuple[int, ...]
    maps: Float[NDArray[np.float32], "L B H T S"] | None = None
    """None before the pass."""
    distances: dict[int, Float[NDArray[np.float32], "B H T"]] = field(default_factory=dict)
    """By the number of the layer, where its map is effective: `half_l1_distance` from exact."""
    reference: "RecordedLayers | None" = None
    """If requested: exact softmax on the queries and keys of the layers that have both."""

    def store(self, number: int, maps: Float[Tensor, "B H T S"]) -> None:
        """Store the maps of one layer; memory for all is allocated with the first."""
        if maps.shape[1] != len(self.heads):
            maps = maps[:, list(self.heads)]
        if self.maps is None or self.maps.shape[1:] != maps.shape:
            self.maps = np.empty((len(self.layers), *maps.shape), np.float32)
        place = [layer.number for layer in self.layers].index(number)
        self.maps[place] = array(maps)


REFERENCE = "scaled-dot"
"""The mechanism of reference layers."""

ARGUMENTS = ("q", "k", "v", "mask", "state", "prior", "bias", "gates")
"""Of `Attention.forward`, in order."""

Visit = Callable[[Float[Tensor, "B H T S"], dict[str, Any]], None]
"""Called with the maps of a layer, and with the arguments of its mechanism by name."""


def attention_layers(model: nn.Module) -> dict[Kind, list[MultiHead]]:
    """The layers of attention of each kind that the model has, in order.

    Self-attention of a part whose name begins with `encoder` is the encoder's, all other
    self-attention the decoder's.
    """
    found: dict[Kind, list[MultiHead]] = {kind: [] for kind in KINDS}
    for name, part in model.named_modules():
        if isinstance(part, MultiHead):
            stack: Kind = "encoder" if name.startswith("encoder") else "decoder"
            found["cross" if part.cross else stack].append(part)
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
    """Record the maps of each layer of attention in one pass inside the context.

    The pass must read whole rows (`model(source, ids)`).  The model's output, its mode and the
    random state stay as they are; the maps are those of evaluation, in float32, without dropout.

    Args:
        model: any model made of `MultiHead` layers.
        kinds: which to record; all that the model has when None.
        layers, heads: numbers from 0; all when empty.  Only these are recorded.
        references: also record what exact softmax makes of the same queries and keys.

    Raises:
        UsageError: the model has no such kind, layer or head.
        ValueError: a pass inside continues from a state.
    """
    recorded: dict[Kind, RecordedLayers] = {}
    with ExitStack() as handles:
        for kind, (parts, columns) in choose_layers(model, kinds, layers, heads).items():
            described = tuple(describe(number, part) for number, part in parts.items())
            recorded[kind] = RecordedLayers(kind, described, columns)
            if references:
                both = [n for n, part in parts.items() if {"q", "k"} <= set(part.mechanism.uses)]
                exact = tuple(MapLayer(number, REFERENCE) for number in both)
                recorded[kind].reference = RecordedLayers(kind, exact, columns)
            for layer, part in zip(described, parts.values(), strict=True):
                handles.enter_context(visited(part, partial(_record, recorded[kind], layer)))
        yield recorded


def describe(number: int, part: MultiHead) -> MapLayer:
    """What the maps of a layer come from."""
    mechanism = part.mechanism
    word, exact = mechanisms.word_of(type(mechanism)), mechanism.map == "exact"
    return MapLayer(number, word, exact, static=set("qxkg").isdisjoint(mechanism.uses))


def choose_layers(
    model: nn.Module,
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
) -> dict[Kind, tuple[dict[int, MultiHead], tuple[int, ...]]]:
    """The chosen layers of each kind by number, and the chosen heads of each, both ascending.

    Raises:
        UsageError: the model has no such kind, layer or head.
    """
    present = attention_layers(model)
    for kind in kinds or ():
        if kind not in present:
            known = " and ".join(present) or "no"
            raise UsageError(f"--kind {kind}: this model has {known} attention only")
    chosen: dict[Kind, tuple[dict[int, MultiHead], tuple[int, ...]]] = {}
    for kind, parts in present.items():
        if kinds is None or kind in kinds:
            where = f"{kind} attention"
            rows = sorted(indices_of("layer", range(len(parts)), layers, where))
            columns = sorted(indices_of("head", range(parts[0].heads), heads, where))
            chosen[kind] = {row: parts[row] for row in rows}, tuple(columns)
    return chosen


@contextmanager
def visited(part: MultiHead, visit: Visit) -> Iterator[None]:
    """Show the maps of a layer to `visit` whenever whole rows are read inside the context.

    They are those of evaluation, without dropout; the layer's answer stays as it is.

    Raises:
        ValueError: a pass inside continues from a state.
    """

    @torch.no_grad()
    def show(mechanism: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert isinstance(mechanism, Attention)
        if not mechanism.recorded:
            return
        given = dict(zip(ARGUMENTS, args, strict=False)) | named
        if given.pop("state", None) is not None or given["v"] is None:
            raise ValueError("maps are recorded while whole rows are read, not step by step")
        visit(mechanism.weights(**given), given)

    mechanism = part.mechanism
    handle = mechanism.register_forward_pre_hook(show, with_kwargs=True)
    before, mechanism.recorded = mechanism.recorded, True
    try:
        yield
    finally:
        mechanism.recorded = before
        handle.remove()


def _record(
    recorded: RecordedLayers,
    layer: MapLayer,
    maps: Float[Tensor, "B H T S"],
    given: dict[str, Any],
) -> None:
    """Store the maps of a layer, and what is made beside them."""
    recorded.store(layer.number, maps)
    q, k = given["q"], given["k"]
    if q is None or k is None or (layer.exact and recorded.reference is None):
        return
    # of queries or keys that come in several sets the first ones
    heads = maps.shape[1]
    key_heads = min(heads, given["v"].shape[1])
    exact = exact_softmax(q[:, :heads], k[:, :key_heads], given["mask"], given.get("bias"))
    if not layer.exact:
        distances = half_l1_distance(maps, exact)[:, list(recorded.heads)]
        recorded.distances[layer.number] = array(distances)
    if recorded.reference is not None:
        recorded.reference.store(layer.number, exact)


def exact_softmax(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G S D"],
    mask: Mask,
    bias: Float[Tensor, "b H T S"] | None = None,
) -> Float[Tensor, "B H T S"]:
    """softmax(q k^T / sqrt(D) + bias) over all keys that the mask allows.

    That is all earlier tokens, or the whole sequence, also where a mechanism is sparse.  H / G
    neighbouring heads share one of keys; `bias` is that of the model's positions.
    """
    scores = dot_scores(q * q.shape[-1] ** -0.5, k)
    if bias is not None:
        scores = scores + bias
    return visible_softmax(scores, mask.dense())


def half_l1_distance(
    maps: Float[Tensor, "B H T S"], others: Float[Tensor, "B H T S"]
) -> Float[Tensor, "B H T"]:
    """Half the L1 distance of each pair of rows.

    Between distributions it is the total variation distance: 0 for equal rows, 1 for rows that
    share no key.  Effective maps may have negative entries; it may then exceed 1.
    """
    return (maps - others).abs().sum(-1) / 2


def array(x: Tensor) -> NDArray[np.float32]:
    """A tensor as float32 in main memory."""
    return cast(NDArray[np.float32], x.detach().float().cpu().numpy())
