"""Models that are counted, from a recipe to a finished run."""

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
from attnkit.recipe import Recipe, RecipeFile
from attnkit.recipe.schema import (
    DataConfig,
    EvalConfig,
    ModelConfig,
    NaiveBayesConfig,
    SearchConfig,
    TokenizerConfig,
    TrainConfig,
)
from attnkit.runs import Run
from attnkit.search.decoding import translate
from attnkit.show.recipe_tables import costs as costs_of
from attnkit.train.counting import count
from attnkit.train.events import FinishedEvent, NoteEvent, ProgressEvent, ValidatedEvent

KINDS: dict[str, dict[str, Any]] = {
    "unigram": {"type": "n-gram", "order": 1},
    "trigram": {"type": "n-gram"},
    "counts": {"type": "naive-bayes"},
    "residual": {"type": "naive-bayes", "naive_bayes": NaiveBayesConfig(residual="own", beta=1)},
    "skip-gram": {"type": "naive-bayes", "width": 8, "naive_bayes": NaiveBayesConfig(estimate="skip-gram")},
}


def recipe(kind: str = "counts", **settings: Any) -> Recipe:
    """A language model of chains of syllables."""
    chosen = {"steps": 6, "lr": 0.05, "warmup": 2, "log_every": 2, "precision": "fp32"}
    return Recipe(
        task="language-modeling",
        data=DataConfig(corpus="toy-chains", size=6, valid_rows=2, max_length=16),
        tokenizer=TokenizerConfig(type="word", size=60),
        model=ModelConfig(shape="decoder", **KINDS[kind]),
        train=TrainConfig(objective="causal", **chosen | settings),
        search=SearchConfig(max_length=5),
        eval=EvalConfig(metrics=("perplexity",), splits=("valid",)),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_counted_run_is_finished_scored_and_used_like_any_other(kind: str, tmp_path: Path) -> None:
    file = RecipeFile("small", tmp_path / "small.yaml", {"base": recipe(kind)}, None, {})
    events = record_events(train, TrainingSettings(file=file, out=tmp_path / "runs", device="cpu"))
    run = Run.open(tmp_path / "runs/small/base/seed-1")
    assert run.finished
    run.verify()
    validated = next(event for event in events if isinstance(event, ValidatedEvent))
    scores = next(event for event in reversed(events) if hasattr(event, "comparison"))
    row = scores.comparison.rows[0].json()
    assert row["metrics"]["perplexity"]["score"] == pytest.approx(validated.perplexity, rel=1e-4)
    assert row["budget"] is None
    assert row["parameters"] == run.model().numbers > 0  # type: ignore[attr-defined]
    how: Any = {"max_source": 16, "prompts": True}
    found = translate(run.model(), run.tokenizer(), ["kami mine"], run.recipe.search, **how)
    assert len([text for (text, _), *_ in found if text]) == 1
    # nothing is counted again
    again = record_events(train, TrainingSettings(file=file, out=tmp_path / "runs", device="cpu"))
    assert not any(isinstance(event, FinishedEvent) for event in again)


@pytest.mark.parametrize("kind", ["counts", "skip-gram"])
def test_a_stopped_run_counts_again_and_ends_like_one_left_alone(kind: str, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("stopped", "alone")]
    for folder in folders:
        folder.mkdir()
    with pytest.raises(StoppedError, match="run the same command again to start this run over"):
        run_training(job(folders[0], recipe(kind), StopAt([1 if kind == "counts" else 4])), count)
    assert not Run.open(folders[0] / "run").finished
    for folder in folders:
        run_training(job(folder, recipe(kind)), count)
    first, second = (Run.open(folder / "run") for folder in folders)
    hashes = [run.manifest.files | {"metrics.jsonl": run.log.digest()} for run in (first, second)]
    assert hashes[0] == hashes[1]


def test_vectors_come_to_lower_the_loss_of_pairs(tmp_path: Path) -> None:
    events = run_training(job(tmp_path, recipe("skip-gram", steps=30)), count)
    losses = [event.loss for event in events if isinstance(event, ProgressEvent)]
    assert len(losses) == 15
    assert losses == sorted(losses, reverse=True)


def test_more_steps_make_no_finished_count_go_on(tmp_path: Path) -> None:
    run_training(job(tmp_path, recipe()), count)
    assert not needs_updates(Run.open(tmp_path / "run"), recipe(steps=9), [])


def test_a_comparison_times_no_precision_for_counted_models(tmp_path: Path) -> None:
    chosen = recipe("counts", precision="auto")
    file = RecipeFile("small", tmp_path / "small.yaml", {"base": chosen}, None, {})
    events = record_events(train, TrainingSettings(file=file, out=tmp_path / "runs", device="cpu"))
    assert not any(isinstance(e, NoteEvent) and "precision" in e.text for e in events)
    assert Run.open(tmp_path / "runs/small/base/seed-1").manifest.precision == "fp32"


def test_its_cost_is_that_of_its_tables() -> None:
    size = 50
    total = {kind: cost.parameters(recipe(kind), (size, size)).total for kind in KINDS}
    pairs = size * size
    assert total["unigram"] == size
    assert total["counts"] == pairs + size
    assert total["residual"] == 2 * pairs + size
    assert total["skip-gram"] == 2 * 8 * size + size
    memory = cost.memory(recipe(), (size, size), cost.BatchShape(4, 0, 16))
    assert memory >= 4 * total["counts"]


def counted_run(folder: Path) -> Run:
    run_training(job(folder, recipe()), count)
    return Run.open(folder / "run")


def test_what_needs_attention_is_refused_in_one_line(tmp_path: Path) -> None:
    run = counted_run(tmp_path)
    with pytest.raises(UsageError, match="this model has no attention"):
        MapReader(run)
    rows = [Row("", "kami mine")]
    with pytest.raises(UsageError, match="this model has no attention"):
        probe_heads(run, rows)
    reader = LanguageModelReader(run.model(), run.tokenizer(), "counted")
    assert reader.window_refusal == "the model has no attention"
    assert reader.device == torch.device("cpu")


def test_explaining_times_trained_models_alone() -> None:
    costs = {kind: cost.cost_of(recipe(kind)) for kind in ("counts", "trigram")}
    table = costs_of(costs, {kind: recipe(kind) for kind in costs})
    assert "counted in one pass, not timed: counts, trigram" in str(table.notes)
