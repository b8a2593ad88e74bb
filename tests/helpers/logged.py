"""Runs without training: recipe, log, scores and checkpoints as a training writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkit.recipe import Recipe
from attnkit.runs import Run, run_path
from attnkit.runs.json_files import StoredMetric, StoredSplit
from attnkit.storage.files import sha256_file


def recipe(seed: int = 1, attention: str = "scaled-dot", **train: Any) -> Recipe:
    """Return a recipe with options of training."""
    return Recipe.model_validate(
        {
            "task": "translation",
            "data": {"corpus": "toy-translation"},
            "model": {"attention": dict.fromkeys(("encoder", "decoder", "cross"), {"name": attention})},
            "train": {"steps": 100, "seeds": (seed,), **train},
            "eval": {"metrics": ("bleu", "chrf")},
        }
    )


def make_logged(
    root: Path,
    variant: str = "base",
    seed: int = 1,
    *,
    losses: Sequence[float] = (3.0, 2.0, 1.0),
    finished: bool = True,
    scores: Mapping[str, float] | None = None,
    name: str = "toy",
    attention: str = "scaled-dot",
    train: Mapping[str, Any] | None = None,
    **manifest: Any,
) -> Run:
    """Create a run with a log record every 10 updates, and a validation, 0.5 higher, every 20 updates."""
    chosen = recipe(seed, attention, **train or {})
    path = run_path(root, name, variant, seed)
    entries = {"hashes": {"data": "d", "tokenizer": "t"}, "parameters": 1000, "baseline": "base"} | manifest
    run = Run.create(path, chosen, name=name, variant=variant, seed=seed, **entries)
    for number, loss in enumerate(losses, start=1):
        step = 10 * number
        speed = {"tokens": 100 * step, "tokens_per_second": 100.0, "seconds": float(step)}
        run.log.append({"step": step, "epoch": 0, "loss": loss, "lr": 1e-3, "grad_norm": 0.5, **speed})
        if number % 2 == 0:
            valid = {"valid_loss": loss + 0.5, "monitor": chosen.train.monitor, "value": loss + 0.5}
            run.log.append({"step": step, **valid, "valid_seconds": float(step)})
    last = 10 * len(losses)
    checkpoint = run.checkpoints / f"step-{last}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "tensors.safetensors").write_bytes(b"x" * 1000)
    if finished:
        model = path / "model.safetensors"
        model.write_bytes(b"weights")
        facts = {"step": last, "updates": last, "seconds": float(last), "tokens": 100 * last}
        run.update(files={model.name: sha256_file(model)}, finished=facts)
    if scores is not None:
        metrics = {metric: StoredMetric(score=value, signature="s") for metric, value in scores.items()}
        run.write_scores("test", ["x"], StoredSplit(metrics=metrics))
    return run
