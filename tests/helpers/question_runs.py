"""Finished runs of tiny untrained models for question answering, and their recipe."""

from pathlib import Path

from attnkit.data.corpus import Corpus
from attnkit.data.tokenizer import Tokenizer
from attnkit.recipe import load
from attnkit.runs import Run, run_path
from helpers.trained import build_model

RECIPE = """task: question-answering
data: {corpus: toy-passages, size: 200, max_length: 40}
tokenizer: {type: word, size: 400}
model: {shape: decoder, width: 16, layers: {encoder: 0, decoder: 1}, heads: 2, ff: 32, positions: rope}
search: {method: greedy, max_length: 4}
contexts: {counts: [1, 2, 4], methods: [entropy, mean, concat, none], rows: 6}
eval: {metrics: [answer-match, answer-f1, context-found], bootstrap: 20}
"""


def make_run(folder: Path, variant: str = "base", seed: int = 1, more: str = "") -> Run:
    """Create a finished run below folder/runs/toy; variant and seed determine its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.yaml").write_text(RECIPE + more, encoding="utf-8")
    recipe = load(folder / "toy.yaml").variants[variant]
    rows = list(Corpus.open(recipe.data, recipe.task).rows("train"))
    tokenizer = Tokenizer.train(recipe.tokenizer, rows)
    path = run_path(folder / "runs", "toy", variant, seed)
    run = Run.create(path, recipe, name="toy", variant=variant, seed=seed, parameters=1)
    run.write_tokenizer(tokenizer)
    model = build_model(recipe, tokenizer, variant, seed)
    run.finish(model.state_dict(), step=1, seconds=1.0, reason="steps")
    return run
