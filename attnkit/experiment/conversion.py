"""Attention surgery: replacement of the attention mechanism of a trained model, and its effect on quality.

A run is converted in up to three stages, each stored as a run and scored: `swapped` keeps all weights that fit by name
and shape and initializes the others; `transferred` trains the new layers to reproduce the old ones' outputs; `tuned`
is fine-tuned like any run with initial weights (`train.init`). Source of swapping and fine-tuning: Kasai et al. 2021,
"Finetuning Pretrained Transformers into RNNs".
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import mean
from typing import Any

from attnkit.data.preparation import train_epoch
from attnkit.errors import RecipeError, UsageError
from attnkit.experiment import attention_transfer, initial_weights
from attnkit.experiment.attention_transfer import MATCHING, layers_of, make_updates
from attnkit.experiment.experiment import Experiment, RunTraining
from attnkit.experiment.resumption import Change, describe
from attnkit.experiment.settings import TrainingSettings
from attnkit.models import Model
from attnkit.recipe import Recipe, RecipeFile, digest, load
from attnkit.recipe.capability import OptionCheck
from attnkit.recipe.dumping import changed_keys
from attnkit.runs import Run, layout, run_path
from attnkit.scoring import Comparison, ScoreRow, check_scorable, side_by_side
from attnkit.scoring.comparison import first_baselines
from attnkit.train import events
from attnkit.train.batch_stream import BatchStream, score_budget
from attnkit.train.events import Emit, Event, NoteEvent
from attnkit.train.optimizer import Weights, learning_rate, weights_of
from attnkit.train.signals import StopSignals

RATE = 1e-2
"""Initial learning rate of attention transfer."""
MAP_BATCHES = 32
"""Maximum number of training batches over which attention maps are averaged."""
ConvertedModel = tuple[Model, dict[str, Any]]
"""A model and the entries of the manifest about its conversion."""
CHANGES = ("model.attention.", "train.", "search.", "eval.", "contexts.")
FIXED = ("train.init", "train.seeds", "train.objective")


@dataclass(frozen=True, kw_only=True)
class ConversionSettings:
    """Settings of one conversion."""

    run: Run
    """Finished run to convert."""
    recipe: Recipe
    """Recipe of the fine-tuning: see `converted_recipe`."""
    transfer: int
    """Number of updates of attention transfer; 0 skips it."""
    tune: int
    """Number of updates of fine-tuning, as in the recipe; 0 skips it."""
    out: Path
    """Root of the run directories."""
    fresh: bool = False
    device: str = "auto"
    data_dir: Path | None = None
    offline: bool = False

    @property
    def name(self) -> str:
        """Name of the recipe and of the converted runs."""
        return self.run.name

    @property
    def stages(self) -> list[str]:
        """Variant names of the new runs: the original variant, the new mechanisms and the stage."""
        old, new = self.run.recipe.model, self.recipe.model
        places = changed_places(old, new) or new.places
        mechanisms = dict.fromkeys(getattr(new.attention, place).name for place in places)
        stages = attention_transfer.stages(self.transfer, self.tune)
        return ["-".join((self.run.variant, *mechanisms, stage)) for stage in stages]


def changed_places(old: Any, new: Any) -> list[str]:
    """Return the places (encoder, decoder, cross) in which the attention of two models differs."""
    return [place for place in new.places if getattr(old.attention, place) != getattr(new.attention, place)]


def converted_recipe(
    run: Run, attention: str, updates: int, overrides: Sequence[str], option_check: OptionCheck
) -> Recipe:
    """Return the run's recipe with new attention, for the fine-tuning of the converted model.

    The peak learning rate is a third of the run's, with linear decay to 0 after a warm-up over a tenth of the updates;
    weights are not averaged. `attention` is a value of model.attention; `overrides` are KEY=VALUE texts.

    Raises:
        RecipeError: If a mechanism does not fit its place, or a value is invalid.
        UsageError: If the model has no attention, or `overrides` describe several models or change other keys.
        MissingInputError: If the run is not finished.
    """
    recipe = run.recipe
    run.require_finished()
    if not recipe.model.places:
        raise UsageError(f"{run.path}: a model of type {recipe.model.type} has no attention")
    train = recipe.train
    rate = learning_rate(max(1, train.warmup), train, recipe.model.width) / 3
    tuning = {
        "steps": max(1, updates),
        "lr": f"{rate:.3g}",
        "schedule": "linear",
        "min_lr": 0,
        "warmup": updates // 10,
        "valid_every": 0,
        "average": 1,
        "ema": 0,
        "patience": 0,
        "choose": "last",
        "monitor": "loss",
    }
    defaults = [f"model.attention={attention}", *(f"train.{k}={v}" for k, v in tuning.items())]
    file = load(run.path / layout.RECIPE, [*defaults, *overrides], option_check=option_check)
    if len(file.variants) > 1:
        raise UsageError("convert makes one model: give one mechanism, and one value for each key")
    (new,) = file.variants.values()
    for key, old, _ in changed_keys(recipe, new):
        if not key.startswith(CHANGES) or key.startswith(FIXED):
            raise UsageError(
                f"{key}: convert keeps the run's value, {old}; change only attention, training, search and scoring"
            )
    if (steps := new.train.steps) != tuning["steps"]:
        raise UsageError(f"train.steps: use --tune {steps} instead")
    return new


def convert(
    settings: ConversionSettings, emit: Emit = events.ignore, *, notice: Callable[[str], object] | None = None
) -> Comparison:
    """Make the missing runs, and score and compare all stages; for `notice` see `StopSignals`.

    Raises RecipeError if an existing run was converted with other settings, StoppedError if a signal arrives, and
    AttnkitError if the data, the run directory or the training fails.
    """
    with StopSignals(notice) as stop:
        return _Conversion(settings, stop, emit).run()


def swap(old: Weights, model: Model) -> dict[str, list[str]]:
    """Copy the old weights that fit by name and shape into a new model.

    Returns the names of the weights kept, the new ones, and the old ones left out.
    """
    fresh, state = weights_of(model), model.state_dict()
    fits = {name: tensor for name, tensor in old.items() if name in state and state[name].shape == tensor.shape}
    model.load_state_dict(fits, strict=False)
    new, left_out = ([name for name in weights if name not in fits] for weights in (fresh, old))
    return {"kept": [*fits], "new": new, "left_out": left_out}


class _Conversion:
    def __init__(self, settings: ConversionSettings, stop: StopSignals, emit: Emit) -> None:
        self.settings, self.stop, self.old = settings, stop, settings.run
        self.emit = emit
        self.seed, self.variants = self.old.seed, settings.stages
        sections = ("model", "search", "eval", "contexts")
        self.recipe = self.old.recipe.model_copy(update={name: getattr(settings.recipe, name) for name in sections})
        model = self.recipe.model
        self.kinds = changed_places(self.old.recipe.model, model) or model.places
        *_, last, final = self.old.variant, *self.variants
        init = str(self._path(last).resolve())  # absolute, as in a loaded recipe
        train = {"init": init, "seeds": (self.seed,)}
        self.tuned = settings.recipe.model_copy(update={"train": settings.recipe.train.model_copy(update=train)})
        file = RecipeFile(self.old.name, self.old.path, {final: self.tuned}, None, {})
        shared = {name: getattr(settings, name) for name in ("fresh", "device", "data_dir", "offline")}
        plan = TrainingSettings(file=file, out=settings.out, precision=self.old.manifest.precision, **shared)
        self.experiment = Experiment(plan, stop, emit)
        self.experiment.keep_memory()

    def run(self) -> Comparison:
        check_scorable(self.recipe)
        finished = [self._is_finished(variant) for variant in self.variants]
        if not all(finished) and self.variants[1:]:  # so that missing data is reported first
            self.experiment.prepared(self.settings.recipe, self.old, self.emit)
        runs = [self.old]
        for variant in self.variants:
            if variant.endswith("-tuned"):
                training = RunTraining(self.experiment, variant, self.seed)  # like any run with `train.init`
                training.check()
                training.train().update(converted=self._entry(variant), **self._history())
            else:
                make = self._swap if variant.endswith("-swapped") else self._transfer
                self._make(variant, partial(make, runs[-1]))
            runs.append(Run.open(self._path(variant)))
        return self._score(runs)

    def _path(self, variant: str) -> Path:
        return run_path(self.settings.out, self.old.name, variant, self.seed)

    def _entry(self, variant: str) -> dict[str, Any]:
        """Return the manifest entry of a stage about its origin."""
        updates = 0 if variant.endswith("-swapped") else self.settings.transfer
        return {**initial_weights.manifest_entry(self.old), "transfer": updates}

    def _is_finished(self, variant: str) -> bool:
        """Return whether a run is finished.  Raises RecipeError if it was converted with other settings."""
        run = Run(self._path(variant))
        if self.settings.fresh or not run.exists:
            return False
        run = Run.open(run.path)
        recipe = self.tuned if variant.endswith("-tuned") else self.recipe
        changes = [Change(*change) for change in changed_keys(run.recipe, recipe)]
        if recorded := run.manifest.converted:
            entry = self._entry(variant)
            for key, old in (("weights", recorded.weights), ("transfer", recorded.transfer)):
                if old != entry[key]:
                    changes.append(Change(key, str(old)[:8], str(entry[key])[:8]))
        if different := [change for change in changes if change.of_weights]:
            raise RecipeError(
                f"{run.path}: was converted with other settings ({describe(different)}); use --fresh to start "
                "over, or another --out"
            )
        return run.finished

    def _make(self, variant: str, make: Callable[[Run, Emit], ConvertedModel]) -> None:
        """Store the model that `make` returns as a run, with its manifest entries."""

        def emit(event: Event) -> None:
            self.emit(replace(event, variant=variant, seed=self.seed))

        if self._is_finished(variant):
            emit(events.SkippedEvent("already converted"))
            return
        run, old, start = Run(self._path(variant)), self.old.manifest, time.perf_counter()
        with run.lock():
            run.clear()
            kept = {"hashes", "device", "threads", "precision"}
            fields = old.model_dump(include=kept, exclude_unset=True) | self._history()
            run = Run.create(run.path, self.recipe, name=self.old.name, variant=variant, seed=self.seed, **fields)
            run.write_tokenizer(self.old.tokenizer())
            model, entries = make(run, emit)
            run.update(
                hashes={"recipe": digest(self.recipe)},
                parameters=sum(weight.numel() for weight in model.parameters()),
                converted=self._entry(variant) | entries,
            )
            seconds, end = time.perf_counter() - start, self.old.outcome
            run.finish(weights_of(model), step=end.step, seconds=seconds, reason="converted", updates=end.last)
        emit(events.FinishedEvent(end.step, seconds, "converted"))

    def _history(self) -> dict[str, Any]:
        """Return the manifest entries of all stages: the baseline, and earlier changes with those of the model."""
        step, earlier = self.old.outcome.step, [change.model_dump() for change in self.old.manifest.changes]
        changes = [Change(*change) for change in changed_keys(self.old.recipe, self.recipe)]
        new = [{"step": step, **c._asdict()} for c in changes if c.key.startswith("model.")]
        return {"baseline": self.old.variant, "changes": [*earlier, *new]}

    @cached_property
    def teacher(self) -> Model:
        return self.old.model(str(self.experiment.device))

    def _batches(self, emit: Emit) -> BatchStream:
        recipe = self.settings.recipe
        prepared = self.experiment.prepared(recipe, self.old, emit)
        encoded = partial(train_epoch, prepared, recipe, seed=self.seed)
        return BatchStream(encoded, recipe.train.batch_tokens, self.seed, score_budget(self.recipe))

    def _swap(self, previous: Run, run: Run, emit: Emit) -> ConvertedModel:
        """Make the new model with the weights that fit, and with averaged maps if its mechanism adopts them."""
        model = run.untrained()
        swapped = swap(previous.weights(), model)
        kept, new, left_out = map(len, swapped.values())
        emit(NoteEvent(f"weights: {kept} kept, {new} new, {left_out} removed"))
        layers = layers_of(model, self.kinds)
        adopting = {place: layer.mechanism for place, layer in layers.items() if layer.mechanism.adopts_maps}
        if adopting:
            stream = self._batches(emit)
            batches = stream.take(min(MAP_BATCHES, len(stream.batches)))
            old_layers = layers_of(self.teacher, self.kinds)
            replaced = {place: old_layers[place] for place in adopting}
            positions = next(iter(adopting.values())).shape.max_length
            maps = attention_transfer.averaged_maps(self.teacher, replaced, batches, positions)
            for place, mechanism in adopting.items():
                mechanism.adopt_maps(maps[place].cpu())
            count = sum(len(batch.rows) for batch in batches)
            emit(NoteEvent(f"layers that start with attention maps averaged over {count:,} texts: {len(adopting)}"))
        return model, {**swapped, "layers_with_averaged_maps": len(adopting)}

    def _transfer(self, previous: Run, run: Run, emit: Emit) -> ConvertedModel:
        """Train the previous stage's model by attention transfer, with a linearly falling learning rate."""
        stream = self._batches(emit)
        device, updates = str(self.experiment.device), self.settings.transfer
        model = previous.model(device)
        size = sum(weight.numel() for weight in model.parameters())
        emit(events.StartedEvent(run.name, updates, size, device, "fp32"))
        # both models are in evaluation mode: no dropout, no sampling
        layers, old_layers = layers_of(model, self.kinds), layers_of(self.teacher, self.kinds)

        def backward() -> tuple[float, int]:
            self.stop.obey(" during attention transfer; the same command starts it over")
            (batch,) = stream.take(1)
            calls = attention_transfer.layer_calls(self.teacher, old_layers, batch)
            loss = attention_transfer.matching_loss(layers, calls)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.item(), batch.tokens

        losses = make_updates(
            MATCHING,
            (weight for layer in layers.values() for weight in layer.parameters()),
            updates,
            lambda update: RATE * (1 - (update - 1) / updates),
            backward,
            emit,
            fused=True,
        )
        first, last = losses[0], mean(losses[-10:])
        emit(NoteEvent(f"{MATCHING} of the layers {first:.3g} -> {last:.3g}"))
        return model, {"mean_squared_error": {"first": first, "last": last}}

    def _score(self, runs: Sequence[Run]) -> Comparison:
        """Score all stages and compare them, without training budgets, which differ on purpose, with the original."""
        recipe, rows = self.settings.recipe, list[ScoreRow]()
        for run in runs:
            key: Any = {"variant": run.variant, "seed": run.seed}
            self.emit(NoteEvent(f"scoring {run.variant}", passing=True, **key))
            scores = self.experiment.scores(run, recipe)
            rows += [replace(row, system=replace(row.system, budget=None)) for row in scores]
            self.emit(events.EvaluatedEvent(recipe.eval.splits, **key))
        result = side_by_side(rows, first_baselines(rows, self.old.variant), recipe.eval)
        self.emit(events.ScoredEvent(result))
        return result
