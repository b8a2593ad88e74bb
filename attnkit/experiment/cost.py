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

from attnkit import models
from attnkit.data.batch import collate
from attnkit.data.batch_plan import Plan, Rows, padding_share
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


class Parameters(NamedTuple):
    """Trained numbers; shared matrices count once."""

    total: int
    embeddings: int
    """Vocabulary tables, the output matrix included."""
    attention: int
    rest: int


class BatchShape(NamedTuple):
    """Sizes of one batch."""

    rows: int
    source: int
    """Longest source in tokens; 0 without a source."""
    target: int


class MemoryEstimate(NamedTuple):
    """Bytes that training needs beside the interpreter and its libraries."""

    weights: int
    """Parameters, their 16-bit copy, and averages of them."""
    gradients: int
    optimizer: int
    activations: int
    """What the largest batch keeps for its backward pass."""

    @property
    def total(self) -> int:
        return sum(self)


class Padding(NamedTuple):
    """How the training data falls into batches in the first epoch."""

    rows: int
    batches: int
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


def parameters(recipe: Recipe, sizes: tuple[int, int]) -> Parameters:
    """Count the parameters of a model for vocabularies of these `sizes` (source, target)."""
    with torch.device("meta"):
        model = models.build_for(recipe, sizes)
    if isinstance(model, models.CountedModel):
        return Parameters(model.numbers, 0, 0, model.numbers)
    counts = {id(p): p.numel() for p in model.parameters()}
    tables = {id(model.output.weight)}
    attention: set[int] = set()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            tables |= {id(p) for p in module.parameters()}
        elif isinstance(module, MultiHead):
            attention |= {id(p) for p in module.parameters()}
    total = sum(counts.values())
    embeddings, mixing = (sum(counts[key] for key in keys) for keys in (tables, attention))
    return Parameters(total, embeddings, mixing, total - embeddings - mixing)


def memory(recipe: Recipe, sizes: tuple[int, int], shape: BatchShape) -> MemoryEstimate:
    """Bytes that training holds at the end of the forward pass of a batch of this `shape`.

    A few rows of that length run forward, and what they keep is scaled to the rows of the batch.
    `precision: auto` counts as fp32, which needs the most.  A process is larger: glibc keeps freed
    blocks, 1.7 times the live ones in a measured case.
    """
    if recipe.model.count_based:
        return _counted_memory(recipe, sizes, shape)
    train = recipe.train
    precision = "fp32" if train.precision == "auto" else train.precision
    with torch.random.fork_rng(devices=[]):
        model = models.build_for(recipe, sizes).to(DTYPES[precision])
        few, more = (_saved_for_backward(model, shape._replace(rows=rows)) for rows in FEW_ROWS)
    each = (more - few) / (FEW_ROWS[1] - FEW_ROWS[0])
    # the fused loss keeps the gradients of both its arguments, that of the weight in float32
    activations = round(few + (shape.rows - FEW_ROWS[0]) * each) + 4 * model.output.weight.numel()
    weights = 4 * sum(p.numel() for p in model.parameters())
    low = weights // 2 if DTYPES[precision] != torch.float32 else 0
    # validation decodes with a copy; moving, best and recent averages are whole copies too
    averaged = train.average if train.average > 1 else 0
    copies = 1 + (train.ema > 0) + (train.choose == "best") + averaged
    return MemoryEstimate(weights * (1 + copies) + low, weights + low, 2 * weights, activations)


def _counted_memory(recipe: Recipe, sizes: tuple[int, int], shape: BatchShape) -> MemoryEstimate:
    """Tables of a counted model and its copy for validation, and the counts in float64.

    The tables of trigrams grow with the text and are left out.
    """
    tables = 4 * parameters(recipe, sizes).total
    rows = 4 * shape.rows * shape.target * sizes[1]
    return MemoryEstimate(2 * tables, 0, 0, max(rows, 4 * 8 * sizes[1] ** 2))


