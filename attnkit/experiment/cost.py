"""What a recipe will cost, before it is trained: parameters, memory, padding, time.

Nothing is guessed from formulas: parameters are counted, memory is what a few rows keep, padding
comes from the plan of the first epoch, and time from updates that are really made.
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
from attnkit.train.optimiser import optimizer
from attnkit.train.precision import GradientWorker

PACE_REPEATS, PRECISION_REPEATS = 1, 5
FEW_ROWS = (2, 4)
"""Rows that run forward to see what each of them keeps."""
ROW_LENGTH = 32
"""Tokens of a row, where there is no data to look at."""


class Parameters(NamedTuple):
    """Trained numbers; shared matrices count once."""

    total: int
    embeddings: int
    """Vocabulary tables, the output matrix included."""
    attention: int


class BatchShape(NamedTuple):
    """Sizes of one batch."""

    rows: int
    source: int
    """Longest source in tokens; 0 without a source."""
    target: int


class Padding(NamedTuple):
    """How the training data falls into batches in the first epoch."""

    updates: float
    """Updates that make one epoch."""
    epochs: float
    """Epochs that the recipe's steps make."""
    source: float | None
    """Share of padding among the tokens of the sources; None without a source."""
    target: float


class Pace(NamedTuple):
    """Measured speed of updates on this machine, without validation and decoding."""

    precision: str
    seconds: float
    """Of one update of average size."""
    tokens_per_second: float
    """Real target tokens."""
    training: float
    """Seconds of a whole training (one seed)."""
    threads: int = 1
    """Of the CPU."""


class Cost(NamedTuple):
    """What is known of one variant's cost; None where it could not be measured."""

    parameters: Parameters
    memory: int
    """Bytes: see `memory`."""
    padding: Padding | None = None
    pace: Pace | None = None


def cost_of(
    recipe: Recipe, prepared: PreparedData | None = None, device: str = "cpu", auto: str | None = None
) -> Cost:
    """All of it; without the data, what is known without it.

    Models that are counted are not timed.  `auto` is what `precision: auto` means: see `pace`.
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
    """Count the parameters of a model for vocabularies of these `sizes` (source, target)."""
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
    counts = (sum(p.numel() for p in some) for some in (model.parameters(), tables, attention))
    return Parameters(*counts)


def memory(recipe: Recipe, sizes: tuple[int, int], shape: BatchShape) -> int:
    """Bytes that training holds at the end of the forward pass of a batch of this `shape`.

    Weights, their copies and averages, gradients, the optimiser, and activations: a few rows of
    that length run forward, and what they keep is scaled to the rows of the batch.
    `precision: auto` counts as fp32, which needs the most.  A process is larger: glibc keeps freed
    blocks, 1.7 times the live ones in a measured case.
    """
    if recipe.model.count_based:  # tables, a copy for validation, and counts; without trigrams
        counts = max(shape.rows * shape.target * sizes[1], 8 * sizes[1] ** 2)
        return 4 * (2 * parameters(recipe, sizes).total + counts)
    train = recipe.train
    dtype = DTYPES["fp32" if train.precision == "auto" else train.precision]
    with torch.random.fork_rng(devices=[]):
        model = models.build_for(recipe, sizes).to(dtype)
        few, more = (_saved_for_backward(model, shape._replace(rows=rows)) for rows in FEW_ROWS)
    each = (more - few) / (FEW_ROWS[1] - FEW_ROWS[0])
    # the fused loss keeps the gradients of both its arguments, that of the weight in float32
    activations = round(few + (shape.rows - FEW_ROWS[0]) * each) + 4 * model.output.weight.numel()
    # validation decodes with a copy; moving, best and recent averages are whole copies too
    averaged = train.average if train.average > 1 else 0
    copies = 1 + (train.ema > 0) + (train.choose == "best") + averaged
    low = dtype != torch.float32  # 16-bit copies of weights and gradients
    # weights, gradients and the optimiser's two averages
    return 4 * sum(p.numel() for p in model.parameters()) * (4 + copies + low) + activations


def largest_memory(recipe: Recipe, prepared: PreparedData) -> int:
    """`memory` at the batch with the most tokens, or with the widest squares of attention."""
    shapes = {_shape(prepared, rows): None for rows in batches(recipe, prepared)}
    by_tokens = max(shapes, key=lambda s: s.rows * (s.source + s.target))
    by_squares = max(shapes, key=lambda s: s.rows * max(s.source, s.target) ** 2)
    return max(memory(recipe, prepared.tokenizer.sizes, shape) for shape in {by_tokens, by_squares})


def _saved_for_backward(model: models.Model, shape: BatchShape) -> int:
    """Bytes that autograd keeps of one batch, and the outputs, without the model's weights."""
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
    """The plan of the first epoch, for the first seed."""
    train = recipe.train
    return BatchStream(lambda _: prepared.train, train.batch_tokens, train.seeds[0], score_budget(recipe)).batches


