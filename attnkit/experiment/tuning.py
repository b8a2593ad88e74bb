"""Choice of one recipe value per variant on validation data (`train --tune`).

There is one trial per variant (row) and value: an ordinary run in a folder beside the runs of its variant, with the
first seed of the recipe, scored on validation data only. The best value of `train.monitor`, at the weights that the
trial selected, decides; ties go to the lower loss, then to the first value. The variant's runs are then trained with
that value, and their manifests record the trials.

A shortened schedule scales all counts of updates (warm-up, validations, checkpoints, log, annealing) in proportion.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from attnkit.data.corpus import splits_of
from attnkit.distributed import group
from attnkit.errors import DataError, DivergedError, OutputPathError, RecipeError, UsageError
from attnkit.experiment import training
from attnkit.experiment.settings import ABSENT, TrainingSettings, Trial
from attnkit.recipe import Recipe, RecipeFile
from attnkit.recipe.dumping import flat
from attnkit.recipe.schema import TrainConfig
from attnkit.recipe.settings import SCHEMA
from attnkit.recipe.sweep import overrides, unique, value_text
from attnkit.runs import Run
from attnkit.runs.json_files import Tuned, TunedTrial
from attnkit.scoring import Comparison
from attnkit.train import events
from attnkit.train.events import Emit, NoteEvent
from attnkit.train.signals import StopSignals
from attnkit.train.validation import MonitoredScore

Load = Callable[[Sequence[str]], RecipeFile]
"""Function that loads the recipe with additional KEY=VALUE overrides."""
TUNABLE = ("train", "model")
"""Sections of a recipe whose keys can be tuned."""
FIXED = ("train.steps", "train.seeds", "train.monitor", "train.log_to")
"""Keys that cannot be tuned: trials have them in common, or they have no effect on the result."""
COUNTED = ("warmup", "valid_every", "save_every", "log_every")
"""Keys of `train` that count updates."""


@dataclass(frozen=True)
class Tuning:
    """Plan of the trials of each row (variant of the recipe)."""

    option: str
    """KEY=V1,V2 from the command line."""
    key: str
    """Tuned key, e.g. train.lr."""
    steps: int | None
    """Number of updates per trial; None: that of the recipe."""
    rows: Mapping[str, Mapping[str, str]]
    """Row -> value -> KEY=VALUE override, in the order of the values."""
    defaults: Mapping[str, Mapping[str, str]]
    """Row -> the recipe's own values of the keys that differ between its trials."""
    trial_values: Mapping[str, set[tuple[object, ...]]]
    """Row -> the values of these keys in each trial."""
    file: RecipeFile
    """Recipe whose variants are the trials."""
    trials: Mapping[str, Trial]
    """Trials by variant of `file`."""
    load: Load

    @staticmethod
    def plan(load: Load, option: str, names: Sequence[str], steps: int | None = None) -> "Tuning":
        """Plan the trials of these variants of a recipe; variants that override the key are trained without trials.

        Args:
            load: Loads the recipe.
            option: KEY=V1,V2; the key may begin with `variants.NAME.`, for one variant.
            names: Variants.
            steps: Number of updates per trial.

        Raises:
            UsageError: If the key cannot be tuned, there is only one value, or `steps` exceeds the recipe's.
            RecipeError: If the key or a value is invalid, or there is no validation data.
        """
        file = load(())
        key, inner, values = _parse(option, file)
        files = {value: load((f"{key}={value}",)) for value in values}
        rows, defaults = dict[str, Mapping[str, str]](), dict[str, Mapping[str, str]]()
        trial_values = dict[str, set[tuple[object, ...]]]()
        for name in names:
            recipes = [flat(files[value].variants[name]) for value in values]
            all_keys = dict.fromkeys(key for recipe in recipes for key in recipe)
            differing_keys = [key for key in all_keys if len({recipe.get(key) for recipe in recipes}) > 1]
            if not differing_keys:
                continue
            trial_values[name] = {tuple(recipe.get(key) for key in differing_keys) for recipe in recipes}
            if len(trial_values[name]) < len(recipes):
                raise UsageError(f"--tune {option}: some values give the same recipe for {name}")
            rows[name] = {value: f"variants.{name}.{inner}={value}" for value in values}
            default = flat(file.variants[name])
            defaults[name] = {key: default.get(key, ABSENT) for key in differing_keys}
            _check_row(file.variants[name], name, option, steps)
        if not rows:
            raise UsageError(f"--tune {option}: changes no value of {', '.join(names)}")
        variants, origins, trials = dict[str, Recipe](), {}, dict[str, Trial]()
        folders = unique([f"{inner}={value}" for value in values])
        for row in rows:
            for value, folder in zip(values, folders, strict=True):
                name = f"{row},{inner.rpartition('.')[2]}={value}"
                recipe = files[value].variants[row]
                train = shortened(recipe.train, steps).model_copy(update={"seeds": recipe.train.seeds[:1]})
                variants[name] = recipe.model_copy(update={"train": train})
                origins[name] = files[value].origins.get(row, {})
                trials[name] = Trial(row, folder, inner, value)
        swept = {
            base: [name for name, trial in trials.items() if trial.row in members]
            for base, members in (file.swept or {row: [row] for row in rows}).items()
        }
        trial_file = RecipeFile(file.name, file.path, variants, None, origins, swept=swept)
        return Tuning(option, inner, steps, rows, defaults, trial_values, trial_file, trials, load)

    def settings(self, runs: TrainingSettings) -> TrainingSettings:
        """Return the settings of the trials, derived from those of the runs."""
        return replace(runs, file=self.file, variants=None, seeds=None, trials=self.trials)

    def check(self, settings: TrainingSettings, recorded: Mapping[str, Tuned]) -> None:
        """Raise RecipeError, before any trial, if a run exists with values that these trials cannot choose."""
        for row, entry in recorded.items():
            values = [trial.value for trial in entry.trials]
            if row in self.rows and (entry.key, values, entry.steps) != (self.key, [*self.rows[row]], self.steps):
                steps = f" in {entry.steps} steps" if entry.steps else ""
                raise RecipeError(
                    f"{row}: was tuned by other trials ({entry.key}={','.join(values)}{steps}); use --fresh to "
                    "start over, --allow-change to keep a finished run as it is, another --out, or remove --tune "
                    "to use the chosen value"
                )
        for row, seed in settings.runs():
            run = Run(settings.folder(row, seed))
            if row in self.rows and row not in recorded and run.exists:
                recipe = flat(Run.open(run.path).recipe)
                if tuple(recipe.get(key) for key in self.defaults[row]) not in self.trial_values[row]:
                    raise RecipeError(
                        f"{run.path}: was trained with another value of {self.key}; use --fresh to start over, "
                        "--allow-change to keep it as it is, or another --out"
                    )

    def entry(self, settings: TrainingSettings, row: str) -> Tuned:
        """Return the outcome of a row's trials.  Raises DivergedError if all of them diverged."""
        outcomes, best = list[TunedTrial](), None
        for name, trial in self.trials.items():
            if trial.row != row:
                continue
            recipe = self.file.variants[name]
            outcome = _outcome(Run.open(settings.folder(name, recipe.train.seeds[0])), trial.value)
            outcomes.append(outcome)
            if outcome.score is None or outcome.loss is None:
                continue
            score = MonitoredScore(outcome.score, outcome.loss)
            if best is None or score.better_than(best[0], recipe.train.monitor):
                best = score, trial.value, recipe
        if best is None:
            raise DivergedError(
                f"{row}: every trial of {self.key} diverged ({', '.join(self.rows[row])}); try"
                f" smaller values ({outcomes[0].diverged})"
            )
        _, value, recipe = best
        return Tuned(
            key=self.key,
            value=value,
            was=dict(self.defaults[row]),
            steps=self.steps,
            seed=recipe.train.seeds[0],
            monitor=recipe.train.monitor,
            trials=outcomes,
        )


