"""What one command trains, and how: told to the trainings, and to each process of several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from attnkit.recipe import RecipeFile
from attnkit.recipe.dumping import flat
from attnkit.runs import Run, run_path
from attnkit.runs.json_files import Tuned
from attnkit.runs.layout import TUNE

ABSENT = "(not set)"
"""In place of a value that a recipe lacks."""


class Trial(NamedTuple):
    """What one run tries: a value of a key, for a row of the comparison."""

    row: str
    """The variant of the recipe."""
    folder: str
    """Name of its folder, such as train.lr=0.001."""
    key: str
    value: str


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
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    data_dir: Path | None = None
    """Where corpora are; $ATTNKIT_DATA when None."""
    offline: bool = False
    """Never download."""
    precision: str | None = None
    """What `precision: auto` means for all of them, where it has been chosen."""
    trials: Mapping[str, Trial] = field(default_factory=dict)
    """Where the variants are trials, what each of them tries."""
    tuned: Mapping[str, Tuned] = field(default_factory=dict)
    """By variant, how trials chose a value of it."""

    def folder(self, variant: str, seed: int) -> Path:
        """Where a run is, or will be: of a trial in a folder beside the runs of its row."""
        name = self.file.name
        if trial := self.trials.get(variant):
            name, variant = f"{name}/{trial.row}/{TUNE}", trial.folder
        return run_path(self.out, name, variant, seed)

    def runs(self) -> list[tuple[str, int]]:
        """Variant and seed of every training, in the order of the recipe."""
        return [
            (name, seed)
            for name, recipe in self.file.variants.items()
            if self.variants is None or name in self.variants
            for seed in dict.fromkeys(self.seeds or recipe.train.seeds)
        ]


def recorded_values(file: RecipeFile, names: Sequence[str], words: Sequence[str], out: Path) -> dict[str, Tuned]:
    """How rows were tuned before, by their runs' manifests, so that these go on with what was chosen.

    A row is left out whose recipe has changed in what was tuned, or where a word sets it.
    """
    found = dict[str, Tuned]()
    given = {word.partition("=")[0].strip() for word in words}
    for name in names:
        for path in sorted(run_path(out, file.name, name, 0).parent.glob("seed-*/manifest.json")):
            if (entry := Run.open(path.parent).manifest.tuned) is None:
                continue
            own = flat(file.variants[name])
            same = all(own.get(key, ABSENT) == value for key, value in entry.was.items())
            if same and not given & {entry.key, f"variants.{name}.{entry.key}"}:
                found[name] = entry
            break
    return found
