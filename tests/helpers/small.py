"""A training small enough to repeat often: forty pairs of sentences and a tiny model."""

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
    """Aligned files: the target is the source backwards."""
    draw = random.Random(1)
    sources = [" ".join(draw.choices(WORDS, k=draw.randint(1, 7))) for _ in range(rows)]
    paths = {}
    for split in ("train", "valid", "test"):
        pairs = []
        for side in ("source", "target"):
            path = folder / f"{split}.{side}"
            lines = [s if side == "source" else " ".join(s.split()[::-1]) for s in sources]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            pairs.append(str(path))
        paths[split] = tuple(pairs)
    return DataConfig(**paths, max_length=32)


def small_recipe(data: DataConfig, **train: Any) -> Recipe:
    """A recipe with dropout, several validations and several batches an epoch."""
    settings = {
        "steps": 12,
        "batch_tokens": 56,
        "lr": 5e-3,
        "warmup": 4,
        "valid_every": 5,
        "log_every": 3,
        "precision": "fp32",
    }
    return Recipe(
        task="translation",
        data=data,
        tokenizer=TokenizerConfig(type="word", size=40),
        model=ModelConfig(width=16, heads=2, ff=32, layers=Layers(encoder=1, decoder=1), dropout=0.2),
        train=TrainConfig(**settings | train),
        search=SearchConfig(max_length=12),
    )


@dataclass
class StopAt(StopSignals):
    """Asks to stop after some updates, once each."""

    steps: list[int] = field(default_factory=list)
    step: int = 0

    @property
    def requested(self) -> str | None:
        """A signal's name after the chosen updates."""
        self.step += 1
        return "SIGTERM" if self.step in self.steps else None


def job(folder: Path, recipe: Recipe, stop: StopAt | None = None, **more: Any) -> TrainingJob:
    """A job in folder/run, created or opened."""
    prepared = prepare(recipe, cache=folder / "cache")
    path = folder / "run"
    run = Run(path)
    if not run.exists:
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
    made: TrainingJob, train: Callable[[TrainingJob], object] = fit, watch: Callable[[Event], object] = lambda _: None
) -> list[Event]:
    """All events of a training; see `happened`."""

    def run(emit: Emit) -> None:
        train(replace(made, emit=emit))

    return record_events(run, watch=watch)


def digests(folder: Path) -> Iterator[str]:
    """SHA-256 of the weights, of the last checkpoint's tensors, and of the log."""
    run = Run.open(folder / "run")
    steps = [path for path in run.checkpoints.glob("step-*") if path.name[5:].isdecimal()]
    last = max(steps, key=lambda path: int(path.name[5:]))
    for path in (run.path / "model.safetensors", last / "tensors.safetensors"):
        yield hashlib.sha256(path.read_bytes()).hexdigest()
    yield run.log.digest()


def write_backwards(folder: Path, rows: int) -> None:
    """Rows a.src and a.tgt of words that are counted up and back, and ten more, b.src and b.tgt."""
    words = [f"w{i:02}" for i in range(50)]
    for name, count in (("a", rows), ("b", 10)):
        lines = [[words[(7 * i + j) % 50] for j in range(3 + i % 5)] for i in range(count)]
        (folder / f"{name}.src").write_text("".join(" ".join(x) + "\n" for x in lines))
        (folder / f"{name}.tgt").write_text("".join(" ".join(x[::-1]) + "\n" for x in lines))
