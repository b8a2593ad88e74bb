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

    word: str
    """KEY=V1,V2 from the command line."""
    key: str
    """Tuned key, e.g. train.lr."""
    steps: int | None
    """Number of updates per trial; None: that of the recipe."""
    rows: Mapping[str, Mapping[str, str]]
    """Row -> value -> KEY=VALUE override, in the order of the values."""
    was: Mapping[str, Mapping[str, str]]
    """Row -> the recipe's own values of the keys that differ between its trials."""
    tried: Mapping[str, set[tuple[object, ...]]]
    """Row -> the values of these keys in each trial."""
    file: RecipeFile
    """Recipe whose variants are the trials."""
    trials: Mapping[str, Trial]
    """Trials by variant of `file`."""
    load: Load

    @staticmethod
    def plan(load: Load, word: str, names: Sequence[str], steps: int | None = None) -> "Tuning":
        """Plan the trials of these variants of a recipe; variants that override the key are trained without trials.

        Args:
            load: Loads the recipe.
            word: KEY=V1,V2; the key may begin with `variants.NAME.`, for one variant.
            names: Variants.
            steps: Number of updates per trial.

        Raises:
            UsageError: If the key cannot be tuned, there is only one value, or `steps` exceeds the recipe's.
            RecipeError: If the key or a value is invalid, or there is no validation data.
        """
        file = load(())
        key, values = _read(word, file)
        inner = key.removeprefix(f"variants.{_owner(key, file)}.")
        files = {text: load((f"{key}={text}",)) for text in values}
        rows, was = dict[str, Mapping[str, str]](), dict[str, Mapping[str, str]]()
        tried = dict[str, set[tuple[object, ...]]]()
        for name in names:
            found = [flat(files[text].variants[name]) for text in values]
            told = [
                one
                for one in dict.fromkeys(key for some in found for key in some)
                if len({some.get(one) for some in found}) > 1
            ]
            if not told:
                continue
            tried[name] = {tuple(some.get(one) for one in told) for some in found}
            if len(tried[name]) < len(found):
                raise UsageError(f"--tune {word}: some values make the same recipe of {name}")
            rows[name] = {text: f"variants.{name}.{inner}={text}" for text in values}
            own = flat(file.variants[name])
            was[name] = {one: own.get(one, ABSENT) for one in told}
            _check_row(file.variants[name], name, word, steps)
        if not rows:
            raise UsageError(f"--tune {word}: changes none of {', '.join(names)}")
        variants, origins, trials = dict[str, Recipe](), {}, dict[str, Trial]()
        folders = unique([f"{inner}={text}" for text in values])
        for row in rows:
            for text, folder in zip(values, folders, strict=True):
                name = f"{row},{inner.rpartition('.')[2]}={text}"
                recipe = files[text].variants[row]
                train = shortened(recipe.train, steps).model_copy(update={"seeds": recipe.train.seeds[:1]})
                variants[name] = recipe.model_copy(update={"train": train})
                origins[name] = files[text].origins.get(row, {})
                trials[name] = Trial(row, folder, inner, text)
        made = file.swept or {row: [row] for row in rows}
        swept = {base: [name for name, one in trials.items() if one.row in some] for base, some in made.items()}
        short = RecipeFile(file.name, file.path, variants, None, origins, swept=swept)
        return Tuning(word, inner, steps, rows, was, tried, short, trials, load)

    def settings(self, of: TrainingSettings) -> TrainingSettings:
        """Return the settings of the trials, derived from those of the runs."""
        return replace(of, file=self.file, variants=None, seeds=None, trials=self.trials)

    def check(self, settings: TrainingSettings, recorded: Mapping[str, Tuned]) -> None:
        """Raise RecipeError, before any trial, if a run exists with values that these trials cannot choose."""
        for row, entry in recorded.items():
            before = entry.key, [one.value for one in entry.trials], entry.steps
            if row in self.rows and before != (self.key, [*self.rows[row]], self.steps):
                steps = f" in {entry.steps} steps" if entry.steps else ""
                raise RecipeError(
                    f"{row}: was tuned by other trials ({entry.key}={','.join(before[1])}{steps}); use --fresh to "
                    "start over, --allow-change to keep a finished run as it is, another --out, or leave out --tune "
                    "to go on with that value"
                )
        for row, seed in settings.runs():
            run = Run(settings.folder(row, seed))
            if row in self.rows and row not in recorded and run.exists:
                own = flat(Run.open(run.path).recipe)
                if tuple(own.get(key) for key in self.was[row]) not in self.tried[row]:
                    raise RecipeError(
                        f"{run.path}: was trained by none of these values of {self.key}; use --fresh to start over, "
                        "--allow-change to keep it as it is, or another --out"
                    )

    def entry(self, settings: TrainingSettings, row: str) -> Tuned:
        """Return the outcome of a row's trials.  Raises DivergedError if all of them diverged."""
        tried, best = list[TunedTrial](), None
        for name, trial in self.trials.items():
            if trial.row != row:
                continue
            recipe = self.file.variants[name]
            one = _outcome(Run.open(settings.folder(name, recipe.train.seeds[0])), trial.value)
            tried.append(one)
            if one.score is None or one.loss is None:
                continue
            score = MonitoredScore(one.score, one.loss)
            if best is None or score.better_than(best[0], recipe.train.monitor):
                best = score, trial.value, recipe
        if best is None:
            raise DivergedError(
                f"{row}: every trial of {self.key} diverged ({', '.join(self.rows[row])}); try"
                f" smaller values ({tried[0].diverged})"
            )
        _, value, recipe = best
        return Tuned(
            key=self.key,
            value=value,
            was=dict(self.was[row]),
            steps=self.steps,
            seed=recipe.train.seeds[0],
            monitor=recipe.train.monitor,
            trials=tried,
        )


