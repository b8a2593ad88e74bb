"""Recipes trained, runs scored, and the comparison of them as an object that shows itself."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from attnkit import models
from attnkit.api.calls import Plugins, plug_in, several
from attnkit.api.curves import DrawnCurves
from attnkit.api.progress import plain_text, shown
from attnkit.errors import RecipeError, UnavailableError, UsageError
from attnkit.experiment import training
from attnkit.experiment.settings import TrainingSettings
from attnkit.nbce.question_sets import evaluate_run
from attnkit.recipe import build, resolve
from attnkit.recipe import load as load_recipe
from attnkit.recipe.find import is_name
from attnkit.recipe.issues import COMMAND_LINE
from attnkit.runs import Run, find_runs, one_task
from attnkit.runs.curves import learning_curves
from attnkit.runs.find import baselines
from attnkit.scoring import Comparison, ScoreRow, expand, side_by_side
from attnkit.scoring.results import PublishedFigures
from attnkit.show.comparison_tables import tables
from attnkit.show.table_formats import html_text
from attnkit.storage.files import make_folder, write_output

Overrides = Mapping[str, Any] | Sequence[str]
STYLE = """<style>
.attnkit table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.attnkit th, .attnkit td { padding: 3px 10px; text-align: right; }
.attnkit .left { text-align: left; }
.attnkit .dim, .attnkit .note { opacity: 0.65; }
.attnkit .note { font-size: 0.85em; margin: 2px 0; }
</style>"""
"""Of a table in a notebook, which has its own colours."""


@dataclass(frozen=True)
class ComparedRuns(Comparison):
    """Systems side by side: `rows` of scores, `differences` from the baseline, `best`.

    `json()` is what `attnkit eval --format json` prints; a notebook shows the table.
    """

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame, a column for each metric.

        Raises UnavailableError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError as error:
            raise UnavailableError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame([_record(row) for row in self.rows])

    def curves(self, *names: str, x: str | None = None) -> DrawnCurves:
        """Learning curves of the runs: training-loss, validation-loss, learning-rate, ...

        Without names the training loss and what is validated; `x` is updates, tokens or time, or a
        key in which variants differ, as train.lr.
        """
        runs = [Run.open(path) for path in dict.fromkeys(row.run for row in self.rows) if path]
        return DrawnCurves(learning_curves(runs, list(names), x, note=warnings.warn))

    def __str__(self) -> str:
        return plain_text(*tables(self))

    def __repr__(self) -> str:
        return f"<comparison of {len(self.rows)} rows, baseline {self.baseline}>"

    def _repr_html_(self) -> str:
        body = "".join(map(html_text, tables(self)))
        return f'{STYLE}<div class="attnkit">{body}</div>'


def _record(row: ScoreRow) -> dict[str, Any]:
    """A row as named values; an axis only where there is one."""
    axes = {"length": row.length, "method": row.method, "contexts": row.contexts}
    return {
        "recipe": row.recipe,
        "system": row.name or row.variant,
        "variant": row.variant,
        "seed": row.seed,
        "split": row.split,
        **{name: value for name, value in axes.items() if value is not None},
        **{name: score.value for name, score in row.scores.items()},
        "sentences": row.sentences,
        "parameters": row.system.parameters,
        "train_seconds": row.system.cost.seconds,
        "run": row.run,
    }


def train(
    recipe: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    variants: str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    seeds: Sequence[int] | None = None,
    name: str | None = None,
    out: str | Path = "runs",
    jobs: int = 1,
    fresh: bool = False,
    allow_change: bool = False,
    device: str = "auto",
    data_dir: str | Path | None = None,
    offline: bool = False,
    plugins: Plugins = (),
    progress: bool = True,
) -> ComparedRuns:
    """Train every variant of a recipe with every seed, score them, and compare them.

    Finished runs are kept and interrupted ones resume, as with `attnkit train`.

    Args:
        recipe: name of a shipped recipe, a file, or the keys of one as a dict, which is written to OUT/NAME.yaml.
        overrides: KEY=VALUE texts, or a dict of dotted keys: {"train.steps": 200}.
        variants: name or names of those to train; or new ones in place of the recipe's, each with
            its overrides, which are written to OUT/NAME.yaml as well.
        seeds: instead of the recipe's.
        name: of a recipe that is written to OUT, by default own.
        out: root folder of the runs.
        jobs: runs at a time, each in a process of its own.
        fresh, allow_change: replace existing runs; resume those of a changed recipe.
        device, data_dir, offline: as of `attnkit train`.
        plugins: Python files with mechanisms or metrics of your own.
        progress: show what happens.

    Raises:
        RecipeError: the recipe is wrong; says where and what would be right.
        UsageError: `name` of a recipe that has one.
        MissingInputError, DataError: a file is not there or malformed.
        DivergedError: a loss or gradient is not finite.
    """
    plug_in(plugins)
    own = variants if isinstance(variants, Mapping) else None
    path = _path(recipe, own, Path(out), name)
    file = load_recipe(path, _words(overrides), option_check=models.check_options)
    named = [] if variants is None or isinstance(variants, Mapping) else several(variants)
    folder = None if data_dir is None else Path(data_dir)
    how: dict[str, Any] = {"fresh": fresh, "allow_change": allow_change, "device": device, "offline": offline}
    chosen = file.chosen(named)
    settings = TrainingSettings(file=file, out=Path(out), variants=chosen, seeds=seeds, data_dir=folder, **how)
    with shown(settings, progress) as show:
        found = training.train(settings, show, jobs=jobs)
    assert found is not None
    return ComparedRuns(**vars(found))


def _path(
    recipe: str | Path | Mapping[str, Any], own: Mapping[str, Mapping[str, Any]] | None, out: Path, name: str | None
) -> str | Path:
    """Where the recipe is, which is written first if it is a dict or has new variants."""
    if isinstance(recipe, Mapping) or own is not None:
        return _written(recipe, own, out, name or "own")
    if name is not None:
        raise UsageError(f"name={name!r} is for a dict or for new variants; {recipe} has a name")
    return recipe


def _words(overrides: Overrides) -> list[str]:
    """KEY=VALUE words; values of a dict in YAML's short form."""
    if not isinstance(overrides, Mapping):
        if isinstance(overrides, str):
            raise UsageError('overrides must be a list or a dict, such as {"train.steps": 200}')
        return list(overrides)
    return [f"{key}={_flow(value)}" for key, value in overrides.items()]


