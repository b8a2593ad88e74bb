"""Runs with a small corpus and large random weights, for tests of conversions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkit.cli.options import check_options
from attnkit.data.preparation import prepare
from attnkit.experiment.conversion import ConversionSettings, converted_recipe
from attnkit.recipe.schema import AttentionConfig, EvalConfig, Roles
from attnkit.runs import Run, run_path
from attnkit.train.optimizer import weights_of
from helpers.small import small_recipe, write_corpus


def make_run(folder: Path, attention: Mapping[str, str] = {}, **model: Any) -> Run:  # noqa: B006
    """Create a finished run below folder/runs/small; `model` changes the model section of its recipe."""
    recipe = small_recipe(write_corpus(folder), steps=3, valid_every=0)
    if attention:
        model["attention"] = Roles(**{role: AttentionConfig(name=word) for role, word in attention.items()})
    short = EvalConfig(splits=("test",), bootstrap=20)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update=model), "eval": short})
    prepared = prepare(recipe, cache=folder / "cache")
    facts = {"hashes": {"data": prepared.digest}, "precision": "fp32", "device": "cpu"}
    path = run_path(folder / "runs", "small", "base", 1)
    run = Run.create(path, recipe, name="small", variant="base", seed=1, **facts)
    run.write_tokenizer(prepared.tokenizer)
    weights = weights_of(run.untrained())
    large = {name: 3 * tensor if tensor.dim() > 1 else tensor for name, tensor in weights.items()}
    run.finish(large, step=3, seconds=1.0, updates=3)
    return run


def settings(
    run: Run, attention: str, *words: str, transfer: int = 2, tune: int = 1, **more: Any
) -> ConversionSettings:
    """Return settings that convert such a run."""
    recipe = converted_recipe(run, attention, tune, words, check_options)
    out = run.path.parents[2]
    return ConversionSettings(run=run, recipe=recipe, transfer=transfer, tune=tune, out=out, device="cpu", **more)


def stages(run: Run, name: str, which: Sequence[str] = ("swapped", "transferred", "tuned")) -> Any:
    """Open the runs that a conversion has written."""
    return [Run.open(run_path(run.path.parents[2], "small", f"{name}-{stage}", 1)) for stage in which]
