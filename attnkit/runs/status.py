"""Status of runs: state, step, score, age, size, and the differences between their recipes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from attnkit.errors import AttnkitError, DataError, MissingInputError
from attnkit.runs import layout
from attnkit.runs.demo import located, named
from attnkit.runs.find import open_runs, order
from attnkit.runs.run import Run
from attnkit.storage import files

State = Literal["done", "unfinished", "training", "failed", "damaged", "results"]
SEEDS = "train.seeds"
ATTENTION, PLACES = "model.attention.", ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class RunStatus:
    """A run in a list of runs; None for facts that are not known (yet)."""

    path: Path
    recipe: str
    variant: str
    seed: int | None
    state: State
    step: int | None = None
    """Number of updates so far."""
    steps: int | None = None
    """Number of updates in the recipe."""
    metric: str | None = None
    """First metric of the evaluation."""
    split: str | None = None
    """Split that the metric was measured on."""
    score: float | None = None
    monitor: str | None = None
    """Quantity that validations measure (`train.monitor`)."""
    validation: float | None = None
    """Monitor of the selected weights, or at the last validation of an unfinished run."""
    changed: float = 0.0
    """Last write by a training or evaluation, in seconds since 1970."""
    bytes: int = 0
    """Size of all files."""
    removable: int = 0
    """Size of the checkpoints, if the run is done and no longer needs them."""
    differs: tuple[str, ...] = ()
    """Recipe keys with other values than in the neighboring runs; see `differences`."""
    fault: str | None = None
    """Why the run failed, or what is damaged."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """All values of the recipe by key."""
    baseline: bool = False
    """Whether the other variants of the recipe are compared with this variant."""


def statuses(folder: Path) -> list[RunStatus]:
    """Return the status of each run, sorted as by `find_runs`, damaged last. Raises MissingInputError without runs."""
    found: list[tuple[tuple[Any, ...], RunStatus]] = []
    damaged = []
    for path, run in open_runs(located(folder)):
        if isinstance(run, Run):
            found.append((order(run), _status(run)))
        else:
            damaged.append(_damaged(path, layout.without_path(run, path)))
    if not found and not damaged:
        raise MissingInputError(f"{folder}: no run found; `attnkit train RECIPE` makes one")
    listed = [status for _, status in sorted(found, key=lambda pair: pair[0])]
    differs: dict[Path, tuple[str, ...]] = {}
    for recipe in dict.fromkeys(status.recipe for status in listed):
        group = [status for status in listed if status.recipe == recipe]
        usual = [status.values for status in group if status.baseline and status.values]
        keys = differences([status.values for status in group], usual)
        differs |= zip((status.path for status in group), keys, strict=True)
    return [replace(status, differs=differs[status.path]) for status in listed] + damaged


def clean(runs: Sequence[RunStatus], note: Callable[[str], object]) -> int:
    """Remove the checkpoints of the runs that are done, and return the number of bytes removed.

    A run in training, or with damaged weights, is skipped with a note. Raises OutputPathError if a folder is not
    writable.
    """
    removed = 0
    for status in runs:
        if not status.removable:
            continue
        if Run(status.path).in_training:
            note(f"{status.path}: is being trained; its checkpoints stay")
            continue
        with Run(status.path).lock():
            try:
                remove_checkpoints(Run(status.path))
            except (DataError, MissingInputError) as error:
                note(f"{error}; its checkpoints stay")
                continue
            removed += status.removable
    return removed


def remove_checkpoints(run: Run) -> None:
    """Remove the checkpoints of a finished run with undamaged weights; call it holding the lock.

    The run can still be used and scored, but not trained further.

    Raises:
        MissingInputError: If training is not finished.
        DataError: If the weights are damaged.
        OutputPathError: If the folder cannot be changed.
    """
    run.require_finished()
    run.check_file(layout.MODEL)
    with files.writing(run.checkpoints):
        for path in layout.checkpoint_folders(run.path):
            # renamed first, so that a partly removed checkpoint is never taken for a whole checkpoint
            leftover = path if files.owner(path) else files.temporary(path)
            if path != leftover:
                files.DISK.rename(path, leftover)
            files.remove(leftover)


def differences(
    recipes: Sequence[Mapping[str, str]], usual: Sequence[Mapping[str, str]] = ()
) -> list[tuple[str, ...]]:
    """Return the keys in which each recipe differs from the usual values, as `train.steps: 120`; seeds are ignored.

    The usual value of a key is its most common value in `usual` (recipes of the baseline variant), or in all recipes
    if `usual` is empty. A key that `usual` lacks is compared within all recipes, unless it is an option of a
    mechanism.
    """
    common: dict[str, str] = {}
    for key in dict.fromkeys(key for values in recipes for key in values):
        counts = Counter(values[key] for values in usual or recipes if key in values)
        if not counts and not key.startswith(ATTENTION):  # key of another version of attnkit
            counts = Counter(values[key] for values in recipes if key in values)
        if counts:
            common[key] = counts.most_common(1)[0][0]
    return [_lines({k: v for k, v in values.items() if v != common.get(k) and k != SEEDS}) for values in recipes]


def _lines(changed: dict[str, str]) -> tuple[str, ...]:
    """Return changed keys with their values; equal values at several places of attention share a line."""
    merged: dict[str, str] = {}
    for key, value in changed.items():
        place, _, option = key.removeprefix(ATTENTION).partition(".")
        suffix = f".{option}" if option else ""
        same = [name for name in PLACES if changed.get(f"{ATTENTION}{name}{suffix}") == value]
        if not key.startswith(ATTENTION) or same == [place]:
            merged[key] = value
        elif len(same) == len(PLACES):
            merged[f"{ATTENTION[:-1]}{suffix}"] = value
        else:
            merged[f"{ATTENTION[:-1]}{suffix} ({', '.join(same)})"] = value
    return tuple(f"{key}: {value}" for key, value in merged.items())


def _status(run: Run) -> RunStatus:
    """Return the status of a run with a readable manifest; faults of its other files are listed."""
    failed, finished = run.manifest.failed, run.finished
    state: State = "failed" if failed else "unfinished"
    if run.in_training:
        state = "training"
    elif finished:
        state = "results" if run.left_out else "done"
    faults = [failed] if failed and state == "failed" else []
    facts: dict[str, Any] = {"step": run.outcome.last if finished else None}
    for read in (_recipe, _logged, _score):
        try:
            facts |= read(run)
        except AttnkitError as error:
            faults.append(layout.without_path(error, run.path))
    checkpoints = layout.checkpoint_folders(run.path) if state == "done" else []
    return RunStatus(
        Path(named(str(run.path))),
        run.name,
        run.variant,
        run.seed,
        state,
        changed=_changed(run.path),
        bytes=layout.size_of(run.path),
        removable=sum(map(layout.size_of, checkpoints)),
        fault="; ".join(faults) or None,
        baseline=run.variant == run.manifest.baseline,
        **facts,
    )


def _recipe(run: Run) -> dict[str, Any]:
    from attnkit.recipe.dumping import flat

    recipe = run.recipe
    return {
        "values": flat(recipe),
        "steps": None if recipe.model.count_based else recipe.train.steps,
        "monitor": recipe.train.monitor,
    }


def _logged(run: Run) -> dict[str, Any]:
    """Return the last step of an unfinished run, and the validation of the selected weights or the last one."""
    if run.finished:
        validation = run.log.validation(run.outcome.step)
        return {"validation": validation and validation.value}
    records = run.log.records()
    values = [record["value"] for record in records if record.get("value") is not None]
    return {"step": records[-1]["step"] if records else 0, "validation": values[-1] if values else None}


def _score(run: Run) -> dict[str, Any]:
    """Return the first metric and split of the recipe that were evaluated."""
    for split, metric, score in scores_of(run):
        return {"split": split, "metric": metric, "score": score}
    return {}


def scores_of(run: Run, metric: str | None = None) -> list[tuple[str, str, float]]:
    """Return (split, metric, score) of all evaluations, in the recipe's order.

    Raises DataError if scores.json is damaged.
    """
    stored, eval = run.scores(), run.recipe.eval
    found = [
        (split, name, result.score)
        for split, entry in stored.items()
        for name, result in entry.metrics.items()
        if result.score is not None and metric in (None, name)
    ]

    def sort_key(score: tuple[str, str, float]) -> tuple[int, int, bool]:
        """Return a sort key that puts scores of other searches, stored under longer names, last."""
        split, name, _ = score
        base = split.partition(".")[0]  # for questions: test.mean.4
        return (
            eval.splits.index(base) if base in eval.splits else len(eval.splits),
            eval.metrics.index(name) if name in eval.metrics else len(eval.metrics),
            stored[split].split not in ("", split),
        )

    return sorted(found, key=sort_key)


def title_of(metric: str) -> str:
    """Return the name of a metric in tables; for an unknown metric of another version, its key."""
    from attnkit.recipe.metrics import metric_facts

    try:
        return metric_facts(metric).title
    except KeyError:
        return metric


def _changed(path: Path) -> float:
    """Return the time of the last write to a run's records."""
    times = [0.0]
    names = (layout.MANIFEST, layout.LOG, layout.SCORES)
    for file in [path] if path.is_file() else [path / name for name in names]:
        with suppress(OSError):  # missing or unreadable
            times.append(file.stat().st_mtime)
    return max(times)


def _damaged(path: Path, fault: str) -> RunStatus:
    """Return the status of a run whose manifest or recipe cannot be read, identified by its folders."""
    seed = path.name.removeprefix("seed-").removesuffix(layout.RESULTS_FILE)
    return RunStatus(
        path,
        path.parent.parent.name,
        path.parent.name,
        int(seed) if seed.isdecimal() and seed.isascii() else None,
        "training" if Run(path).in_training else "damaged",
        changed=_changed(path),
        bytes=layout.size_of(path),
        fault=fault,
    )