def padding(recipe: Recipe, prepared: PreparedData) -> Padding:
    """How the real data falls into batches."""
    planned, encoded = batches(recipe, prepared), prepared.train
    updates, source = len(planned) / recipe.train.accumulate, encoded.source
    of_source = None if source is None else padding_share(planned, source.lengths)
    of_target = padding_share(planned, encoded.target.lengths + 1)
    epochs = 1.0 if recipe.model.count_based else recipe.train.steps / updates
    return Padding(updates, epochs, of_source, of_target)


def _shape(prepared: PreparedData, rows: Rows) -> BatchShape:
    encoded = prepared.train
    source = 0 if encoded.source is None else int(encoded.source.lengths[rows].max())
    return BatchShape(len(rows), source, int(encoded.target.lengths[rows].max()) + 1)


def pace(recipe: Recipe, prepared: PreparedData, device: str = "cpu", auto: str | None = None) -> Pace:
    """Make updates on two planned batches and scale them to the padded size of the average one.

    Not for models that are counted.

    `auto` is what `precision: auto` means: one choice holds for all rows of a recipe.  None: it is
    made by this model, as `choose_precision` does.
    """
    train, planned = recipe.train, batches(recipe, prepared)
    shapes = [_shape(prepared, rows) for rows in planned]
    sizes = [shape.rows * (shape.source + shape.target) for shape in shapes]
    by_size = sorted(range(len(sizes)), key=sizes.__getitem__)
    chosen = [by_size[place * len(sizes) // 3] for place in (1, 2)]
    precision: str = train.precision
    if precision == "auto":
        precision = auto or choose_precision(recipe, prepared, device)[0]
    rows = [planned[place] for place in chosen]
    timed = _timed(recipe, prepared, rows, (precision,), device, PACE_REPEATS)[precision]
    average = sum(sizes) / len(sizes)
    update = min(timed) / sum(sizes[place] for place in chosen) * average * train.accumulate
    lengths = prepared.train.target.lengths
    tokens = (int(lengths.sum(dtype=np.int64)) + len(lengths)) / len(planned) * train.accumulate
    return Pace(precision, update, tokens / update, update * train.steps, torch.get_num_threads())


def choose_precision(recipe: Recipe, prepared: PreparedData, device: str) -> tuple[str, str]:
    """What `precision: auto` means for this model on this machine, and why, in words.

    Each precision makes updates on the first two batches after a warm-up, in turn, so that a busy moment of the
    machine hits both; the median of the paired ratios decides. The choice is stored in the cache folder, and holds for
    the same model, batches, threads and torch on this machine. The global random state is left as it was.

    Raises OutputPathError, OutputError: the cache cannot be written.
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
    """A hash of what the faster precision depends on."""
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
    recipe: Recipe, prepared: PreparedData, chosen: list[Rows], precisions: Sequence[str], device: str, repeats: int
) -> dict[str, list[float]]:
    """Seconds of an update on each of the batches in each precision, which take turns."""

    def seconds(worker: GradientWorker, stepper: Optimizer, chosen: list[Rows]) -> float:
        start = clock(device)
        for rows in chosen:
            batch = collate(prepared.train, rows)
            losses = worker.losses(batch, LossOptions(smoothing=0.1))
            worker.backward(losses.total, batch.tokens)
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        return clock(device) - start

    with torch.random.fork_rng():
        made, times = {}, dict[str, list[float]]()
        for name in precisions:
            model = models.build_for(recipe, prepared.tokenizer.sizes).to(device)
            stepper = optimizer(model.named_parameters(), recipe.train)
            made[name] = GradientWorker(model, name), stepper
        for parts in made.values():
            seconds(*parts, chosen[:1])  # the first is slow
        for _ in range(repeats):
            for name, parts in made.items():
                times.setdefault(name, []).append(seconds(*parts, chosen))
    return times
