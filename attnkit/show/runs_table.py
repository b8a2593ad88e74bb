"""Tables of runs: their states, scores, and differences in their recipes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from attnkit.runs.status import RunStatus, title_of
from attnkit.show.quantities import age, amount
from attnkit.show.table import NONE, Column, Table, Value


def runs_tables(runs: Sequence[RunStatus], now: float, *, by_folder: bool = True) -> list[Table]:
    """Return a table for each folder of variants, or one table; notes are below the last table."""
    folders = list(dict.fromkeys(map(_folder, runs))) if by_folder else []
    tables = [_table([run for run in runs if _folder(run) == folder], now, folder) for folder in folders]
    tables = tables or [_table(runs, now, None)]
    return [*tables[:-1], replace(tables[-1], notes=_notes(runs))]


def _folder(run: RunStatus) -> Path:
    """Return the folder of the variants of the run's recipe."""
    return run.path.parent.parent


def _table(runs: Sequence[RunStatus], now: float, folder: Path | None) -> Table:
    """Return a table of the runs in a folder, or of all runs for None."""
    title = "" if folder in (None, Path()) else folder.as_posix()
    measured = {(run.metric, run.split) for run in runs if run.metric is not None}
    monitors = {run.monitor for run in runs if run.validation is not None}
    (metric, split) = next(iter(measured)) if len(measured) == 1 else (None, None)
    monitor = next(iter(monitors)) if len(monitors) == 1 else None
    fields = (
        Column(
            "run",
            lambda run: run.path if folder is None else run.path.relative_to(folder),
            Path.as_posix,
            align="left",
        ),
        Column("state", lambda run: run.state, align="left"),
        Column("step", _step, priority=1),
        Column(
            f"{title_of(metric)} {split}" if metric else "score",
            lambda run: _number(run.score, () if metric else (run.metric, run.split)),
        ),
        Column(
            f"validation {title_of(monitor)}" if monitor else "validation",
            lambda run: _number(run.validation, () if monitor else (run.monitor,)),
            priority=5,
        ),
        Column("age", lambda run: age(now - run.changed), priority=2),
        Column("size", lambda run: run.bytes, amount, priority=3),
        Column(
            "differs in",
            lambda run: ", ".join(key.removeprefix("model.") for key in run.differs) or NONE,
            align="left",
            priority=4,
            wrap=True,
        ),
    )
    return Table.of(title, runs, fields, record=_record)


def _record(run: RunStatus) -> Mapping[str, Value]:
    """Return the values of a run for programs."""
    changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(run.changed))
    names = "recipe variant seed state step steps metric split score monitor validation"
    return {
        "run": run.path.as_posix(),
        **{name: getattr(run, name) for name in names.split()},
        "changed": changed,
        "bytes": run.bytes,
        "removable_bytes": run.removable,
        "differs": "; ".join(run.differs),
        "fault": run.fault,
    }


def _step(run: RunStatus) -> str:
    """Return the number of updates done, and of all updates if it is known."""
    if run.step is None:
        return NONE
    return f"{run.step:,}" if run.steps is None else f"{run.step:,}/{run.steps:,}"


def _number(value: float | None, names: Sequence[str | None]) -> str:
    """Return a number, with the names that the title of its column lacks."""
    names_shown = [title_of(name) for name in names if name is not None]
    return NONE if value is None else " ".join([f"{value:.2f}", *names_shown])


def _notes(runs: Sequence[RunStatus]) -> tuple[str, ...]:
    """Return notes on sizes and differences, and the faults of runs."""
    total = f"{len(runs)} run{'' if len(runs) == 1 else 's'}, {amount(sum(r.bytes for r in runs))}"
    removable = sum(run.removable for run in runs)
    if removable:
        total += f"; {amount(removable)} are checkpoints of finished runs (`attnkit runs clean`)"
    notes = [total]
    if any(run.differs for run in runs):
        reference = "the baseline" if any(run.baseline for run in runs) else "most runs of the recipe"
        notes.append(f"differs in: recipe keys whose value differs from {reference}")
    notes += [f"{run.path.as_posix()}: {run.fault}" for run in runs if run.fault]
    return tuple(notes)
