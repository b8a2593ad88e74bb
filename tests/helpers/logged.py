"""Runs that were never trained: recipe, log, scores and checkpoints as a training leaves them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkit.recipe import Recipe
from attnkit.runs import Run, run_path
from attnkit.runs.json_files import StoredMetric, StoredSplit
from attnkit.storage.files import sha256_file

HASHES = {"data": "d", "tokenizer": "t"}


def recipe(seed: int = 1, attention: str = "scaled-dot", **train: Any) -> Recipe:
    """A recipe whose values differ from the default where they are given."""
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
    """A run with a log record each 10 updates, and a validation 0.5 higher at each second one."""
    chosen = recipe(seed, attention, **train or {})
    path = run_path(root, name, variant, seed)
    entries = {"hashes": HASHES, "parameters": 1000, "baseline": "base"} | manifest
    run = Run.create(path, chosen, name=name, variant=variant, seed=seed, **entries)
    for number, loss in enumerate(losses, start=1):
        run.log.append(
            {
                "step": 10 * number,
                "epoch": 0,
                "loss": loss,
                "lr": 1e-3,
                "grad_norm": 0.5,
                "tokens": 1000 * number,
                "tokens_per_second": 100.0,
                "seconds": 10.0 * number,
            }
        )
        if number % 2 == 0:
            run.log.append(
                {
                    "step": 10 * number,
                    "valid_loss": loss + 0.5,
                    "monitor": chosen.train.monitor,
                    "value": loss + 0.5,
                    "valid_seconds": 10.0 * number,
                }
            )
    checkpoint = run.checkpoints / f"step-{10 * len(losses)}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "tensors.safetensors").write_bytes(b"x" * 1000)
    if finished:
        model = path / "model.safetensors"
        model.write_bytes(b"weights")
        last = 10 * len(losses)
        done = {"step": last, "updates": last, "seconds": float(last), "tokens": 100 * last}
        run.update(files={model.name: sha256_file(model)}, finished=done)
    if scores is not None:
        metrics = {k: StoredMetric(score=value, signature="s") for k, value in scores.items()}
        run.write_scores("test", ["x"], StoredSplit(metrics=metrics))
    return run
