"""Maps of many rows, computed one layer and batch at a time, so that memory does not grow with their number."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.analysis.maps import Kind, MapLayer
from attnkit.analysis.recorder import LayerMaps, MapCallback, choose_layers, record
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
"""Maximum of rows x longest side in a batch, including padding."""
BATCH_WEIGHTS = 2**23
"""Maximum number of weights in one layer's maps of a batch: 32 MB."""

Progress = Callable[[int, int], object]
"""Called after each batch with the number of rows read so far, and the number of all rows."""


def encoded_for(run: Run, rows: Sequence[Row]) -> Encoded:
    """Encode rows as the run does in training. Raises MissingInputError if there are none."""
    if not rows:
        raise MissingInputError("no rows to read")
    recipe, tokenizer = run.recipe, run.tokenizer()
    longest, stream = recipe.data.max_length, recipe.task == "language-modeling"
    encoded = encode_rows(rows, tokenizer, longest, stream=stream)
    return apply_objective(encoded, tokenizer.target, recipe.train.objective, longest)


def stream_maps(
    model: Model, encoded: Encoded, callback: MapCallback, *, progress: Progress | None = None, **chosen: Any
) -> None:
    """Read sources and targets, and call `callback` with the maps of each batch and selected layer, without gradients.

    Weights are zero in the rows and columns of padding. The model must be in evaluation mode. `chosen` are kinds,
    layers and heads, as in `recorder.choose_layers`.

    Raises:
        UsageError: If the model has no attention, or no such kind, layer or head.
        NotFiniteError: If the maps have NaN or infinities.
    """
    parts = [part for layers, _ in choose_layers(model, **chosen).values() for part in layers.values()]
    batches = plan(
        None if encoded.source is None else encoded.source.lengths,
        encoded.target.lengths,
        batch_tokens=BATCH_TOKENS,
        seed=0,
        epoch=0,
        shuffle=False,
        attention_budget=BATCH_WEIGHTS // max(part.heads for part in parts),
    )
    device, rows_read = model.output.weight.device, 0
    for rows in batches:
        batch = collate(encoded, rows)

        def show(maps: LayerMaps, batch: Batch = batch) -> None:
            if not bool(torch.isfinite(maps.weights).all()):
                raise NotFiniteError("the attention maps hold NaN or infinity: the weights are damaged; train again")
            queries, keys = (real.to(device) for real in _not_padding(maps.kind, batch, maps.weights.shape[2]))
            pairs = queries[:, None, :, None] & keys[:, None, None, :]
            callback(maps._replace(weights=maps.weights.masked_fill(~pairs, 0).float(), visible=maps.visible & pairs))

        tensors = batch.to(device)
        with record(model, show, **chosen), torch.inference_mode():
            model.hidden(tensors.source, tensors.input)
        rows_read += len(rows)
        if progress is not None:
            progress(rows_read, len(encoded))


class LayerSums(NamedTuple):
    """Values of each head of a layer, summed over all rows."""

    kind: Kind
    layer: MapLayer
    heads: tuple[int, ...]
    softmax: bool
    sums: Float[Tensor, "N H"]


def sum_over_rows(
    model: Model, encoded: Encoded, measure: Callable[[LayerMaps], Float[Tensor, "N H"]], **options: Any
) -> list[LayerSums]:
    """Return the sums of `measure` over the maps of all batches, by layer; `options` are those of `stream_maps`."""
    found: dict[tuple[int, int], LayerSums] = {}

    def add(maps: LayerMaps) -> None:
        sums = measure(maps).double().cpu()
        if maps.place in found:
            sums = found[maps.place].sums + sums
        found[maps.place] = LayerSums(maps.kind, maps.layer, maps.heads, maps.softmax, sums)

    stream_maps(model, encoded, add, **options)
    return [found[place] for place in sorted(found)]


def _not_padding(kind: Kind, batch: Batch, queries: int) -> tuple[Tensor, Tensor]:
    """Return masks of the queries [B, T] and keys [B, S] that are not padding."""
    source = None if batch.source is None else batch.source != PAD
    target = batch.output != PAD
    if source is not None and kind == "decoder" and queries > target.shape[1]:
        target = torch.cat((source, target), 1)  # a decoder-only model reads both in one row
    if source is None or kind == "decoder":
        return target, target
    return (source if kind == "encoder" else target), source
