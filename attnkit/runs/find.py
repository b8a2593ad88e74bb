"""Search for runs in folders."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attnkit.errors import AttnkitError, DataError, MissingInputError, UsageError
from attnkit.runs.demo import located
from attnkit.runs.layout import MANIFEST, MODEL, is_results_file, require_runs, run_paths, runs_hint
from attnkit.runs.run import MAKES_RUNS, Run
from attnkit.storage.files import require_folder

CONFIG = "config.json"
"""File that identifies the folder of a Hugging Face model."""


def is_run(name: str) -> bool:
    """Return whether a model named on the command line is a run; otherwise it is a Hugging Face model.

    Raises MissingInputError for a folder that is neither, and for a missing path below an existing folder.
    """
    path = located(name)
    if (path / MANIFEST).exists() or (is_results_file(path) and path.is_file()):
        return True
    if path.is_dir() and not (path / CONFIG).exists():
        raise MissingInputError(
            f"{name}: neither a finished run ({MANIFEST}) nor a Hugging Face model ({CONFIG})"
            f"{runs_hint(path) or '; a run is a seed-N folder'}"
        )
    if not path.exists() and len(path.parts) > 1 and Path(path.parts[0]).exists():
        require_folder(path, "folder", "; `attnkit train RECIPE` makes runs")
    return False


def open_runs(folder: Path, *, trials: bool = False) -> Iterator[tuple[Path, Run | AttnkitError]]:
    """Yield each run in a folder (trials only if `trials` is set), or the error from opening it.

    Raises MissingInputError if the folder does not exist.
    """
    require_runs(folder, MAKES_RUNS)
    for path, fault in run_paths(folder, trials=trials):
        try:
            yield path, DataError(f"{path}: {fault}") if fault else Run.open(path)
        except AttnkitError as error:
            yield path, error


def baselines(runs: Iterable[Run], named: Mapping[str | None, str] = {}) -> dict[str | None, str]:
    """Return the baseline of each recipe: that of `named`, otherwise that of the first run's manifest.

    If no run here is of that variant, the baseline is the variant of the first run.
    """
    runs, found = list(runs), dict[str | None, str]()
    available = {(run.name, run.variant) for run in runs}
    for run in runs:
        chosen = named.get(run.name, run.manifest.baseline or run.variant)
        found.setdefault(run.name, chosen if (run.name, chosen) in available else run.variant)
    return found


def find_runs(
    paths: Iterable[str | Path],
    *,
    unfinished: bool = False,
    trials: bool = False,
    note: Callable[[str], object] = warnings.warn,
) -> list[Run]:
    """Return the finished runs in run, variant or recipe folders, roots of runs, and results files, sorted by `order`.

    Args:
        unfinished: whether to include unfinished runs.
        trials: whether to include trials of tuned keys.
        note: called with a sentence for each run that is left out.

    Raises:
        MissingInputError: If a path does not exist, or no path holds such a run.
        AttnkitError: If a path is itself a damaged run; or that of the first run if all are damaged.
    """
    found: dict[Path, Run] = {}
    skipped, damaged = list[str](), list[Exception]()
    folders = [located(path) for path in paths]
    for folder in folders:
        for path, run in open_runs(folder, trials=trials):
            if isinstance(run, AttnkitError):
                if path == folder:
                    raise run
                if not Run(path).in_training:
                    damaged.append(run)
                skipped.append(f"{run}; skipped")
            elif run.finished or unfinished:
                found.setdefault(path.resolve(), run)
            else:
                reason = f"{MODEL} is missing" if run.manifest.finished else "training is not finished"
                skipped.append(f"{path}: {reason}; skipped")
    if not found and damaged:
        raise damaged[0]
    if not found:
        where = ", ".join(map(str, folders)) or "no folder given"
        reason = f"{len(skipped)} unfinished" if skipped else "`attnkit train RECIPE` makes one"
        kind = "run" if unfinished else "finished run"
        raise MissingInputError(f"{where}: no {kind} found ({reason})")
    for text in skipped:
        note(text)
    return sorted(found.values(), key=order)


def order(run: Run) -> tuple[Any, ...]:
    """Return the sort key of a run: recipe, then variant in the recipe's order, then seed.

    Variants of a sweep (named by values) and converted runs come after the recipe's variants. The manifests of earlier
    versions have no list of variants: their baseline comes first, other variants follow by name.
    """
    listed, baseline = run.manifest.variants or [], run.manifest.baseline
    if run.variant in listed and (baseline is None or baseline in listed):
        position = listed.index(run.variant)
    else:  # in a converted run that was tuned, the list has only the run's own variant
        position = 0 if run.variant == baseline else sys.maxsize
    return run.name, "=" in run.variant, position, run.variant, run.seed


def one_task(runs: Iterable[Run], instead: str) -> str:
    """Return the task of all runs. Raises UsageError, with `instead` as advice, if there are several."""
    tasks: dict[str, Run] = {}
    for run in runs:
        tasks.setdefault(run.recipe.task, run)
    if len(tasks) > 1:
        (task, first), (other, second) = list(tasks.items())[:2]
        raise UsageError(f"{first.path} is a run of {task}, {second.path} of {other}: {instead}")
    return next(iter(tasks))
