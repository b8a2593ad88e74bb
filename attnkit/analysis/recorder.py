"""Recording of the attention maps of a model while it reads, by forward pre-hooks on its mechanisms."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnkit import mechanisms
from attnkit.analysis.maps import KINDS, Kind, MapLayer, choose_indices
from attnkit.attention import Attention, dot_scores, visible_softmax
from attnkit.attention.mask import Mask
from attnkit.errors import UsageError
from attnkit.layers import MultiHead

ARGUMENTS = ("q", "k", "v", "mask", "state", "prior", "bias", "gates")
"""Parameters of `Attention.forward`, in order."""


class LayerMaps(NamedTuple):
    """Maps of one layer for the rows of a pass, as in evaluation."""

    kind: Kind
    layer: MapLayer
    heads: tuple[int, ...]
    weights: Float[Tensor, "B H T S"]
    visible: Bool[Tensor, "B 1 T S"]
    """Keys that each query may attend to by the mask."""
    part: MultiHead
    arguments: dict[str, Any]
    """Arguments of the mechanism by name."""

    @property
    def place(self) -> tuple[int, int]:
        """Sort key of layers."""
        return KINDS.index(self.kind), self.layer.number

    @property
    def softmax(self) -> bool:
        """Whether the weights are a softmax of scores."""
        return self.layer.exact and self.part.mechanism.softmax

    def exact(self) -> Float[Tensor, "B H T S"] | None:
        """Return exact softmax on the same queries and keys; None if the layer lacks either."""
        q, k = self.arguments["q"], self.arguments["k"]
        if q is None or k is None:
            return None
        # the first set, if queries or keys come in several sets
        heads, key_heads = self.part.heads, min(self.part.heads, self.arguments["v"].shape[1])
        mask, bias = self.arguments["mask"], self.arguments.get("bias")
        return exact_softmax(q[:, :heads], k[:, :key_heads], mask, bias)[:, list(self.heads)]


MapCallback = Callable[[LayerMaps], object]


def attention_layers(model: nn.Module) -> dict[Kind, list[MultiHead]]:
    """Return the attention layers of each kind that the model has, in order.

    Self-attention belongs to the encoder if the module's name begins with `encoder`, otherwise to the decoder.
    """
    found: dict[Kind, list[MultiHead]] = {kind: [] for kind in KINDS}
    for name, part in model.named_modules():
        if isinstance(part, MultiHead):
            stack: Kind = "encoder" if name.startswith("encoder") else "decoder"
            found["cross" if part.cross else stack].append(part)
    return {kind: layers for kind, layers in found.items() if layers}


def describe(number: int, part: MultiHead) -> MapLayer:
    """Return the origin of the maps of a layer."""
    mechanism = part.mechanism
    name, exact = mechanisms.word_of(type(mechanism)), mechanism.map == "exact"
    return MapLayer(number, name, exact, static=set("qxkg").isdisjoint(mechanism.uses))


def choose_layers(
    model: nn.Module, kinds: Sequence[Kind] | None = None, layers: Sequence[int] = (), heads: Sequence[int] = ()
) -> dict[Kind, tuple[dict[int, MultiHead], tuple[int, ...]]]:
    """Return the selected layers by number and the selected heads of each kind, ascending; None or empty selects all.

    Raises UsageError if the model has no attention, or no such kind, layer or head.
    """
    present = attention_layers(model)
    if not present:
        raise UsageError("this model has no attention")
    for kind in kinds or ():
        if kind not in present:
            raise UsageError(f"--kind {kind}: this model has {' and '.join(present)} attention only")
    chosen: dict[Kind, tuple[dict[int, MultiHead], tuple[int, ...]]] = {}
    for kind, parts in present.items():
        if kinds is None or kind in kinds:
            numbers, columns_of = range(len(parts)), range(parts[0].heads)
            rows, columns = choose_indices(kind, numbers, columns_of, layers, heads)
            chosen[kind] = {row: parts[row] for row in rows}, tuple(columns)
    return chosen


@contextmanager
def record(model: nn.Module, callback: MapCallback, **chosen: Any) -> Iterator[None]:
    """Call `callback` with the maps of each selected layer whenever whole rows are read inside the context.

    The model's output, its mode and the random state are unchanged; maps are those of evaluation, without dropout.
    `chosen` are kinds, layers and heads, as in `choose_layers`. Raises ValueError if a pass inside continues from a
    state.
    """
    with ExitStack() as cleanup:
        for kind, (parts, columns) in choose_layers(model, **chosen).items():
            for number, part in parts.items():
                hook = partial(_hook, callback, kind, describe(number, part), columns, part)
                cleanup.callback(part.mechanism.register_forward_pre_hook(hook, with_kwargs=True).remove)
                cleanup.callback(setattr, part.mechanism, "recorded", part.mechanism.recorded)
                part.mechanism.recorded = True
        yield


@torch.no_grad()
def _hook(
    callback: MapCallback,
    kind: Kind,
    layer: MapLayer,
    heads: tuple[int, ...],
    part: MultiHead,
    mechanism: Attention,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Compute the maps of one layer, as its hook."""
    if not mechanism.recorded:
        return
    arguments = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
    if arguments.pop("state", None) is not None or arguments["v"] is None:
        raise ValueError("maps are recorded while whole rows are read, not step by step")
    maps = mechanism.weights(**arguments)
    maps = maps if len(heads) == maps.shape[1] else maps[:, list(heads)]
    callback(LayerMaps(kind, layer, heads, maps, arguments["mask"].dense(), part, arguments))


def exact_softmax(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G S D"], mask: Mask, bias: Float[Tensor, "b H T S"] | None = None
) -> Float[Tensor, "B H T S"]:
    """Return softmax(q k^T / sqrt(D) + bias) over all keys that the mask allows.

    These are all earlier tokens, or the whole sequence, even if the mechanism is sparse. H / G neighboring heads share
    a head of keys; `bias` is that of the model's positions.
    """
    scores = dot_scores(q * q.shape[-1] ** -0.5, k)
    if bias is not None:
        scores = scores + bias
    return visible_softmax(scores, mask.dense())


def half_l1_distance(maps: Float[Tensor, "B H T S"], others: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T"]:
    """Return half the L1 distance of rows: total variation of distributions (0 to 1), more if weights are negative."""
    return (maps - others).abs().sum(-1) / 2
