"""Validation scores against a key that was tuned or swept."""

from collections.abc import Mapping, Sequence

from attnkit.errors import UsageError
from attnkit.runs.curves import Curves, Note, Series
from attnkit.runs.layout import TRIAL
from attnkit.runs.run import Run
from attnkit.runs.status import title_of

WIDE = 8
"""Largest value by smallest, from which on the axis is logarithmic."""
LOSS = "validation-loss"
Lines = dict[int, dict[float, float]]
"""By seed, what each value scored."""


def value_curves(runs: Sequence[Run], key: str, names: Sequence[str] = (), *, note: Note) -> Curves:
    """A line for each variant and seed: the validation of the weights that were chosen.

    Args:
        runs: trials included; of a variant with trials of this key these alone are drawn, because
            its runs have one value, and may have more updates.
        key: dotted, as train.lr; its values are numbers.
        names: `validation-loss`; by default what was validated (`train.monitor`).
        note: called with a sentence about each run that is left out.

    Raises:
        UsageError: no run has such a value; the values are no numbers; or what was validated
            differs.
        DataError: a log is damaged.
    """
    if any(name != LOSS for name in names):
        raise UsageError(f"--x {key}: draws what was validated; leave out --y, or use --y {LOSS}")
    several = len({run.name for run in runs}) > 1
    tried: dict[str, Lines] = {}
    others: dict[str, Lines] = {}
    monitors: dict[str, None] = {}
    for run in runs:
        trial = run.manifest.get(TRIAL)
        value = _value_of(run, key, trial)
        if value is None:
            continue
        row = str(trial["variant"]) if trial else _row_of(run.variant, key)
        row = f"{run.name} {row}" if several else row
        if trial and trial.get("diverged"):
            note(f"{row}: {key}={trial['value']} diverged, so it is not drawn")
            continue
        done = run.manifest["finished"] if run.finished else None
        record = run.log.validation(done["step"]) if done else None
        if record is None:
            note(f"{run.path}: not finished, so it is not drawn")
            continue
        monitors[str(record["monitor"])] = None
        lines = (tried if trial else others).setdefault(row, {})
        lines.setdefault(run.seed, {})[value] = float(record["valid_loss" if names else "value"])
    found = others | tried
    if not found:
        raise UsageError(f"--x {key}: no run here has a value of it")
    if len(monitors) > 1 and not names:
        raise UsageError(
            f"--x {key}: the runs validate different metrics ({', '.join(monitors)}); --y {LOSS}"
        )
    series = tuple(
        Series(row, tuple(tuple(sorted(line.items())) for line in found[row].values()))
        for row in dict.fromkeys([*tried, *others])
    )
    values = [value for lines in found.values() for line in lines.values() for value in line]
    wide = min(values) > 0 and max(values) >= WIDE * min(values)
    title = f"validation {title_of('loss' if names else next(iter(monitors)))}"
    return Curves(title, key, series, log_x=wide)


def _value_of(run: Run, key: str, trial: Mapping[str, str] | None) -> float | None:
    """The value of a run; None where it has none, or is a trial of another key."""
    from attnkit.recipe.dumping import flat

    if trial and trial["key"] != key:
        return None
    # a trial of few updates has a shorter warm-up than the value that it stands for
    text = trial["value"] if trial else flat(run.recipe).get(key)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--x {key}: its values are no numbers ({text}, {run.path})") from None


def _row_of(variant: str, key: str) -> str:
    """The name of a variant without the value of the key that a sweep added."""
    parts = key.split(".")
    marks = tuple(f"{'.'.join(parts[at:])}=" for at in range(len(parts)))
    return ",".join(p for p in variant.split(",") if not p.startswith(marks)) or variant
