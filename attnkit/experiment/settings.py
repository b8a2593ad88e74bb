"""What one command trains, and how: told to the trainings, and to each process of several."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnkit.recipe import RecipeFile


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The settings that all trainings of one command share."""

    file: RecipeFile
    """A loaded recipe."""
    out: Path
    """Root of the run directories."""
    variants: Sequence[str] | None = None
    """Some of its variants; all when None."""
    seeds: Sequence[int] | None = None
    """Instead of the recipe's seeds."""
    fresh: bool = False
    """Start over where there is a run."""
    allow_change: bool = False
    """Resume a run whose recipe has changed."""
    allow_damaged: bool = False
    """Go on without damaged parts of the log and the average of a run."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    data_dir: Path | None = None
    """Where corpora are; $ATTNKIT_DATA when None."""
    offline: bool = False
    """Never download."""
    precision: str | None = None
    """What `precision: auto` means for all of them, where it has been chosen."""

    def runs(self) -> list[tuple[str, int]]:
        """Variant and seed of every training, in the order of the recipe."""
        return [
            (name, seed)
            for name, recipe in self.file.variants.items()
            if self.variants is None or name in self.variants
            for seed in dict.fromkeys(self.seeds or recipe.train.seeds)
        ]
