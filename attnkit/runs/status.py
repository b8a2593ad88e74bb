"""What runs have come to: state, step, score, age and size, and how their recipes differ."""

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
    """One run as a list of runs shows it; None where something is not known (yet)."""

    path: Path
    recipe: str
    variant: str
    seed: int | None
    state: State
    step: int | None = None
    """Updates so far."""
    steps: int | None = None
    """Updates that the recipe asks for."""
    metric: str | None = None
    """First metric of its evaluation."""
    split: str | None = None
    """What the metric was measured on."""
    score: float | None = None
    monitor: str | None = None
    """What validations measure (`train.monitor`)."""
    validation: float | None = None
    """Its value for the chosen weights, or at the last validation of an unfinished run."""
    changed: float = 0.0
    """When training or evaluation last wrote, in seconds since 1970."""
    bytes: int = 0
    """Size of all its files."""
    removable: int = 0
    """Size of its checkpoints, where it is done and needs them no longer."""
    differs: tuple[str, ...] = ()
    """Keys of its recipe with another value than its neighbours': see `differences`."""
    fault: str | None = None
    """Why it failed, or what is damaged."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Every value of its recipe by its key."""
    baseline: bool = False
    """Whether it is the variant that the others of its recipe are compared with."""


def statuses(folder: Path) -> list[RunStatus]:
    """Every run in a folder, sorted as by `find_runs`; damaged ones come last.

    Raises MissingInputError: there is no such folder, or no run in it.
    """
    found: list[tuple[tuple[Any, ...], RunStatus]] = []
    damaged = []
    for path, run in open_runs(located(folder)):
        if isinstance(run, Run):
            found.append((order(run), _status(run)))
        else:
            damaged.append(_damaged(path, layout.without_path(run, path)))
    if not found and not damaged:
        raise MissingInputError(f"{folder}: no run is here; `attnkit train RECIPE` makes one")
    listed = [status for _, status in sorted(found, key=lambda pair: pair[0])]
    for name in dict.fromkeys(status.recipe for status in listed):
        at = [place for place, status in enumerate(listed) if status.recipe == name]
        group = [listed[place] for place in at]
        usual = [status.values for status in group if status.baseline and status.values]
        for place, differs in zip(at, differences([status.values for status in group], usual), strict=True):
            listed[place] = replace(listed[place], differs=differs)
    return listed + damaged


def clean(runs: Sequence[RunStatus], note: Callable[[str], object]) -> int:
    """Remove the checkpoints of those runs that are done; the number of bytes.

    A run that is being trained, or whose weights are damaged, is passed over with a note.

    Raises OutputPathError: a folder cannot be changed.
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
    """Remove the checkpoints of a finished run; its chosen weights must be whole.

    It is used and scored as before, but can no longer be trained further. Call it holding the lock.

    Raises MissingInputError: training is not finished; DataError: the weights are damaged;
    OutputPathError: the folder cannot be changed.
    """
    run.require_finished()
    run.check_file(layout.MODEL)
    with files.writing(run.checkpoints):
        for path in layout.checkpoint_folders(run.path):
            # under another name first: half a checkpoint must never look like one
            leftover = path if files.owner(path) else files.temporary(path)
            if path != leftover:
                files.DISK.rename(path, leftover)
            files.remove(leftover)


def differences(
    recipes: Sequence[Mapping[str, str]], usual: Sequence[Mapping[str, str]] = ()
) -> list[tuple[str, ...]]:
    """In which keys each recipe differs from the usual one, as `train.steps: 120`; seeds aside.

    The usual value of a key is the most common one among the recipes `usual` (those of the baseline
    variant), or among all where there is none.  Only options of mechanisms may be absent from it.
    """
    common: dict[str, str] = {}
    for key in dict.fromkeys(key for values in recipes for key in values):
        counts = Counter(values[key] for values in usual or recipes if key in values)
        if not counts and not key.startswith(ATTENTION):  # of another version of attnkit
            counts = Counter(values[key] for values in recipes if key in values)
        if counts:
            common[key] = counts.most_common(1)[0][0]
    return [_lines({k: v for k, v in values.items() if v != common.get(k) and k != SEEDS}) for values in recipes]


def _lines(changed: dict[str, str]) -> tuple[str, ...]:
    """Changed keys with their values; those of several places of attention in one."""
    out: dict[str, str] = {}
    for key, value in changed.items():
        place, _, option = key.removeprefix(ATTENTION).partition(".")
        dot = f".{option}" if option else ""
        same = [name for name in PLACES if changed.get(f"{ATTENTION}{name}{dot}") == value]
        if not key.startswith(ATTENTION) or same == [place]:
            out[key] = value
        elif len(same) == len(PLACES):
            out[f"{ATTENTION[:-1]}{dot}"] = value
        else:
            out[f"{ATTENTION[:-1]}{dot} ({', '.join(same)})"] = value
    return tuple(f"{key}: {value}" for key, value in out.items())


def _status(run: Run) -> RunStatus:
    """What is known of a run whose manifest can be read; faults of its other files are noted."""
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
    """The last step of an unfinished run; the validation of the chosen weights, or the last."""
    if run.finished:
        chosen = run.log.validation(run.outcome.step)
        return {"validation": chosen and chosen.value}
    records = run.log.records()
    values = [record["value"] for record in records if record.get("value") is not None]
    return {"step": records[-1]["step"] if records else 0, "validation": values[-1] if values else None}


def _score(run: Run) -> dict[str, Any]:
    """The first metric and split of the recipe that were evaluated."""
    for split, metric, score in scores_of(run):
        return {"split": split, "metric": metric, "score": score}
    return {}


def scores_of(run: Run, metric: str | None = None) -> list[tuple[str, str, float]]:
    """(split, metric, score) of all that was evaluated, the recipe's first split and metric first.

    Raises DataError: scores.json is damaged.
    """
    stored, eval = run.scores(), run.recipe.eval
    found = [
        (split, name, one.score)
        for split, entry in stored.items()
        for name, one in entry.metrics.items()
        if one.score is not None and metric in (None, name)
    ]

    def place(one: tuple[str, str, float]) -> tuple[int, int, bool]:
        """Those of another search, under a longer name than their split's, come later."""
        split, name, _ = one
        base = split.partition(".")[0]  # of questions: test.mean.4
        return (
            eval.splits.index(base) if base in eval.splits else len(eval.splits),
            eval.metrics.index(name) if name in eval.metrics else len(eval.metrics),
            stored[split].split not in ("", split),
        )

    return sorted(found, key=place)


def title_of(metric: str) -> str:
    """The name of a metric in tables; of one that another version of attnkit had, its word."""
    from attnkit.recipe.metrics import metric_facts

    try:
        return metric_facts(metric).title
    except KeyError:
        return metric


def _changed(path: Path) -> float:
    """When a run's records were last written."""
    times = [0.0]
    names = (layout.MANIFEST, layout.LOG, layout.SCORES)
    for file in [path] if path.is_file() else [path / name for name in names]:
        with suppress(OSError):  # not there, or not to be read
            times.append(file.stat().st_mtime)
    return max(times)


def _damaged(path: Path, fault: str) -> RunStatus:
    """A run whose manifest or recipe cannot be read; its folders say which it was."""
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
