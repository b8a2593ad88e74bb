"""The cost of a recipe before training: parameters, memory, padding, time.

The cost is measured: parameters are counted, memory is scaled from a few rows, padding follows from the plan of the
first epoch, and time from actual updates.
"""

import hashlib
import json
import platform
from collections.abc import Sequence
from itertools import islice
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from attnkit import models
from attnkit.data.batch import Plan, Rows, collate, padding_share
from attnkit.data.preparation import PreparedData
from attnkit.device import clock
from attnkit.layers import MultiHead
from attnkit.models.precision import DTYPES
from attnkit.recipe import Recipe
from attnkit.storage.cache import cache_dir, read_note, write_note
from attnkit.train.batch_stream import BatchStream, score_budget
from attnkit.train.loss import LossOptions
from attnkit.train.optimizer import optimizer
from attnkit.train.precision import GradientWorker

PACE_REPEATS, PRECISION_REPEATS = 1, 5
FEW_ROWS = (2, 4)
"""Batch sizes of two forward passes, whose difference is the memory per row."""
ROW_LENGTH = 32
"""Assumed number of tokens in a row when there is no data."""


class Parameters(NamedTuple):
    """Numbers of trained parameters; tied matrices count once."""

    total: int
    embeddings: int
    """Vocabulary tables, the output matrix included."""
    attention: int


class BatchShape(NamedTuple):
    """Sizes of one batch."""

    rows: int
    source: int
    """Maximum source length in tokens; 0 without a source."""
    target: int


class Padding(NamedTuple):
    """Number of updates and share of padding in the batches of the first epoch."""

    updates: float
    """Number of updates in one epoch."""
    epochs: float
    """Number of epochs in the recipe's steps."""
    source: float | None
    """Share of padding among source tokens; None without a source."""
    target: float


class Pace(NamedTuple):
    """Measured speed of updates on this machine, without validation and decoding."""

    precision: str
    seconds: float
    """Time of one update of average size."""
    tokens_per_second: float
    """Target tokens, pads excluded."""
    training: float
    """Time of a whole training (one seed) in seconds."""
    threads: int = 1


class Cost(NamedTuple):
    """Cost of one variant; None for values that were not measured."""

    parameters: Parameters
    memory: int  # bytes
    padding: Padding | None = None
    pace: Pace | None = None


