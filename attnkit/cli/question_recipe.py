"""Whose questions `attnkit eval --model` asks: those of a recipe, or of a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.cli.found_runs import names_runs
from attnkit.errors import UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe import Recipe

QUESTIONS = "question-answering"  # the task of recipes whose questions --model is asked
QUESTION_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
QUESTIONS_RECIPE = """
task: question-answering
data: {{test: {}, source: question, target: answers}}
model: {{shape: decoder}}
search: {{method: greedy, max_length: 16}}
contexts: {{counts: [1, 2, 4, 8], methods: [entropy, mean, max, concat, retrieval, none]}}
eval: {{metrics: [answer-match, answer-f1, answer-contained, context-found]}}
"""  # of a file of questions, for --model


def is_questions(target: str) -> bool:
    """Whether a word of the command line is a file of questions."""
    return Path(target).suffix.lower() in QUESTION_FILES and not names_runs(target)


def question_recipe(targets: Sequence[str], models: Sequence[str], overrides: Sequence[str]) -> "tuple[str, Recipe]":
    """The recipe whose questions models are asked, with its name."""
    from attnkit.recipe import load
    from attnkit.recipe.loading import load_resolved

    if twice := next((name for i, name in enumerate(models) if name in models[:i]), None):
        raise UsageError(f"--model {quoted(twice, 200)} is given twice; name each model once")
    if len(targets) != 1 or names_runs(targets[0]):
        raise UsageError("--model needs exactly one recipe or file with questions: RECIPE|FILE --model NAME")
    if is_questions(targets[0]):
        content = QUESTIONS_RECIPE.format(json.dumps(targets[0])).encode()
        return Path(targets[0]).stem, load_resolved(Path(targets[0]), overrides, content)
    file = load(targets[0], overrides)
    recipe = file.variants[file.baseline or next(iter(file.variants))]
    if recipe.task != QUESTIONS:
        raise UsageError(f"{file.name}: --model needs a recipe of task {QUESTIONS}; this one is for {recipe.task}")
    return file.name, recipe
