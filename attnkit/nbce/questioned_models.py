"""Who can be asked question sets: runs, and models that no recipe here has trained."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attnkit.nbce.reader import ContextReader
from attnkit.nbce.run_reader import open_run
from attnkit.runs import Results
from attnkit.scoring.saved_scores import describe_run

if TYPE_CHECKING:
    from attnkit.runs import Run

MODELS = "models"
"""Folder of those from elsewhere, beside the variants of a recipe."""
LONGEST_NAME = 120


@dataclass
class QuestionedModel:
    """A model, what is said of it, and where its answers are kept."""

    name: str
    """For messages."""
    system: Mapping[str, Any]
    """What it is, for the rows of comparisons; see `attnkit.scoring.saved_scores.describe_run`."""
    results: Results
    """Where its answers and scores are kept."""
    weights: str
    """SHA-256 of its weights: answers of others are not taken for its own."""
    limit: int | None
    """Most tokens of the one row of concat and cad, where the recipe says none; None: its own."""
    open: Callable[[], ContextReader]
    """Called once, where not everything is known already."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How it reads, where answers depend on it: kept with them, as JSON."""

    @cached_property
    def reader(self) -> ContextReader:
        """The model."""
        return self.open()


def of_run(run: "Run", device: str = "cpu") -> QuestionedModel:
    """A finished run; its answers are kept in it."""
    return QuestionedModel(
        f"{run.variant} seed {run.seed}",
        describe_run(run),
        run,
        run.manifest["files"]["model.safetensors"],
        run.recipe.data.max_length,
        lambda: open_run(run, device),
    )


def of_reader(
    reader: ContextReader,
    name: str,
    recipe: str,
    out: str | Path,
    *,
    limit: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> QuestionedModel:
    """Any model; its answers are kept in <out>/<recipe>/models/<name>.

    Args:
        reader: the model.
        name: as the user wrote it.
        recipe: name of the recipe that has the questions.
        out: root of the run folders.
        limit: see `Subject`.
        settings: how it reads, as JSON.
    """
    folder = "--".join(part for part in Path(name).parts if part not in ("/", ".", ".."))
    results = Results(Path(out).joinpath(*recipe.split("/"), MODELS, folder[-LONGEST_NAME:]))
    system = {
        "recipe": recipe,
        "variant": name,
        "seed": None,
        "parameters": sum(weight.numel() for weight in reader.model.parameters()),
        "train_tokens_per_second": None,
        "run": results.path.as_posix(),
    }
    weights = digest_of(reader.model)
    return QuestionedModel(name, system, results, weights, limit, lambda: reader, settings or {})


def digest_of(model: torch.nn.Module) -> str:
    """SHA-256 of the weights, about a second a GB."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        if isinstance(weight, torch.Tensor):  # a quantised layer keeps settings there as well
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            plain = weight.detach().cpu().contiguous().flatten()
            digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()
