"""Tests of count-based models, from a recipe to a finished run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.events import record_events
from helpers.small import StopAt, job, run_training

from attnkit.analysis.capture import MapReader
from attnkit.analysis.head_ablation import probe_heads
from attnkit.data.rows import Row
from attnkit.errors import StoppedError, UsageError
from attnkit.experiment import cost
from attnkit.experiment.resumption import needs_updates
from attnkit.experiment.settings import TrainingSettings
from attnkit.experiment.training import train
from attnkit.nbce.run_reader import LanguageModelReader
from attnkit.recipe import Recipe, RecipeFile, schema
from attnkit.runs import Run
from attnkit.search.decoding import translate
from attnkit.show.recipe_tables import costs as cost_table
from attnkit.train.counting import count
from attnkit.train.events import Event, FinishedEvent, NoteEvent, ProgressEvent, ValidatedEvent

KINDS: dict[str, dict[str, Any]] = {
    "unigram": {"type": "n-gram", "order": 1},
    "trigram": {"type": "n-gram"},
    "counts": {"type": "naive-bayes"},
    "residual": {"type": "naive-bayes", "naive_bayes": schema.NaiveBayesConfig(residual="own", beta=1)},
    "skip-gram": {"type": "naive-bayes", "width": 8, "naive_bayes": schema.NaiveBayesConfig(estimate="skip-gram")},
}


def recipe(kind: str = "counts", **settings: Any) -> Recipe:
    """Return the recipe of a language model of chains of syllables."""
    defaults = {"steps": 6, "lr": 0.05, "warmup": 2, "log_every": 2, "precision": "fp32"}
    return Recipe(
        task="language-modeling",
        data=schema.DataConfig(corpus="toy-chains", size=6, valid_rows=2, max_length=16),
        tokenizer=schema.TokenizerConfig(type="word", size=60),
        model=schema.ModelConfig(shape="decoder", **KINDS[kind]),
        train=schema.TrainConfig(objective="causal", **defaults | settings),
        search=schema.SearchConfig(max_length=5),
        eval=schema.EvalConfig(metrics=("perplexity",), splits=("valid",)),
    )


def train_run(folder: Path, chosen: Recipe) -> tuple[Run, list[Event]]:
    """Return the run and the events of `attnkit train`."""
    file = RecipeFile("small", folder / "small.yaml", {"base": chosen}, None, {})
    events = record_events(train, TrainingSettings(file=file, out=folder / "runs", device="cpu"))
    return Run.open(folder / "runs/small/base/seed-1"), events


@pytest.mark.parametrize("kind", KINDS)
def test_counted_run_is_finished_scored_and_decoded(kind: str, tmp_path: Path) -> None:
    run, events = train_run(tmp_path, recipe(kind))
    assert run.finished
    run.verify()
    validated = next(event for event in events if isinstance(event, ValidatedEvent))
    scores: Any = next(event for event in reversed(events) if hasattr(event, "comparison"))
    row = scores.comparison.rows[0].json()
    assert row["metrics"]["perplexity"]["score"] == pytest.approx(validated.perplexity, rel=1e-4)
    assert row["budget"] is None
    assert row["parameters"] == run.model().numbers > 0  # type: ignore[attr-defined]
    options: Any = {"max_source": 16, "prompts": True}
    outputs = translate(run.model(), run.tokenizer(), ["kami mine"], run.recipe.search, **options)
    assert len([text for (text, _), *_ in outputs if text]) == 1
    _, events = train_run(tmp_path, recipe(kind))
    assert not any(isinstance(event, FinishedEvent) for event in events)  # not counted again


@pytest.mark.parametrize(("kind", "stop"), [("counts", 1), ("skip-gram", 4)])
def test_stopped_run_starts_over_and_equals_an_uninterrupted_one(kind: str, stop: int, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("stopped", "uninterrupted")]
    for folder in folders:
        folder.mkdir()
    with pytest.raises(StoppedError, match="run the same command again to start this run over"):
        run_training(job(folders[0], recipe(kind), StopAt([stop])), count)
    assert not Run.open(folders[0] / "run").finished
    hashes = []
    for folder in folders:
        run_training(job(folder, recipe(kind)), count)
        run = Run.open(folder / "run")
        hashes.append(run.manifest.files | {"metrics.jsonl": run.log.digest()})
    assert hashes[0] == hashes[1]


def test_fitting_the_vectors_lowers_the_loss_of_pairs(tmp_path: Path) -> None:
    events = run_training(job(tmp_path, recipe("skip-gram", steps=30)), count)
    losses = [event.loss for event in events if isinstance(event, ProgressEvent)]
    assert len(losses) == 15
    assert losses == sorted(losses, reverse=True)


def test_finished_run_needs_no_updates_for_more_steps(tmp_path: Path) -> None:
    run_training(job(tmp_path, recipe()), count)
    assert not needs_updates(Run.open(tmp_path / "run"), recipe(steps=9), [])


def test_automatic_precision_is_fp32_without_a_measurement(tmp_path: Path) -> None:
    run, events = train_run(tmp_path, recipe(precision="auto"))
    assert not any(isinstance(e, NoteEvent) and "precision" in e.text for e in events)
    assert run.manifest.precision == "fp32"


def test_cost_is_that_of_the_tables() -> None:
    size = 50
    pairs = size * size
    total = {kind: cost.parameters(recipe(kind), (size, size)).total for kind in KINDS}
    del total["trigram"]
    assert total == {
        "unigram": size,
        "counts": pairs + size,
        "residual": 2 * pairs + size,
        "skip-gram": 2 * 8 * size + size,
    }
    assert cost.memory(recipe(), (size, size), cost.BatchShape(4, 0, 16)) >= 4 * total["counts"]


def test_functions_that_need_attention_raise(tmp_path: Path) -> None:
    run_training(job(tmp_path, recipe()), count)
    run = Run.open(tmp_path / "run")
    with pytest.raises(UsageError, match="this model has no attention"):
        MapReader(run)
    with pytest.raises(UsageError, match="this model has no attention"):
        probe_heads(run, [Row("", "kami mine")])
    reader = LanguageModelReader(run.model(), run.tokenizer(), "counted")
    assert reader.window_refusal == "the model has no attention"
    assert reader.device == torch.device("cpu")


def test_cost_table_says_that_counted_models_are_not_timed() -> None:
    recipes = {kind: recipe(kind) for kind in ("counts", "trigram")}
    table = cost_table({kind: cost.cost_of(chosen) for kind, chosen in recipes.items()}, recipes)
    assert "counted in one pass, not timed: counts, trigram" in str(table.notes)