def _saved_for_backward(model: models.Model, shape: BatchShape) -> int:
    """Bytes that autograd keeps of one batch, without the model's weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = _hidden(model, shape)
    kept = sum(t.untyped_storage().nbytes() for key, t in saved.items() if key not in weights)
    return kept + hidden.numel() * hidden.element_size()


def _hidden(model: models.Model, shape: BatchShape) -> Tensor:
    """Outputs of the last layer for a batch of this shape [B, T, W]."""
    source = torch.ones((shape.rows, shape.source), dtype=torch.long) if shape.source else None
    return model.hidden(source, torch.ones((shape.rows, shape.target), dtype=torch.long))


def batches(recipe: Recipe, prepared: PreparedData) -> Plan:
    """The plan of the first epoch, for the first seed."""
    train = recipe.train
    budget = score_budget(recipe)
    return BatchStream(lambda _: prepared.train, train.batch_tokens, train.seeds[0], budget).batches


def padding(recipe: Recipe, prepared: PreparedData) -> Padding:
    """How the real data falls into batches."""
    planned, encoded = batches(recipe, prepared), prepared.train
    updates, source = len(planned) / recipe.train.accumulate, encoded.source
    of_source = None if source is None else padding_share(planned, source.lengths)
    of_target = padding_share(planned, encoded.target.lengths + 1)
    epochs = 1.0 if recipe.model.count_based else recipe.train.steps / updates
    return Padding(len(encoded), len(planned), updates, epochs, of_source, of_target)


def largest(recipe: Recipe, prepared: PreparedData) -> list[BatchShape]:
    """The batches that may need the most memory: most tokens, and widest squares of attention."""
    shapes = {_shape(prepared, rows): None for rows in batches(recipe, prepared)}
    by_tokens = max(shapes, key=lambda s: s.rows * (s.source + s.target))
    by_squares = max(shapes, key=lambda s: s.rows * max(s.source, s.target) ** 2)
    return list(dict.fromkeys((by_tokens, by_squares)))


def nominal(recipe: Recipe, length: int = 32) -> BatchShape:
    """A batch of rows of this length, where there is no data to look at."""
    length = min(length, recipe.data.max_length)
    rows = max(1, recipe.train.batch_tokens // length)
    return BatchShape(rows, 0 if recipe.prompts else length, length)


def _shape(prepared: PreparedData, rows: Rows) -> BatchShape:
    encoded = prepared.train
    source = 0 if encoded.source is None else int(encoded.source.lengths[rows].max())
    return BatchShape(len(rows), source, int(encoded.target.lengths[rows].max()) + 1)


def pace(
    recipe: Recipe, prepared: PreparedData, device: str = "cpu", auto: str | None = None
) -> Pace:
    """Make updates on two planned batches and scale them to the padded size of the average one.

    Not for models that are counted.

    `auto` is what `precision: auto` means: one choice holds for all rows of a recipe.  None: it is
    made by this model, as `choose_precision` does.
    """

    def padded(rows: Rows) -> int:
        shape = _shape(prepared, rows)
        return shape.rows * (shape.source + shape.target)

    train = recipe.train
    planned = batches(recipe, prepared)
    sizes = [padded(rows) for rows in planned]
    by_size = sorted(range(len(sizes)), key=sizes.__getitem__)
    chosen = [planned[by_size[place * len(sizes) // 3]] for place in (1, 2)]
    precision: str = train.precision
    if precision == "auto":
        precision = auto or choose_precision(recipe, prepared, device)[0]
    timed = _timed(recipe, prepared, chosen, (precision,), device, PACE_REPEATS)
    average = sum(sizes) / len(sizes)
    update = min(timed[precision]) / sum(map(padded, chosen)) * average * train.accumulate
    lengths = prepared.train.target.lengths
    tokens = (int(lengths.sum(dtype=np.int64)) + len(lengths)) / len(planned) * train.accumulate
    return Pace(precision, update, tokens / update, update * train.steps, torch.get_num_threads())


def choose_precision(recipe: Recipe, prepared: PreparedData, device: str) -> tuple[str, str]:
    """What `precision: auto` means for this model on this machine, and why, in words.

    Each precision makes updates on the first two batches after a warm-up, in turn, so that a busy
    moment of the machine hits both; the median of the paired ratios decides.  The choice is stored
    in the cache folder, and holds for the same model, batches, threads and torch on this machine.
    The global random state is left as it was.

    Raises:
        OutputPathError, OutputError: the cache cannot be written.
    """
    options = _precisions(device)
    if len(options) == 1:
        return options[0], "this GPU has no bfloat16"
    path = cache_dir() / "precision" / f"{_precision_key(recipe, prepared, device)}.json"
    if (stored := read_note(path, str)) in options:
        return str(stored), "measured before on this machine"
    rows = list(islice(batches(recipe, prepared), 2))
    times = _timed(recipe, prepared, rows, options, device, PRECISION_REPEATS)
    ratio = median(np.divide(times["bf16"], times["fp32"]).tolist())
    chosen = "bf16" if ratio < 1 else "fp32"
    write_note(path, chosen)
    return chosen, f"bf16 takes {ratio:.2f} times as long as fp32 on this machine"


def _precision_key(recipe: Recipe, prepared: PreparedData, device: str) -> str:
    """A hash of what the faster precision depends on."""
    train, vocabularies = recipe.train, (prepared.tokenizer.source, prepared.tokenizer.target)
    facts = (
        recipe.model.model_dump(mode="json"),
        recipe.data.max_length,
        train.batch_tokens,
        train.batch_scores,
        *map(len, vocabularies),
        device,
        torch.get_num_threads(),
        torch.__version__,
        platform.node(),
        platform.machine(),
    )
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _precisions(device: str) -> tuple[str, ...]:
    """What `precision: auto` chooses from."""
    if device.startswith("cuda") and not torch.cuda.is_bf16_supported():
        return ("fp32",)
    return ("fp32", "bf16")


class _Updates:
    """A new model that makes updates, which are timed; nothing of it is kept."""

    def __init__(self, recipe: Recipe, prepared: PreparedData, precision: str, device: str) -> None:
        sizes = (len(prepared.tokenizer.source), len(prepared.tokenizer.target))
        model = models.build_for(recipe, sizes).to(device)
        self.prepared, self.device = prepared, device
        self.worker = GradientWorker(model, precision)
        self.stepper = optimizer(model.named_parameters(), recipe.train)

    def seconds(self, chosen: list[Rows]) -> float:
        """The time of an update on each of the batches."""
        start = clock(self.device)
        for rows in chosen:
            batch = collate(self.prepared.train, rows)
            losses = self.worker.losses(batch, LossOptions(smoothing=0.1))
            self.worker.backward(losses.total, batch.tokens)
            self.stepper.step()
            self.stepper.zero_grad(set_to_none=True)
            self.worker.refresh()
        return clock(self.device) - start


def _timed(
    recipe: Recipe,
    prepared: PreparedData,
    chosen: list[Rows],
    precisions: Sequence[str],
    device: str,
    repeats: int,
) -> dict[str, list[float]]:
    """Seconds of an update on each of the batches in each precision, which take turns."""
    with torch.random.fork_rng():
        made = {name: _Updates(recipe, prepared, name, device) for name in precisions}
        for updates in made.values():
            updates.seconds(chosen[:1])  # the first is slow
        rounds = [[updates.seconds(chosen) for updates in made.values()] for _ in range(repeats)]
    return {name: list(times) for name, times in zip(made, zip(*rounds, strict=True), strict=True)}
