"""Settings that all trainings of one command, and their processes, share."""

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
"""Placeholder for a value that a recipe lacks."""


class Trial(NamedTuple):
    """A trial run: one value of a key for one variant."""

    row: str
    """Variant of the recipe."""
    folder: str
    """Name of the trial's folder, e.g. train.lr=0.001."""
    key: str
    value: str


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of the trainings of one command."""

    file: RecipeFile
    out: Path
    """Root of the run directories."""
    variants: Sequence[str] | None = None
    """Variants to train; None: all."""
    seeds: Sequence[int] | None = None
    """Seeds; None: those of the recipe."""
    fresh: bool = False
    """Replace existing runs."""
    allow_change: bool = False
    """Resume runs whose recipe has changed."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    data_dir: Path | None = None
    """Folder of the corpora; None: $ATTNKIT_DATA."""
    offline: bool = False
    precision: str | None = None
    """Precision that `precision: auto` stands for in all runs; None: not yet chosen."""
    trials: Mapping[str, Trial] = field(default_factory=dict)
    """Trials by variant of `file`; empty unless the variants are trials."""
    tuned: Mapping[str, Tuned] = field(default_factory=dict)
    """Outcome of the trials by variant."""

    def folder(self, variant: str, seed: int) -> Path:
        """Return the folder of a run; trials are in a folder beside the runs of their variant."""
        name = self.file.name
        if trial := self.trials.get(variant):
            name, variant = f"{name}/{trial.row}/{TUNE}", trial.folder
        return run_path(self.out, name, variant, seed)

    def runs(self) -> list[tuple[str, int]]:
        """Return variant and seed of every training, in the order of the recipe."""
        return [
            (name, seed)
            for name, recipe in self.file.variants.items()
            if self.variants is None or name in self.variants
            for seed in dict.fromkeys(self.seeds or recipe.train.seeds)
        ]


def recorded_values(file: RecipeFile, names: Sequence[str], overrides: Sequence[str], out: Path) -> dict[str, Tuned]:
    """Return earlier outcomes of tuning by variant, from the runs' manifests, so that runs resume with those values.

    Variants are left out whose recipe has changed in the tuned keys, or whose tuned key is set by `overrides`.
    """
    recorded = dict[str, Tuned]()
    overridden = {override.partition("=")[0].strip() for override in overrides}
    for name in names:
        for path in sorted(run_path(out, file.name, name, 0).parent.glob("seed-*/manifest.json")):
            if (entry := Run.open(path.parent).manifest.tuned) is None:
                continue
            values = flat(file.variants[name])
            same = all(values.get(key, ABSENT) == value for key, value in entry.was.items())
            if same and not overridden & {entry.key, f"variants.{name}.{entry.key}"}:
                recorded[name] = entry
            break
    return recorded
