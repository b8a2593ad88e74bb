"""A training small enough for many tests: forty pairs of sentences and a tiny model."""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attnkit.data.preparation import prepare
from attnkit.recipe import Recipe
from attnkit.recipe.schema import DataConfig, Layers, ModelConfig, SearchConfig, TokenizerConfig, TrainConfig
from attnkit.runs import Run
from attnkit.train.events import Emit, Event
from attnkit.train.fit import TrainingJob, fit
from attnkit.train.signals import StopSignals
from helpers.events import record_events

WORDS = ["red", "blue", "dog", "cat", "two", "ten", "sees", "runs", "old", "new"]


def write_corpus(folder: Path, rows: int = 40) -> DataConfig:
    """Write aligned files; each target is its source with the words in reverse order."""
    draw = random.Random(1)
    sources = [" ".join(draw.choices(WORDS, k=draw.randint(1, 7))) for _ in range(rows)]
    sides = {"source": sources, "target": [" ".join(source.split()[::-1]) for source in sources]}
    paths = {}
    for split in ("train", "valid", "test"):
        paths[split] = tuple(str(folder / f"{split}.{side}") for side in sides)
        for path, lines in zip(paths[split], sides.values(), strict=True):
            Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return DataConfig(**paths, max_length=32)


def small_recipe(data: DataConfig, **train: Any) -> Recipe:
    """Return a recipe with dropout, several validations and several batches per epoch."""
    sizes = {"steps": 12, "batch_tokens": 56, "warmup": 4, "valid_every": 5, "log_every": 3}
    return Recipe(
        task="translation",
        data=data,
        tokenizer=TokenizerConfig(type="word", size=40),
        model=ModelConfig(width=16, heads=2, ff=32, layers=Layers(encoder=1, decoder=1), dropout=0.2),
        train=TrainConfig(**sizes | {"lr": 5e-3, "precision": "fp32"} | train),
        search=SearchConfig(max_length=12),
    )


@dataclass
class StopAt(StopSignals):
    """Requests a stop after the given numbers of updates, once each."""

    steps: list[int] = field(default_factory=list)
    step: int = 0

    @property
    def requested(self) -> str | None:
        """Return the name of a signal after the given updates."""
        self.step += 1
        return "SIGTERM" if self.step in self.steps else None


def job(folder: Path, recipe: Recipe, stop: StopAt | None = None, **more: Any) -> TrainingJob:
    """Return a job in folder/run, which is created if it does not exist."""
    prepared = prepare(recipe, cache=folder / "cache")
    path = folder / "run"
    if not Run(path).exists:
        Run.create(path, recipe, name="small", variant="base", seed=1)
        Run.open(path).write_tokenizer(prepared.tokenizer)
    values: dict[str, Any] = {
        "recipe": recipe,
        "prepared": prepared,
        "run": Run.open(path),
        "seed": 1,
        "device": torch.device("cpu"),
        "precision": recipe.train.precision,
        "stop": stop or StopAt(),
    }
    return TrainingJob(**values | more)


def run_training(
    training: TrainingJob,
    train: Callable[[TrainingJob], object] = fit,
    watch: Callable[[Event], object] = lambda _: None,
) -> list[Event]:
    """Return all events of a training; see `record_events`."""

    def run(emit: Emit) -> None:
        train(replace(training, emit=emit))

    return record_events(run, watch=watch)


def digests(folder: Path) -> Iterator[str]:
    """Yield SHA-256 of the weights, of the last checkpoint's tensors, and of the log."""
    run = Run.open(folder / "run")
    steps = [path for path in run.checkpoints.glob("step-*") if path.name[5:].isdecimal()]
    last = max(steps, key=lambda path: int(path.name[5:]))
    for path in (run.path / "model.safetensors", last / "tensors.safetensors"):
        yield hashlib.sha256(path.read_bytes()).hexdigest()
    yield run.log.digest()


def write_backwards(folder: Path, rows: int) -> None:
    """Write a.src and a.tgt, whose targets are reversed sources, and b.src and b.tgt with ten such rows."""
    words = [f"w{i:02}" for i in range(50)]
    for name, count in (("a", rows), ("b", 10)):
        lines = [[words[(7 * i + j) % 50] for j in range(3 + i % 5)] for i in range(count)]
        (folder / f"{name}.src").write_text("".join(" ".join(x) + "\n" for x in lines))
        (folder / f"{name}.tgt").write_text("".join(" ".join(x[::-1]) + "\n" for x in lines))
