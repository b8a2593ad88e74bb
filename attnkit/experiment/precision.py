"""What `train.precision: auto` means: chosen once for all runs of a recipe, trials included."""

from contextlib import suppress

from attnkit.data.preparation import PreparedData
from attnkit.errors import AttnkitError
from attnkit.experiment import cost
from attnkit.experiment.settings import TrainingSettings
from attnkit.recipe import Recipe
from attnkit.runs import Run, layout
from attnkit.train.events import Emit, NoteEvent


class PrecisionChoice:
    """The precision of new runs."""

    def __init__(self, settings: TrainingSettings, device: str) -> None:
        self.settings, self.device = settings, device
        self.chosen = settings.precision
        """What auto means, where it is known."""

    def of(self, recipe: Recipe, prepared: PreparedData, run: Run, emit: Emit) -> str:
        """Precision of a new run: the recipe's, else that of its other runs, else the faster.

        Models that are counted take no part.
        """
        if recipe.model.count_based:
            return "fp32"
        if recipe.train.precision != "auto":
            return recipe.train.precision
        self.chosen = self.chosen or self._of_others(run)
        if self.chosen is None:
            self.chosen, why = cost.choose_precision(recipe, prepared, self.device)
            emit(NoteEvent(f"precision: {self.chosen} ({why})"))
        return self.chosen

    def _of_others(self, run: Run) -> str | None:
        """What earlier runs of this recipe chose on such a device."""
        file, trials = self.settings.file, self.settings.trials
        rows = {
            trials[name].row if name in trials else name: recipe
            for name, recipe in file.variants.items()
        }
        root = self.settings.out.joinpath(*file.name.split("/"))
        seeds = "seed-*/manifest.json"
        for path in sorted([*root.glob(f"*/{seeds}"), *root.glob(f"*/{layout.TUNE}/*/{seeds}")]):
            if path.parent == run.path:
                continue
            with suppress(AttnkitError):
                manifest = Run.open(path.parent).manifest
                recipe = rows.get(manifest.get(layout.TRIAL, manifest)["variant"])
                trained = recipe is not None and not recipe.model.count_based
                chosen = recipe is not None and recipe.train.precision == "auto"
                if trained and chosen and manifest.get("device") == self.device:
                    return str(manifest["precision"])
        return None
