"""Finding runs in folders."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attnkit.errors import MissingInputError, UsageError
from attnkit.runs.demo import located
from attnkit.runs.layout import MANIFEST, is_results_file, require_runs, run_paths
from attnkit.runs.run import MAKES_RUNS, Run

VARIANTS, BASELINE = "variants", "baseline"
"""Entries of the manifest: names of all variants of the recipe in its order, and of one of them."""
CONFIG = "config.json"
"""What a folder with a Hugging Face model holds."""


def is_run(name: str) -> bool:
    """Whether a model named on the command line is a run; else it is a Hugging Face model.

    Raises:
        MissingInputError: it is a folder of neither, or a path below a folder that exists.
    """
    path = located(name)
    if (path / MANIFEST).exists() or (is_results_file(path) and path.is_file()):
        return True
    if path.is_dir() and not (path / CONFIG).exists():
        raise MissingInputError(
            f"{name}: neither a finished run ({MANIFEST}) nor a Hugging Face model ({CONFIG}) is "
            "here; a run is a seed-N folder"
        )
    if not path.exists() and len(path.parts) > 1 and Path(path.parts[0]).exists():
        raise MissingInputError(f"{name}: no such folder; `attnkit train RECIPE` makes runs")
    return False


def find_runs(
    paths: Iterable[str | Path],
    *,
    unfinished: bool = False,
    trials: bool = False,
    note: Callable[[str], object] | None = None,
) -> list[Run]:
    """The finished runs in run folders, variant folders, recipe folders or roots of runs.

    Results files are found like runs.

    Sorted by `order`.  Unfinished ones are returned too where `unfinished` is set; else they are
    skipped, and `note` is called with a sentence about each.  Trials of a tuned key are left out
    unless `trials` is set.

    Raises:
        MissingInputError: a path does not exist, or no such run is in any of them.
        DataError: a manifest is damaged.
    """
    found: dict[Path, Run] = {}
    skipped = []
    folders = [located(path) for path in paths]
    for folder in folders:
        require_runs(folder, MAKES_RUNS)
        for path in run_paths(folder, trials=trials):
            run = Run.open(path)
            if run.finished or unfinished:
                found.setdefault(path.resolve(), run)
            else:
                skipped.append(f"{path}: training is not finished; skipped")
    if not found:
        where = ", ".join(map(str, folders)) or "no folder given"
        why = f"{len(skipped)} unfinished" if skipped else "`attnkit train RECIPE` makes one"
        kind = "run" if unfinished else "finished run"
        raise MissingInputError(f"{where}: no {kind} is here ({why})")
    if note is not None:
        for text in skipped:
            note(text)
    return sorted(found.values(), key=order)


def order(run: Run) -> tuple[Any, ...]:
    """What runs are sorted by: recipe, then variants as the recipe lists them, then seed.

    Variants of a sweep, whose names have values, follow those of the recipe.  A run of an earlier
    version does not know that list: there the baseline is the first, and the others follow by name.
    """
    listed = run.manifest.get(VARIANTS)
    place: int = run.variant != run.manifest.get(BASELINE)
    if isinstance(listed, list) and run.variant in listed:
        place = listed.index(run.variant)
    return run.name, "=" in run.variant, place, run.variant, run.seed


def one_task(runs: Iterable[Run], instead: str) -> str:
    """The task of all runs.

    Raises:
        UsageError: there are several; `instead` says what to do.
    """
    tasks: dict[str, Run] = {}
    for run in runs:
        tasks.setdefault(run.recipe.task, run)
    if len(tasks) > 1:
        (task, first), (other, second) = list(tasks.items())[:2]
        raise UsageError(f"{first.path} is a run of {task}, {second.path} of {other}: {instead}")
    return next(iter(tasks))
