"""Attention surgery: another mechanism in a trained model, and what the model loses by it.

Three runs come of one, each with its quality: `swapped`, where all weights that fit by name and
shape are taken over and others are new; `transferred`, whose new layers have learnt to answer as
the old ones; `tuned`, trained on as any run that starts from weights (`train.init`).  Source of
swapping and fine-tuning: Kasai et al. 2021, "Finetuning Pretrained Transformers into RNNs".
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
from attnkit.experiment import attention_transfer as transferring
from attnkit.experiment import initial_weights
from attnkit.experiment.experiment import Experiment, RunTraining
from attnkit.experiment.resumption import Change, texts
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
from attnkit.train.optimiser import Weights, learning_rate, weights_of
from attnkit.train.signals import StopSignals

RATE = 1e-2
"""Learning rate of the first update of attention transfer."""
MAP_BATCHES = 32
"""Batches of the training text over which maps are averaged, at most."""
Made = tuple[Model, dict[str, Any]]
"""A model, and what the manifest says of how it was made."""
CHANGES = ("model.attention.", "train.", "search.", "eval.", "contexts.")
FIXED = ("train.init", "train.seeds", "train.objective")


@dataclass(frozen=True, kw_only=True)
class ConversionSettings:
    """One conversion, and where its runs go."""

    run: Run
    """A finished one."""
    recipe: Recipe
    """Of the fine-tuning: see `converted_recipe`."""
    transfer: int
    """Updates of attention transfer; 0 leaves it out."""
    tune: int
    """Updates of fine-tuning, as in the recipe; 0 leaves it out."""
    out: Path
    """Root of the run directories."""
    fresh: bool = False
    device: str = "auto"
    data_dir: Path | None = None
    offline: bool = False

    @property
    def name(self) -> str:
        """That of the runs."""
        return self.run.name

    @property
    def stages(self) -> list[str]:
        """The variants of the runs that are made, named by their variant and new mechanisms."""
        old, new = self.run.recipe.model, self.recipe.model
        places = changed_places(old, new) or new.places
        words = dict.fromkeys(getattr(new.attention, place).name for place in places)
        names = transferring.stages(self.transfer, self.tune)
        return ["-".join((self.run.variant, *words, stage)) for stage in names]


def changed_places(old: Any, new: Any) -> list[str]:
    """The places (encoder, decoder, cross) in which the attention of two models differs."""
    return [place for place in new.places if getattr(old.attention, place) != getattr(new.attention, place)]


def converted_recipe(
    run: Run, attention: str, updates: int, words: Sequence[str], option_check: OptionCheck
) -> Recipe:
    """The recipe of a run with other attention, for the fine-tuning of the converted model.

    It begins at a third of the run's highest learning rate, which falls linearly to 0 after a tenth of warm-up, and
    nothing is averaged. `attention` is a value of model.attention; `words` are KEY=VALUE texts that win over all this.

    Raises:
        RecipeError: a mechanism cannot do what its place asks, or a value cannot be.
        UsageError: there is no attention, or words ask for several models or another one.
        MissingInputError: the run is not finished.
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
    given = [f"model.attention={attention}", *(f"train.{k}={v}" for k, v in tuning.items())]
    file = load(run.path / layout.RECIPE, [*given, *words], option_check=option_check)
    if len(file.variants) > 1:
        raise UsageError("convert makes one model: give one mechanism, and each key one value")
    (new,) = file.variants.values()
    for key, old, _ in changed_keys(recipe, new):
        if not key.startswith(CHANGES) or key.startswith(FIXED):
            raise UsageError(
                f"{key}: convert keeps that of the run, {old}; only attention, training, search "
                "and scoring can be others"
            )
    if (steps := new.train.steps) != tuning["steps"]:
        raise UsageError(f"train.steps: give --tune {steps} instead")
    return new


def convert(
    settings: ConversionSettings, emit: Emit = events.ignore, *, notice: Callable[[str], object] | None = None
) -> Comparison:
    """Make the runs that are not there, score all, and compare them.

    `notice` is called with the name of the first signal when it comes; see `StopSignals`.

    Raises:
        RecipeError: a run that is there was made otherwise.
        StoppedError: a signal came.
        AttnkitError: whatever the data, the run directory or the training raise.
    """
    with StopSignals(notice) as stop:
        return _Conversion(settings, stop, emit).stages()


