"""Learning curves of runs, and scores against cost or a tuned value, as numbers."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from attnkit.errors import DataError, UsageError
from attnkit.recipe import corpus_cards, flat
from attnkit.recipe.metrics import METRICS, metric_facts
from attnkit.runs.demo import DEMO, named
from attnkit.runs.json_files import TrialOf
from attnkit.runs.layout import ScoredSplit
from attnkit.runs.run import Run
from attnkit.runs.status import SEEDS, scores_of, title_of
from attnkit.text import hint, quoted

Point = tuple[float, float]
Record = Mapping[str, Any]
Logs = Mapping[Path, Sequence[Record]]
Note = Callable[[str], object]
Lines = dict[int, dict[float, float]]
"""Validation result of each value, by seed."""


class Logged(NamedTuple):
    """A logged quantity: its key in the records, the title of its axis, and the key of its time."""

    key: str
    title: str
    seconds: str = "seconds"


CURVES = {
    "training-loss": Logged("loss", "training loss"),
    "validation-loss": Logged("valid_loss", "validation loss", "valid_seconds"),
    "validation-metric": Logged("value", "validation metric", "valid_seconds"),
    "learning-rate": Logged("lr", "learning rate"),
    "gradient-norm": Logged("grad_norm", "gradient norm"),
    "tokens-per-second": Logged("tokens_per_second", "tokens per second"),
}
"""Quantities plotted against the progress of training, by command-line name."""
SCORE = "score"
"""Command-line name of the evaluation's first metric; other metrics go by their own names."""
FRONT = "front"
"""Name of the series of scores that no run with an equal or smaller state exceeds."""
VIEWS = ("overview", "differences")
"""Plots of whole recipes by `attnkit plot`."""
AXES = {
    "updates": "updates",
    "tokens": "target tokens",
    "time": "training time",
    "parameters": "parameters",
    "state": "state of the decoder",
    "length": "length",
}
SCORE_AXES = ("parameters", "state", "length")
"""Axes that only scores have."""
LOG_RATIO = 8
"""Ratio of the largest to the smallest value of a key from which its axis is logarithmic."""
LOSS = "validation-loss"
TIMES = ((7200.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""Units of time: minimum number of seconds to use the unit, seconds per unit, name."""


@dataclass(frozen=True)
class Series:
    """Runs of one variant that differ only in their seeds: one line per run."""

    name: str
    lines: tuple[tuple[Point, ...], ...]


@dataclass(frozen=True)
class Curves:
    """One quantity of several variants, for terminal, pictures and reports."""

    title: str
    """Label of the vertical axis."""
    x: str
    """Label of the horizontal axis, with its unit."""
    series: tuple[Series, ...]
    from_zero: bool = False
    """Whether the horizontal axis starts at zero; that of scores does not."""
    log_x: bool = False
    """Whether the horizontal axis is logarithmic, as for lengths."""

    @property
    def points(self) -> list[Point]:
        """The points of all lines."""
        return [point for series in self.series for line in series.lines for point in line]


class RunGroup(NamedTuple):
    """Runs whose recipes differ only in the seed, with a name that distinguishes the group."""

    name: str
    runs: list[Run]

    def series(self, lines: Iterable[tuple[Point, ...]]) -> Iterator[Series]:
        """Yield one series of the lines that have points, unless none has."""
        if drawn := tuple(line for line in lines if line):
            yield Series(self.name, drawn)


def learning_curves(
    runs: Sequence[Run], names: Sequence[str] = (), x: str | None = None, *, note: Note
) -> list[Curves]:
    """Return the curves to draw for runs, finished or not.

    Args:
        runs: runs of one task, in the order of their colors.
        names: keys of `CURVES`, `score`, or metrics; default: the training loss and what was validated.
        x: a key of `AXES` (default: time for scores, updates otherwise), or a dotted recipe key with numeric values
            such as train.lr, to plot validation results against (see `_by_value`).
        note: called with a sentence for each run that is left out, and for each caveat.

    Raises:
        UsageError: If runs have different tasks, a name is unknown, or there is nothing to draw.
        DataError: If all logs are damaged or empty, or scores are damaged.
        MissingInputError: If the plug-in of a run is missing.
    """
    if x is not None and "." in x:
        return [_by_value(runs, x, names, note)]
    if x is not None and x not in AXES:
        raise UsageError(f"--x {quoted(x)}: {hint(x, AXES)}")
    tasks = {run.recipe.task: run.path for run in runs}
    if len(tasks) > 1:
        listed = " and ".join(f"{task} ({path})" for task, path in tasks.items())
        raise UsageError(f"runs of different tasks have no common axis: {listed}; plot one task")
    for name in names:
        _check_name(name, x, runs)
    if x in SCORE_AXES and not names:
        names = (SCORE,)
    logs = _logs(runs, note) if not names or any(name in CURVES for name in names) else {}
    groups = _groups(runs)
    monitors = list(dict.fromkeys(str(r["monitor"]) for log in logs.values() for r in log if "monitor" in r))
    # the metric is drawn only if all runs validate the same metric
    loss = len(monitors) > 1 or "loss" in monitors
    drawn = []
    for name in names or ("training-loss", "validation-loss" if loss else "validation-metric"):
        if name in CURVES:
            curves = _logged(name, x or "updates", groups, logs, monitors)
            plottable = [group.name for group in groups if any(run.path in logs for run in group.runs)]
        else:
            curves, plottable = _scores(name, x or "time", groups, note), [g.name for g in groups]
        present = [series.name for series in curves.series]
        if present:
            drawn.append(curves)
            if missing := [name for name in plottable if name not in present]:
                note(f"{', '.join(missing)}: no {curves.title} yet")
        elif names:
            raise UsageError(_why_nothing(name, x, runs))
    if any(curves.title.endswith(" loss") for curves in drawn):
        hashes = [run.manifest.hashes for run in runs if run.path in logs]
        if len({(entry.get("data"), entry.get("tokenizer")) for entry in hashes}) > 1:
            note("the runs differ in data or tokenizer: their losses are not comparable")
    return drawn


def _check_name(name: str, x: str | None, runs: Sequence[Run]) -> None:
    """Raise UsageError if a name is unknown or has no such axis."""
    if name in CURVES:
        if x in SCORE_AXES:
            raise UsageError(f"{name} has no axis {x}; --x {x} is for --y {SCORE}")
        return
    known_names = [*CURVES, SCORE, *dict.fromkeys(m for run in runs for _, m, _ in scores_of(run))]
    if name not in known_names:
        advice = f"no run is scored by {name}; run `attnkit eval RUNS --metrics {name}`; "
        advice = advice if name in METRICS else ""
        raise UsageError(f"--y {quoted(name)}: {advice}{hint(name, [*known_names, *VIEWS])}")


def _why_nothing(name: str, x: str | None, runs: Sequence[Run]) -> str:
    if name in CURVES:
        return f"--y {name}: no run has a logged value yet"
    if x == "length":
        return "--x length: no run is scored at several lengths; set eval.lengths and run eval"
    if x == "state" and any(scores_of(run) for run in runs):
        return "--x state: is only for decoders (model.shape: decoder); these runs have another shape"
    return f"--y {name}: no run is scored; run `attnkit eval {runs[0].path}`"


def _logs(runs: Sequence[Run], note: Note) -> Logs:
    """Return the records of each run; runs without a log, or with a damaged log, are noted and left out."""
    logs: dict[Path, Sequence[Record]] = {}
    reasons, untrained = [], []
    for run in runs:
        try:
            if records := run.log.records():
                logs[run.path] = records
            elif run.finished and run.outcome.reason == "converted":
                untrained.append(str(run.path))
            elif named(str(run.path)) == DEMO:
                reasons.append(f"{DEMO}: the demo model has no learning curve")
            else:
                reasons.append(f"{run.log.path}: has no records yet")
        except DataError as error:
            reasons.append(str(error))
    if untrained:
        reasons.append(f"{', '.join(untrained)}: converted, not trained, so there are no curves")
    if not logs:
        raise DataError("; ".join(reasons))
    for reason in reasons:
        note(f"not drawn: {reason}")
    return logs


def _groups(runs: Sequence[Run]) -> list[RunGroup]:
    values = {run.path: {k: v for k, v in flat(run.recipe).items() if k != SEEDS} for run in runs}
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        recipe = tuple(values[run.path].items())
        groups.setdefault((run.name, run.variant, run.path.parent, recipe), []).append(run)
    first = [group[0] for group in groups.values()]
    several_recipes = len({run.name for run in runs}) > 1
    names = [f"{run.name} {run.variant}" if several_recipes else run.variant for run in first]
    for name in {name for name in names if names.count(name) > 1}:
        positions = [position for position, other in enumerate(names) if other == name]
        same_name = [first[position] for position in positions]
        for position, label in zip(positions, _labels(same_name, [values[r.path] for r in same_name]), strict=True):
            names[position] = f"{name} ({label})"
    return [RunGroup(name, group) for name, group in zip(names, groups.values(), strict=True)]


def _labels(runs: Sequence[Run], recipes: Sequence[Mapping[str, str]]) -> list[str]:
    """Return labels that distinguish runs of one variant: one or two recipe keys, otherwise folders."""
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    differing_keys = [key for key in keys if len({recipe.get(key) for recipe in recipes}) > 1]
    labels = [", ".join(f"{key}: {recipe.get(key)}" for key in differing_keys) for recipe in recipes]
    if len(differing_keys) <= 2 and len({*labels}) == len(runs):
        return labels
    folders = [run.path.parent.parent.as_posix() for run in runs]
    return folders if len({*folders}) == len(runs) else [run.path.as_posix() for run in runs]


def _logged(name: str, x: str, groups: Sequence[RunGroup], logs: Logs, monitors: Sequence[str]) -> Curves:
    """Return one logged quantity against the progress of training."""
    curve, title = CURVES[name], CURVES[name].title
    if name == "validation-metric":
        if len(monitors) > 1:
            raise UsageError(
                f"--y {name}: the runs validate different metrics ({', '.join(monitors)}); plot "
                "validation-loss, or runs of one metric"
            )
        title = f"validation {title_of(*monitors or ['loss'])}"
    series = tuple(s for g in groups for s in g.series(_line(curve, x, logs.get(run.path, ())) for run in g.runs))
    return _in_units(Curves(title, x, series, from_zero=True))


def _line(curve: Logged, x: str, records: Sequence[Record]) -> tuple[Point, ...]:
    """Return the points of one run; a validation has the tokens of the last interval before it."""
    points, tokens = [], 0.0
    for record in records:
        tokens = _number(record.get("tokens")) or tokens
        seconds = _number(record.get(curve.seconds))
        x_value = {"updates": record["step"], "tokens": tokens, "time": seconds}[x]
        value = _number(record.get(curve.key))
        if x_value is not None and value is not None:
            points.append((float(x_value), value))
    return tuple(points)


def _scores(name: str, x: str, groups: Sequence[RunGroup], note: Note) -> Curves:
    """Return one metric of the evaluations: one point per run, or one per length."""
    metric = None if name == SCORE else name
    all_scores = (scores_of(run, metric) for group in groups for run in group.runs)
    split, metric, _ = next((scores[0] for scores in all_scores if scores), ("", "", 0.0))
    scored = ScoredSplit.of(split)
    title = f"{title_of(metric)} on {scored.split if scored.length else split}"
    if scored.length and x != "length":
        title += f" at length {scored.length}"
    series, conditions = list[Series](), set[tuple[str, ...]]()
    for group in groups:
        lines = []
        state = _state(group.runs[0], scored.length) if x == "state" else None
        for run in group.runs:
            scores = {name: score for name, _, score in scores_of(run, metric)}
            x_value, line = state or _cost_of(run, x), list[Point]()
            if scored.length and x == "length":
                parts = ((ScoredSplit.of(name), score) for name, score in scores.items())
                line = sorted((p.length, s) for p, s in parts if p.length and p.split == scored.split)
            elif x_value is not None and split in scores:
                line = [(x_value, scores[split])]
            lines.append(tuple(line))
            if line and split in scores:
                entry = run.scores()[split]  # scores are comparable if these are equal
                conditions.add((entry.metrics[metric].signature, entry.digests.references, entry.search.key))
        series += group.series(lines)
    if len(conditions) > 1:
        note(f"{title} was measured with different search, references or settings: not comparable")
    if x == "state" and series:
        series.append(Series(FRONT, (_front(series, metric_facts(metric).better),)))
    curves = _in_units(Curves(title, x, tuple(series), log_x=x == "state"))
    if x != "length":
        return curves
    row_length = corpus_cards.row_length(groups[0].runs[0].recipe.data.corpus)
    return replace(curves, x=f"length of the text ({row_length.unit if row_length else 'tokens'})", log_x=True)


def _cost_of(run: Run, x: str) -> float | None:
    """Return the number of parameters of a run, or the updates, tokens or seconds of a finished run."""
    spent: dict[str, float | None] = {"parameters": run.manifest.parameters}
    if done := run.manifest.finished:
        spent |= {"updates": done.last, "tokens": done.tokens, "time": done.seconds}
    return _number(spent.get(x))


def _state(run: Run, length: int | None) -> float | None:
    """Return the bytes of decoder state for a text of the scored length, otherwise of the maximum length."""
    from attnkit.data.synthetic.generators import generator_of
    from attnkit.models.state_size import state_bytes

    recipe = run.recipe
    if length and corpus_cards.row_length(recipe.data.corpus):  # the unit of length is pairs or words, not tokens
        card = corpus_cards.load(str(recipe.data.corpus))
        row = next(iter(generator_of(card).rows("test", 1, recipe.data.seed, length)))
        length = len(f"{row.source} {row.target * recipe.writes}".split())
    return state_bytes(recipe, length or recipe.data.max_length)


def _front(series: Sequence[Series], better: str) -> tuple[Point, ...]:
    """Return the Pareto front of the means of the series: scores that no equal or smaller x exceeds."""
    means = sorted((mean(line[0][0] for line in s.lines), mean(line[0][1] for line in s.lines)) for s in series)
    sign, best = -1.0 if better == "lower" else 1.0, -math.inf
    front = []
    for cost in dict.fromkeys(x for x, _ in means):
        score = max(sign * y for x, y in means if x == cost)
        if score > best:
            best = score
            front.append((cost, sign * score))
    return tuple(front)


def _in_units(curves: Curves) -> Curves:
    """Replace x, a key of `AXES`, by its title; large numbers of seconds become minutes or hours."""
    if curves.x == "state":
        return replace(curves, x=f"{AXES['state']} (bytes)")
    if curves.x != "time":
        return replace(curves, x=AXES[curves.x])
    longest = max((x for x, _ in curves.points), default=0.0)
    _, unit, name = next(row for row in TIMES if longest >= row[0])
    series = tuple(
        replace(s, lines=tuple(tuple((x / unit, y) for x, y in line) for line in s.lines)) for s in curves.series
    )
    return replace(curves, x=f"{AXES['time']} ({name})", series=series)


def _by_value(runs: Sequence[Run], key: str, names: Sequence[str], note: Note) -> Curves:
    """Return a line for each variant and seed: validation results of the selected weights by value of a key.

    For a variant with trials of the key, only the trials are drawn: its runs have a single value, and possibly more
    updates.
    """
    if any(name != LOSS for name in names):
        raise UsageError(f"--x {key}: draws validation results; remove --y, or use --y {LOSS}")
    several_recipes = len({run.name for run in runs}) > 1
    trial_lines, other_lines, monitors = dict[str, Lines](), dict[str, Lines](), dict[str, None]()
    for run in runs:
        trial = run.manifest.trial
        value = _value_of(run, key, trial)
        if value is None:
            continue
        row = trial.variant if trial else _without_key(run.variant, key)
        row = f"{run.name} {row}" if several_recipes else row
        if trial and trial.diverged:
            note(f"{row}: {key}={trial.value} diverged, so it is not drawn")
            continue
        record = run.log.validation(run.outcome.step) if run.finished else None
        result = None if record is None else record.valid_loss if names else record.value
        if record is None or result is None:
            note(f"{run.path}: not finished, so it is not drawn")
            continue
        monitors[record.monitor] = None
        lines = (trial_lines if trial else other_lines).setdefault(row, {})
        lines.setdefault(run.seed, {})[value] = result
    lines_by_row = other_lines | trial_lines
    if not lines_by_row:
        raise UsageError(_why_no_value(key, runs))
    if len(monitors) > 1 and not names:
        raise UsageError(f"--x {key}: the runs validate different metrics ({', '.join(monitors)}); use --y {LOSS}")
    series = tuple(
        Series(row, tuple(tuple(sorted(line.items())) for line in lines_by_row[row].values()))
        for row in dict.fromkeys([*trial_lines, *other_lines])
    )
    values = [value for lines in lines_by_row.values() for line in lines.values() for value in line]
    log_x = min(values) > 0 and max(values) >= LOG_RATIO * min(values)
    return Curves(f"validation {title_of('loss' if names else next(iter(monitors)))}", key, series, log_x=log_x)


def _value_of(run: Run, key: str, trial: TrialOf | None) -> float | None:
    """Return the value of a key in a run; None if the run has none, or is a trial of another key."""
    if trial and trial.key != key:
        return None
    # the recipe of a short trial has a scaled warm-up, so the trial's own value counts
    text = trial.value if trial else flat(run.recipe).get(key)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--x {key}: its values must be numbers, got {text} ({run.path})") from None


def _why_no_value(key: str, runs: Sequence[Run]) -> str:
    numeric = {name for run in runs for name, text in flat(run.recipe).items() if _is_number(text)}
    if key in numeric:
        return f"--x {key}: no run has a validation result"
    return f"--x {key}: no run has a number for {key}; {hint(key, sorted(numeric), 'use a key such as train.lr')}"


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


def _without_key(variant: str, key: str) -> str:
    """Return the name of a variant without the value that a sweep of the key added to it."""
    parts = key.split(".")
    prefixes = tuple(f"{'.'.join(parts[start:])}=" for start in range(len(parts)))
    return ",".join(p for p in variant.split(",") if not p.startswith(prefixes)) or variant


def _number(value: Any) -> float | None:
    """Return a finite number as float, anything else as None."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None