def _flow(value: Any) -> str:
    text = yaml.safe_dump(_plain(value), default_flow_style=True, width=10**6, sort_keys=False)
    return str(text).removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> Any:
    """Values that YAML knows: paths as text, tuples as lists, NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _written(
    recipe: str | Path | Mapping[str, Any], variants: Mapping[str, Mapping[str, Any]] | None, out: Path, name: str
) -> Path:
    """A recipe file in `out` of keys or of other variants; paths in it are made absolute."""
    if not is_name(name):
        raise UsageError(f"name {name!r} cannot name a run folder")
    if isinstance(recipe, Mapping):
        keys = _plain(recipe)
    else:
        keys = {"extends": str(resolve(recipe).absolute())}
    if variants is not None:
        keys |= {"variants": _plain(variants)}
    try:
        text = yaml.safe_dump(_absolute(keys), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise RecipeError(f"the recipe has a value that YAML does not know: {error}") from error
    make_folder(out)
    path = out / f"{name}.yaml"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_output(path, text)
    return path


def _absolute(value: Any, key: tuple[str, ...] = ()) -> Any:
    """The keys of a recipe with names of files from the current folder, also in variants.

    What is not there stays as it is: it may be in the data folder, a data set of Hugging Face, or a shipped recipe.
    """
    if isinstance(value, dict):
        return {
            name: _absolute(one, (*key, *([name] if key == ("variants",) else name.split("."))))
            for name, one in value.items()
        }
    key = key[2:] if key[:1] == ("variants",) else key
    if key not in (*build.PATHS, ("extends",)):
        return value
    if isinstance(value, list):
        return [_absolute(one, key) for one in value]
    return build.found(value, COMMAND_LINE, key == build.INIT) if isinstance(value, str) else value


def evaluate(
    runs: str | Path | Sequence[str | Path],
    *,
    splits: str | Sequence[str] | None = None,
    metrics: str | Sequence[str] | None = None,
    search: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    fresh: bool = False,
    device: str = "auto",
    data_dir: str | Path | None = None,
    offline: bool = False,
    plugins: Plugins = (),
) -> ComparedRuns:
    """Score finished runs side by side; what has been scored before is read.

    Args:
        runs: folders with one or more runs, or "demo".
        splits: one name or several; default those of each run's recipe.
        metrics: one name or several, such as bleu, chrf, rouge; default those of each run's recipe.
        search: keys of the search section, such as {"method": "beam", "beam": 4}.
        baseline: the variant that others are compared with; default the recipe's.
        fresh: decode and score again.
        device, data_dir, offline: as of `attnkit eval`.
        plugins: Python files with mechanisms or metrics of your own.

    Raises:
        MissingInputError: there is no finished run.
        UsageError: there is no such metric, or the task does not have it.
        RecipeError: a key does not fit.
    """
    plug_in(plugins)
    found = find_runs([runs] if isinstance(runs, str | Path) else runs)
    one_task(found, "score each task by itself")
    changes = {"metrics": expand(several(metrics))} if metrics else {}
    words = [f"search.{key}={_flow(value)}" for key, value in (search or {}).items()]
    rows = list[ScoreRow]()
    for run in found:
        recipe = run.changed_recipe(words) if words else run.recipe
        recipe = recipe.model_copy(update={"eval": recipe.eval.model_copy(update=changes)})
        rows += evaluate_run(
            run, recipe, several(splits or ()), force=fresh, device=device, data_dir=data_dir, offline=offline
        )
    decided, variants = baselines(found), {run.variant for run in found}
    if baseline is not None and baseline not in variants:
        known = ", ".join(sorted(variants))
        raise UsageError(f"baseline {baseline!r}: no run is of this variant; choose from {known}")
    if baseline is not None:
        decided = dict.fromkeys(decided, baseline)
    settings, published = found[0].recipe.eval, PublishedFigures.of_runs(found)
    result = side_by_side(rows, decided, settings, published=published)
    return ComparedRuns(**vars(result))