def train(
    settings: TrainingSettings,
    tuning: Tuning,
    emit: Emit = events.ignore,
    *,
    jobs: int = 1,
    notice: Callable[[str], object] | None = None,
) -> Comparison | None:
    """Run the trials, choose a value for each row, and train its runs.

    Raises DivergedError if all trials of a row diverged, and errors of `training.train`.
    """
    trials = tuning.settings(settings)
    training.train(trials, emit, jobs=jobs, notice=notice)
    with StopSignals(notice) as stop:
        rows = tuning.rows if group.is_main_process() else ()
        tuned = group.broadcast_object({row: tuning.entry(trials, row) for row in rows})
        for row, entry in tuned.items():
            for note in _notes(entry):
                emit(NoteEvent(note, variant=row))
        file = tuning.load([tuning.rows[row][entry.value] for row, entry in tuned.items()])
        stop.obey("; run the same command again to resume")
    return training.train(replace(settings, file=file, tuned=tuned), emit, jobs=jobs, notice=notice)


def _notes(entry: Tuned) -> Iterator[str]:
    """Yield messages about a choice: the scores, ties, and a chosen value at the end of the range."""
    results = (
        f"{trial.value}: {'diverged' if trial.score is None else events.score_text(entry.monitor, trial.score)}"
        for trial in entry.trials
    )
    yield f"chose {entry.key}={entry.value} ({', '.join(results)})"
    scores = {trial.value: (trial.score, trial.loss) for trial in entry.trials}
    same = [value for value, score in scores.items() if score == scores[entry.value]]
    if len(same) > 1:
        yield f"{entry.key}: {', '.join(same)} have equal scores; the first is chosen"
    with suppress(ValueError):  # values that are no numbers have no range
        numbers = sorted(scores, key=float)
        if entry.value in (numbers[0], numbers[-1]):
            end, further = ("largest", "larger") if entry.value == numbers[-1] else ("smallest", "smaller")
            yield f"{entry.key}={entry.value} is the {end} value tried; a {further} value may be better"


