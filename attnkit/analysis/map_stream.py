"""The maps of many rows, a batch of one layer at a time, so that memory does not grow with them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.analysis.maps import Kind, MapLayer
from attnkit.analysis.recorder import LayerMaps, Use, choose_layers, record
from attnkit.data.batch import Batch, collate, plan
from attnkit.data.encoded import Encoded
from attnkit.data.objectives import apply_objective
from attnkit.data.rows import Row
from attnkit.data.tokenizer import PAD
from attnkit.errors import MissingInputError, NotFiniteError
from attnkit.models.base import Model
from attnkit.runs import Run
from attnkit.scoring.teacher_forced import encode_rows

BATCH_TOKENS = 8192
"""Rows x longest side of a batch, padding included."""
BATCH_WEIGHTS = 2**23
"""Weights of one layer's maps of a batch: 32 MB."""

Progress = Callable[[int, int], object]
"""Called after each batch with the rows read so far, and all rows."""


def encoded_for(run: Run, rows: Sequence[Row]) -> Encoded:
    """Rows as a run reads them in training.  Raises MissingInputError: there are none."""
    if not rows:
        raise MissingInputError("no rows to read")
    recipe, tokenizer = run.recipe, run.tokenizer()
    longest, stream = recipe.data.max_length, recipe.task == "language-modeling"
    encoded = encode_rows(rows, tokenizer, longest, stream=stream)
    return apply_objective(encoded, tokenizer.target, recipe.train.objective, longest)


def stream_maps(model: Model, encoded: Encoded, use: Use, *, progress: Progress | None = None, **chosen: Any) -> None:
    """Read given sources and targets, and show each layer's maps of each batch to `use`.

    Weights are zero in the rows of pads and in their columns, which nobody sees.

    Args:
        model: in evaluation mode.
        encoded: rows, or the blocks of a stream.
        use: called for every batch and chosen layer, without gradients.
        progress: see `Progress`.
        chosen: kinds, layers and heads, as in `recorder.choose_layers`.

    Raises:
        UsageError: the model has no attention, or no such kind, layer or head.
        NotFiniteError: the maps hold NaN or infinities.
    """
    parts = [part for some, _ in choose_layers(model, **chosen).values() for part in some.values()]
    batches = plan(
        None if encoded.source is None else encoded.source.lengths,
        encoded.target.lengths,
        batch_tokens=BATCH_TOKENS,
        seed=0,
        epoch=0,
        shuffle=False,
        attention_budget=BATCH_WEIGHTS // max(part.heads for part in parts),
    )
    device, read = model.output.weight.device, 0
    for rows in batches:
        batch = collate(encoded, rows)

        def show(maps: LayerMaps, batch: Batch = batch) -> None:
            if not bool(torch.isfinite(maps.weights).all()):
                raise NotFiniteError("the attention maps hold NaN or infinity: the weights are damaged; train again")
            queries, keys = (real.to(device) for real in _real(maps.kind, batch, maps.weights.shape[2]))
            pairs = queries[:, None, :, None] & keys[:, None, None, :]
            use(maps._replace(weights=maps.weights.masked_fill(~pairs, 0).float(), visible=maps.visible & pairs))

        tensors = batch.to(device)
        with record(model, show, **chosen), torch.inference_mode():
            model.hidden(tensors.source, tensors.input)
        read += len(rows)
        if progress is not None:
            progress(read, len(encoded))


class LayerSums(NamedTuple):
    """Numbers of each head of a layer, summed over all rows."""

    kind: Kind
    layer: MapLayer
    heads: tuple[int, ...]
    softmax: bool
    sums: Float[Tensor, "N H"]


def sum_over_rows(
    model: Model, encoded: Encoded, measure: Callable[[LayerMaps], Float[Tensor, "N H"]], **how: Any
) -> list[LayerSums]:
    """What `measure` finds in the maps of each batch, added up, layer by layer.

    `how` are further arguments of `stream_maps`.
    """
    found: dict[tuple[int, int], LayerSums] = {}

    def add(maps: LayerMaps) -> None:
        sums = measure(maps).double().cpu()
        if maps.place in found:
            sums = found[maps.place].sums + sums
        found[maps.place] = LayerSums(maps.kind, maps.layer, maps.heads, maps.softmax, sums)

    stream_maps(model, encoded, add, **how)
    return [found[place] for place in sorted(found)]


def _real(kind: Kind, batch: Batch, queries: int) -> tuple[Tensor, Tensor]:
    """Which queries [B, T] and keys [B, S] are no pads."""
    source = None if batch.source is None else batch.source != PAD
    target = batch.output != PAD
    if source is not None and kind == "decoder" and queries > target.shape[1]:
        target = torch.cat((source, target), 1)  # one row of both
    if source is None or kind == "decoder":
        return target, target
    return (source if kind == "encoder" else target), source
