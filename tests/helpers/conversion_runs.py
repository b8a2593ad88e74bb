"""A run with a corpus of its own, whose weights are random and large, for tests of conversions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkit.cli.options import check_options
from attnkit.data.preparation import prepare
from attnkit.experiment.conversion import ConversionSettings, converted_recipe
from attnkit.recipe.schema import AttentionConfig, EvalConfig, Roles
from attnkit.runs import Run, run_path
from attnkit.train.optimiser import weights_of
from helpers.small import small_recipe, write_corpus

SHORT = EvalConfig(splits=("test",), bootstrap=20)


def make_run(folder: Path, attention: Mapping[str, str] = {}, **model: Any) -> Run:  # noqa: B006
    """A finished run below folder/runs/small; `model` changes that section of its recipe."""
    recipe = small_recipe(write_corpus(folder), steps=3, valid_every=0)
    changed = recipe.model.model_copy(update=model)
    if attention:
        chosen = {place: AttentionConfig(name=word) for place, word in attention.items()}
        changed = changed.model_copy(update={"attention": Roles(**chosen)})
    recipe = recipe.model_copy(update={"model": changed, "eval": SHORT})
    prepared = prepare(recipe, cache=folder / "cache")
    path = run_path(folder / "runs", "small", "base", 1)
    facts = {"hashes": {"data": prepared.digest}, "precision": "fp32", "device": "cpu"}
    run = Run.create(path, recipe, name="small", variant="base", seed=1, **facts)
    run.write_tokenizer(prepared.tokenizer)
    weights = weights_of(run.untrained())
    large = {name: 3 * tensor if tensor.dim() > 1 else tensor for name, tensor in weights.items()}
    run.finish(large, step=3, seconds=1.0, updates=3)
    return run


def settings(
    run: Run, attention: str, *words: str, transfer: int = 2, tune: int = 1, **more: Any
) -> ConversionSettings:
    """A conversion of such a run."""
    recipe = converted_recipe(run, attention, tune, words, check_options)
    out = run.path.parents[2]
    return ConversionSettings(run=run, recipe=recipe, transfer=transfer, tune=tune, out=out, device="cpu", **more)


def stages(run: Run, name: str, which: Sequence[str] = ("swapped", "transferred", "tuned")) -> Any:
    """The runs that came of a conversion."""
    return [Run.open(run_path(run.path.parents[2], "small", f"{name}-{w}", 1)) for w in which]
