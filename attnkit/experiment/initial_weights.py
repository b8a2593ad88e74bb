"""Initial weights from another run: `train.init`."""

import shlex
from pathlib import Path
from typing import Any

import torch

from attnkit import models
from attnkit.errors import DataError, MissingInputError, RecipeError
from attnkit.experiment.resumption import recipe_of_run
from attnkit.recipe import Recipe, RecipeFile, load
from attnkit.runs import Run, layout, run_path
from attnkit.runs.demo import located, named
from attnkit.storage import tensors
from attnkit.train.optimizer import Weights, weights_of

INIT = "train.init"
HEAD = "output.weight"
SHAPELESS = ("type", "heads", "norm", "positions", "activation")
"""Keys of a model whose values do not show in the shapes of the weights."""


def initial_run(file: RecipeFile, variant: str, seed: int, out: Path) -> Run | None:
    """Return the finished run with the initial weights of a training, checked to fit; None without `train.init`.

    `out` is the root of the run directories if `train.init` names a recipe. A variant made by a sweep starts from the
    run of its base variant.

    Raises:
        MissingInputError: If the recipe or run does not exist; names the command that makes it.
        RecipeError: If its weights or its tokenizer's settings do not fit; names the first ones that do not.
        DataError: If its weights are damaged.
    """
    recipe = recipe_of_run(file, variant, seed)
    if recipe.train.init is None:
        return None
    origins = file.origins.get(variant, {})
    origin = ": ".join(filter(None, (origins.get(INIT), INIT)))
    base = next((name for name, variants in file.swept.items() if variant in variants), variant)
    run = Run(_folder(recipe.train.init, base, seed, out, origin))
    if run.path.resolve() == run_path(out, file.name, variant, seed).resolve():
        raise RecipeError(f"{origin}: {run.path} is the run to train; use another --out")
    if not run.finished:
        raise MissingInputError(f"{origin}: {_missing(run, recipe.train.init, seed, out)}")
    run = Run.open(run.path)
    for key, place in origins.items():
        name = key.removeprefix("tokenizer.")
        if name in (key, "sampling") or place in ("default", "derived"):
            continue
        ours, theirs = (getattr(r.tokenizer, name) for r in (recipe, run.recipe))
        if ours != theirs:
            raise RecipeError(
                f"{place}: {key}: {ours}, but the tokenizer comes from {INIT} ({run.path}), "
                f"whose {name} is {theirs}; remove {key}"
            )
    if fault := mismatch(recipe, run):
        raise RecipeError(
            f"{origin}: the weights of {run.path} do not fit variant {variant}: {fault}; give both "
            "recipes the same model and data.max_length"
        )
    return run


def manifest_entry(run: Run) -> dict[str, Any]:
    """Return the manifest entry about the run with the initial weights."""
    return {
        "run": named(run.path.as_posix()),
        "recipe": run.name,
        "variant": run.variant,
        "seed": run.seed,
        "weights": run.weights_sha256,
    }


def require_same(run: Run, initial: Run | None) -> None:
    """Raise DataError if a run began from other weights than those of `initial`."""
    recorded = run.manifest.init
    if (recorded and recorded.weights) != (initial and initial.weights_sha256):
        raise DataError(
            f"{run.path}: started from other weights than {INIT} has now; restore the weights,"
            " or start over with --fresh"
        )


def starting_weights(recipe: Recipe, run: Run) -> Weights:
    """Return the weights of a run that a training starts from.

    An encoder for classification takes the encoder's weights, and the head's only if the labels are the same.

    Raises DataError if the weights are damaged.
    """
    weights = run.weights()
    if recipe.model.shape != "encoder" or not recipe.writes:
        return weights
    same_labels = run.recipe.model.shape == "encoder" and run.recipe.data.labels == recipe.data.labels
    prefixes = ("embed_source.", "encoder.", *([HEAD] if same_labels else []))
    return {name: tensor for name, tensor in weights.items() if name.startswith(prefixes)}


def mismatch(recipe: Recipe, run: Run) -> str:
    """Return how the weights of a run fail to fit a model, by names and shapes, or "" if they fit.

    Settings that change the meaning of weights, but not their shapes, are compared first.
    """
    for name in SHAPELESS:
        theirs, ours = (getattr(r.model, name) for r in (run.recipe, recipe))
        if theirs != ours:
            return f"model.{name} is {theirs} in {INIT} and {ours} in the recipe"
    theirs, ours = run.recipe.model.init_std, recipe.model.init_std
    if (theirs is None) != (ours is None):  # only one of the models multiplies embeddings by sqrt(width)
        return f"model.init_std is {theirs or 'null'} in {INIT} and {ours or 'null'} in the recipe"
    tokenizer, weights = run.tokenizer(), starting_weights(recipe, run)
    head = recipe.model.shape == "encoder" and recipe.writes
    tokenizer = tokenizer.with_labels(recipe.data.labels) if head else tokenizer
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        expected = weights_of(models.build_for(recipe, tokenizer.sizes))
    if head and HEAD not in weights:
        del expected[HEAD]
    try:
        tensors.check(run.path, weights, expected)
    except DataError as error:
        return layout.without_path(error, run.path)
    return ""


def _folder(init: str, variant: str, seed: int, out: Path, origin: str) -> Path:
    path = located(init)
    if layout.is_results_file(path):
        Run.open(path).require_weights()
    if Run(path).exists:
        return path
    if path.is_dir():
        return path / variant / f"seed-{seed}"
    try:
        file = load(init)
    except MissingInputError as error:
        raise MissingInputError(f"{origin}: {error}; and there is no such run") from None
    if variant not in file.variants:
        raise MissingInputError(
            f"{origin}: {file.name} has no variant {variant}; it has {', '.join(file.variants)}: "
            "choose one by --variant, or name a run"
        )
    return run_path(out, file.name, variant, seed)


def _missing(run: Run, init: str, seed: int, out: Path) -> str:
    state = "is not finished" if run.exists else "does not exist"
    if Path(init).is_dir():
        return f"{run.path} {state}; it must hold a finished run"
    command = ["attnkit", "train", init]
    if seed not in next(iter(load(init).variants.values())).train.seeds:
        command += ["--seed", str(seed)]
    command += ["--out", str(out)] if out != Path("runs") else []
    return f"{run.path} {state}; train it first: {shlex.join(command)}"
