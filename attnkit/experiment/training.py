"""All variants and seeds of a recipe: trained and scored in turn, or skipped, then compared.

A `TrainingSettings` says what is to be trained; `train` carries it out in one loop and tells `emit` what happens.
"""

from collections.abc import Callable

from attnkit.distributed import group
from attnkit.experiment.experiment import Experiment
from attnkit.experiment.jobs import train_side_by_side
from attnkit.experiment.settings import TrainingSettings
from attnkit.scoring import Comparison, ScoreRow
from attnkit.train.events import Emit, ignore
from attnkit.train.signals import StopSignals


def train(
    settings: TrainingSettings, emit: Emit = ignore, *, jobs: int = 1, notice: Callable[[str], object] | None = None
) -> Comparison | None:
    """Train unfinished runs, skip finished ones, score each, and compare them.

    This is all that `attnkit train` and `attnkit.train` do, so it is where to begin in Python:

        file = load("quickstart", ["train.steps=200"])  # a recipe and KEY=VALUE words
        train(TrainingSettings(file=file, out=Path("runs"), variants=["linear"], seeds=[1]), print)

    Args:
        settings: which runs of a loaded recipe, and how.
        emit: called with each event (`train.events`) when it happens.
        jobs: runs at a time, each in a process of its own where there are several.
        notice: called with the name of the first signal when it comes; see `StopSignals`.

    Returns:
        The comparison; None where the runs are trials, which are not scored, and in other ranks
        than 0.

    Raises:
        RecipeError: a run was trained by another recipe.
        StoppedError: a signal came; the state is saved.
        UnavailableError: the device, or what a metric needs, is not there.
        AttnkitError: whatever the data, the run directory or the training raise.
    """
    if jobs > 1:
        return train_side_by_side(settings, emit, jobs=jobs, notice=notice)
    with StopSignals(notice) as stop:
        experiment = Experiment(settings, stop, emit)
        experiment.keep_memory()
        planned, rows = experiment.runs(), list[ScoreRow]()
        for run in planned if group.is_main_process() else ():
            run.check()
        for run in planned:
            rows += run.evaluate(run.train())
        return experiment.compare([run.key for run in planned], rows)


def prepare_data(
    settings: TrainingSettings, emit: Emit = ignore, *, notice: Callable[[str], object] | None = None
) -> None:
    """Prepare the data of all trainings, so that `train` finds it.

    Raises:
        StoppedError: a signal came; finished shards are kept.
        AttnkitError: whatever the data or the weights to start from raise.
    """
    with StopSignals(notice) as stop:
        experiment = Experiment(settings, stop, emit)
        for run in experiment.runs():
            run.prepared(emit)
