"""The maps of many rows, a batch of one layer at a time, so that memory does not grow with them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnkit.analysis.maps import KINDS, Kind, MapLayer
from attnkit.analysis.recorder import choose_layers, describe, visited
from attnkit.data.batch import Batch, collate
from attnkit.data.batch_plan import plan
from attnkit.data.encoded import Encoded
from attnkit.data.objectives import apply_objective
from attnkit.data.rows import Row
from attnkit.data.tokenizer import PAD
from attnkit.errors import MissingInputError, NotFiniteError, UsageError
from attnkit.models.base import Model
from attnkit.runs import Run
from attnkit.scoring.teacher_forced import encode_rows

BATCH_TOKENS = 8192
"""Rows x longest side of a batch, padding included."""
BATCH_WEIGHTS = 2**23
"""Weights of one layer's maps of a batch: 32 MB."""


class LayerMaps(NamedTuple):
    """The maps of one layer for a batch of rows, as in evaluation."""

    kind: Kind
    layer: MapLayer
    heads: tuple[int, ...]
    """Numbers of the heads, from 0."""
    weights: Float[Tensor, "B H T S"]
    """Zero in the rows of pads, and in their columns."""
    visible: Bool[Tensor, "B 1 T S"]
    """The keys that the mask lets each query see; none in the rows of pads."""
    softmax: bool
    """Whether the weights are a softmax of scores."""

    @property
    def place(self) -> tuple[int, int]:
        """What layers are sorted by."""
        return KINDS.index(self.kind), self.layer.number


def encoded_for(run: Run, rows: Sequence[Row]) -> Encoded:
    """Rows as a run reads them in training.  Raises MissingInputError: there are none."""
    if not rows:
        raise MissingInputError("no rows to read")
    recipe, tokenizer = run.recipe, run.tokenizer()
    longest, stream = recipe.data.max_length, recipe.task == "language-modeling"
    encoded = encode_rows(rows, tokenizer, longest, stream=stream)
    return apply_objective(encoded, tokenizer.target, recipe.train.objective, longest)


def stream_maps(
    model: Model,
    encoded: Encoded,
    use: Callable[[LayerMaps], object],
    *,
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Read given sources and targets, and show each layer's maps of each batch to `use`.

    Args:
        model: in evaluation mode.
        encoded: rows, or the blocks of a stream.
        use: called for every batch and chosen layer, without gradients.
        kinds: which maps; all that the model has when None.
        layers, heads: numbers from 0; all when empty.
        progress: called after each batch with the rows read so far, and all rows.

    Raises:
        UsageError: the model has no attention, or no such kind, layer or head.
        NotFiniteError: the maps hold NaN or infinities.
    """
    chosen = choose_layers(model, kinds, layers, heads)
    if not chosen:
        raise UsageError(f"a {model.shape} model without attention has no maps")
    most = max(part.heads for parts, _ in chosen.values() for part in parts.values())
    lengths = None if encoded.source is None else encoded.source.lengths
    batches = plan(
        lengths, encoded.target.lengths, batch_tokens=BATCH_TOKENS, seed=0, epoch=0, shuffle=False,
        attention_budget=BATCH_WEIGHTS // most,
    )  # fmt: skip
    device, read = model.output.weight.device, 0
    for rows in batches:
        batch = collate(encoded, rows)
        with ExitStack() as hooks, torch.inference_mode():
            for kind, (parts, columns) in chosen.items():
                for number, part in parts.items():
                    layer = describe(number, part)
                    softmax = layer.exact and part.mechanism.softmax
                    show = partial(_show, use, kind, layer, columns, softmax, batch)
                    hooks.enter_context(visited(part, show))
            tensors = batch.to(device)
            model.hidden(tensors.source, tensors.input)
        read += len(rows)
        if progress is not None:
            progress(read, len(encoded))


def _show(
    use: Callable[[LayerMaps], object],
    kind: Kind,
    layer: MapLayer,
    heads: tuple[int, ...],
    softmax: bool,
    batch: Batch,
    maps: Float[Tensor, "B H T S"],
    given: dict[str, Any],
) -> None:
    """Hand on the chosen heads of a layer, with its pads set to zero."""
    if not bool(torch.isfinite(maps).all()):
        raise NotFiniteError(
            "the attention maps hold NaN or infinity: the weights are damaged; train again"
        )
    queries, keys = (real.to(maps.device) for real in _real(kind, batch, maps.shape[2]))
    pairs = queries[:, None, :, None] & keys[:, None, None, :]
    visible = given["mask"].dense() & pairs
    weights = maps[:, list(heads)].masked_fill(~pairs, 0).float()
    use(LayerMaps(kind, layer, heads, weights, visible, softmax))


def _real(kind: Kind, batch: Batch, queries: int) -> tuple[Tensor, Tensor]:
    """Which queries [B, T] and keys [B, S] are no pads."""
    source = None if batch.source is None else batch.source != PAD
    target = batch.output != PAD
    if source is not None and kind == "decoder" and queries > target.shape[1]:
        target = torch.cat((source, target), 1)  # one row of both
    if source is None or kind == "decoder":
        return target, target
    return (source if kind == "encoder" else target), source
