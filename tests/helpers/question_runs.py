"""Finished runs of tiny untrained models of questions, and the recipe that they are of."""

from pathlib import Path

import torch

from attnkit import models
from attnkit.data.corpus import Corpus
from attnkit.data.tokenizer import Tokenizer
from attnkit.recipe import load
from attnkit.runs import Run, run_path

RECIPE = """task: question-answering
data: {corpus: toy-passages, size: 200, max_length: 40}
tokenizer: {type: word, size: 400}
model: {shape: decoder, width: 16, layers: {encoder: 0, decoder: 1}, heads: 2, ff: 32, positions: rope}
search: {method: greedy, max_length: 4}
contexts: {counts: [1, 2, 4], methods: [entropy, mean, concat, none], rows: 6}
eval: {metrics: [answer-match, answer-f1, context-found], bootstrap: 20}
"""  # noqa: E501


def write_recipe(folder: Path, more: str = "") -> Path:
    """toy.yaml in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy.yaml"
    path.write_text(RECIPE + more, encoding="utf-8")
    return path


def make_run(folder: Path, variant: str = "base", seed: int = 1, more: str = "") -> Run:
    """A finished run below folder/runs/toy; variant and seed choose its weights."""
    recipe = load(write_recipe(folder, more)).variants[variant]
    rows = list(Corpus.open(recipe.data, recipe.task).rows("train"))
    tokenizer = Tokenizer.train(recipe.tokenizer, rows)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + sum(map(ord, variant)))
        sizes = (len(tokenizer.source), len(tokenizer.target))
        model = models.build(recipe.model, sizes, recipe.data.max_length)
    path = run_path(folder / "runs", "toy", variant, seed)
    run = Run.create(path, recipe, name="toy", variant=variant, seed=seed, parameters=1)
    run.write_tokenizer(tokenizer)
    run.finish(model.state_dict(), step=1, seconds=1.0, reason="steps")
    return run