def swap(old: Weights, model: Model) -> dict[str, list[str]]:
    """Take over, in place, the weights that fit a new model by name and shape.

    Names of those that are kept, those that are new, and those of the old model that are left out.
    """
    fresh, state = weights_of(model), model.state_dict()
    fits = {name: tensor for name, tensor in old.items() if name in state and state[name].shape == tensor.shape}
    model.load_state_dict(fits, strict=False)
    new, left_out = ([n for n in some if n not in fits] for some in (fresh, old))
    return {"kept": [*fits], "new": new, "left_out": left_out}


class _Conversion:
    """One conversion, step by step."""

    def __init__(self, settings: ConversionSettings, stop: StopSignals, emit: Emit) -> None:
        self.settings, self.stop, self.old = settings, stop, settings.run
        self.emit = emit
        self.seed, self.variants = self.old.seed, settings.stages
        later = ("model", "search", "eval", "contexts")
        self.recipe = self.old.recipe.model_copy(update={name: getattr(settings.recipe, name) for name in later})
        model = self.recipe.model
        self.kinds = changed_places(self.old.recipe.model, model) or model.places
        *_, last, final = self.old.variant, *self.variants
        init = str(self._path(last).resolve())  # absolute, as those that are read from recipes
        train = {"init": init, "seeds": (self.seed,)}
        self.tuned = settings.recipe.model_copy(update={"train": settings.recipe.train.model_copy(update=train)})
        file = RecipeFile(self.old.name, self.old.path, {final: self.tuned}, None, {})
        how = {name: getattr(settings, name) for name in ("fresh", "device", "data_dir", "offline")}
        plan = TrainingSettings(file=file, out=settings.out, precision=self.old.manifest.precision, **how)
        self.experiment = Experiment(plan, stop, emit)
        self.experiment.keep_memory()

    def stages(self) -> Comparison:
        """All that `convert` does."""
        check_scorable(self.recipe)
        there = [self._there(variant) for variant in self.variants]
        if not all(there) and self.variants[1:]:  # what the data lacks is told before all
            self.experiment.prepared(self.settings.recipe, self.old, self.emit)
        runs = [self.old]
        for variant in self.variants:
            if variant.endswith("-tuned"):
                training = RunTraining(self.experiment, variant, self.seed)  # as any with `train.init`
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
        """What the manifest of one stage says of where it comes from."""
        updates = 0 if variant.endswith("-swapped") else self.settings.transfer
        return {**initial_weights.manifest_entry(self.old), "transfer": updates}

    def _there(self, variant: str) -> bool:
        """Whether a run is finished already.  Raises RecipeError where it was made otherwise."""
        run = Run(self._path(variant))
        if self.settings.fresh or not run.exists:
            return False
        run = Run.open(run.path)
        recipe = self.tuned if variant.endswith("-tuned") else self.recipe
        found = [Change(*change) for change in changed_keys(run.recipe, recipe)]
        if known := run.manifest.converted:
            asked = self._entry(variant)
            for key, was in (("weights", known.weights), ("transfer", known.transfer)):
                if was != asked[key]:
                    found.append(Change(key, str(was)[:8], str(asked[key])[:8]))
        if different := [change for change in found if not change.of_files and change.of_weights]:
            raise RecipeError(
                f"{run.path}: was converted otherwise ({texts(different)}); use --fresh to start "
                "over, or another --out"
            )
        return run.finished

    def _make(self, variant: str, make: Callable[[Run, Emit], Made]) -> None:
        """Store the model that `make` gives as a run, with what it says of it."""

        def emit(event: Event) -> None:
            self.emit(replace(event, variant=variant, seed=self.seed))

        if self._there(variant):
            emit(events.SkippedEvent("already converted"))
            return
        run, old, start = Run(self._path(variant)), self.old.manifest, time.perf_counter()
        with run.lock():
            run.clear()
            kept = {"hashes", "device", "threads", "precision"}
            fields = old.model_dump(include=kept, exclude_unset=True) | self._history()
            who: Any = {"name": self.old.name, "variant": variant, "seed": self.seed}
            run = Run.create(run.path, self.recipe, **who, **fields)
            run.write_tokenizer(self.old.tokenizer())
            model, facts = make(run, emit)
            run.update(
                hashes={"recipe": digest(self.recipe)},
                parameters=sum(weight.numel() for weight in model.parameters()),
                converted=self._entry(variant) | facts,
            )
            seconds, done = time.perf_counter() - start, self.old.outcome
            run.finish(weights_of(model), step=done.step, seconds=seconds, reason="converted", updates=done.last)
        emit(events.FinishedEvent(done.step, seconds, "converted"))

    def _history(self) -> dict[str, Any]:
        """What the manifests of all stages say: the run before, and how attention was changed."""
        step, before = self.old.outcome.step, [change.model_dump() for change in self.old.manifest.changes]
        changes = [Change(*change) for change in changed_keys(self.old.recipe, self.recipe)]
        new = [{"step": step, **c._asdict()} for c in changes if c.key.startswith("model.")]
        return {"baseline": self.old.variant, "changes": [*before, *new]}

    @cached_property
    def teacher(self) -> Model:
        return self.old.model(str(self.experiment.device))

    def _batches(self, emit: Emit) -> BatchStream:
        """The training text, in the order of a training."""
        recipe = self.settings.recipe
        prepared = self.experiment.prepared(recipe, self.old, emit)
        epoch = partial(train_epoch, prepared, recipe, seed=self.seed)
        return BatchStream(epoch, recipe.train.batch_tokens, self.seed, score_budget(self.recipe))

    def _swap(self, last: Run, run: Run, emit: Emit) -> Made:
        """The new model with the weights that fit."""
        model, old = run.untrained(), last.weights()
        swapped = swap(old, model)
        kept, new, left_out = map(len, swapped.values())
        emit(NoteEvent(f"weights: {kept} kept, {new} new, {left_out} left out"))
        layers = transferring.layers_of(model, self.kinds)
        able = {place: layer.mechanism for place, layer in layers.items() if layer.mechanism.adopts_maps}
        if able:
            stream = self._batches(emit)
            taken = stream.take(min(MAP_BATCHES, len(stream.batches)))
            theirs = transferring.layers_of(self.teacher, self.kinds)
            chosen = {place: theirs[place] for place in able}
            positions = next(iter(able.values())).shape.max_length
            maps = transferring.averaged_maps(self.teacher, chosen, taken, positions)
            for place, mechanism in able.items():
                mechanism.adopt_maps(maps[place].cpu())
            count = sum(len(batch.rows) for batch in taken)
            emit(NoteEvent(f"{len(able)} layers begin with maps averaged over {count:,} texts"))
        return model, {**swapped, "layers_with_averaged_maps": len(able)}

    def _transfer(self, last: Run, run: Run, emit: Emit) -> Made:
        """The last model after attention transfer, by a learning rate that falls linearly."""
        stream = self._batches(emit)
        device, updates = str(self.experiment.device), self.settings.transfer
        model = last.model(device)
        size = sum(weight.numel() for weight in model.parameters())
        emit(events.StartedEvent(run.name, updates, size, device, "fp32"))
        # both in evaluation mode, so that nothing is dropped or drawn
        ours, theirs = (transferring.layers_of(one, self.kinds) for one in (model, self.teacher))

        def learn() -> tuple[float, int]:
            self.stop.obey(" during attention transfer, which starts over with the same command")
            (batch,) = stream.take(1)
            calls = transferring.layer_calls(self.teacher, theirs, batch)
            loss = transferring.matching_loss(ours, calls)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.item(), batch.tokens

        losses = transferring.make_updates(
            transferring.MATCHING,
            (weight for layer in ours.values() for weight in layer.parameters()),
            updates,
            lambda done: RATE * (1 - (done - 1) / updates),
            learn,
            emit,
            fused=True,
        )
        ends = {"first": losses[0], "last": mean(losses[-10:])}
        emit(NoteEvent(f"{transferring.MATCHING} of the layers {ends['first']:.3g} -> {ends['last']:.3g}"))
        return model, {"mean_squared_error": ends}

    def _score(self, runs: Sequence[Run]) -> Comparison:
        """The quality of each stage beside that of the run before.

        More updates on the same data are what is compared, so the budget is no reason against it.
        """
        recipe, entries = self.settings.recipe, list[ScoreRow]()

        for run in runs:
            at: Any = {"variant": run.variant, "seed": run.seed}
            self.emit(NoteEvent(f"scoring {run.variant}", passing=True, **at))
            found = self.experiment.scores(run, recipe)
            entries += [replace(row, system=replace(row.system, budget=None)) for row in found]
            self.emit(events.EvaluatedEvent(recipe.eval.splits, **at))
        result = side_by_side(entries, first_baselines(entries, self.old.variant), recipe.eval)
        self.emit(events.ScoredEvent(result))
        return result