def train(
    settings: TrainingSettings,
    tuning: Tuning,
    emit: Emit = events.ignore,
    *,
    jobs: int = 1,
    notice: Callable[[str], object] | None = None,
) -> Comparison | None:
    """Run the trials, choose a value for each row, and train its runs as `training.train`.

    Raises:
        DivergedError: If all trials of a row diverged.
        StoppedError: If a signal arrives; the state is saved.
        AttnkitError: As `training.train`.
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
    tried = (
        f"{one.value}: {'diverged' if one.score is None else events.score_text(entry.monitor, one.score)}"
        for one in entry.trials
    )
    yield f"chose {entry.key}={entry.value} ({', '.join(tried)})"
    scores = {one.value: (one.score, one.loss) for one in entry.trials}
    same = [value for value, score in scores.items() if score == scores[entry.value]]
    if len(same) > 1:
        yield f"{entry.key}: equal scores of {', '.join(same)}; takes the first"
    with suppress(ValueError):  # values that are no numbers have no range
        numbers = sorted(scores, key=float)
        if entry.value in (numbers[0], numbers[-1]):
            end = ("smaller", "larger")[entry.value == numbers[-1]]
            yield f"{entry.key}={entry.value} is at the end of the values tried; a {end} one may be better"


def shortened(train: TrainConfig, steps: int | None) -> TrainConfig:
    """Return the schedule scaled to `steps` updates: counts of updates shrink in proportion, to at least 1."""
    if steps is None or steps == train.steps:
        return train

    def scaled(count: int) -> int:
        return max(1, round(count * steps / train.steps)) if count else 0

    changes: dict[str, Any] = {name: scaled(getattr(train, name)) for name in COUNTED}
    changes["tailr"] = train.tailr.model_copy(update={"anneal": scaled(train.tailr.anneal)})
    return train.model_copy(update={"steps": steps, **changes})


def _read(word: str, file: RecipeFile) -> tuple[str, list[str]]:
    """Parse KEY=V1,V2 into key and values.  Raises UsageError or RecipeError if it is invalid."""
    key, equals, text = (part.strip() for part in word.partition("="))
    if not equals or not key:
        raise UsageError(f"--tune {word}: must be KEY=V1,V2, such as train.lr=1e-3,3e-3")
    inner = key.removeprefix(f"variants.{_owner(key, file)}.")
    section = inner.partition(".")[0]
    if inner in FIXED:
        raise UsageError(f"--tune {inner}: is what all trials have in common; tune another key")
    if section not in TUNABLE and (section,) in SCHEMA:
        raise UsageError(f"--tune {inner}: only keys of train and model can be tuned")
    options = overrides(tuple(inner.split(".")), text)
    if len(options) < 2:
        raise UsageError(f"--tune {word}: needs two values or more, between commas")
    return key, [value_text(one.node) for one in options]


def _owner(key: str, file: RecipeFile) -> str:
    """Return NAME of a key of the form variants.NAME.KEY, otherwise ""; names may contain dots."""
    rest = key.removeprefix("variants.")
    fitting = (name for name in file.variants if rest != key and rest.startswith(f"{name}."))
    return max(fitting, key=len, default="")


def _check_row(recipe: Recipe, name: str, word: str, steps: int | None) -> None:
    """Raise UsageError or RecipeError if the trials of a row are impossible."""
    if "valid" not in splits_of(recipe.data):
        raise RecipeError(f"--tune {word}: chooses on validation data, and the data of {name} has no valid split")
    if steps is not None and not 1 <= steps <= recipe.train.steps:
        raise UsageError(f"--tune-steps {steps}: must be from 1 to the train.steps of {name}, {recipe.train.steps}")


def _outcome(run: Run, value: str) -> TunedTrial:
    """Return the validation score of the weights that a trial selected."""
    if (trial := run.manifest.trial) is None:
        raise OutputPathError(f"{run.path}: is no trial, though it lies among them; move it away")
    if trial.diverged:
        return TunedTrial(value=value, diverged=trial.diverged)
    if (last := run.log.validation(run.outcome.step)) is None:
        raise DataError(f"{run.path}: its log lacks the validation of its weights; remove it")
    return TunedTrial(value=value, score=last.value, loss=last.valid_loss)
