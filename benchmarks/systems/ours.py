"""attnkit as one of the systems of benchmarks/peers.py; see `serve`."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from serve import serve

from attnkit import models
from attnkit.data.preparation import PreparedData, prepare
from attnkit.memory import keep_freed_memory
from attnkit.recipe import Recipe, load
from attnkit.runs import Run
from attnkit.search import translate
from attnkit.train.fit import Training, TrainingJob
from attnkit.train.signals import StopSignals

ENDLESS = (
    "train.steps=1000000",
    "train.valid_every=0",
    "train.save_every=1000000",
    "train.log_every=1",
    "train.average=1",
    "train.choose=last",
)
"""Overrides for a training of updates alone."""
SEARCH = ("search.method=beam", "search.beam=5", "search.length_penalty=1.0", "search.no_repeat_ngram=0")
"""Overrides for the search that the peers are asked for."""
PRECISIONS = ("fp32", "bf16")


def data(name: str, data_dir: Path | None, cache: Path) -> tuple[Recipe, PreparedData]:
    """The first variant of the recipe, and its data."""
    recipe = next(iter(load(name, [*ENDLESS, *SEARCH]).variants.values()))
    return recipe, prepare(recipe, data_dir=data_dir, cache=cache)


def job(recipe: Recipe, prepared: PreparedData, precision: str, folder: Path) -> TrainingJob:
    """A training in a fresh run folder."""
    path = folder / precision
    run = Run(path)
    if run.exists:
        run.clear()
    run = Run.create(path, recipe, name="peers", variant=precision, seed=1)
    return TrainingJob(recipe, prepared, run, 1, torch.device("cpu"), precision, StopSignals())


def batches(recipe: Recipe, prepared: PreparedData, folder: Path, count: int) -> list[Any]:
    """The first batches of the training, in its order."""
    return Training(job(recipe, prepared, "fp32", folder)).stream.take(count)


class System:
    """Trainings that go on by some updates at each request, and a model that decodes."""

    def __init__(self, recipe: str, data_dir: Path | None, work: Path) -> None:
        keep_freed_memory()
        self.recipe, self.prepared = data(recipe, data_dir, work / "cache")
        self.trainings = {
            precision: Training(job(self.recipe, self.prepared, precision, work / "runs")) for precision in PRECISIONS
        }
        for training in self.trainings.values():
            training.resume()
        tokenizer = self.prepared.tokenizer
        sizes = (len(tokenizer.source), len(tokenizer.target))
        torch.manual_seed(1)
        self.model = models.build(self.recipe.model, sizes, self.recipe.data.max_length).eval()

    def about(self) -> dict[str, Any]:
        """Facts for the report."""
        return {
            "threads": torch.get_num_threads(),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
        }

    def train(self, precision: str, start: int, count: int) -> dict[str, Any]:
        """The next `count` updates, by the loop that `attnkit train` runs."""
        training = self.trainings[precision]
        began = time.perf_counter()
        assert training.progress.step == start
        for _ in range(count):
            training.advance()
        seconds = time.perf_counter() - began
        return {"seconds": seconds}

    def decode(self, texts: Sequence[str], tokens: int) -> dict[str, Any]:
        """Beam 5, text to text, every output exactly `tokens` long."""
        limits = {"max_length": tokens, "min_length": tokens}
        spec = self.recipe.search.model_copy(update=limits)
        length = self.recipe.data.max_length
        began = time.perf_counter()
        answers = translate(self.model, self.prepared.tokenizer, texts, spec, max_source=length)
        count = sum(1 for _ in answers)
        seconds = time.perf_counter() - began
        assert count == len(texts)
        return {"seconds": seconds}


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--recipe", required=True)
    options = parser.parse_args()
    system = System(options.recipe, options.data_dir, options.work)
    serve({"about": system.about, "train": system.train, "decode": system.decode})


if __name__ == "__main__":
    main()