def shortened(train: TrainConfig, steps: int | None) -> TrainConfig:
    """Return the schedule scaled to `steps` updates: counts of updates shrink in proportion, to at least 1."""
    if steps is None or steps == train.steps:
        return train

    def scaled(count: int) -> int:
        return max(1, round(count * steps / train.steps)) if count else 0

    changes: dict[str, Any] = {name: scaled(getattr(train, name)) for name in COUNTED}
    changes["tailr"] = train.tailr.model_copy(update={"anneal": scaled(train.tailr.anneal)})
    return train.model_copy(update={"steps": steps, **changes})


def _parse(option: str, file: RecipeFile) -> tuple[str, str, list[str]]:
    """Parse KEY=V1,V2 into KEY, KEY without `variants.NAME.`, and the values.  Raises UsageError or RecipeError."""
    key, equals, text = (part.strip() for part in option.partition("="))
    if not equals or not key:
        raise UsageError(f"--tune {option}: must be KEY=V1,V2, such as train.lr=1e-3,3e-3")
    inner = key.removeprefix(f"variants.{_owner(key, file)}.")
    section = inner.partition(".")[0]
    if inner in FIXED:
        raise UsageError(f"--tune {inner}: must be equal in all trials; tune another key")
    if section not in TUNABLE and (section,) in SCHEMA:
        raise UsageError(f"--tune {inner}: only keys of train and model can be tuned")
    values = overrides(tuple(inner.split(".")), text)
    if len(values) < 2:
        raise UsageError(f"--tune {option}: needs at least two values, separated by commas")
    return key, inner, [value_text(value.node) for value in values]


def _owner(key: str, file: RecipeFile) -> str:
    """Return NAME of a key of the form variants.NAME.KEY, otherwise ""; names may contain dots."""
    rest = key.removeprefix("variants.")
    names = (name for name in file.variants if rest != key and rest.startswith(f"{name}."))
    return max(names, key=len, default="")


def _check_row(recipe: Recipe, name: str, option: str, steps: int | None) -> None:
    """Raise UsageError or RecipeError if the trials of a row are impossible."""
    if "valid" not in splits_of(recipe.data):
        raise RecipeError(f"--tune {option}: needs validation data, and the data of {name} has no valid split")
    if steps is not None and not 1 <= steps <= recipe.train.steps:
        raise UsageError(f"--tune-steps {steps}: must be from 1 to the train.steps of {name}, {recipe.train.steps}")


def _outcome(run: Run, value: str) -> TunedTrial:
    """Return the validation score of the weights that a trial selected."""
    if (trial := run.manifest.trial) is None:
        raise OutputPathError(f"{run.path}: is not a trial, but is in the folder of trials; move it away")
    if trial.diverged:
        return TunedTrial(value=value, diverged=trial.diverged)
    if (record := run.log.validation(run.outcome.step)) is None:
        raise DataError(f"{run.path}: its log has no validation of its weights; remove the run")
    return TunedTrial(value=value, score=record.value, loss=record.valid_loss)
