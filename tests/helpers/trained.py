"""Finished runs of tiny untrained models, for tests that need a run but no training."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnkit import models
from attnkit.data.rows import Row
from attnkit.data.tokenizer import Tokenizer
from attnkit.models import Model
from attnkit.recipe import Recipe
from attnkit.recipe.schema import DataConfig, Layers, ModelConfig, SearchConfig, TokenizerConfig, TrainConfig
from attnkit.runs import Run, run_path

ROWS = [
    Row("one red dog", "ein roter hund", ("ein roter hund", "ein hund in rot")),
    Row("two cats", "zwei katzen"),
    Row("a dog and a cat", "ein hund und eine katze"),
    Row("cats", "katzen"),
    Row("a very red cat and two dogs", "eine sehr rote katze und zwei hunde"),
]
PARAGRAPHS = "ein hund\n\nzwei katzen und ein hund\n"
LENGTH = 24


def recipe(data: DataConfig, task: str = "translation", **sections: Any) -> Recipe:
    """Return a recipe of a tiny model."""
    causal = task == "language-modeling"
    shape = "decoder" if causal else "encoder-decoder"
    return Recipe(
        task=task,
        data=data.model_copy(update={"max_length": LENGTH}),
        model=ModelConfig(shape=shape, width=16, layers=Layers(encoder=1, decoder=1), heads=2, ff=32),
        train=TrainConfig(objective="causal" if causal else "seq2seq"),
        search=SearchConfig(beam=2, max_length=8),
        **sections,
    )


@cache
def tokenizer() -> Tokenizer:
    """Return a tokenizer trained on ROWS."""
    return Tokenizer.train(TokenizerConfig(size=60), ROWS)


def build_model(recipe: Recipe, tokenizer: Tokenizer, variant: str, seed: int) -> Model:
    """Return a model; variant and seed determine its random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + sum(map(ord, variant)))
        sizes = (len(tokenizer.source), len(tokenizer.target))
        return models.build(recipe.model, sizes, recipe.data.max_length)


def make_run(
    folder: Path,
    variant: str = "base",
    seed: int = 1,
    task: str = "translation",
    model_options: Mapping[str, Any] = {},  # noqa: B006
    **manifest: Any,
) -> Run:
    """Create a finished run below folder/runs/toy; variant and seed determine its weights."""
    lines = "".join(json.dumps(row._asdict()) + "\n" for row in ROWS)
    (folder / "test.jsonl").write_text(lines, encoding="utf-8")
    (folder / "test.txt").write_text(PARAGRAPHS, encoding="utf-8")
    name = "test.txt" if task == "language-modeling" else "test.jsonl"
    chosen = recipe(DataConfig(test=str(folder / name)), task)
    chosen = chosen.model_copy(update={"model": chosen.model.model_copy(update=dict(model_options))})
    model = build_model(chosen, tokenizer(), variant, seed)
    manifest["parameters"] = sum(weight.numel() for weight in model.parameters())
    path = run_path(folder / "runs", "toy", variant, seed)
    run = Run.create(path, chosen, name="toy", variant=variant, seed=seed, **manifest)
    run.write_tokenizer(tokenizer())
    run.finish(model.state_dict(), step=7, seconds=1.0, reason="steps", tokens_per_second=123.5)
    return run
