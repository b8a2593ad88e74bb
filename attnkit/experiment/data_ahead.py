"""The data of a recipe, prepared before anything is trained."""

from collections.abc import Callable, Generator

from attnkit.experiment.settings import TrainingSettings
from attnkit.experiment.training import Experiment
from attnkit.train.events import Event
from attnkit.train.signals import StopSignals


def encode(
    settings: TrainingSettings, *, notice: Callable[[str], object] | None = None
) -> Generator[Event, None, None]:
    """Prepare the data of all trainings, so that `train` finds it; yields what happens.

    Raises:
        StoppedError: a signal came; finished shards are kept.
        AttnkitError: whatever the data or the weights to start from raise.
    """
    with StopSignals(notice) as stop:
        experiment = Experiment(settings, stop)
        for variant, seed in settings.runs():
            initial = experiment.initial(variant, seed)
            yield from experiment.prepared(experiment.recipe(variant, seed), initial)
