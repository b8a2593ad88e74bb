"""attnkit as one of the systems of benchmarks/peers.py; see `serve`."""

import sys
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

OVERRIDES = (
    *("train.steps=1000000", "train.valid_every=0", "train.save_every=1000000", "train.log_every=1"),
    *("train.average=1", "train.choose=last"),
    *("search.method=beam", "search.beam=5", "search.length_penalty=1.0", "search.no_repeat_ngram=0"),
)
"""A training of updates alone, and the search of the peers."""
PRECISIONS = ("fp32", "bf16")


def data(name: str, cache: Path) -> tuple[Recipe, PreparedData]:
    """Return the first variant of the recipe, and its data."""
    recipe = next(iter(load(name, list(OVERRIDES)).variants.values()))
    return recipe, prepare(recipe, cache=cache)


def start_training(recipe: Recipe, prepared: PreparedData, precision: str, folder: Path) -> Training:
    """Return a training in a new run folder."""
    path = folder / precision
    run = Run(path)
    if run.exists:
        run.clear()
    run = Run.create(path, recipe, name="peers", variant=precision, seed=1)
    return Training(TrainingJob(recipe, prepared, run, 1, torch.device("cpu"), precision, StopSignals()))


def batches(recipe: Recipe, prepared: PreparedData, folder: Path, count: int) -> list[Any]:
    """Return the first batches of the training, in its order."""
    return start_training(recipe, prepared, "fp32", folder).stream.take(count)


class System:
    """Trainings that do some updates at each request, and a model that decodes."""

    def __init__(self, work: Path, recipe: str) -> None:
        keep_freed_memory()
        self.recipe, self.prepared = data(recipe, work / "cache")
        self.trainings = {
            precision: start_training(self.recipe, self.prepared, precision, work / "runs") for precision in PRECISIONS
        }
        for training in self.trainings.values():
            training.resume()
        tokenizer = self.prepared.tokenizer
        sizes = (len(tokenizer.source), len(tokenizer.target))
        torch.manual_seed(1)
        self.model = models.build(self.recipe.model, sizes, self.recipe.data.max_length).eval()

    def about(self) -> dict[str, Any]:
        """Return facts for the page."""
        parameters = sum(weight.numel() for weight in self.model.parameters())
        return {"threads": torch.get_num_threads(), "parameters": parameters}

    def train(self, precision: str, start: int, count: int) -> dict[str, Any]:
        """Do the next `count` updates, by the loop that `attnkit train` runs."""
        training = self.trainings[precision]
        began = time.perf_counter()
        assert training.progress.step == start
        for _ in range(count):
            training.advance()
        return {"seconds": time.perf_counter() - began}

    def decode(self, texts: Sequence[str], tokens: int) -> dict[str, Any]:
        """Decode with beam 5, text to text, every output exactly `tokens` long."""
        spec = self.recipe.search.model_copy(update={"max_length": tokens, "min_length": tokens})
        length = self.recipe.data.max_length
        began = time.perf_counter()
        answers = list(translate(self.model, self.prepared.tokenizer, texts, spec, max_source=length))
        seconds = time.perf_counter() - began
        assert len(answers) == len(texts)
        return {"seconds": seconds}


if __name__ == "__main__":
    system = System(Path(sys.argv[1]), sys.argv[2])
    serve({"about": system.about, "train": system.train, "decode": system.decode})