def cost_of(
    recipe: Recipe, prepared: PreparedData | None = None, device: str = "cpu", auto: str | None = None
) -> Cost:
    """Return the cost of a recipe; without the data, only parameters and memory.

    Count-based models are not timed. For `auto` see `pace`.
    """
    if prepared is None:
        sizes, length = (recipe.tokenizer.size,) * 2, min(ROW_LENGTH, recipe.data.max_length)
        rows = max(1, recipe.train.batch_tokens // length)
        shape = BatchShape(rows, 0 if recipe.prompts else length, length)
        return Cost(parameters(recipe, sizes), memory(recipe, sizes, shape))
    return Cost(
        parameters(recipe, prepared.tokenizer.sizes),
        largest_memory(recipe, prepared),
        padding(recipe, prepared),
        None if recipe.model.count_based else pace(recipe, prepared, device, auto),
    )


def parameters(recipe: Recipe, sizes: tuple[int, int]) -> Parameters:
    """Count the parameters of a model for these vocabulary sizes (source, target)."""
    with torch.device("meta"):
        model = models.build_for(recipe, sizes)
    if isinstance(model, models.CountedModel):
        return Parameters(model.numbers, 0, 0)
    tables, attention = {model.output.weight}, set[Tensor]()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            tables |= {*module.parameters()}
        elif isinstance(module, MultiHead):
            attention |= {*module.parameters()}
    return Parameters(*(sum(p.numel() for p in ps) for ps in (model.parameters(), tables, attention)))


def memory(recipe: Recipe, sizes: tuple[int, int], shape: BatchShape) -> int:
    """Return the bytes of memory that training needs at the end of the forward pass of a batch of this shape.

    These are weights, their copies and averages, gradients, optimizer state and activations; the activations of a few
    rows of that length are measured and scaled to the rows of the batch. `precision: auto` counts as fp32, which needs
    the most. A process is larger: glibc keeps freed blocks, 1.7 times the live ones in a measured case.
    """
    if recipe.model.count_based:  # tables, their copy for validation, and counts; trigram counts are not included
        counts = max(shape.rows * shape.target * sizes[1], 8 * sizes[1] ** 2)
        return 4 * (2 * parameters(recipe, sizes).total + counts)
    train = recipe.train
    dtype = DTYPES["fp32" if train.precision == "auto" else train.precision]
    with torch.random.fork_rng(devices=[]):
        model = models.build_for(recipe, sizes).to(dtype)
        small, large = (_saved_for_backward(model, shape._replace(rows=rows)) for rows in FEW_ROWS)
    per_row = (large - small) / (FEW_ROWS[1] - FEW_ROWS[0])
    # the fused loss stores the gradients of both its arguments, that of the weight in float32
    activations = round(small + (shape.rows - FEW_ROWS[0]) * per_row) + 4 * model.output.weight.numel()
    # full copies of the weights: for validation, moving average, best weights, weights to be averaged
    averaged = train.average if train.average > 1 else 0
    copies = 1 + (train.ema > 0) + (train.choose == "best") + averaged
    copies += dtype != torch.float32  # 16-bit copies of weights and gradients
    # float32 bytes of: weights, gradients, the two moments of Adam, and the copies
    return 4 * sum(p.numel() for p in model.parameters()) * (4 + copies) + activations


def largest_memory(recipe: Recipe, prepared: PreparedData) -> int:
    """Return `memory` of the batch with the most tokens or the largest attention matrices, whichever is larger."""
    shapes = {_shape(prepared, rows): None for rows in batches(recipe, prepared)}
    by_tokens = max(shapes, key=lambda s: s.rows * (s.source + s.target))
    by_squares = max(shapes, key=lambda s: s.rows * max(s.source, s.target) ** 2)
    return max(memory(recipe, prepared.tokenizer.sizes, shape) for shape in {by_tokens, by_squares})


def _saved_for_backward(model: models.Model, shape: BatchShape) -> int:
    """Return the bytes that autograd saves in one forward pass, without weights, plus the bytes of the output."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    source = torch.ones((shape.rows, shape.source), dtype=torch.long) if shape.source else None
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model.hidden(source, torch.ones((shape.rows, shape.target), dtype=torch.long))
    kept = sum(t.untyped_storage().nbytes() for key, t in saved.items() if key not in weights)
    return kept + hidden.nbytes


def batches(recipe: Recipe, prepared: PreparedData) -> Plan:
    """Return the plan of the first epoch for the first seed."""
    train = recipe.train
    return BatchStream(lambda _: prepared.train, train.batch_tokens, train.seeds[0], score_budget(recipe)).batches


def padding(recipe: Recipe, prepared: PreparedData) -> Padding:
    """Compute updates per epoch and share of padding from the plan of the first epoch."""
    planned, encoded = batches(recipe, prepared), prepared.train
    updates, source = len(planned) / recipe.train.accumulate, encoded.source
    source_share = None if source is None else padding_share(planned, source.lengths)
    target_share = padding_share(planned, encoded.target.lengths + 1)
    epochs = 1.0 if recipe.model.count_based else recipe.train.steps / updates
    return Padding(updates, epochs, source_share, target_share)


def _shape(prepared: PreparedData, rows: Rows) -> BatchShape:
    encoded = prepared.train
    source = 0 if encoded.source is None else int(encoded.source.lengths[rows].max())
    return BatchShape(len(rows), source, int(encoded.target.lengths[rows].max()) + 1)


def pace(recipe: Recipe, prepared: PreparedData, device: str = "cpu", auto: str | None = None) -> Pace:
    """Time updates on two planned batches and scale the time to the average padded batch.

    Not for count-based models. `auto` is the precision that `precision: auto` stands for, the same for all variants of
    a recipe; None: `choose_precision` for this model.
    """
    train, planned = recipe.train, batches(recipe, prepared)
    shapes = [_shape(prepared, rows) for rows in planned]
    sizes = [shape.rows * (shape.source + shape.target) for shape in shapes]
    by_size = sorted(range(len(sizes)), key=sizes.__getitem__)
    chosen = [by_size[third * len(sizes) // 3] for third in (1, 2)]
    precision: str = train.precision
    if precision == "auto":
        precision = auto or choose_precision(recipe, prepared, device)[0]
    rows = [planned[i] for i in chosen]
    times = _timed(recipe, prepared, rows, (precision,), device, PACE_REPEATS)[precision]
    average = sum(sizes) / len(sizes)
    update = min(times) / sum(sizes[i] for i in chosen) * average * train.accumulate
    lengths = prepared.train.target.lengths
    tokens = (int(lengths.sum(dtype=np.int64)) + len(lengths)) / len(planned) * train.accumulate
    return Pace(precision, update, tokens / update, update * train.steps, torch.get_num_threads())


def choose_precision(recipe: Recipe, prepared: PreparedData, device: str) -> tuple[str, str]:
    """Return the faster precision for this model on this machine (`precision: auto`), and the reason as text.

    After a warm-up, both precisions make updates on the first two batches alternately, so that other load on the
    machine affects both; the median of the paired ratios decides. The choice is cached for the same model, batches,
    threads and PyTorch version on this machine. The global random state is not changed.

    Raises OutputPathError or OutputError if the cache cannot be written.
    """
    if device.startswith("cuda") and not torch.cuda.is_bf16_supported():
        return "fp32", "this GPU has no bfloat16"
    options = ("fp32", "bf16")
    path = cache_dir() / "precision" / f"{_precision_key(recipe, prepared, device)}.json"
    if (stored := read_note(path, str)) in options:
        return str(stored), "measured before on this machine"
    times = _timed(recipe, prepared, list(islice(batches(recipe, prepared), 2)), options, device, PRECISION_REPEATS)
    ratio = median(np.divide(times["bf16"], times["fp32"]).tolist())
    chosen = "bf16" if ratio < 1 else "fp32"
    write_note(path, chosen)
    return chosen, f"bf16 takes {ratio:.2f} times as long as fp32 on this machine"


def _precision_key(recipe: Recipe, prepared: PreparedData, device: str) -> str:
    """Hash everything that the choice of precision depends on."""
    train = recipe.train
    facts = (
        recipe.model.model_dump(mode="json"),
        recipe.data.max_length,
        train.batch_tokens,
        train.batch_scores,
        *prepared.tokenizer.sizes,
        device,
        torch.get_num_threads(),
        torch.__version__,
        platform.node(),
        platform.machine(),
    )
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _timed(
    recipe: Recipe, prepared: PreparedData, planned: list[Rows], precisions: Sequence[str], device: str, repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of updates on these batches, `repeats` times in each precision, alternately."""

    def seconds(worker: GradientWorker, adamw: Optimizer, planned: list[Rows]) -> float:
        start = clock(device)
        for rows in planned:
            batch = collate(prepared.train, rows)
            losses = worker.losses(batch, LossOptions(smoothing=0.1))
            worker.backward(losses.total, batch.tokens)
            adamw.step()
            adamw.zero_grad(set_to_none=True)
        return clock(device) - start

    with torch.random.fork_rng():
        workers, times = {}, dict[str, list[float]]()
        for name in precisions:
            model = models.build_for(recipe, prepared.tokenizer.sizes).to(device)
            adamw = optimizer(model.named_parameters(), recipe.train)
            workers[name] = GradientWorker(model, name), adamw
        for worker in workers.values():
            seconds(*worker, planned[:1])  # warm-up
        for _ in range(repeats):
            for name, worker in workers.items():
                times.setdefault(name, []).append(seconds(*worker, planned))
    return times
