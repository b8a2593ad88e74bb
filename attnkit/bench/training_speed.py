"""Speed and memory of updates in the training loop of `attnkit train`."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from attnkit.bench.speed import Speed, peak, timed, write_trace
from attnkit.data.preparation import PreparedData
from attnkit.experiment import cost
from attnkit.memory import keep_freed_memory
from attnkit.ops.operation_count import count_operations
from attnkit.recipe import Recipe
from attnkit.runs import Run
from attnkit.storage.files import process_folder
from attnkit.train.fit import Training, TrainingJob
from attnkit.train.signals import StopSignals

WARM, PROFILED = 3, 5
"""Number of updates for warm-up, and under the profiler."""


@dataclass(frozen=True, kw_only=True)
class TrainingSpeed(Speed):
    """Speed of updates without validation and checkpoints."""

    precision: str
    updates: int
    padding_source: float | None
    padding_target: float
    """Fraction of padding among the tokens of the first epoch."""


def training_speed(
    recipe: Recipe,
    prepared: PreparedData,
    precision: str,
    device: str,
    updates: int,
    trace: Path | None = None,
    note: Callable[[str], object] = lambda _: None,
) -> TrainingSpeed:
    """Time updates from random weights; with `trace`, make more updates under the profiler.

    Raises:
        MemoryLimitError, DivergedError: As in training.
        OutputError: If the trace cannot be written.
    """
    if device == "cpu":
        keep_freed_memory()  # as training does
    with training_on(recipe, prepared, precision, device) as training:
        update = training.advance
        note(f"{WARM} + {updates} updates")
        peak_before = peak(precision, device)
        for _ in range(WARM):
            update()
        tokens = training.progress.tokens
        seconds, memory = timed(lambda: [update() for _ in range(updates)], device)
        speed = (training.progress.tokens - tokens) / seconds
        if trace is not None:
            note(f"{PROFILED} updates under the profiler")
            write_trace(trace, lambda: [update() for _ in range(PROFILED)], device)
        note("counting operations")
        tokens = training.progress.tokens
        operations = count_operations(update) / (training.progress.tokens - tokens)
    peaks = {name: peak(name, device) for name in dict.fromkeys(("fp32", "bf16", precision))}
    padding = cost.padding(recipe, prepared)
    return TrainingSpeed(
        device=device,
        threads=torch.get_num_threads(),
        seconds=seconds / updates,
        tokens_per_second=speed,
        operations_per_token=operations,
        peaks=peaks | {precision: max(peak_before, peaks[precision])},
        peak_memory_bytes=memory,
        precision=precision,
        updates=updates,
        padding_source=padding.source,
        padding_target=padding.target,
    )


@contextmanager
def training_on(recipe: Recipe, prepared: PreparedData, precision: str, device: str) -> Iterator[Training]:
    """Provide a training that neither validates nor ends, in a temporary folder."""
    endless = 2**40
    changes = {"steps": endless, "valid_every": 0, "save_every": endless, "log_to": ()}
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})
    with tempfile.TemporaryDirectory(dir=process_folder(), ignore_cleanup_errors=True) as folder:
        run = Run.create(Path(folder) / "run", recipe, name="bench", variant="base", seed=1)
        settings = (torch.device(device), precision, StopSignals())
        with run.lock():
            training = Training(TrainingJob(recipe, prepared, run, recipe.train.seeds[0], *settings))
            training.resume()
            try:
                yield training
            finally:
                if training.writers is not None:
                    training.writers.close()
